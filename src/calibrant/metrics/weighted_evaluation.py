"""`evaluate` of rows with weights, or of rows that come in clusters: the metrics, and intervals that know of both.

Shares of rows have Wilson's interval for the effective number of rows (Korn and Graubard 1998): that number of
independent, equally weighted rows would have the variance that the clusters show. NLL, Brier score, AUROC and AURC have
the percentiles of a bootstrap that draws whole clusters. Calibration errors have none: no honest one is known here.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from calibrant.metrics.errors import balanced_error
from calibrant.metrics.evaluation import Evaluation, Interval
from calibrant.metrics.intervals import percentiles
from calibrant.metrics.names import set_metric
from calibrant.metrics.proportion import wilson
from calibrant.metrics.totals import brier_rows
from calibrant.metrics.weighted import WeightedRows
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]


def evaluate_weighted(
    predictions: Predictions, weights: Floats, n_bins: int, limits: Sequence[float], *, seed: int
) -> Evaluation:
    """Every metric of weighted rows; `weights` have a mean of 1."""
    rows = WeightedRows(predictions, weights)
    bins, ranking = rows.bins(n_bins), rows.ranking()
    floor = rows.noise(n_bins, seed=seed)
    return Evaluation(
        n=len(predictions),
        n_classes=predictions.n_classes,
        n_bins=n_bins,
        test_error=rows.mean(~predictions.correct),
        nll=rows.mean(predictions.nll),
        brier=rows.brier(),
        ece=bins.expected_error,
        ece_equal_mass=rows.bins(n_bins, equal_mass=True).expected_error,
        mce=bins.maximum_error,
        classwise_ece=rows.classwise(n_bins),
        smooth_ece=rows.smooth(),
        debiased_ece=rows.debiased(n_bins),
        ks=ranking.ks,
        auroc=ranking.auroc,
        aurc=ranking.aurc,
        noise_floor=floor.mean,
        noise_floor_95=floor.upper,
        thresholds=tuple(rows.confident(limit, n_bins) for limit in limits),
        balanced_error=balanced_error(predictions.targets, ~predictions.correct, weights),
    )


def weighted_intervals(
    predictions: Predictions,
    weights: Floats,
    clusters: NDArray[np.int64],
    evaluation: Evaluation,
    *,
    n_resamples: int,
    seed: int,
    level: float,
) -> dict[str, Interval]:
    """Flat name to interval.

    Args:
        predictions: The rows.
        weights: One per row, with a mean of 1.
        clusters: Number of the cluster of each row, from 0 on; each row its own where rows are independent.
        evaluation: Its metrics.
        n_resamples: Draws of the bootstrap.
        seed: Of the draws.
        level: Of the intervals.
    """
    found = {"test_error": share_interval(~predictions.correct, weights, clusters, level)}
    rows = WeightedRows(predictions, weights)
    for limit in (row.threshold for row in evaluation.thresholds):
        inside = predictions.confidence >= limit
        found[set_metric("share", limit)] = share_interval(inside, weights, clusters, level)
        if weights[inside].sum() > 0:
            own = share_interval(predictions.correct[inside], weights[inside], clusters[inside], level)
            found[set_metric("accuracy", limit)] = own
    for name, values in _bootstrap(rows, clusters, n_resamples, seed).items():
        ends, value = percentiles(values, level), evaluation.values()[name]
        if ends is not None and value is not None:
            found[name] = min(ends[0], value), max(ends[1], value)
    return {name: found[name] for name in evaluation.values() if name in found}


def share_interval(hits: NDArray[np.bool_], weights: Floats, clusters: NDArray[np.int64], level: float) -> Interval:
    """Interval of a weighted share of rows that come in clusters.

    Where all rows hit, or none, the clusters show no variance; then only clusters count as rows, the safe side.
    """
    share = float((weights * hits).sum() / weights.sum())
    _, own = np.unique(clusters, return_inverse=True)
    sums = np.bincount(own, weights * (hits - share))
    count = len(sums)
    effective = _kish(np.asarray(np.bincount(own, weights), dtype=np.float64))
    if 0.0 < share < 1.0 and count > 1:
        variance = (sums**2).sum() / weights.sum() ** 2 * count / (count - 1)
        seen = share * (1.0 - share) / variance if variance > 0 else effective
        # Few clusters tell their own variance badly: Student's t has wider tails than the normal distribution.
        seen *= (stdtrit(10**9, 0.5 + level / 2) / stdtrit(count - 1, 0.5 + level / 2)) ** 2
        effective = min(seen, _kish(weights))
    low, high = wilson(share * effective, effective, level=level)
    return min(float(low), share), max(float(high), share)


def _kish(weights: Floats) -> float:
    """So many equally weighted rows would tell as much (Kish 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def _bootstrap(rows: WeightedRows, clusters: NDArray[np.int64], n_resamples: int, seed: int) -> dict[str, Floats]:
    generator, count = np.random.default_rng(seed), int(clusters.max()) + 1
    order = np.argsort(rows.confidence, kind="stable")
    nll, brier = rows.predictions.nll, brier_rows(rows.predictions)
    found: dict[str, list[float]] = {name: [] for name in ("nll", "brier", "auroc", "aurc")}
    for _ in range(n_resamples):
        drawn = np.bincount(generator.integers(count, size=count), minlength=count)
        weights = rows.weights * drawn[clusters]
        total = weights.sum()
        if total == 0.0:
            continue
        weights *= rows.n / total
        own = WeightedRows(rows.predictions, weights)
        ranking = own.ranked(order, weights)
        found["nll"].append(own.mean(nll))
        found["brier"].append(own.mean(brier))
        found["auroc"].append(np.nan if ranking.auroc is None else ranking.auroc)
        found["aurc"].append(ranking.aurc)
    return {name: np.asarray(values) for name, values in found.items()}
