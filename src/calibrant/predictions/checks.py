"""The rules for scores, targets, ids and class names, and the messages for who breaks them."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import as_array, labels
from calibrant.defaults import Kind
from calibrant.errors import CalibrantWarning, InvalidInput, invalid

Precision = Literal["float16", "bfloat16", "float32", "float64"]

PRECISIONS: dict[int, Precision] = {2: "float16", 4: "float32", 8: "float64"}

# What the columns of a table that hold scores begin with, and what their scores are ("scores": it does not say).
PREFIXES = {"logit_": "logits", "probability_": "probabilities", "prob_": "probabilities", "score_": "scores"}
# Names that a column of another meaning cannot have, because a file of ours gives them one.
_OWN_NAMES = ("target", "id", "targets", "ids", "logits", "probabilities", "scores", "class_names", "precision", "")

_LONGEST_ID = 1000
_LIKE_PROBABILITIES = 10
# A row of a hundred probabilities with three digits can miss 1 by this much.
_ROUNDED = 0.05

# How far from 1 the sum of a row of probabilities may lie. Half precision rounds each entry by up to 2^-11 (float16)
# or 2^-9 (bfloat16) of itself, so an honest row can be off by that much.
SUM_TOLERANCE: dict[Precision, float] = {"float16": 1e-3, "bfloat16": 5e-3, "float32": 1e-4, "float64": 1e-4}


def as_scores(name: str, values: Any, kind: Kind) -> tuple[NDArray[Any], Precision]:
    """Turn what the user passed into an (n, K) NumPy float array without copying where possible."""
    precision: Precision | None = "bfloat16" if getattr(values, "dtype", None) == torch.bfloat16 else None
    values = as_array(name, values)
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    check_shape(name, values.shape, values.dtype, kind)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    return values, precision or PRECISIONS[values.dtype.itemsize]


def warn_if_probabilities(logits: NDArray[Any], *, stacklevel: int) -> None:
    """Warn where what came as logits looks like probabilities; nothing is changed by it."""
    head = logits[:256]
    # A few rows may look so by chance, and rows of 0 and 1 are somebody's example.
    if len(head) < _LIKE_PROBABILITIES or (head < 0).any() or (head > 2).any() or (head == head.round()).all():
        return
    if np.allclose(head.sum(axis=1, dtype=np.float64), 1.0, atol=SUM_TOLERANCE["bfloat16"]):
        warnings.warn(
            "logits: every row is non-negative and sums to 1, as probabilities do. They were taken as logits. If they "
            "are probabilities, use Predictions.from_probabilities; in a file, the key probabilities or the columns "
            "probability_CLASS.",
            CalibrantWarning,
            stacklevel=stacklevel,
        )


def check_shape(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], kind: Kind) -> None:
    """Refuse scores that are not (n, K) floating-point numbers with at least one row and two classes."""
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise invalid(name, "hold floating-point numbers", f"dtype {dtype}")
    single = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1 and shape[0])
    one_column = f"For one column, that of class 1 of two, use Predictions.from_binary(..., kind='{kind}')."
    way_out = one_column if single else ""
    if len(shape) != 2:
        raise invalid(name, "have shape (n, K)", f"shape {shape}", way_out)
    if 0 in shape or shape[1] == 1:
        raise invalid(name, "have at least one row and two classes", f"shape {shape}", way_out)


def as_targets(targets: Any, rows: int, classes: int) -> NDArray[np.int64]:
    """Check one integer label in 0..K-1 for each row."""
    values = labels("targets", as_array("targets", targets), rows=rows, n_classes=classes)
    return np.ascontiguousarray(values, dtype=np.int64)


def as_ids(ids: Any, rows: int) -> NDArray[Any] | None:
    """Check one distinct string or integer for each row."""
    if ids is None:
        return None
    values = as_array("ids", ids)
    if values.dtype == object and all(isinstance(value, str) for value in values.ravel()):
        check_id_lengths(values.ravel())
        values = values.astype(np.str_)
    if values.dtype.kind not in "iuU":
        raise invalid("ids", "be strings or integers", f"dtype {values.dtype}")
    if values.shape != (rows,):
        raise invalid("ids", f"have shape ({rows},), one per row", f"shape {values.shape}")
    unique, first = np.unique(values, return_index=True)
    if len(unique) < rows:
        again = int(np.setdiff1d(np.arange(rows), first)[0])
        raise invalid("ids", "be distinct", f"{values[again].item()!r} again in row {again}")
    return values


def check_id_lengths(ids: NDArray[Any]) -> None:
    """Refuse long text: in an array of text every id takes the room of the longest, and results repeat it."""
    longest = max(map(len, ids), default=0)
    if longest > _LONGEST_ID:
        raise invalid("ids", f"have at most {_LONGEST_ID} characters", f"one of {longest}")


def as_class_names(names: Sequence[str] | NDArray[Any] | None, classes: int) -> tuple[str, ...] | None:
    """Check one distinct, non-empty string for each class."""
    if names is None:
        return None
    result = tuple(names.tolist() if isinstance(names, np.ndarray) else names)
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in result):
        raise invalid("class_names", "be non-empty strings", repr(names))
    if len(result) != classes:
        raise invalid("class_names", f"name all {classes} classes", f"{len(result)} names")
    if len(set(result)) < classes:
        again = next(name for index, name in enumerate(result) if name in result[:index])
        raise invalid("class_names", "be distinct", f"{again!r} twice")
    return result


def as_extras(extras: Mapping[str, Any] | None, rows: int) -> dict[str, NDArray[Any]]:
    """Check one number or string per row in each of the other columns."""
    found = {}
    for name, column in (extras or {}).items():
        taken = isinstance(name, str) and name.startswith(("logit_", "probability_", "prob_"))
        if not isinstance(name, str) or name in _OWN_NAMES or taken:
            raise invalid("extras", "have names that are not those of targets, ids or scores", repr(name))
        values = as_array(f"extras[{name!r}]", column)
        plain = values.dtype.kind in "biufU" or all(isinstance(value, str) for value in values.ravel())
        if not plain or values.shape != (rows,):
            rule = f"hold {rows} numbers or strings, one per row"
            raise invalid(f"extras[{name!r}]", rule, f"dtype {values.dtype} of shape {values.shape}")
        found[name] = values.view()
        found[name].flags.writeable = False
    return found


def refuse_scores(name: str, scores: NDArray[Any], first_row: int, tolerance: float | None) -> None:
    """Find the first bad row of a chunk that failed the fast test and raise; return if the test was too careful.

    Args:
        name: The argument to name.
        scores: Rows of a chunk.
        first_row: Index of the chunk's first row.
        tolerance: For probabilities, how far a row's sum may be from 1; None for logits.
    """
    wide = scores.astype(np.float64)
    finite = np.isfinite(wide).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        column = int(np.argmin(np.isfinite(wide[row])))
        _refuse(
            name, "be finite", wide[row, column], first_row + row, column, "Leave such rows out or find their cause."
        )
    if tolerance is None:
        return
    negative = (wide < 0).any(axis=1)
    if negative.any():
        row = int(np.argmax(negative))
        column = int(np.argmax(wide[row] < 0))
        _refuse(name, "not be negative", wide[row, column], first_row + row, column, "For logits use from_logits.")
    total = wide.sum(axis=1)
    off = np.abs(total - 1.0) > tolerance
    if off.any():
        row = int(np.argmax(off))
        way_out = "Rows are never renormalised silently: for logits use from_logits, else divide rows by their sums."
        if abs(total[row] - 1) < _ROUNDED:
            way_out = "If they were rounded, write more digits or divide each row by its sum."
        if abs(total[row] - 100) < 1:
            way_out = "These look like percentages: divide them by 100."
        rule = f"sum to 1 within {tolerance:g} in every row"
        raise invalid(name, rule, f"{total[row]:.6g} in row {first_row + row}", way_out)


def _refuse(name: str, rule: str, value: float, row: int, column: int, way_out: str) -> NoReturn:
    raise invalid(name, rule, f"{value:g} in row {row}, column {column}", way_out)


def as_rows(mask: Any, rows: int) -> NDArray[Any]:
    """Check a boolean mask or integer row numbers for `subset`."""
    values = as_array("mask", mask)
    if values.dtype == bool:
        if values.shape != (rows,):
            raise invalid("mask", f"have shape ({rows},)", f"shape {values.shape}")
        chosen = np.flatnonzero(values)
    elif values.dtype.kind in "iu" and values.ndim == 1:
        chosen = values
        if chosen.size and (chosen.min() < 0 or chosen.max() >= rows):
            raise invalid("mask", f"hold row numbers in 0..{rows - 1}", f"{chosen.min()}..{chosen.max()}")
    else:
        raise invalid("mask", "be booleans, one per row, or row numbers", f"{values.dtype} of shape {values.shape}")
    if chosen.size == 0:
        raise InvalidInput("mask must keep at least one row, got none.")
    return chosen


def both_classes(scores: Any, kind: Kind) -> NDArray[Any]:
    """Scores of two classes, shape (n, 2), from those of class 1 alone."""
    values = as_array("scores", scores)
    if kind not in ("logits", "probabilities"):
        raise invalid("kind", "be 'logits' or 'probabilities'", repr(kind))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind != "f":
        way_out = "For two columns use from_logits or from_probabilities." if values.ndim == 2 else ""
        raise invalid("scores", "be one floating-point number per row", f"{values.dtype} of {values.shape}", way_out)
    if kind == "logits":
        return np.stack([np.zeros_like(values), values], axis=1)
    outside = ~((values >= 0) & (values <= 1))
    if outside.any():
        row = int(np.argmax(outside))
        raise invalid("scores", "lie in 0..1", f"{values[row]} in row {row}", "For logits say kind='logits'.")
    # In float64, because 1 - p of a small float32 p is 1, and then p would be lost in the sum.
    wide = values.astype(np.float64)
    return np.stack([1.0 - wide, wide], axis=1)
