"""The same classes in another order: names decide, not positions."""

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
    numbers = tuple(str(k) for k in range(predictions.classes))
    wanted, names = class_names or numbers, predictions.class_names or numbers
    if wanted == names or (set(wanted) != set(names) and numbers in (wanted, names)):
        return predictions
    if set(wanted) != set(names):
        raise invalid(where, f"name the classes {', '.join(wanted[:5])}", ", ".join(names[:5]))
    order = [names.index(name) for name in wanted]
    scores = torch.from_numpy(predictions.scores[:, order])
    # Held as float32, bfloat16 is checked as what it came in.
    scores = scores.bfloat16() if predictions.precision == "bfloat16" else scores
    make = type(predictions).from_logits if predictions.kind == "logits" else type(predictions).from_probabilities
    targets = np.argsort(order)[predictions.targets]
    return make(scores, targets, ids=predictions.ids, class_names=wanted)
