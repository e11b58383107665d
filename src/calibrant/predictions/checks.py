"""The rules for scores, targets, ids, class names and other columns, and the message for each rule."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, is_bfloat16, labels
from calibrant.defaults import Kind
from calibrant.errors import CalibrantWarning, InvalidInput, invalid

Precision = Literal["float16", "bfloat16", "float32", "float64"]

PRECISIONS: dict[int, Precision] = {2: "float16", 4: "float32", 8: "float64"}

# Prefixes of the columns that hold scores, and what these scores are ("scores": the file does not say).
PREFIXES = {"logit_": "logits", "probability_": "probabilities", "prob_": "probabilities", "score_": "scores"}
# Names that other columns cannot have, because files use them for targets, ids and scores.
_RESERVED = ("target", "id", "targets", "ids", "logits", "probabilities", "scores", "class_names", "precision", "")

_LONGEST_ID = 1000
# Fewer rows than this may look like probabilities by chance.
_FEWEST_TO_WARN = 10
# A row of a hundred probabilities with three digits can miss 1 by this much.
_ROUNDED = 0.05

# How far from 1 the sum of a row of probabilities may be. Half precision rounds each entry by up to 2^-11 (float16) or
# 2^-9 (bfloat16) of its value, so a correct row can be off by that much.
SUM_TOLERANCE: dict[Precision, float] = {"float16": 1e-3, "bfloat16": 5e-3, "float32": 1e-4, "float64": 1e-4}


def as_scores(name: str, values: Any, kind: Kind) -> tuple[NDArray[Any], Precision]:
    """Convert scores to an (n, K) array of floats, without a copy if possible; return it and its precision."""
    precision: Precision | None = "bfloat16" if is_bfloat16(values) else None
    array = as_array(name, values)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    check_shape(name, array.shape, array.dtype, kind)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array, precision or PRECISIONS[array.dtype.itemsize]


def warn_if_probabilities(logits: NDArray[Any], *, stacklevel: int) -> None:
    """Warn if values passed as logits look like probabilities. Nothing is changed."""
    head = logits[:256]
    # Rows of 0 and 1 are examples that somebody wrote by hand.
    if len(head) < _FEWEST_TO_WARN or (head < 0).any() or (head > 2).any() or (head == head.round()).all():
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
    way_out = ""
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1 and shape[0]):
        way_out = f"For one column, that of class 1 of two, use Predictions.from_binary(..., kind='{kind}')."
    if len(shape) != 2:
        raise invalid(name, "have shape (n, K)", f"shape {shape}", way_out)
    if 0 in shape or shape[1] == 1:
        raise invalid(name, "have at least one row and two classes", f"shape {shape}", way_out)


def as_targets(targets: Any, rows: int, classes: int) -> NDArray[np.int64]:
    """Check one integer label in 0..K-1 per row."""
    values = labels("targets", as_array("targets", targets), rows=rows, n_classes=classes)
    return np.ascontiguousarray(values, dtype=np.int64)


def as_ids(ids: Any, rows: int) -> NDArray[Any] | None:
    """Check one distinct string or integer per row."""
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
    """Refuse long ids: in an array of text every id takes as much memory as the longest, and results repeat ids."""
    longest = max(map(len, ids), default=0)
    if longest > _LONGEST_ID:
        raise invalid("ids", f"have at most {_LONGEST_ID} characters", f"one of {longest}")


def as_class_names(names: Sequence[str] | NDArray[Any] | None, classes: int) -> tuple[str, ...] | None:
    """Check one distinct, non-empty string per class."""
    if names is None:
        return None
    result = tuple(names.tolist() if isinstance(names, np.ndarray) else names)
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in result):
        raise invalid("class_names", "be non-empty strings", repr(names))
    if len(result) != classes:
        raise invalid("class_names", f"name all {classes} classes", f"{len(result)} names")
    again = first_repeated(result)
    if again is not None:
        raise invalid("class_names", "be distinct", f"{again!r} twice")
    return result


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def as_extras(extras: Mapping[str, Any] | None, rows: int) -> dict[str, NDArray[Any]]:
    """Check one number or string per row in each of the other columns, and return read-only arrays."""
    checked = {}
    for name, column in (extras or {}).items():
        if not isinstance(name, str) or name in _RESERVED or name.startswith(("logit_", "probability_", "prob_")):
            raise invalid("extras", "have names that are not those of targets, ids or scores", repr(name))
        values = as_array(f"extras[{name!r}]", column)
        plain = values.dtype.kind in "biufU" or all(isinstance(value, str) for value in values.ravel())
        if not plain or values.shape != (rows,):
            rule = f"hold {rows} numbers or strings, one per row"
            raise invalid(f"extras[{name!r}]", rule, f"dtype {values.dtype} of shape {values.shape}")
        checked[name] = values.view()
        checked[name].flags.writeable = False
    return checked


def refuse_scores(name: str, scores: NDArray[Any], first_row: int, tolerance: float | None) -> None:
    """Raise an error for the first bad row of a chunk that failed the fast test; return if all rows are correct.

    Args:
        name: The argument to name.
        scores: Rows of a chunk.
        first_row: Index of the chunk's first row.
        tolerance: For probabilities, how far a row's sum may be from 1; None for logits.
    """
    wide = scores.astype(np.float64)
    _refuse_cells(name, "be finite", wide, ~np.isfinite(wide), first_row, "Leave such rows out or find their cause.")
    if tolerance is None:
        return
    _refuse_cells(name, "not be negative", wide, wide < 0, first_row, "For logits use from_logits.")
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


def _refuse_cells(
    name: str, rule: str, scores: NDArray[Any], bad: NDArray[np.bool_], first_row: int, way_out: str
) -> None:
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise invalid(name, rule, f"{scores[row, column]:g} in row {first_row + row}, column {column}", way_out)


def as_rows(mask: Any, rows: int) -> NDArray[Any]:
    """Check a boolean mask or integer row numbers for `subset`, and return row numbers."""
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
    """Compute the scores of two classes, shape (n, 2), from those of class 1 alone."""
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


def class_order(
    wanted: Sequence[str] | None, names: Sequence[str] | None, classes: int, *, where: str
) -> list[int] | None:
    """Find the place of each wanted class among `names`. Names decide, not positions.

    Classes without names are called 0..K-1, as in the columns of a table. If `names` are these numbers, classes are put
    in the order of their numbers. Any other difference in names is an error.

    Args:
        wanted: Names in the order wanted, or None.
        names: Names in the present order, or None.
        classes: Number of classes.
        where: What the error calls `names`.

    Returns:
        The places, or None if the order is already as wanted.
    """
    numbers = names_or_numbers(None, classes)
    wanted = tuple(wanted or numbers)
    names = tuple(names or numbers)
    if set(wanted) != set(names):
        if set(names) != set(numbers):
            raise _other_names(wanted, names, where=where)
        wanted = numbers
    if wanted == names:
        return None
    place = {name: k for k, name in enumerate(names)}
    return [place[name] for name in wanted]


def _other_names(wanted: tuple[str, ...], names: tuple[str, ...], *, where: str) -> InvalidInput:
    known = set(wanted)
    unknown = shortened([name for name in names if name not in known])
    if wanted == names_or_numbers(None, len(wanted)):
        way_out = "To use these names, fit on predictions that have them."
        return invalid(where, f"name the classes 0..{len(wanted) - 1}", unknown, way_out)
    return invalid(where, f"name the classes {shortened(wanted)}", unknown)


def shortened(names: Sequence[str], most: int = 5) -> str:
    """Join the first `most` names for a message."""
    shown = [name[:40] for name in names[:most]]
    if len(names) > most:
        shown.append("...")
    return ", ".join(shown)


def names_or_numbers(class_names: Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    """Return the class names, or 0..K-1 as text if there are none."""
    return tuple(class_names or map(str, range(n_classes)))
