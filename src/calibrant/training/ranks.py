"""Work that the first of several processes does for all of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from calibrant.errors import CalibrantError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

T = TypeVar("T")


def on_first_rank(fabric: "Fabric", work: Callable[[], T]) -> T:
    """Do `work` on the first rank while the others wait; all get its result, or its error.

    Without this an error on the first rank (a full disk) would leave the others waiting for it for half an hour.
    """
    if fabric.world_size == 1:
        return work()
    result: T | None = None
    problem: CalibrantError | None = None
    if fabric.global_rank == 0:
        try:
            result = work()
        except CalibrantError as error:
            problem = error
    told, shared = cast("tuple[str | None, T]", fabric.broadcast((str(problem) if problem else None, result)))
    if problem is not None:
        raise problem
    if told is not None:
        raise CalibrantError(told)
    return shared
