"""Is one method better than another? Differences over seeds and test images, and one verdict named beforehand.

Two trainings of one method differ, and so do two test sets. The variance of a difference of means has both parts:

    seed variance 1 / n1 + seed variance 2 / n2 + variance of the paired difference over test images

Runs are not paired by seed: in our records, runs of one seed are no more alike than others, and pairing costs degrees
of freedom. Three seeds say little about a variance, so the seed variance of each method is moderated towards that of
all other methods of the study (Smyth 2004), which count as one further degree of freedom times the p-value of an F
test of equal variances: a method that varies more or less than the others is judged by its own seeds alone. The degrees
of freedom of the sum are Satterthwaite's. `benchmarks/verdicts.py` measures error rate and power, also if variances
differ.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal

import numpy as np

from calibrant.errors import did_you_mean, invalid
from calibrant.metrics import evaluate
from calibrant.metrics.intervals import Resampled, percentiles, resample_models
from calibrant.metrics.metric import higher_is_better
from calibrant.metrics.model_comparison import Verdict, differences, rests_on_few
from calibrant.predictions import Predictions
from calibrant.studies.records import SCALED, Record, finite, without_scaled
from calibrant.tables import ShownFields

METRICS = ("ece", "test_error", "auroc", "ece@0.95", "share@0.95", "nll", "aurc")
# A temperature never changes the predicted class.
COMPARED = (*METRICS, *(SCALED + metric for metric in METRICS if metric != "test_error"))
N_RESAMPLES = 400
# What all other methods count as for the variance of one method, at most, and for one that was run once.
_PRIOR_DEGREES = 1
_DEGREES_OF_OTHERS = 2
_LEVEL = 0.05
# Of Student's t. With it, 80 % of differences as large as `detectable` are found in simulations with three seeds: the
# degrees of freedom are estimates, too.
_POWER = 0.85
# As good as a normal distribution.
_MANY_DEGREES = 1e6
# A smaller spread is rounding.
_NO_SPREAD = 1e-9
Over = Literal["seeds", "images"]
PredictionsOf = Callable[[Record, bool], Predictions]
"""Returns the test predictions of a record, temperature-scaled or not."""


def check_deciding_metric(name: str) -> None:
    """Refuse a name that is not in `COMPARED`."""
    if name not in COMPARED:
        raise invalid("metric", f"be one of {', '.join(COMPARED)}", repr(name), did_you_mean(name, COMPARED))


class SeedPool:
    """The seed variance of several methods in one metric.

    Args:
        groups: The values of each method, one per seed. Methods with one seed add nothing.

    >>> pool = SeedPool([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 9.0, 8.0]])
    >>> variance, degrees = pool.variance_of([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    >>> round(variance, 3), round(degrees, 1)
    (0.667, 5.8)
    """

    def __init__(self, groups: Iterable[Sequence[float]]) -> None:
        several = [values for values in groups if len(values) > 1]
        self._all_squares = sum(map(_squares, several))
        self._all_degrees = sum(len(values) - 1 for values in several)

    def of_one_run(self, values: Sequence[float]) -> tuple[float, float] | None:
        """Return the variance of one run of a method, and its degrees of freedom. None if nothing is known."""
        squares = _squares(values)
        degrees = len(values) - 1
        other_degrees = self._all_degrees - degrees
        if degrees == other_degrees == 0:
            return None
        if other_degrees == 0:
            return squares / degrees, float(degrees)
        others = max(self._all_squares - squares, 0.0) / other_degrees
        if degrees == 0:
            return others, float(min(_DEGREES_OF_OTHERS, other_degrees))
        weight = _PRIOR_DEGREES * _equal_variances(squares / degrees, degrees, others, other_degrees)
        return (squares + weight * others) / (degrees + weight), degrees + weight

    def variance_of(self, ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float] | None:
        """Return the variance of the difference of two means, and its degrees of freedom. None if nothing is known."""
        first, second = self.of_one_run(ours), self.of_one_run(theirs)
        if first is None or second is None:
            return None
        if len(ours) == len(theirs) == 1 and self._all_degrees < _DEGREES_OF_OTHERS:
            # Two other runs say next to nothing: the interval would be 13 standard errors wide.
            return None
        variance, degrees = satterthwaite([(first[0] / len(ours), first[1]), (second[0] / len(theirs), second[1])])
        own = len(ours) + len(theirs) - 2
        # Both variances may rest on the same other runs.
        return variance, min(degrees, own + 2.0 * _PRIOR_DEGREES, float(self._all_degrees))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of some variances and its degrees of freedom, from those of the parts.

    >>> satterthwaite([(1.0, 2.0), (1.0, 2.0)])
    (2.0, 4.0)
    """
    total = sum(variance for variance, _ in parts)
    squares = sum(variance**2 / degrees for variance, degrees in parts)
    if squares == 0:
        return total, min(degrees for _, degrees in parts)
    return total, total**2 / squares


def _equal_variances(own: float, degrees: int, others: float, other_degrees: int) -> float:
    """Return the p-value of the F test of equal variances."""
    from scipy.special import fdtr

    if others == 0:
        return float(own == 0)
    below = fdtr(degrees, other_degrees, own / others)
    return float(2 * min(below, 1 - below))


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)


@dataclass(frozen=True)
class Spread:
    """How much a difference of means varies: standard error and degrees of freedom."""

    error: float
    degrees: float

    def half_width(self, level: float = _LEVEL) -> float:
        """Return half of the interval."""
        return self._quantile(1 - level / 2) * self.error

    def p(self, difference: float) -> float:
        """Return the probability of a difference at least as large by chance."""
        from scipy.special import stdtr

        return float(2 * stdtr(self.degrees, -abs(difference) / self.error))

    def detectable(self, comparisons: int = 1) -> float:
        """Return the smallest difference that is found with 80 % probability, among so many comparisons."""
        return self.half_width(_LEVEL / comparisons) + self._quantile(_POWER) * self.error

    def _quantile(self, probability: float) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, probability))


