"""How sure the numbers of the comparison are: intervals, and verdicts against the first method, from shared draws."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibrant.metrics import Evaluation
from calibrant.metrics.intervals import resample_models, share_intervals
from calibrant.metrics.model_comparison import differences
from calibrant.predictions import Predictions


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
    methods: Sequence[Predictions], evaluations: Sequence[Evaluation], *, n_resamples: int
) -> list[Uncertainty]:
    """Intervals and verdicts of every method; the same as `evaluate` and `compare` give, in a fraction of the time.

    All methods on the cases of the first see the same draws, so one pass serves the intervals of each and the paired
    difference of each to the first. Methods on other cases are resampled on their own and get no verdict.

    Args:
        methods: Predictions; the first is what the others are compared with.
        evaluations: Their metrics, without intervals.
        n_resamples: Draws behind each interval; 0 leaves the Wilson intervals of the shares alone.
    """
    found = [Uncertainty(share_intervals(evaluation), {}) for evaluation in evaluations]
    if not n_resamples:
        return found
    together = [i for i, each in enumerate(methods) if same_cases(methods[0], each)]
    groups = [together, *([i] for i in range(len(methods)) if i not in together)]
    for group in groups:
        own_evaluations = [evaluations[i] for i in group]
        resampled = resample_models(
            [methods[i] for i in group], own_evaluations, n_resamples=n_resamples, paired=len(group) > 1
        )
        for i, own in zip(group, resampled, strict=True):
            rows = differences(resampled[0], own) if i in together and i != 0 else ()
            verdicts = {row.name: str(row.verdict) for row in rows if row.verdict != "cannot tell"}
            found[i] = Uncertainty(own.intervals(), verdicts)
    return found
