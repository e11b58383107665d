"""`evaluate` of rows with weights, or of rows that come in clusters: the metrics, and intervals that know of both.

Shares of rows have Wilson's interval for the effective number of rows (Korn and Graubard 1998): that number of
independent, equally weighted rows would have the variance that the clusters show. NLL, Brier score, AUROC and AURC have
a studentised bootstrap that draws whole clusters. Calibration errors have none: no honest one is known here.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from calibrant.metrics.confident import is_confident
from calibrant.metrics.errors import balanced_error
from calibrant.metrics.evaluation import Evaluation, Interval
from calibrant.metrics.names import set_metric
from calibrant.metrics.proportion import wilson
from calibrant.metrics.studentised import SCALES, Influence, studentised
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
    for limit in (row.threshold for row in evaluation.thresholds):
        inside = is_confident(predictions, limit)
        found[set_metric("share", limit)] = share_interval(inside, weights, clusters, level)
        if weights[inside].sum() > 0:
            own = share_interval(predictions.correct[inside], weights[inside], clusters[inside], level)
            found[set_metric("accuracy", limit)] = own
    settings = {"n_resamples": n_resamples, "seed": seed, "level": level, "scales": SCALES}
    found |= studentised(Influence(predictions), evaluation.values(), weights, clusters, **settings)  # type: ignore[arg-type] # mixed values
    return {name: found[name] for name in evaluation.values() if name in found}


def share_interval(hits: NDArray[np.bool_], weights: Floats, clusters: NDArray[np.int64], level: float) -> Interval:
    """Interval of a weighted share of rows that come in clusters.

    The rows that were not hit by chance matter most where they are heavy: among 3 errors, the one with ten times the
    weight may just be missing. So each end takes the variance that the clusters would show with one more cluster, as
    heavy as the heaviest, all of whose rows hit (for the upper end; none for the lower), as Fay and Feuer (1997) do for
    rates. Equal weights of independent rows give Wilson's interval but for Student's t.
    """
    share = float((weights * hits).sum() / weights.sum())
    _, own = np.unique(clusters, return_inverse=True)
    sizes, inside = np.bincount(own, weights), np.bincount(own, weights * hits)
    count, most = len(sizes), effective_rows(weights)
    # Few clusters tell their own variance badly: Student's t has wider tails than the normal distribution.
    tails = float((stdtrit(10**9, 0.5 + level / 2) / stdtrit(count, 0.5 + level / 2)) ** 2)
    ends = []
    for one_more in (0.0, 1.0):
        size, hit = np.append(sizes, sizes.max()), np.append(inside, one_more * sizes.max())
        seen = hit.sum() / size.sum()
        variance = ((hit - seen * size) ** 2).sum() / size.sum() ** 2 * (count + 1) / count
        effective = min(tails * seen * (1.0 - seen) / variance, most) if variance > 0.0 else most
        ends.append(wilson(share * effective, effective, level=level))
    return min(float(ends[0][0]), share), max(float(ends[1][1]), share)


def effective_rows(weights: Floats) -> float:
    """So many equally weighted rows would tell as much (Kish 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0
