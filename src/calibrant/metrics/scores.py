"""Accuracy, proper scores, and metrics that only read the order of the confidences."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from calibrant.metrics.binning import Floats
from calibrant.metrics.confidences import Confidences, Step
from calibrant.metrics.errors import confidences_of
from calibrant.metrics.metric import Chunk, read_chunks
from calibrant.metrics.weights import Weights, check_weights, weighted_sum
from calibrant.predictions import Predictions, require_predictions
from calibrant.tables import ShownFields


def accuracy(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Share of rows whose prediction is the target; `weights` as everywhere: a column, or one number per row."""
    require_predictions(predictions)
    return _mean(predictions, predictions.correct, weights)


def error_rate(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Test error: share of rows whose prediction is not the target."""
    require_predictions(predictions)
    return _mean(predictions, ~predictions.correct, weights)


def negative_log_likelihood(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Mean of minus the log probability of the target, in nats; infinite if a target has probability 0."""
    require_predictions(predictions)
    return _mean(predictions, predictions.nll, weights)


def brier_score(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Mean over rows of the squared distance to the one-hot target, summed over classes: in 0..2."""
    require_predictions(predictions)
    values = np.empty(len(predictions))
    for part, chunk in read_chunks(predictions):
        values[part] = squared_distance(chunk)
    return _mean(predictions, values, weights)


def squared_distance(chunk: Chunk) -> Floats:
    """Brier score of each row."""
    return np.asarray(np.einsum("ij,ij->i", chunk.residual, chunk.residual))


def _mean(predictions: Predictions, values: NDArray[np.generic], weights: Weights | None) -> float:
    own = None if weights is None else check_weights(predictions, weights)
    return weighted_sum(values, own) / len(predictions)


def auroc(predictions: Predictions, *, weights: Weights | None = None) -> float | None:
    """How well confidence separates right from wrong: the probability that a right row is more confident than a wrong.

    Ties count one half. This is the refinement of the paper. None if all rows are right or all are wrong: there is
    nothing to separate.

    >>> auroc(Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]], [0, 0, 1]))
    0.75
    """
    value = float(ranking_areas(confidences_of(predictions, weights=weights)).item())
    return None if np.isnan(value) else value


def ranking_areas(confidences: Confidences) -> Floats:
    """AUROC of each resample; NaN if all rows are right or all are wrong."""
    ranked = confidences.ranked
    beaten = np.zeros(len(ranked.size))
    for step in ranked.steps():
        # A right row beats every wrong row below its group and half of those inside it.
        beaten += np.einsum("ij,ij->i", step.size - step.wrong, step.errors - step.wrong / 2.0)
    pairs = (ranked.total - ranked.total_wrong) * ranked.total_wrong
    defined = pairs > 1e-12 * ranked.total**2
    return np.where(defined, beaten / np.where(defined, pairs, 1.0), np.nan)


def ranking_area_influence(wrong: Floats, right: Floats) -> tuple[float, Floats, Floats]:
    """Each row of a pair that is ordered, or not, moves the share of ordered pairs."""
    all_wrong, all_right = wrong.sum(), right.sum()
    if all_wrong <= 0.0 or all_right <= 0.0:
        return np.nan, wrong, right
    beaten = (np.cumsum(wrong) - wrong / 2.0) / all_wrong
    beats = 1.0 - (np.cumsum(right) - right / 2.0) / all_right
    value = float(right @ beaten / all_right)
    return value, (beats - value) / all_wrong, (beaten - value) / all_right


def aurc(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Area under the risk-coverage curve: the mean over k = 1..n of the error rate among the k most confident rows.

    Equal confidences have no order; their curve is the mean over all orders, so the value does not depend on the order
    of the rows: position j of a group of m rows with e errors adds j e / m errors to those before the group.
    """
    return float(risk_areas(confidences_of(predictions, weights=weights)).item())


def risk_areas(confidences: Confidences) -> Floats:
    """AURC of each resample.

    With a rows and E errors above a group of m rows and e errors, the sum over j = 1..m of (E + j e / m) / (a + j) is
    e + (E - a e / m) (H(a + m) - H(a)), H being harmonic numbers.
    """
    ranked = confidences.ranked
    risk = np.zeros(len(ranked.size))
    for step in ranked.steps():
        above = np.maximum(ranked.total[:, None] - step.count, 0.0)
        errors_above = ranked.total_wrong[:, None] - step.errors
        rate = step.wrong / np.where(step.size > 0.0, step.size, 1.0)  # a resample can lack a group
        steps = _digamma_steps(above, step) if ranked.square is not None else _harmonic_steps(above, step)
        risk += step.wrong.sum(axis=1) + np.einsum("ij,ij->i", errors_above - above * rate, steps)
    return risk / ranked.total


def _harmonic_steps(above: Floats, step: Step) -> Floats:
    """H(a + m) - H(a) for numbers of rows, from a table of the harmonic numbers that occur."""
    start = above.astype(np.int64)
    lowest, highest = int(start.min()), int((start[:, 0] + step.size[:, 0]).max())
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(lowest + 1, highest + 1))])
    start -= lowest
    at_start = harmonic[start]
    # The next group up begins where this one ends.
    at_end = np.empty_like(at_start)
    at_end[:, 1:] = at_start[:, :-1]
    at_end[:, 0] = harmonic[start[:, 0] + step.size[:, 0].astype(np.int64)]
    at_end -= at_start
    return at_end


def _digamma_steps(above: Floats, step: Step) -> Floats:
    """The same for any amount of weight: H(x) is digamma(x + 1) but for a constant."""
    return np.asarray(digamma(above + step.size + 1.0) - digamma(above + 1.0))


def risk_area_influence(wrong: Floats, right: Floats) -> tuple[float, Floats, Floats]:
    """A row adds the risk at its own confidence, and changes the risk at every lower one."""
    size = wrong + right
    above, wrong_above = np.cumsum(size[::-1])[::-1], np.cumsum(wrong[::-1])[::-1]
    used = above > 1e-12 * above[0]
    risk = np.divide(wrong_above, above, out=np.zeros_like(above), where=used)
    part = np.divide(size, above, out=np.zeros_like(above), where=used)
    value = float(size @ risk / above[0])
    lower, expected = np.cumsum(part), np.cumsum(part * risk)
    of_right = risk - value - expected
    return value, (of_right + lower) / above[0], of_right / above[0]


@dataclass(frozen=True)
class AccuracyCoverage(ShownFields):
    """What remains if only confident rows are kept, from the most confident group to all rows.

    Attributes:
        threshold: Distinct confidences, descending.
        coverage: Share of rows with at least that confidence.
        accuracy: Share of those that are right.
    """

    threshold: Floats
    coverage: Floats
    accuracy: Floats


def accuracy_coverage(predictions: Predictions, *, weights: Weights | None = None) -> AccuracyCoverage:
    """Accuracy against coverage as the threshold falls from the top confidence to the lowest.

    Args:
        predictions: What the model said.
        weights: Name of an extra column, or one number per row: importance weights. Shares are then shares of weight,
            and rows without weight are left out.
    """
    ranked = confidences_of(predictions, weights=weights).ranked
    size, wrong = (each[0, ::-1].astype(np.float64) for each in (ranked.size, ranked.wrong))
    count, right = np.cumsum(size), np.cumsum(size - wrong)
    threshold = ranked.confidence[::-1].astype(np.float64)
    return AccuracyCoverage(threshold, count / len(predictions), np.minimum(right / count, 1.0))