@dataclass(frozen=True)
class Difference(ShownFields):
    """A method minus another one.

    Attributes:
        label: The method.
        metric: One of `COMPARED`.
        seeds: Number of seeds of the method and of the other one.
        difference: Difference of the means. None if the metric is not defined for a run.
        interval: 95 % interval, for this comparison alone. None if the spread is not known.
        spread: What the interval rests on.
        over: "images" if no method has several seeds; that says nothing about another training.
        verdict: Whether the method is better or worse than the other one.
    """

    label: str
    metric: str
    seeds: tuple[int, int]
    difference: float | None = None
    interval: tuple[float, float] | None = None
    spread: Spread | None = None
    over: Over | None = None
    verdict: Verdict = "cannot tell"

    @property
    def p(self) -> float | None:
        """Probability of a difference at least as large by chance. None without an interval."""
        if self.spread is None or self.difference is None:
            return None
        return self.spread.p(self.difference)

    def detectable(self, comparisons: int = 1) -> float | None:
        """Smallest true difference that is found with 80 % probability, among so many comparisons."""
        return None if self.spread is None else self.spread.detectable(comparisons)


def spread_of(pool: SeedPool, ours: Sequence[float], theirs: Sequence[float], image_variance: float) -> Spread | None:
    """Return the spread of a difference of means over seeds and images. None if nothing is known about seeds."""
    seeds = pool.variance_of(ours, theirs)
    if seeds is None:
        return None
    variance, degrees = seeds
    total = variance + image_variance
    if total < _NO_SPREAD**2:
        return None
    # The variance over images is known well, that over seeds is not.
    _, together = satterthwaite([(variance, degrees), (image_variance, _MANY_DEGREES)])
    return Spread(math.sqrt(total), min(together, _MANY_DEGREES))


def fieller(
    means: tuple[float, float], covariance: tuple[float, float, float], quantile: float
) -> tuple[float, float] | None:
    """Return the interval of a ratio of two means by Fieller's theorem. None if it is not bounded.

    Args:
        means: Of numerator and denominator.
        covariance: Variance of the numerator, variance of the denominator, and their covariance.
        quantile: Of Student's t.

    >>> fieller((1.0, 2.0), (0.0, 0.0, 0.0), 2.0)
    (0.5, 0.5)
    """
    top, bottom = means
    square = bottom**2 - quantile**2 * covariance[1]
    if square <= 0:
        return None
    middle = top * bottom - quantile**2 * covariance[2]
    constant = top**2 - quantile**2 * covariance[0]
    root = math.sqrt(max(middle**2 - square * constant, 0.0))
    return (middle - root) / square, (middle + root) / square


