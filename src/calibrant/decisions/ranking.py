"""Scores by which cases are ranked: the surest are automated first."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration.base import BLOCK
from calibrant.calibration.operations import NUMPY
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.functions import risk_area_influence
from calibrant.metrics.metric import FEWEST_WRONG
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]
OwnScore = Callable[[Floats], Floats]
"""A score of your own: gets calibrated probabilities (n, K), returns a number for each row; more is surer."""
Score = str | OwnScore

CANDIDATES = ("probability", "pnorm4")
"""What `score="auto"` chooses among. No other score automated more on average (benchmarks/ranking_scores.py)."""

GIVEN = "given"
"""The score of `Predictions.from_confidence(..., kind="score")`, which has no scale."""

_PNORM = re.compile(r"pnorm([1-9]|1[0-9]|20)")
# Stands for a probability that is 0 in float64 if its logarithm is needed, and for a norm of 0.
_LEAST = 1e-300


def check_score(score: Score) -> None:
    """Refuse a score that does not exist."""
    if callable(score) or score in ("probability", "margin", "entropy", GIVEN) or _PNORM.fullmatch(score):
        return
    known = "'probability', 'margin', 'entropy' or 'pnormP' with a whole number P from 1 to 20, such as 'pnorm4'"
    raise invalid("score", f"be {known}", repr(score))


def is_bounded(score: Score) -> bool:
    """Whether a score lies in 0..1."""
    return isinstance(score, str) and score != GIVEN


def score_name(score: Score) -> str:
    """The name of a score, for people."""
    if isinstance(score, str):
        return score
    return getattr(score, "__name__", type(score).__name__)


def rank(score: Score, probabilities: Floats) -> Floats:
    """The ranking score of each row of calibrated probabilities (n, K).

    - `probability`: the largest probability.
    - `margin`: the largest probability less the second largest.
    - `entropy`: 1 - entropy / log K.
    - `pnormP`: MaxLogit-pNorm (Cattelan and Silva 2024): the largest of the centred logits divided by their p-norm.
      Centring makes it the same for logits and for log-probabilities, and dividing makes it the same at every
      temperature; `pnorm2` is logit normalisation.
    """
    if isinstance(score, str):
        n_rows, n_classes = probabilities.shape
        in_block = max(16, BLOCK // n_classes)  # blocks that fit the cache: six times as fast at 1,000 classes
        values = np.empty(n_rows)
        for start in range(0, n_rows, in_block):
            rows = slice(start, start + in_block)
            values[rows] = ranked(NUMPY, score, probabilities[rows], n_classes)[:, 0]
        return values
    ranks = np.asarray(score(probabilities), dtype=np.float64)
    if ranks.shape != probabilities.shape[:1] or not np.isfinite(ranks).all():
        rule = f"return a finite number for each of the {len(probabilities):,} rows"
        raise invalid(f"score {score_name(score)}", rule, f"shape {ranks.shape}, {np.isfinite(ranks).sum():,} finite")
    return ranks


def ranked(operations: Any, score: str, probabilities: Any, n_classes: int) -> Any:
    """The named scores in the operations of calibrators, so that a file computes what Python does; shape (n, 1)."""
    # Rounded probabilities may be a little more than 1.
    top = operations.minimum(operations.row_max(probabilities), 1.0)
    if score == "probability":
        return top
    if score == "margin":
        others = operations.where(operations.is_top(probabilities, n_classes), 0.0, probabilities)
        return operations.maximum(top - operations.row_max(others), 0.0)
    logs = operations.log(operations.maximum(probabilities, _LEAST))
    if score == "entropy":
        share = operations.row_sum(probabilities * logs) / np.log(n_classes)
        return operations.minimum(operations.maximum(1.0 + share, 0.0), 1.0)
    match = _PNORM.fullmatch(score)
    if match is None:
        raise InvalidInput("This rule was fitted on a class and a score, and these are scores of all classes.")
    if n_classes == 2:
        raise InvalidInput(f"With two classes every case has the same {score}. Use the score 'probability'.")
    centred = logs - operations.row_sum(logs) / float(n_classes)
    size = operations.maximum(centred, -centred)
    largest = operations.maximum(operations.row_max(size), _LEAST)
    scaled = size / largest  # powers stay in range
    power = scaled
    for _ in range(int(match[1]) - 1):
        power = power * scaled
    root = operations.exp(operations.log(operations.maximum(operations.row_sum(power), 1.0)) / float(match[1]))
    return operations.maximum(operations.row_max(centred) / (largest * root), 0.0)


def choose_score(predictions: Predictions) -> Score:
    """The candidate with the lower AURC: "pnorm4" if its gain over the largest probability exceeds its error.

    The error is one standard error of the paired difference. It says little with fewer than ten wrong or right cases,
    and with two classes all named scores rank alike: then the default stays. The cases must be others than those that
    carry a promise.
    """
    predictions.require_all_classes("The choice of a score")
    default, other = CANDIDATES
    probabilities, wrong = predictions.probabilities, ~predictions.correct
    if predictions.n_classes == 2 or min(wrong.sum(), (~wrong).sum()) < FEWEST_WRONG["ranking"]:
        return default
    default_area, default_influence = _aurc(rank(default, probabilities), wrong)
    area, influence = _aurc(rank(other, probabilities), wrong)
    error = float(np.sqrt(((default_influence - influence) ** 2).sum()))
    if default_area - area > error:
        return other
    return default


def _aurc(ranks: Floats, wrong: NDArray[np.bool_]) -> tuple[float, Floats]:
    """The area under the risk-coverage curve, and the influence of each case on it."""
    distinct, group = np.unique(ranks, return_inverse=True)
    counts = np.bincount(group[wrong], minlength=len(distinct)).astype(np.float64)
    right = np.bincount(group[~wrong], minlength=len(distinct)).astype(np.float64)
    area, of_wrong, of_right = risk_area_influence(counts, right)
    return area, np.where(wrong, of_wrong[group], of_right[group])
