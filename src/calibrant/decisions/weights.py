"""Weights that labelled cases are drawn by, so that they have the mix of another stream."""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from calibrant.checks import positive, whole
from calibrant.decisions.rule import Part
from calibrant.errors import invalid
from calibrant.metrics.metric import Weights, check_weights, column_of
from calibrant.predictions import Predictions


def sample_by_weights(
    predictions: Predictions, weights: Weights, *, largest: float | None = None, seed: int = 0
) -> Predictions:
    """Keep each case with probability weight / largest weight: independent cases of the stream that the weights name.

    A weighted error rate has no exact bound, but cases that are kept by chance (rejection sampling, von Neumann 1951)
    are an ordinary sample of the other stream, so every rule that is chosen on them keeps its promise there exactly.
    The price is cases: of n, about n divided by the largest weight (of weights with a mean of 1) remain. The weights
    must be right and known before the labels were looked at, and no case in use may have a larger one than `largest`.

    Args:
        predictions: Labelled cases.
        weights: Name of an extra column, or one number per case: how much more frequent a case of this kind is in use
            than among these cases, up to a constant.
        largest: The largest weight that a case can have. None for the largest of these: right only if they cannot lack
            the rarest kind. If it comes twice in 1,000 cases, 500 cases lack it in 37 % of draws.
        seed: Of the draw. Choosing it by what the rule becomes would break the promise.

    >>> cases = Predictions.from_probabilities([[0.9, 0.1]] * 100, [0] * 50 + [1] * 50)
    >>> kept = sample_by_weights(cases, [1.0] * 50 + [0.1] * 50)
    >>> int((kept.targets == 0).sum()), 0 < int((kept.targets == 1).sum()) < 20
    (50, True)
    """
    scaled = check_weights(predictions, weights)
    limit = float(scaled.max())
    if largest is not None:
        seen = float(column_of(predictions, weights, "weights").astype(np.float64).max())
        if positive("largest", largest) < seen:
            raise invalid("largest", f"be at least the largest weight of these cases, {seen:g}", largest)
        limit *= largest / seen
    # A separate stream: a caller who drew or split the cases by default_rng(seed) must not meet the same numbers.
    sequence = np.random.SeedSequence(whole("seed", seed, 0), spawn_key=(1,))
    chance = np.random.default_rng(sequence).random(len(scaled))
    kept = chance < scaled / limit
    if not kept.any():
        raise invalid("weights", "leave at least one case", f"none of {len(scaled)}")
    return predictions.subset(kept)


def as_in_use(rule: Part, predictions: Predictions) -> Predictions:
    """Cases to check a rule on: drawn by its weights, if it was chosen so and they have the column of weights.

    Cases with that column have the mix of the labelled ones, for which the rule promises nothing.
    """
    column = getattr(rule, "weight_column", None)
    if column is None or column not in predictions.extras:
        return predictions
    return sample_by_weights(predictions, column, seed=getattr(rule, "weight_seed", None) or 0)


_Part = TypeVar("_Part", bound=Part)


def note_weights(rule: _Part, weights: str, seed: int, drawn: Predictions, cases: Predictions) -> _Part:
    """Add to a rule or shortlist that it was chosen on cases drawn by weights, and name their file.

    A rule also keeps the column and the seed, so that the monitor can draw the same cases again.
    """
    counts = f"{len(drawn):,} of {len(cases):,} cases"
    sentence = f"It was chosen on {counts}, drawn by {weights!r}, for the mix that these weights name."
    changes: dict[str, Any] = {"note": f"{rule.note} {sentence}", "fitted_on": cases.origin.sha256}
    if hasattr(rule, "weight_column"):
        changes |= {"weight_column": weights, "weight_seed": seed}
    return replace(rule, **changes)  # type: ignore[type-var]
