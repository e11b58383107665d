"""Work on many parts or many tasks: in this process, in processes of this machine, or on a Ray cluster."""

from calibrant.scale.processes import Processes, task_main
from calibrant.scale.work import (
    Accumulator,
    Ended,
    Executor,
    ExecutorName,
    Task,
    fold,
    make_executor,
    map_parts,
    refuse_on_cluster,
    run_tasks,
)

__all__ = [
    "Accumulator",
    "Ended",
    "Executor",
    "ExecutorName",
    "Processes",
    "Task",
    "fold",
    "make_executor",
    "map_parts",
    "refuse_on_cluster",
    "run_tasks",
    "task_main",
]
