"""What a pruner accepts, and what it says about the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import InvalidInput, invalid


def checked_targets(
    targets: Tensor | NDArray[Any] | Sequence[int], classes: int | None
) -> tuple[NDArray[np.int64], list[int]]:
    """Labels as int64, a copy of our own, and the number of samples of each class."""
    labels = targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    if labels.ndim != 1 or labels.size == 0:
        raise invalid("targets", "be one label per sample, at least one", f"shape {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise invalid("targets", "be whole numbers", labels.dtype, "One-hot or soft labels: take the argmax.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise invalid("targets", "not be negative", f"{low} at index {int(labels.argmin())}")
    if classes is not None and high >= classes:
        raise invalid("targets", f"lie in 0..{classes - 1}", f"{high} at index {int(labels.argmax())}")
    if high >= 2**20:
        raise invalid("targets", "lie below 2**20", high, "Number the classes 0..K-1.")
    labels = np.array(labels, dtype=np.int64)  # a copy of our own, contiguous
    sizes = np.bincount(labels, minlength=classes or 0)
    if classes is None and not sizes.all():
        raise invalid(
            "targets",
            "hold every class",
            f"none of class {int(np.argmin(sizes))}",
            "Number the classes 0..K-1, or give classes= where a class is meant to be empty.",
        )
    return labels, sizes.tolist()


def check_options(*, ema: float, seed: int, epochs: int | None, minimum_per_class: int, batch_size: int | None) -> None:
    """Refuse values outside their range."""
    if not 0 < ema <= 1:
        raise invalid("ema", "lie in (0, 1]", ema, "The paper uses 0.3; 1.0 keeps the last confidence alone.")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise invalid("seed", "be a whole number, at least 0", repr(seed))
    if epochs is not None and epochs < 1:
        raise invalid("epochs", "be at least 1", epochs)
    if minimum_per_class < 1:
        raise invalid("minimum_per_class", "be at least 1", minimum_per_class, "A class is never emptied.")
    if batch_size is not None and batch_size < 1:
        raise invalid("batch_size", "be at least 1", batch_size)


def check_settings(state: Mapping[str, Any], mine: Mapping[str, Any], *, strict: bool) -> None:
    """Refuse a state that belongs to other data or, if strict, to other settings."""
    if "settings" not in state or "rows" not in state:
        raise InvalidInput("state must be what state_dict gave, got something else.")
    theirs = state["settings"]
    needed = mine if strict else ("samples", "classes", "targets")
    differs = [
        f"{name} ({theirs.get(name)} there, {mine[name]} here)" for name in needed if theirs.get(name) != mine[name]
    ]
    if differs:
        raise invalid(
            "state", "come from a pruner with the same settings", f"another {', '.join(differs)}", "See strict=False."
        )
