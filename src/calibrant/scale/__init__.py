"""Where work is done: in processes of this machine, or on a Ray cluster."""

from calibrant.scale.choice import ExecutorName, make_executor, refuse_on_cluster
from calibrant.scale.processes import Processes, end_with_parent, exit_code_of, run_tasks
from calibrant.scale.task import Ended, Executor, Task, as_mapper

__all__ = [
    "Ended",
    "Executor",
    "ExecutorName",
    "Processes",
    "Task",
    "as_mapper",
    "end_with_parent",
    "exit_code_of",
    "make_executor",
    "refuse_on_cluster",
    "run_tasks",
]
