"""What a notebook shows of predictions."""

from typing import TYPE_CHECKING

from calibrant.display import Overview
from calibrant.predictions.rows import probabilities_of

if TYPE_CHECKING:
    from calibrant.predictions.core import Predictions

_ROWS = 5


def predictions_html(predictions: "Predictions") -> str:
    """The size, and the first rows as a table; only these rows are read, because a large set may lie on disk."""
    part = slice(0, _ROWS)
    probabilities = probabilities_of(predictions.read_scores(part), predictions.kind)
    names = predictions.class_names or range(predictions.n_classes)
    rows: list[tuple[object, ...]] = [
        (row, names[target], names[each.argmax()], f"{each.max():.4f}", "yes" if each.argmax() == target else "no")
        for row, (target, each) in enumerate(zip(predictions.targets[part], probabilities, strict=True))
    ]
    if len(predictions) > _ROWS:
        rows.append((f"{len(predictions) - _ROWS:,} more", "", "", "", ""))
    return Overview(repr(predictions), rows, ("row", "target", "predicted", "confidence", "right")).html()