class Referee:
    """Compares methods of one data set and network.

    Args:
        groups: The records of each method, one per seed. Their seed variances are pooled.
        predictions_of: Returns the test predictions of a record. Each run is resampled once, all by the same draws.
            None: differences are over seeds alone.
    """

    def __init__(self, groups: Mapping[str, Sequence[Record]], predictions_of: PredictionsOf | None = None) -> None:
        self._groups = groups
        self._predictions_of = predictions_of
        self._resampled: dict[tuple[str, bool], Resampled] = {}
        self._pools: dict[str, SeedPool] = {}

    def compare(self, label: str, metric: str, ours: Sequence[Record], theirs: Sequence[Record]) -> Difference:
        """Return one metric of a method minus that of another one."""
        our_values = values_of(ours, metric)
        their_values = values_of(theirs, metric)
        nothing = Difference(label, metric, (len(ours), len(theirs)))
        if our_values is None or their_values is None:
            return nothing
        difference = statistics.fmean(our_values) - statistics.fmean(their_values)
        spread = spread_of(self._pool(metric), our_values, their_values, self.image_variance(metric, ours, theirs))
        if spread is None:
            return self._over_images(replace(nothing, difference=difference), ours[0], theirs[0])
        half = spread.half_width()
        interval = (difference - half, difference + half)
        verdict = verdict_of(metric, interval)
        if any(_rests_on_few(metric, mine, other) for mine, other in zip(ours, theirs, strict=False)):
            verdict = "cannot tell"  # three images that are right in every seed prove nothing
        return replace(nothing, difference=difference, interval=interval, spread=spread, over="seeds", verdict=verdict)

    def recovered(
        self, metric: str, plan: Sequence[Record], control: Sequence[Record], whole: Sequence[Record]
    ) -> tuple[float, float] | None:
        """Return the 95 % interval of (control - plan) / (control - whole) over seeds, by Fieller's theorem.

        None if it is not bounded: then fewer epochs lose too little to say which part of it is recovered.
        """
        groups = [values_of(records, metric) for records in (plan, control, whole)]
        known = [values for values in groups if values is not None]
        pool = self._pool(metric)
        spreads = [spread for values in known if (spread := pool.of_one_run(values)) is not None]
        if len(spreads) < 3:
            return None
        parts = [(spread[0] / len(values), spread[1]) for spread, values in zip(spreads, known, strict=True)]
        means = [statistics.fmean(values) for values in known]
        variances = [variance for variance, _ in parts]
        _, degrees = satterthwaite(parts)
        return fieller(
            (means[1] - means[0], means[1] - means[2]),
            (variances[1] + variances[0], variances[1] + variances[2], variances[1]),
            Spread(1.0, degrees).half_width(),
        )

    def _over_images(self, difference: Difference, ours: Record, theirs: Record) -> Difference:
        """Fill in the interval over test images, if no method has several seeds."""
        if self._predictions_of is None or max(difference.seeds) > 1:
            return difference
        metric, scaled = without_scaled(difference.metric)
        both = self._draws(theirs, scaled), self._draws(ours, scaled)
        (row,) = [row for row in differences(*both) if row.name == metric]
        spread = None
        if row.interval is not None and row.interval[1] - row.interval[0] >= _NO_SPREAD:
            spread = Spread((row.interval[1] - row.interval[0]) / (2 * 1.96), _MANY_DEGREES)
        return replace(
            difference,
            difference=row.difference,
            interval=row.interval,
            over="images",
            verdict=row.verdict,
            spread=spread,
        )

    def image_variance(self, name: str, ours: Sequence[Record], theirs: Sequence[Record]) -> float:
        """Return the variance of the difference of two means over test images. 0 if unknown.

        For calibration errors and high-confidence sets, draws cannot be trusted. There it follows from the average
        interval of one run against another, as if the noise of the images were the same in every seed.
        """
        if self._predictions_of is None:
            return 0.0
        metric, scaled = without_scaled(name)
        our_draws = [self._draws(record, scaled) for record in ours]
        their_draws = [self._draws(record, scaled) for record in theirs]
        if all(model.range(metric) is None for model in (*our_draws, *their_draws)):
            means = [np.mean([model.draws[metric] for model in models], axis=0) for models in (our_draws, their_draws)]
            ends = percentiles(means[0] - means[1], 0.95)
            if ends is None:
                return 0.0
            return float(((ends[1] - ends[0]) / (2 * 1.96)) ** 2)
        distances = []
        shorter, longer = sorted((our_draws, their_draws), key=len)
        for first, second in zip(longer, cycle(shorter), strict=False):
            one = first.evaluation.values()[metric]
            other = second.evaluation.values()[metric]
            ends = first.difference(second, metric)
            if ends is None or one is None or other is None:
                return 0.0
            distances.append(max(one - other - ends[0], ends[1] - (one - other)))
        return float((np.mean(distances) / 1.96) ** 2)

    def _draws(self, record: Record, scaled: bool) -> Resampled:
        """Return the metrics of one run, resampled by the draws that all runs share."""
        assert self._predictions_of is not None
        key = (record.predictions_sha256["test"], scaled)
        if key not in self._resampled:
            predictions = self._predictions_of(record, scaled)
            evaluation = evaluate(predictions, n_bins=10, thresholds=(0.95,))
            (self._resampled[key],) = resample_models([predictions], [evaluation], n_resamples=N_RESAMPLES)
        return self._resampled[key]

    def _pool(self, metric: str) -> SeedPool:
        if metric not in self._pools:
            values = [values_of(records, metric) for records in self._groups.values()]
            self._pools[metric] = SeedPool(group for group in values if group is not None)
        return self._pools[metric]


