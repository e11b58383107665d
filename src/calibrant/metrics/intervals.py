"""The interval of every metric for independent rows of equal weight, by the method that covers for its family.

Shares of rows have the exact interval, calibration errors that of `inversion`, means and ranking metrics the
percentiles of a bootstrap. docs/appendix/intervals.md says how often each holds the truth. Every interval holds the
value beside it.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from calibrant.metrics.binning import Floats, edge_precision
from calibrant.metrics.confidences import Confidences, Order
from calibrant.metrics.evaluation import Evaluation, Interval
from calibrant.metrics.inversion import Plausible, calibration_errors
from calibrant.metrics.metric import (
    FEWEST_DIFFERING,
    FEWEST_WRONG,
    METRICS,
    SET_METRICS,
    definition,
    row_values,
    set_metric,
)
from calibrant.predictions import Predictions
from calibrant.tables import ShownFields

# Counts of one block of resamples, which one thread draws and measures.
_BLOCK = 2**19
# Counts that are measured at once: arrays of this size stay in the cache, which is two to four times as fast.
_PASS = 100_000
_MOST_THREADS = 8
# The simulated ends of intervals have a noise of their own, which no correlation of the models removes.
_MOST_TOGETHER = 0.9


def exact_interval(successes: ArrayLike, trials: ArrayLike, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Interval of a proportion that holds it at least as often as it says (Clopper and Pearson 1934); NaN if no trials.

    Shorter intervals hold some proportions too rarely: Wilson's 95 % interval those near 0 and 1 in 84 %, Jeffreys' in
    87 %. Trials need not be whole: weighted rows count as so many rows of equal weight.

    >>> low, high = exact_interval(98, 100)
    >>> print(f"{low:.4f} {high:.4f}")
    0.9296 0.9976
    """
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tail = (1.0 - level) / 2.0
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, betaincinv(k, n - k + 1.0, tail), 0.0)
        high = np.where(k < n, betaincinv(k + 1.0, n - k, 1.0 - tail), 1.0)
    return np.where(n == 0, np.nan, low), np.where(n == 0, np.nan, high)


def share_intervals(evaluation: Evaluation, level: float = 0.95) -> dict[str, Interval]:
    """Intervals of shares of rows: if nothing is wrong, a bootstrap would claim certainty."""
    values = evaluation.values()
    ends = {}
    for name, value in values.items():
        if definition(name).family != "share" or value is None:
            continue
        trials = evaluation.n
        if name.startswith("accuracy@"):
            trials = round((values[name.replace("accuracy", "share")] or 0.0) * evaluation.n)
        successes = round(value * trials)
        low, high = exact_interval(successes, trials, level=level)
        ends[name] = (float(low), float(high))
    return ends


def paired_share_interval(ours: NDArray[np.bool_], theirs: NDArray[np.bool_], level: float) -> Interval:
    """Interval of the share of rows that only the first hits less that of rows that only the second hits.

    Resamples of rows that agree show no difference at all, and resamples of three that do not show one too surely. So
    both shares have their exact interval, and the ends are joined with the correlation of two shares of one sample.
    """
    n = len(ours)
    shares = [float((ours & ~theirs).mean()), float((theirs & ~ours).mean())]
    parts = []
    for share in shares:
        low, high = exact_interval(round(share * n), n, level=level)
        parts.append(Plausible(float(low), share, float(high)))
    together = -math.sqrt(math.prod(shares) / max(math.prod(1.0 - share for share in shares), 1e-300))
    return subtract(parts[0], parts[1], max(together, -1.0))


def too_few_wrong(name: str, *evaluations: Evaluation) -> bool:
    """Whether so few rows are wrong, or right, that no interval of this metric holds the truth often enough."""
    fewest = FEWEST_WRONG.get(definition(name).family, 0)
    for each in evaluations:
        wrong = round((each.values()["test_error"] or 0.0) * each.n)
        if min(wrong, each.n - wrong) < fewest:
            return True
    return False


def _too_few_differ(name: str, ours: Predictions, theirs: Predictions) -> bool:
    """Whether two models agree on all but so few rows that resamples cannot show how their metrics differ."""
    family = definition(name).family
    if family == "ranking":
        differ = (ours.confidence != theirs.confidence) | (ours.correct != theirs.correct)
    else:
        differ = row_values(ours, family)[name] != row_values(theirs, family)[name]
    return int(differ.sum()) < FEWEST_DIFFERING


