"""`compare` of two models on rows that have weights or come in clusters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.comparison import ENOUGH, Difference, judge
from calibrant.metrics.confident import is_confident
from calibrant.metrics.evaluation import Interval, evaluate
from calibrant.metrics.intervals import subtract
from calibrant.metrics.inversion import Plausible
from calibrant.metrics.names import set_metric
from calibrant.metrics.studentised import PLAIN, Estimates, Influence, studentised
from calibrant.metrics.weighted_evaluation import effective_rows, share_interval
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]
_STUDENTISED = ("test_error", "nll", "brier", "auroc", "aurc")


def weighted_differences(
    a: Predictions,
    b: Predictions,
    weights: Floats,
    clusters: NDArray[np.int64],
    *,
    n_bins: int,
    limits: Sequence[float],
    n_resamples: int,
    seed: int,
    level: float,
) -> tuple[Difference, ...]:
    """Every metric of the second model minus that of the first; calibration errors have no interval.

    Args:
        a: The first model.
        b: The second, on the same rows.
        weights: One per row, with a mean of 1.
        clusters: Number of the cluster of each row, from 0 on.
        n_bins: Bins of the binned metrics.
        limits: Least confidences of the high-confidence sets.
        n_resamples: Draws of the bootstrap.
        seed: Of the draws.
        level: Of the intervals.
    """
    first, second = (evaluate(each, n_bins, thresholds=limits, weights=weights).values() for each in (a, b))
    of_a, of_b = Influence(a), Influence(b)

    def between(drawn: Floats) -> Estimates:
        mine, theirs = of_a(drawn), of_b(drawn)
        return {
            name: (theirs[name][0] - own[0], theirs[name][1] - own[1]) for name, own in mine.items() if name in theirs
        }

    gaps = {
        name: None if first[name] is None else (second[name] or 0.0) - (first[name] or 0.0) for name in _STUDENTISED
    }
    scales = dict.fromkeys(_STUDENTISED, PLAIN)
    found = studentised(
        between, gaps, weights, clusters, scales=scales, n_resamples=n_resamples, seed=seed, level=level
    )
    few = {name: effective_rows(weights) < ENOUGH for name in first}
    for limit in limits:
        sets = [is_confident(each, limit) for each in (a, b)]
        everybody = np.ones(len(a), dtype=np.bool_)
        right = [each.correct for each in (a, b)]
        for name, hits, among in (("share", sets, [everybody] * 2), ("accuracy", right, sets)):
            own = set_metric(name, limit)
            few[own] = any(effective_rows(weights[rows]) < ENOUGH for rows in among)
            if all(weights[rows].sum() > 0 for rows in among):
                found[own] = _share_difference(hits, among, weights, clusters, level)
    return tuple(judge(name, first[name], second[name], found.get(name), few=few[name]) for name in first)


def _share_difference(
    hits: list[NDArray[np.bool_]],
    among: list[NDArray[np.bool_]],
    weights: Floats,
    clusters: NDArray[np.int64],
    level: float,
) -> Interval:
    """Interval of the second share minus the first from that of each, and how they vary together over clusters."""
    parts, moves = [], []
    for hit, rows in zip(hits, among, strict=True):
        share = float((weights * hit)[rows].sum() / weights[rows].sum())
        low, high = share_interval(hit[rows], weights[rows], clusters[rows], level)
        parts.append(Plausible(low, share, high))
        moves.append(np.bincount(clusters, weights * rows * (hit - share)))
    size = float(np.sqrt((moves[0] ** 2).sum() * (moves[1] ** 2).sum()))
    together = float(moves[0] @ moves[1]) / size if size > 0.0 else 0.0
    low, high = subtract(parts[1], parts[0], together)
    gap = parts[1].centre - parts[0].centre
    return min(low, gap), max(high, gap)
