"""The place of the work by its name, as `--executor` and `--address` give it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from calibrant.errors import invalid
from calibrant.files import refuse_existing
from calibrant.scale.task import Executor

ExecutorName = Literal["local", "ray"]


@contextmanager
def make_executor(
    name: ExecutorName = "local", *, address: str | None = None, new_folder: Path | None = None
) -> Iterator[Executor | None]:
    """The executor while the block runs; None for processes of this machine.

    Args:
        name: "local", or "ray" (which needs `pip install 'calibrant[ray]'`).
        address: Of the head of a Ray cluster that this machine belongs to: `HOST:PORT`, or "auto" to look for it. None
            starts Ray on this machine alone, unless the environment variable RAY_ADDRESS names a cluster.
        new_folder: What a cluster is to write; where it exists, it is refused before anything is started.
    """
    if name not in get_args(ExecutorName):
        raise invalid("executor", "be local or ray", repr(name))
    if name == "local":
        if address is not None:
            raise invalid("address", "be left out for the local executor", repr(address), "Add --executor ray.")
        yield None
        return
    if new_folder is not None:
        refuse_existing(new_folder)
    from calibrant.scale.on_ray import RayExecutor

    with RayExecutor(address) as executor:
        yield executor


def refuse_on_cluster(executor: ExecutorName, **settings: Any) -> None:
    """Refuse settings that only the local executor has a use for, where another one is chosen."""
    for name, value in settings.items():
        if executor != "local" and value not in (None, False, 0):
            flag = name.replace("_", "-")
            raise invalid(
                name, f"be left out with --executor {executor}", value, f"Leave out --{flag}, or run it locally."
            )
