"""Where work is done: in processes of this machine, or on a Ray cluster."""

from calibrant.executing.choice import ExecutorName, make_executor, refuse_on_cluster
from calibrant.executing.processes import Processes, end_with_parent, exit_code_of, run_tasks
from calibrant.executing.task import Ended, Executor, Task, as_mapper

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
