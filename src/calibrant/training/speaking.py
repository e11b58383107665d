"""Which of several processes says what happened to a run, and in what words."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calibrant.errors import CalibrantError, one_line
from calibrant.runs import is_run
from calibrant.training.cluster import launched_by_srun
from calibrant.training.data import Unreadable

# The number of the process that started this one; set for the processes that we start.
LAUNCHER = "CALIBRANT_LAUNCHER"
# The exit code of a process that has complained in a line.
REFUSED = 2
# torchrun shows what lies in this file below the tracebacks of its own.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_TOLD = "The first process says this, too."


class ProcessLost(CalibrantError):
    """Another process of the run ended before the run did."""


def stopped_message(path: Path) -> str:
    """What a person who stopped the run at `path` should know."""
    if not is_run(path):
        return "stopped before anything was written"
    return f"stopped; continue with: calibrant train --resume {path}"


def lost_message(which: str, path: Path) -> str:
    """What a person should know where a process of the run at `path` is gone."""
    way_out = f" Continue with: calibrant train --resume {path}" if is_run(path) else ""
    return f"{which} of this run ended before the run did.{way_out}"


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """Say in an interrupt how the run at `path` can be continued."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(stopped_message(path)) from error


@contextmanager
def first_process_speaks() -> Iterator[None]:
    """Let one of several processes say what went wrong: the first, unless only another one knows it."""
    try:
        yield
    except (CalibrantError, OSError, KeyboardInterrupt) as error:
        if not isinstance(error, KeyboardInterrupt):
            _leave_for_torchrun(error)
        if is_first_process():
            raise
        if isinstance(error, KeyboardInterrupt) or is_told(error):
            raise SystemExit(REFUSED) from error
        if isinstance(error, ProcessLost | Unreadable) or not isinstance(error, CalibrantError):
            # The lost process may be the first; a picture or a disk fails one process alone.
            raise
        if LAUNCHER in os.environ and "RANK" not in os.environ and not launched_by_srun():
            # The first process has passed this place, or it would not have started this one.
            raise CalibrantError(f"process {os.environ['LOCAL_RANK']}: {error}") from error
        raise SystemExit(REFUSED) from error


def mark_told(error: Exception) -> None:
    """Note on an error that the first process knows it and says it to the user."""
    error.add_note(_TOLD)


def is_told(error: BaseException) -> bool:
    """Whether the first process says this error to the user."""
    return _TOLD in getattr(error, "__notes__", ())


def is_first_process() -> bool:
    """Whether this process is the one that speaks, also before the processes have met."""
    # torchrun sets RANK, srun SLURM_PROCID (also for a process alone, where it says nothing), our launcher LOCAL_RANK.
    alone = os.environ.get("SLURM_PROCID", "0") if launched_by_srun() else os.environ.get("LOCAL_RANK", "0")
    return int(os.environ.get("RANK", alone)) == 0


def _leave_for_torchrun(error: Exception) -> None:
    """Write an error where torchrun looks for it: it shows the earliest one as the cause, and its own noise above."""
    place = os.environ.get(_ERROR_FILE)
    if place:
        # It counts whole seconds, and a lost process is never the cause.
        moment = int(time.time()) + isinstance(error, ProcessLost)
        told = {"message": f"calibrant: {one_line(error)}", "extraInfo": {"timestamp": str(moment)}}
        with suppress(OSError):
            Path(place).write_text(json.dumps({"message": told}))
