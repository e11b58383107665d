"""Processes that somebody else started: torchrun, or Slurm's srun. Who this process is, and how many there are.

torch and Fabric read torchrun's variables; srun has variables of its own, from which torchrun's follow.
"""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from calibrant.errors import InvalidInput


class Started(NamedTuple):
    """Processes on each machine, and number of machines."""

    devices: int
    nodes: int


def started_layout() -> Started | None:
    """The layout of processes that torchrun or srun started; None where this process was started alone."""
    if launched_by_srun():
        os.environ.update(torchrun_variables(os.environ))
    elif not _launched_by_torchrun():
        return None
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return Started(local, int(os.environ["WORLD_SIZE"]) // local)


def launched_by_srun() -> bool:
    """Whether this is one of several tasks of a job step. A batch script itself has no step and is one process."""
    return not _launched_by_torchrun() and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


def _launched_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def torchrun_variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would have set for a task of srun; MASTER_ADDR and MASTER_PORT that are set already win.

    >>> task = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    >>> task |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "gpu[07-08]"}
    >>> made = torchrun_variables(task | {"SLURM_JOB_ID": "81234", "SLURM_STEP_ID": "2"})
    >>> made["RANK"], made["LOCAL_RANK"], made["LOCAL_WORLD_SIZE"], made["MASTER_ADDR"]
    ('3', '1', '2', 'gpu07')
    """
    try:
        tasks, nodes = int(slurm["SLURM_STEP_NUM_TASKS"]), int(slurm.get("SLURM_STEP_NUM_NODES", "1"))
        ranks = {
            "RANK": slurm["SLURM_PROCID"],
            "LOCAL_RANK": slurm["SLURM_LOCALID"],
            "GROUP_RANK": slurm.get("SLURM_NODEID", "0"),
        }
    except KeyError as error:
        raise InvalidInput(f"srun must set {error.args[0]} for each task, and it is missing here.") from error
    each = slurm.get("SLURM_STEP_TASKS_PER_NODE", "")
    # "4(x2)" is 4 on each of two nodes; "4,3" is not the same on all.
    if tasks % nodes or (each and "," in each):
        raise InvalidInput(
            f"srun must start the same number of tasks on every node, got {tasks} on {nodes} ({each or 'unknown'}). "
            "Use --ntasks-per-node."
        )
    # Two steps of one job may run at the same time, and so may two jobs on one machine.
    port = 15_000 + (int(slurm.get("SLURM_JOB_ID", "0")) * 31 + int(slurm.get("SLURM_STEP_ID", "0"))) % 15_000
    return {
        **ranks,
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(tasks // nodes),
        "MASTER_ADDR": slurm.get("MASTER_ADDR") or (_first_host(slurm) if nodes > 1 else "127.0.0.1"),
        "MASTER_PORT": slurm.get("MASTER_PORT") or str(port),
    }


def _first_host(slurm: Mapping[str, str]) -> str:
    """The first of Slurm's compressed list: `gpu07` of `gpu[07-08,11],cpu1`."""
    nodes = slurm.get("SLURM_STEP_NODELIST", "")
    found = re.match(r"([^\[,\s]+)(?:\[([^\],-]+)[^\]]*\])?", nodes)
    if found is None:
        raise InvalidInput("srun over several nodes needs SLURM_STEP_NODELIST, or MASTER_ADDR set by hand.")
    return found[1] + (found[2] or "")
