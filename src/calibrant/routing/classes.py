"""The same classes in another order: names decide, not positions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from calibrant.errors import invalid

if TYPE_CHECKING:
    from calibrant.predictions import Predictions


def in_order_of(class_names: tuple[str, ...] | None, predictions: "Predictions", *, where: str) -> "Predictions":
    """`predictions` with columns and targets in the order of `class_names`.

    A side without names counts as named 0..K-1, as in a table's columns. Where only one side has real names, positions
    are all there is and nothing moves. Other names are refused.

    Args:
        class_names: One for each class, or None; as many as `predictions` has classes.
        predictions: Labelled predictions.
        where: What the error calls them.
    """
    order = class_order(class_names, predictions.class_names, predictions.classes, where=where)
    if order is None:
        return predictions
    scores = torch.from_numpy(predictions.scores[:, order])
    # Held as float32, bfloat16 is checked as what it came in.
    scores = scores.bfloat16() if predictions.precision == "bfloat16" else scores
    make = type(predictions).from_logits if predictions.kind == "logits" else type(predictions).from_probabilities
    targets = np.argsort(order)[predictions.targets]
    return make(scores, targets, ids=predictions.ids, class_names=class_names or _numbers(predictions.classes))


def class_order(
    wanted: Sequence[str] | None, names: Sequence[str] | None, classes: int, *, where: str
) -> list[int] | None:
    """Where each wanted class lies among `names`, by the rules of `in_order_of`; None where nothing moves."""
    numbers = _numbers(classes)
    wanted, names = tuple(wanted or numbers), tuple(names or numbers)
    if wanted == names or (set(wanted) != set(names) and numbers in (wanted, names)):
        return None
    if set(wanted) != set(names):
        raise invalid(where, f"name the classes {', '.join(wanted[:5])}", ", ".join(names[:5]))
    return [names.index(name) for name in wanted]


def _numbers(classes: int) -> tuple[str, ...]:
    return tuple(str(k) for k in range(classes))