def percentiles(values: Floats, level: float) -> Interval | None:
    """Percentile interval over the resamples in which the metric is defined; None if those are fewer than half."""
    defined = values[~np.isnan(values)]
    if 2 * len(defined) < len(values):
        return None
    # "higher" and "lower" never interpolate, so that an infinite NLL does not turn into NaN.
    low = np.quantile(defined, (1.0 - level) / 2.0, method="lower")
    high = np.quantile(defined, (1.0 + level) / 2.0, method="higher")
    return float(low), float(high)


@dataclass(frozen=True)
class Resampled(ShownFields):
    """The metrics of one model's predictions, and what chance could have made of them.

    `draws` has the values of each flat name over resampled rows, NaN if one is not defined. `plausible` has, for each
    calibration error, the true values that could have shown it.
    """

    predictions: Predictions
    evaluation: Evaluation
    draws: Mapping[str, Floats]
    plausible: Mapping[str, Plausible]
    level: float

    def intervals(self) -> dict[str, Interval]:
        """Flat name to interval; metrics that have none are left out."""
        shares = share_intervals(self.evaluation, self.level)
        intervals = {}
        for name, value in self.evaluation.values().items():
            ends = shares.get(name)
            if name in self.plausible:
                ends = self.plausible[name].low, self.plausible[name].high
            elif definition(name).family in ("mean", "ranking") and not definition(name).no_interval:
                if too_few_wrong(name, self.evaluation):
                    continue
                ends = percentiles(self.draws[name], self.level)
                # If only the least sure of ten rows is wrong, every draw has an AUROC of 1: that is no certainty.
                if ends is not None and ends[0] == ends[1] and not math.isinf(ends[0]):
                    ends = None
            if ends is not None:
                intervals[name] = _around(value, *ends)
        return intervals

    def difference(self, other: "Resampled", name: str) -> Interval | None:
        """The range of this model's true value minus that of another model that was resampled by the same draws.

        None for metrics without intervals, and if a value or its range is not defined. For calibration errors the range
        is made for verdicts alone: it is right if it leaves 0 out, but close to 0 it is wider than its level says.
        """
        ours, theirs = self.evaluation.values().get(name), other.evaluation.values().get(name)
        if ours is None or theirs is None or definition(name).no_interval:
            return None
        parts = self.range(name), other.range(name)
        if parts[0] is not None and parts[1] is not None:
            together = _correlation(self.draws[name], other.draws[name])
            return _around(ours - theirs, *subtract(parts[0], parts[1], together))
        if "@" in name:
            return None  # an error in a set of few rows
        if definition(name).family == "share":
            hits = [row_values(each.predictions, "share")[name] > 0 for each in (self, other)]
            return _around(ours - theirs, *paired_share_interval(hits[0], hits[1], self.level))
        few = too_few_wrong(name, self.evaluation, other.evaluation)
        if few or _too_few_differ(name, self.predictions, other.predictions):
            return None
        with np.errstate(invalid="ignore"):  # infinite NLLs on both sides have no difference
            ends = percentiles(self.draws[name] - other.draws[name], self.level)
        return None if ends is None else _around(ours - theirs, *ends)

    def range(self, name: str) -> Plausible | None:
        """The true values of a metric whose resampled values cannot be trusted: errors, and shares of few rows."""
        if "@" not in name or definition(name).family != "share":
            return self.plausible.get(name)
        value, ends = self.evaluation.values()[name], share_intervals(self.evaluation, self.level).get(name)
        if value is None or ends is None:
            return None
        return Plausible(ends[0], value, ends[1])


def _around(value: float | None, low: float, high: float) -> Interval:
    """The interval, wide enough to hold the value: a biased estimate may lie beyond every plausible truth."""
    if value is None or math.isnan(value):
        return low, high
    return min(low, value), max(high, value)


def _correlation(ours: Floats, theirs: Floats) -> float:
    """How two metrics vary together over the same draws; 0 if one of them does not vary."""
    defined = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[defined] - ours[defined].mean(), theirs[defined] - theirs[defined].mean()
    size = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    return float((ours * theirs).sum() / size) if size > 0.0 else 0.0


def subtract(ours: Plausible, theirs: Plausible, together: float) -> Interval:
    """The interval of a difference from the intervals of its parts and their correlation.

    The effects of chance on two parts add up as variances do, on each side with the distance of that part's end from
    its centre (Zou and Donner 2008). A part that may be 0 needs care: noise of either sign raises it, so its centre is
    0, and the draws show parts that move together even if they do not, so a positive correlation is not used.
    """
    if ours.low <= 0.0 or theirs.low <= 0.0:
        together = min(0.0, together)
    together = min(together, _MOST_TOGETHER)

    def distance(first: float, second: float) -> float:
        return math.sqrt(max(0.0, first**2 + second**2 - 2.0 * together * first * second))

    a, b = (part.centre if part.low > 0.0 else 0.0 for part in (ours, theirs))
    low = a - b - distance(a - ours.low, theirs.high - b)
    return low, a - b + distance(ours.high - a, b - theirs.low)


