"""How sure the numbers of the comparison are: intervals, and verdicts against the first method, from shared draws."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrant.metrics import Evaluation, set_metric, wilson
from calibrant.metrics.comparison import differences
from calibrant.metrics.evaluation import percentiles
from calibrant.metrics.resampling import WeightedMetrics, resample
from calibrant.predictions import Predictions

_LEVEL = 0.95


class Uncertainty(NamedTuple):
    """Flat metric name to its 95 % interval, and to "better" or "worse" than the first method where one can tell."""

    intervals: dict[str, tuple[float, float]]
    verdicts: dict[str, str]


def same_cases(a: Predictions, b: Predictions) -> bool:
    """Whether two methods were measured on the same cases in the same order, as far as one can see."""
    if a.n_classes != b.n_classes or not np.array_equal(a.targets, b.targets):
        return False
    return a.ids is None or b.ids is None or bool((a.ids.astype(np.str_) == b.ids.astype(np.str_)).all())


def uncertainties(
    methods: Sequence[Predictions], evaluations: Sequence[Evaluation], *, n_resamples: int, seed: int = 0
) -> list[Uncertainty]:
    """Intervals and verdicts of every method; the same as `evaluate` and `compare` give, in a fraction of the time.

    All methods on the cases of the first see the same draws, so one pass serves the intervals of each and the paired
    difference of each to the first. Methods on other cases are resampled on their own and get no verdict.

    Args:
        methods: Predictions; the first is what the others are compared with.
        evaluations: Their metrics, without intervals.
        n_resamples: Bootstrap n_resamples; 0 leaves the Wilson intervals of the shares alone.
        seed: Of the draws.
    """
    found = [Uncertainty(proportions(evaluation), {}) for evaluation in evaluations]
    if not n_resamples:
        return found
    together = [i for i, each in enumerate(methods) if same_cases(methods[0], each)]
    groups = [together, *([i] for i in range(len(methods)) if i not in together)]
    for group in groups:
        weighted = [_weighted(methods[i], evaluations[i]) for i in group]
        draws = resample(weighted, n_resamples, seed)
        for i, own in zip(group, draws, strict=True):
            ends = {name: percentiles(values, _LEVEL) for name, values in own.items()}
            intervals = {name: pair for name, pair in ends.items() if pair is not None} | found[i].intervals
            verdicts = {}
            if i in together and i != 0:
                values = evaluations[0].values(), evaluations[i].values()
                rows = differences(*values, draws[0], own, n=len(methods[i]), level=_LEVEL)
                verdicts = {row.name: str(row.verdict) for row in rows if row.verdict != "cannot tell"}
            found[i] = Uncertainty(intervals, verdicts)
    return found


def proportions(evaluation: Evaluation) -> dict[str, tuple[float, float]]:
    """Wilson intervals of the shares: where nothing is wrong, the bootstrap would claim certainty, [100, 100]."""
    counts = {"test_error": (evaluation.test_error, evaluation.n)}
    for row in evaluation.thresholds:
        counts[set_metric("share", row.threshold)] = (row.share, evaluation.n)
        if row.accuracy is not None:
            counts[set_metric("accuracy", row.threshold)] = (row.accuracy, round(row.share * evaluation.n))
    ends = {}
    for name, (share, trials) in counts.items():
        low, high = wilson(round(share * trials), trials)
        ends[name] = (float(low), float(high))
    return ends


def _weighted(predictions: Predictions, evaluation: Evaluation) -> WeightedMetrics:
    thresholds = [row.threshold for row in evaluation.thresholds]
    return WeightedMetrics(predictions, evaluation.n_bins, thresholds)
