"""The interval of every metric, each by the method that covers the truth as often as it says; see docs/metrics.md.

Shares of rows have Wilson's or Jeffreys' interval, calibration errors that of `inversion`, everything else the
percentiles of a bootstrap. MCE, class-wise ECE and debiased ECE have none: one bin with a few rows decides the first;
how far noise raises the second depends on whether the true gaps lie in many cells or in a few, which no sample tells;
the third is 0 whenever the noise that it subtracts is the larger part, so that one error among 200 very sure rows gives
0 in nearly every world, and no range of worlds follows from it. Errors of sets
of fewer than ten rows have none either. Every interval holds the value that stands beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.display import ShownFields
from calibrant.metrics.evaluation import Evaluation, Interval
from calibrant.metrics.inversion import Plausible, calibration_errors
from calibrant.metrics.names import set_metric
from calibrant.metrics.proportion import jeffreys, wilson
from calibrant.metrics.resampling import WeightedMetrics, resample
from calibrant.predictions import Predictions

_BOOTSTRAPPED = ("nll", "brier", "auroc", "aurc")
_WITHOUT = ("mce", "classwise_ece", "debiased_ece")
# Ends of simulated intervals have a noise of their own, which no correlation of the models takes away.
_MOST_TOGETHER = 0.9


@dataclass(frozen=True)
class Resampled(ShownFields):
    """One model's numbers, and what chance could have made of them.

    Attributes:
        evaluation: The numbers.
        draws: Flat name to its values over resampled rows; NaN where one is not defined.
        plausible: Flat name of a calibration error to the true values that could have shown it.
        level: Level of the intervals.
    """

    evaluation: Evaluation
    draws: Mapping[str, NDArray[np.float64]]
    plausible: Mapping[str, Plausible]
    level: float

    def intervals(self) -> dict[str, Interval]:
        """Flat name to interval; metrics that have none are left out."""
        found = share_intervals(self.evaluation, self.level)
        found |= {name: (each.low, each.high) for name, each in self.plausible.items()}
        for name in _BOOTSTRAPPED:
            ends = percentiles(self.draws[name], self.level)
            # Where only the least sure of ten rows is wrong, every draw has an AUROC of 1: that is no certainty.
            if ends is not None and (ends[0] < ends[1] or math.isinf(ends[0])):
                found[name] = ends
        values = self.evaluation.values()
        return {name: _around(values[name], *found[name]) for name in values if name in found}

    def difference(self, other: "Resampled", name: str) -> Interval | None:
        """What this model's value minus that of another one, which was resampled by the same draws, could be in truth.

        None for MCE, class-wise ECE and debiased ECE, and where a value or its range is not defined. Of calibration
        errors this range is made for verdicts alone: where it leaves 0 out it is right, but near 0 it is wider than its
        level says.
        """
        ours, theirs = self.evaluation.values()[name], other.evaluation.values()[name]
        if ours is None or theirs is None or name in _WITHOUT:
            return None
        parts = self.range(name), other.range(name)
        if parts[0] is not None and parts[1] is not None:
            together = _correlation(self.draws[name], other.draws[name])
            return _around(ours - theirs, *subtract(parts[0], parts[1], together))
        if "@" in name:
            return None  # of errors in sets of few rows
        with np.errstate(invalid="ignore"):  # infinite NLLs on both sides have no difference
            ends = percentiles(self.draws[name] - other.draws[name], self.level)
            return None if ends is None else _around(ours - theirs, *ends)

    def range(self, name: str) -> Plausible | None:
        """The true values of a metric whose resampled values cannot be trusted: errors, and shares of few rows."""
        if name.startswith(("accuracy@", "share@")):
            value, ends = self.evaluation.values()[name], share_intervals(self.evaluation, self.level).get(name)
            return None if value is None or ends is None else Plausible(ends[0], value, ends[1])
        return self.plausible.get(name)


def resample_models(
    models: Sequence[Predictions],
    evaluations: Sequence[Evaluation],
    *,
    n_resamples: int,
    seed: int = 0,
    level: float = 0.95,
    paired: bool = True,
) -> list[Resampled]:
    """Resample models on the same rows by the same draws.

    Args:
        models: Their predictions.
        evaluations: Their metrics; number of bins and thresholds are taken from these.
        n_resamples: Draws behind each interval.
        seed: Seed of the draws.
        level: Level of the intervals.
        paired: Whether differences will be asked for, which need the draws of every metric.
    """
    settings = [(each.n_bins, [row.threshold for row in each.thresholds]) for each in evaluations]
    weighted = [WeightedMetrics(model, *own, calibration=paired) for model, own in zip(models, settings, strict=True)]
    errors = [
        calibration_errors(model, *own, n_resamples=n_resamples, seed=seed, level=level)
        for model, own in zip(models, settings, strict=True)
    ]
    draws = resample(weighted, n_resamples, seed)
    return [Resampled(*each, level) for each in zip(evaluations, draws, errors, strict=True)]


def share_intervals(evaluation: Evaluation, level: float = 0.95) -> dict[str, Interval]:
    """Intervals of shares of rows: where nothing is wrong, a bootstrap would claim certainty.

    Wilson's; Jeffreys' at levels above 95 %, which groups have.
    """
    counts = {"test_error": (evaluation.test_error, evaluation.n)}
    for row in evaluation.thresholds:
        counts[set_metric("share", row.threshold)] = (row.share, evaluation.n)
        if row.accuracy is not None:
            counts[set_metric("accuracy", row.threshold)] = (row.accuracy, round(row.share * evaluation.n))
    ends = {}
    for name, (share, trials) in counts.items():
        counted = round(share * trials)
        low, high = wilson(counted, trials, level=level) if level <= 0.95 else jeffreys(counted, trials, level=level)
        ends[name] = (float(low), float(high))
    return ends


def percentiles(values: NDArray[np.float64], level: float) -> Interval | None:
    """Percentile interval over the resamples in which the metric is defined; None where those are fewer than half."""
    defined = values[~np.isnan(values)]
    if 2 * len(defined) < len(values):
        return None
    # "higher" and "lower" never interpolate, so that an infinite NLL does not turn into NaN.
    low = np.quantile(defined, (1.0 - level) / 2.0, method="lower")
    high = np.quantile(defined, (1.0 + level) / 2.0, method="higher")
    return float(low), float(high)


def _around(value: float | None, low: float, high: float) -> Interval:
    """The interval, wide enough to hold the value: a biased estimate may lie beyond every plausible truth."""
    return (low, high) if value is None or math.isnan(value) else (min(low, value), max(high, value))


def _correlation(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """How two metrics vary together over the same draws; 0 where one of them does not vary."""
    defined = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[defined] - ours[defined].mean(), theirs[defined] - theirs[defined].mean()
    size = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    return float((ours * theirs).sum() / size) if size > 0.0 else 0.0


def subtract(ours: Plausible, theirs: Plausible, together: float) -> Interval:
    """The interval of a difference from the intervals of its parts and their correlation.

    What chance does to two parts adds up as variances do, on each side with the distance of that part's end from its
    centre (Zou and Donner 2008). A part that may be 0 needs care: noise of either sign raises it, so its centre is 0,
    and the draws show parts that move together where they do not, so a positive correlation is not believed.
    """
    if ours.low <= 0.0 or theirs.low <= 0.0:
        together = min(0.0, together)
    together = min(together, _MOST_TOGETHER)

    def distance(first: float, second: float) -> float:
        return math.sqrt(max(0.0, first**2 + second**2 - 2.0 * together * first * second))

    a, b = (each.centre if each.low > 0.0 else 0.0 for each in (ours, theirs))
    low = a - b - distance(a - ours.low, theirs.high - b)
    return low, a - b + distance(ours.high - a, b - theirs.low)
