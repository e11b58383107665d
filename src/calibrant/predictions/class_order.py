"""The same classes in another order: names decide, not positions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from calibrant.errors import InvalidInput, invalid

if TYPE_CHECKING:
    from calibrant.predictions import Predictions


def in_order_of(class_names: tuple[str, ...] | None, predictions: "Predictions", *, where: str) -> "Predictions":
    """`predictions` with columns and targets in the order of `class_names`.

    A side without names counts as named 0..K-1, as in a table's columns. Predictions whose classes are called by their
    number are put in order by number. Other names are refused: where `class_names` is None, nothing says which of
    named classes is class 0.

    Args:
        class_names: One for each class, or None; as many as `predictions` has classes.
        predictions: Labelled predictions.
        where: What the error calls them.
    """
    order = class_order(class_names, predictions.class_names, predictions.n_classes, where=where)
    if order is None:
        return predictions
    scores = torch.from_numpy(predictions.scores[:, order])
    # Held as float32, bfloat16 is checked as what it came in.
    scores = scores.bfloat16() if predictions.precision == "bfloat16" else scores
    make = type(predictions).from_logits if predictions.kind == "logits" else type(predictions).from_probabilities
    targets = np.argsort(order)[predictions.targets]
    names = names_or_numbers(class_names, predictions.n_classes)
    ordered = make(scores, targets, ids=predictions.ids, class_names=names, extras=predictions.extras)
    ordered.origin = predictions.origin
    return ordered


def class_order(
    wanted: Sequence[str] | None, names: Sequence[str] | None, classes: int, *, where: str
) -> list[int] | None:
    """Where each wanted class lies among `names`, by the rules of `in_order_of`; None where nothing moves."""
    numbers = names_or_numbers(None, classes)
    wanted, names = tuple(wanted or numbers), tuple(names or numbers)
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
    strange = shortened([name for name in names if name not in known])
    if wanted == names_or_numbers(None, len(wanted)):
        way_out = "To tell classes by other names, fit on predictions that carry these names."
        return invalid(where, f"name the classes 0..{len(wanted) - 1}", strange, way_out)
    return invalid(where, f"name the classes {shortened(wanted)}", strange)


def shortened(names: Sequence[str], most: int = 5) -> str:
    """A few names for a message."""
    return ", ".join([*(name[:40] for name in names[:most]), *(["..."] if len(names) > most else [])])


def names_or_numbers(class_names: Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    """What classes are called: their names, or 0..K-1 where they have none."""
    return tuple(class_names or map(str, range(n_classes)))
