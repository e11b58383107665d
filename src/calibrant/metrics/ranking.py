"""Metrics that only read the order of the confidences, and the KS error: everything that sorts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.display import ShownFields
from calibrant.metrics.tops import SortedTops, Tops, Weights, weighted_rows
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class Ranking:
    """What one walk through the sorted rows gives.

    Attributes:
        auroc: Of confidence for correctness; None where all rows are right or all are wrong.
        aurc: Area under the risk-coverage curve.
        ks: Kolmogorov-Smirnov calibration error.
    """

    auroc: float | None
    aurc: float
    ks: float

    @classmethod
    def of(cls, rows: SortedTops, wrong: int) -> "Ranking":
        """Walk through sorted rows, of which so many are wrong."""
        n, below, wrong_below, gap_below = len(rows), 0, 0, 0.0
        beaten = risk = ks = 0.0
        for confidence, size, wrong_here in rows.groups():
            count, errors = below + np.cumsum(size), wrong_below + np.cumsum(wrong_here)
            # A right row beats every wrong row below its group and half of those inside it.
            beaten += float(((size - wrong_here) * (errors - wrong_here / 2.0)).sum())
            gap = gap_below + np.cumsum(confidence * size - (size - wrong_here))
            ks = max(ks, float(np.abs(gap).max()))
            above = n - count
            steps = _harmonic_steps(above, size)
            risk += float(risk_of_groups(above, wrong - errors, size, wrong_here, steps).sum())
            below, wrong_below, gap_below = int(count[-1]), int(errors[-1]), float(gap[-1])
        right = n - wrong
        return cls(beaten / (right * wrong) if right and wrong else None, risk / n, ks / n)


def _harmonic_steps(above: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.float64]:
    """H(a + m) - H(a) for groups that follow each other downwards, H being harmonic numbers."""
    lowest = int(above[-1])
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(lowest + 1, above[0] + size[0] + 1))])
    return np.asarray(harmonic[above + size - lowest] - harmonic[above - lowest])


def risk_of_groups(
    above: NDArray[np.generic],
    errors_above: NDArray[np.generic],
    size: NDArray[np.generic],
    errors: NDArray[np.generic],
    steps: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What each group of equal confidences adds to the sum over positions of the risk.

    With a rows and E errors above a group of m rows and e errors, the sum over j = 1..m of (E + j e / m) / (a + j) is
    e + (E - a e / m) (H(a + m) - H(a)). Empty groups, which a resample can have, add nothing.
    """
    rate = errors / np.maximum(size, 1)
    return np.asarray(errors + (errors_above - above * rate) * steps)


def rank(predictions: Predictions, weights: Weights | None = None) -> Ranking:
    """Sort and walk."""
    if weights is not None:
        return weighted_rows(predictions, weights).ranking()
    tops = Tops.of(predictions)
    return Ranking.of(SortedTops(tops), int(np.count_nonzero(~tops.correct)))


def auroc(predictions: Predictions, *, weights: Weights | None = None) -> float | None:
    """How well confidence tells right from wrong: the probability that a right row is more confident than a wrong one.

    Ties count one half. This is the refinement of the paper. None where all rows are right or all are wrong: there is
    nothing to tell apart.

    >>> auroc(Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]], [0, 0, 1]))
    0.75
    """
    return rank(predictions, weights).auroc


def aurc(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Area under the risk-coverage curve: the mean over k = 1..n of the error rate among the k most confident rows.

    Equal confidences have no order; their curve is the mean over all orders, so the value does not depend on the order
    of the rows: position j of a group of m rows with e errors adds j e / m errors to those before the group.
    """
    return rank(predictions, weights).aurc


def ks_calibration_error(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al. 2021), without bins.

    The largest |(1/n) * sum of (confidence - correct) over rows with confidence <= t| over all t.
    """
    return rank(predictions, weights).ks


@dataclass(frozen=True)
class AccuracyCoverage(ShownFields):
    """What remains when only confident rows are kept, from the most confident group to all rows.

    Attributes:
        threshold: Distinct confidences, descending.
        coverage: Share of rows with at least that confidence.
        accuracy: Share of those that are right.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def accuracy_coverage(predictions: Predictions, *, weights: Weights | None = None) -> AccuracyCoverage:
    """Accuracy against coverage as the threshold falls from the top confidence to the lowest.

    Args:
        predictions: What the model said.
        weights: Name of an extra column, or one number per row: importance weights. Shares are then shares of weight,
            and rows without any are left out.
    """
    if weights is not None:
        rows = weighted_rows(predictions, weights)
        used = rows.weights > 0
        confidence, place = np.unique(-rows.confidence[used], return_inverse=True)
        count, right = (np.cumsum(np.bincount(place, rows.weights[used] * each)) for each in (1.0, rows.correct[used]))
        return AccuracyCoverage(-confidence, count / rows.n, np.minimum(right / count, 1.0))
    groups = zip(*SortedTops(Tops.of(predictions)).groups(), strict=True)
    confidence, size, wrong = (np.concatenate(parts)[::-1] for parts in groups)
    count = np.cumsum(size)
    return AccuracyCoverage(confidence, count / len(predictions), np.cumsum(size - wrong) / count)
