"""Checks of what a pruner is given."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.checks import as_array, labels, number, require_tensor, whole
from calibrant.errors import invalid
from calibrant.pruning.policies import PruningPolicy

_MOST_CLASSES = 2**20
"""A hash or an id that is given as a label would ask for a table of its size."""
_DATA = ("samples", "classes", "targets")
"""Settings that describe the data. A state with other values belongs to other data and cannot be loaded."""
_TABLES = {"shared_count": torch.float32, "weights": torch.float32, "kept_mask": torch.bool, "left": torch.int32}
"""Entries of a state with one value per sample."""
_STATE = ("rows", *_TABLES, "history", "epoch", "memory", "notes", "settings")


def check_logits(logits: Tensor, rows: int, n_classes: int) -> None:
    """Refuse logits that do not fit the indices or the classes; looks at shapes alone."""
    require_tensor("logits", logits)
    if logits.ndim != 2 or logits.shape[1] != n_classes:
        way_out = ""
        if logits.ndim == 2 and logits.shape[1] > n_classes:
            way_out = f"Make the pruner with n_classes={logits.shape[1]} where some have no samples."
        elif n_classes == 2 and logits.shape == (rows, 1):
            way_out = "One logit z is the same as two: torch.cat([torch.zeros_like(z), z], dim=1)."
        raise invalid("logits", f"have shape (batch, {n_classes})", tuple(logits.shape), way_out)
    if rows != len(logits):
        raise invalid("indices", f"have shape ({len(logits)},), one per row of logits", f"({rows},)")


def check_range(indices: Tensor, samples: int) -> None:
    """Refuse indices of samples that do not exist; reads their values."""
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= samples:
        way_out = "Wrap what the loader reads, outermost: Indexed(Subset(...))." if high >= samples else ""
        raise invalid("indices", f"lie in 0..{samples - 1}", low if low < 0 else high, way_out)


def checked_loss(loss: object) -> float | None:
    """The loss of an epoch: a number, or a tensor or array that holds one."""
    if isinstance(loss, Tensor | np.ndarray) and prod(loss.shape) == 1:
        loss = loss.item()
    return None if loss is None else number("loss", loss)


def checked_targets(
    targets: Tensor | NDArray[Any] | Sequence[int], n_classes: int | None
) -> tuple[NDArray[np.int64], list[int]]:
    """Labels as int64, a copy of our own, and the number of samples of each class."""
    limit = _MOST_CLASSES if n_classes is None else min(whole("n_classes", n_classes, 1), _MOST_CLASSES)
    found = labels("targets", as_array("targets", targets), n_classes=limit)
    found = np.array(found, dtype=np.int64)  # a copy of our own, contiguous
    sizes = np.bincount(found, minlength=n_classes or 0)
    if n_classes is None and not sizes.all():
        raise invalid(
            "targets",
            "hold every class",
            f"none of class {int(np.argmin(sizes))}",
            "Number the classes 0..K-1, or give n_classes= where a class is meant to be empty.",
        )
    return found, sizes.tolist()


def check_options(*, ema: float, seed: int) -> None:
    """Refuse values outside their range."""
    if not 0 < number("ema", ema) <= 1:
        raise invalid("ema", "lie in (0, 1]", ema, "The paper uses 0.3; 1.0 keeps the last confidence alone.")
    whole("seed", seed, 0)


def check_fixed_batches(fixed: bool, policy: PruningPolicy | None, scoring: str) -> None:
    """Refuse fixed batches where they would make a plan mean nothing."""
    if fixed and (policy is None or policy.redraws):
        raise invalid("fixed_batches", f"be False with policy {policy}", True, "Its draws would change nothing.")
    if fixed and (policy is None or policy.from_all or scoring != "batches"):
        raise invalid("fixed_batches", "be False with re-admission or scoring", True, "In fixed batches nobody rests.")


def check_indices(indices: Tensor, samples: int, *, validate: bool) -> None:
    """Refuse what are no indices; their range is looked at on the CPU, and elsewhere, where it waits, on request."""
    require_tensor("indices", indices)
    if indices.dtype not in {torch.int64, torch.int32}:
        raise invalid("indices", "be int64", indices.dtype)
    if indices.ndim != 1:
        raise invalid("indices", "have shape (batch,)", tuple(indices.shape))
    free = indices.device.type == "cpu" or validate
    if free and not torch.compiler.is_compiling() and len(indices):
        check_range(indices, samples)


def check_settings(state: object, mine: Mapping[str, Any], *, strict: bool) -> None:
    """Refuse a state that belongs to other data or, if strict, to other settings."""
    if not isinstance(state, Mapping):
        raise invalid("state", "be what state_dict gave", "None" if state is None else type(state).__name__)
    if missing := [name for name in _STATE if name not in state]:
        raise invalid("state", "be what state_dict gave", f"something without {missing[0]}")
    theirs = state["settings"]
    if not isinstance(theirs, Mapping):
        raise invalid("state", "be what state_dict gave", f"settings of type {type(theirs).__name__}")
    compared = {**mine, **theirs} if strict else _DATA
    differs = [name for name in compared if theirs.get(name) != mine.get(name)]
    if not differs:
        _check_state(state, mine["samples"], mine["classes"])
        return
    # The settings hold a digest of the labels, which means nothing to a reader, so it is described in words.
    words = {"targets": "targets (other labels, or the same in another order)"}
    found = ", ".join(words.get(name, f"{name} ({theirs.get(name)} there, {mine.get(name)} here)") for name in differs)
    way_out = "Pass strict=False to go on with the settings here."
    if any(name in _DATA for name in differs):
        way_out = "It belongs to other data; start without it."
    raise invalid("state", "come from a pruner with the same settings", f"another {found}", way_out)


def _check_state(state: Mapping[str, Any], samples: int, n_classes: int) -> None:
    """Refuse a state with the right names and the settings of this pruner, but values of other types or shapes."""
    history, rows, notes = state["history"], state["rows"], state["notes"]
    fine = {
        **{name: _is_table(state[name], dtype, samples) for name, dtype in _TABLES.items()},
        "rows": isinstance(rows, Tensor) and rows.dtype == torch.float32,
        "history": isinstance(history, Tensor) and history.ndim == 2 and history.shape[1] == n_classes,
        "epoch": isinstance(state["epoch"], int) and state["epoch"] >= 0,
        "memory": isinstance(state["memory"], Mapping),
        "notes": isinstance(notes, list) and all(_is_note(note) for note in notes),
    }
    if wrong := [name for name, holds in fine.items() if not holds]:
        raise invalid("state", "be what state_dict gave", f"something else under {wrong[0]!r}")


def _is_table(value: object, dtype: torch.dtype, samples: int) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype and value.shape == (samples,)


def _is_note(value: object) -> bool:
    return isinstance(value, Mapping) and {name: type(part) for name, part in value.items()} == {
        "epoch": int,
        "text": str,
    }
