"""Work on many parts or many tasks: in this process, in processes of this machine, or on a Ray cluster."""

from calibrant.scale.work import Executor, Processes, Task, make_executor, map_parts, run_tasks

__all__ = ["Executor", "Processes", "Task", "make_executor", "map_parts", "run_tasks"]