def resample_models(
    models: Sequence[Predictions],
    evaluations: Sequence[Evaluation],
    *,
    n_resamples: int,
    seed: int = 0,
    level: float = 0.95,
    paired: bool = True,
) -> list[Resampled]:
    """Resample models on the same rows by the same draws; without `paired`, differences cannot be computed."""
    settings = [(each.n_bins, [row.threshold for row in each.thresholds]) for each in evaluations]
    measures = [_Measure(model, *own, paired=paired) for model, own in zip(models, settings, strict=True)]
    errors: list[dict[str, Plausible]] = []
    for model, own in zip(models, settings, strict=True):
        errors.append({})
        if model.kind != "score":
            errors[-1] = calibration_errors(model, *own, n_resamples=n_resamples, seed=seed, level=level)
    draws = _resample(measures, len(models[0]), n_resamples, seed)
    return [Resampled(*each, level) for each in zip(models, evaluations, draws, errors, strict=True)]


def _resample(measures: Sequence["_Measure"], rows: int, n_resamples: int, seed: int) -> list[dict[str, Floats]]:
    """Bootstrap values of each model; all of them see the same draws.

    Each block of resamples has its own generator, so the values depend on the seed alone, not on which thread is first.
    """
    in_block = max(1, _BLOCK // rows)
    sizes = [min(in_block, n_resamples - start) for start in range(0, n_resamples, in_block)]
    seeds = np.random.SeedSequence(seed).spawn(len(sizes))

    def measure_block(size: int, own_seed: np.random.SeedSequence) -> list[list[dict[str, Floats]]]:
        counts = _draw_counts(rows, size, np.random.default_rng(own_seed))
        return [[measure(some) for measure in measures] for some in counts]

    # NumPy releases the interpreter lock inside its loops, so threads help.
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        passes = [values for block in pool.map(measure_block, sizes, seeds) for values in block]
    return [
        {name: np.concatenate([values[place][name] for values in passes]) for name in passes[0][place]}
        for place in range(len(measures))
    ]


def _draw_counts(rows: int, n_resamples: int, generator: np.random.Generator) -> Iterator[Floats]:
    """How often n draws with replacement hit each row: arrays of shape (resamples of a pass, rows)."""
    in_pass = max(1, _PASS // rows)
    for start in range(0, n_resamples, in_pass):
        size = min(in_pass, n_resamples - start)
        drawn = generator.integers(0, rows, size=(size, rows))
        drawn += rows * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)


class _Measure:
    """Metrics of one model as functions of how often each row was drawn.

    `paired` says whether calibration errors and high-confidence sets are needed, which take most of the time.
    """

    def __init__(self, predictions: Predictions, n_bins: int, thresholds: Sequence[float], *, paired: bool) -> None:
        self._n_bins, self._precision, self._paired = n_bins, edge_precision(predictions), paired
        self._thresholds = thresholds
        self._order = Order(predictions.confidence, predictions.correct)
        values = row_values(predictions, "mean", "share")
        self._names = list(values)
        rows = np.stack(list(values.values()), axis=1)
        # Infinity times a count of 0 would be NaN: only rows that a resample contains make its mean infinite.
        self._endless = {name: np.flatnonzero(np.isinf(each)) for name, each in values.items()}
        self._rows = np.where(np.isinf(rows), 0.0, rows)

    def __call__(self, counts: Floats) -> dict[str, Floats]:
        """Flat name to one value for each resample; NaN if it is not defined."""
        means = counts @ self._rows / counts.sum(axis=1)[:, None]
        values = {}
        for place, name in enumerate(self._names):
            infinite = counts[:, self._endless[name]].any(axis=1)
            values[name] = np.where(infinite, np.inf, means[:, place])
        confidences = Confidences(self._order.ranked(counts), self._n_bins, self._precision)
        for metric in METRICS.values():
            if metric.family == "ranking" or (self._paired and metric.family == "calibration"):
                values[metric.name] = np.asarray(metric.compute(confidences))
        for threshold in self._thresholds if self._paired else ():
            inside = confidences.above(threshold)
            with np.errstate(invalid="ignore", divide="ignore"):
                for metric in SET_METRICS.values():
                    values[set_metric(metric.name, threshold)] = np.asarray(metric.compute(inside))
        return values
