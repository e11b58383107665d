"""Metrics that only read the order of the confidences, and the KS error: everything that sorts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.predictions import Predictions, require_predictions


@dataclass(frozen=True)
class Sorted:
    """Rows in ascending order of confidence.

    Attributes:
        order: Row numbers in that order.
        confidence: Confidences, ascending.
        correct: Whether they are right, in the same order.
        ends: Positions of the last row of each group of equal confidences.
    """

    order: NDArray[np.int64]
    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    ends: NDArray[np.int64]


def sort_rows(predictions: Predictions) -> Sorted:
    """Sort by confidence and find ties."""
    require_predictions(predictions)
    order = np.argsort(predictions.confidence, kind="stable")
    confidence = predictions.confidence[order]
    ends = np.append(np.flatnonzero(confidence[1:] != confidence[:-1]), len(order) - 1)
    return Sorted(order, confidence, predictions.correct[order], ends)


def group_sums(values: NDArray[np.generic], ends: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cumulative sums at the ends of the groups of equal confidence."""
    result: NDArray[np.float64] = np.cumsum(values, dtype=np.float64)[ends]
    return result


def auroc(predictions: Predictions) -> float | None:
    """How well confidence tells right from wrong: the probability that a right row is more confident than a wrong one.

    Ties count one half. This is the refinement of the paper. None where all rows are right or all are wrong: there is
    nothing to tell apart.

    >>> auroc(Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2]], [0, 0, 1]))
    0.75
    """
    return auroc_of(sort_rows(predictions))


def auroc_of(rows: Sorted) -> float | None:
    """AUROC of sorted rows."""
    right = group_sums(rows.correct, rows.ends)
    wrong = group_sums(~rows.correct, rows.ends)
    if right[-1] == 0 or wrong[-1] == 0:
        return None
    # A right row beats every wrong row below its group and half of those inside it.
    below = wrong - np.diff(wrong, prepend=0.0) / 2.0
    return float((np.diff(right, prepend=0.0) * below).sum() / (right[-1] * wrong[-1]))


def aurc(predictions: Predictions) -> float:
    """Area under the risk-coverage curve: the mean over k = 1..n of the error rate among the k most confident rows.

    Equal confidences have no order; their curve is the mean over all orders, so the value does not depend on the order
    of the rows: position j of a group of m rows with e errors adds j e / m errors to those before the group.
    """
    return aurc_of(sort_rows(predictions))


def aurc_of(rows: Sorted) -> float:
    """AURC of sorted rows."""
    n = len(rows.order)
    count = np.concatenate([[0.0], rows.ends + 1.0])
    wrong = np.concatenate([[0.0], group_sums(~rows.correct, rows.ends)])
    return float(aurc_sum(count, wrong, harmonic_numbers(n)) / n)


def harmonic_numbers(n: int) -> NDArray[np.float64]:
    """H(0) = 0, H(1) = 1, ..., H(n)."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])


def aurc_sum(
    count: NDArray[np.float64], wrong: NDArray[np.float64], harmonic: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum over positions of the risk, from running counts of rows and errors in ascending order of confidence.

    Both run along the last axis, begin with 0 and end with the total, one step a group of equal confidences. With
    a rows and E errors above a group of m rows and e errors, the sum over j of (E + j e / m) / (a + j) is
    e + (E - a e / m) (H(a + m) - H(a)), H being harmonic numbers.
    """
    above = count[..., -1:] - count
    steps = -np.diff(harmonic[above.astype(np.int64)], axis=-1)
    errors = np.diff(wrong, axis=-1)
    rate = errors / np.maximum(np.diff(count, axis=-1), 1.0)
    rest = wrong[..., -1:] - wrong[..., 1:] - above[..., 1:] * rate
    return np.asarray(wrong[..., -1] + np.einsum("...i,...i->...", rest, steps))


def ks_calibration_error(predictions: Predictions) -> float:
    """Kolmogorov-Smirnov calibration error (Gupta et al. 2021), without bins.

    The largest |(1/n) * sum of (confidence - correct) over rows with confidence <= t| over all t.
    """
    return ks_of(sort_rows(predictions))


def ks_of(rows: Sorted) -> float:
    """KS error of sorted rows."""
    gaps = group_sums(rows.confidence - rows.correct, rows.ends)
    return float(np.abs(gaps).max() / len(rows.order))


@dataclass(frozen=True)
class AccuracyCoverage:
    """What remains when only confident rows are kept, from the most confident group to all rows.

    Attributes:
        threshold: Distinct confidences, descending.
        coverage: Share of rows with at least that confidence.
        accuracy: Share of those that are right.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def accuracy_coverage(predictions: Predictions) -> AccuracyCoverage:
    """Accuracy against coverage as the threshold falls from the top confidence to the lowest."""
    rows = sort_rows(predictions)
    size = np.cumsum(np.diff(rows.ends, prepend=-1)[::-1])
    right = np.cumsum(np.diff(group_sums(rows.correct, rows.ends), prepend=0.0)[::-1])
    return AccuracyCoverage(rows.confidence[rows.ends][::-1], size / len(rows.order), right / size)
