"""Scores by which cases are ranked: the surest are automated first. All but a given score lie in 0..1."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from calibrant.errors import InvalidInput, invalid
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

CANDIDATES = ("probability", "margin", "entropy", "pnorm2", "pnorm4", "pnorm6")
"""What `score="auto"` chooses among."""

GIVEN = "given"
"""The score of `Predictions.from_confidence(..., kind="score")`, which has no scale."""

_PNORM = re.compile(r"pnorm([1-9][0-9]*)")
# The logarithm of a probability that is 0 in float64.
_LEAST = 1e-300


def check_score(score: str) -> str:
    """Refuse a score that does not exist."""
    if score not in ("probability", "margin", "entropy", GIVEN) and not _PNORM.fullmatch(score):
        known = "'probability', 'margin', 'entropy' or 'pnormP' with a whole number P, such as 'pnorm4'"
        raise invalid("score", f"be {known}", repr(score))
    return score


def rank(score: str, probabilities: Floats, top: Floats) -> Floats:
    """The ranking score of each row.

    - `probability`: the largest probability.
    - `margin`: the largest probability less the second largest.
    - `entropy`: 1 - entropy / log K.
    - `pnormP`: MaxLogit-pNorm (Cattelan and Silva 2024): the largest of the centred logits divided by their p-norm.
      Centring makes it the same for logits and for log-probabilities, and dividing makes it the same at every
      temperature; `pnorm2` is logit normalisation.

    Args:
        score: Its name.
        probabilities: Calibrated, shape (n, K).
        top: The largest of each row, at most 1.
    """
    if score == "probability":
        return top
    if score == "margin":
        return np.maximum(top - np.partition(probabilities, -2, axis=1)[:, -2], 0.0)
    if score == "entropy":
        entropy = -xlogy(probabilities, probabilities).sum(axis=1)
        return np.asarray(np.clip(1.0 - entropy / np.log(probabilities.shape[1]), 0.0, 1.0))
    match = _PNORM.fullmatch(score)
    if match is None:
        raise InvalidInput("This rule was fitted on a class and a score, and these are scores of all classes.")
    logits = np.log(np.maximum(probabilities, _LEAST))
    logits -= logits.mean(axis=1, keepdims=True)
    largest = np.abs(logits).max(axis=1)
    scaled = np.abs(logits) / np.maximum(largest, _LEAST)[:, None]  # powers stay in range
    norm = largest * (scaled ** int(match[1])).sum(axis=1) ** (1.0 / int(match[1]))
    return np.asarray(np.clip(logits.max(axis=1) / np.maximum(norm, _LEAST), 0.0, 1.0))


def choose_score(
    predictions: Predictions, candidates: Sequence[str] = CANDIDATES, *, resamples: int = 200, seed: int = 0
) -> str:
    """The score with the lowest AURC, if its gain over the largest probability exceeds its error; else "probability".

    The error is one standard error of the paired difference, over bootstrap resamples of the cases. The cases must be
    others than those that carry a promise.

    Args:
        predictions: Labelled, calibrated cases.
        candidates: Names of scores.
        resamples: Bootstrap resamples.
        seed: Of the resamples.
    """
    predictions.require_all_classes("The choice of a score")
    probabilities, wrong = predictions.probabilities, ~predictions.correct
    ranks = {name: rank(check_score(name), probabilities, predictions.confidence) for name in candidates}
    values = {name: _aurc(each, wrong) for name, each in ranks.items()}
    best = min(values, key=lambda name: values[name])
    if best == "probability" or "probability" not in ranks:
        return best
    rng = np.random.default_rng(seed)
    gains = []
    for _ in range(resamples):
        rows = rng.integers(len(wrong), size=len(wrong))
        gains.append(_aurc(ranks["probability"][rows], wrong[rows]) - _aurc(ranks[best][rows], wrong[rows]))
    if values["probability"] - values[best] > float(np.std(gains)):
        return best
    return "probability"


def _aurc(ranks: Floats, wrong: NDArray[np.bool_]) -> float:
    """Mean error rate of the surest 1, 2, ..., n cases."""
    errors = np.cumsum(wrong[np.argsort(-ranks, kind="stable")])
    return float((errors / np.arange(1, len(errors) + 1)).mean())