def values_of(records: Sequence[Record], metric: str) -> list[float] | None:
    """Return the metric of each record. None if it is not defined for one of them."""
    return finite([record.value(metric) for record in records])


def _rests_on_few(name: str, ours: Record, theirs: Record) -> bool:
    metric, scaled = without_scaled(name)
    first = theirs.evaluation(scaled=scaled)
    second = ours.evaluation(scaled=scaled)
    return rests_on_few(metric, first.values(), second.values(), first.n)


def verdict_of(metric: str, interval: tuple[float, float]) -> Verdict:
    """Return whether a difference with this interval is better or worse."""
    if interval[0] <= 0.0 <= interval[1]:
        return "cannot tell"
    rises = interval[0] > 0.0
    return "better" if rises == higher_is_better(without_scaled(metric)[0]) else "worse"


@dataclass(frozen=True)
class Decision(ShownFields):
    """The verdict on one method in the metric that was named before the study, corrected for all its comparisons.

    `p` is Holm's: with all of them below 0.05, the chance that any verdict is wrong is at most 5 %. `detectable` is the
    smallest true difference that the study would find in 4 of 5 repetitions, with the correction.
    """

    difference: Difference
    p: float | None
    detectable: float | None
    verdict: Verdict


def decide(differences: Sequence[Difference]) -> tuple[Decision, ...]:
    """Correct the comparisons of one metric for their number by Holm's method.

    >>> spread = Spread(error=1.0, degrees=6.0)
    >>> both = [Difference(name, "nll", (3, 3), -2.6, (-5.0, -0.2), spread, "seeds", "better") for name in "ab"]
    >>> [(round(item.p, 3), item.verdict) for item in decide(both)]
    [(0.081, 'cannot tell'), (0.081, 'cannot tell')]
    """
    tested = {item.label: item.p for item in differences if item.p is not None}
    adjusted: dict[str, float] = {}
    so_far = 0.0
    for place, label in enumerate(sorted(tested, key=tested.__getitem__)):
        so_far = max(so_far, min((len(tested) - place) * tested[label], 1.0))
        adjusted[label] = so_far
    decisions = []
    for item in differences:
        p = adjusted.get(item.label)
        verdict: Verdict = "cannot tell"
        if p is not None and p < _LEVEL:
            verdict = item.verdict
        decisions.append(Decision(item, p, item.detectable(max(len(tested), 1)), verdict))
    return tuple(decisions)
