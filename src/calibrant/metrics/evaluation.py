"""`evaluate`: every metric of one set of predictions in one result; `Gates`: limits on them for a pipeline."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, whole
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import did_you_mean, invalid
from calibrant.files import typed
from calibrant.metrics.binning import Floats, bin_edges, check_bins, edge_precision, rounded
from calibrant.metrics.confidences import Confidences, RowConfidences
from calibrant.metrics.functions import NoiseFloor, confidences_of, noise_bins, simulate_noise
from calibrant.metrics.metric import (
    FEWEST_WRONG,
    METRICS,
    SET_METRICS,
    Weights,
    check_clusters,
    definition,
    label,
    optional_weights,
    read_chunks,
    set_metric,
    weighted_sum,
)
from calibrant.predictions import Kind, Predictions, require_predictions
from calibrant.predictions.core import as_predictions
from calibrant.tables import Displayed, ShownFields, Table

Interval = tuple[float, float]
FEWEST_RESAMPLES = 20
"""With fewer, not even the range of all draws would be a 90 % interval."""
MOST_ROWS_BY_DEFAULT = 100_000
"""Above so many rows, intervals are computed only if somebody asks for them."""
NO_INTERVALS = (
    f"No intervals: above {MOST_ROWS_BY_DEFAULT:,} rows they are left out unless you ask for them (--n-resamples 200)."
)


@dataclass(frozen=True)
class ConfidentSet(ShownFields):
    """The paper's high-confidence set S: the rows with confidence >= threshold. None: there are none."""

    threshold: float
    share: float  # of all rows: |S| / n
    accuracy: float | None
    ece: float | None  # over equal-width bins on [0, 1], as in the paper
    ece_inside: float | None  # over equal-width bins on [threshold, 1]


def is_confident(predictions: Predictions, threshold: float) -> NDArray[np.bool_]:
    """Which rows have confidence >= threshold, threshold rounded to the precision of the confidences."""
    require_predictions(predictions)
    limit = rounded(np.asarray([fraction("threshold", threshold, ends=True)]), edge_precision(predictions))
    return np.asarray(predictions.confidence >= limit[0])


def confident_set(
    predictions: Predictions,
    threshold: float = 0.95,
    *,
    n_bins: int = DEFAULT_N_BINS,
    weights: Weights | None = None,
) -> ConfidentSet:
    """Share, accuracy and calibration error of the rows with confidence >= threshold.

    >>> confident_set(Predictions.from_probabilities([[0.98, 0.02], [0.6, 0.4]], [0, 1])).share
    0.5
    """
    return _set_above(confidences_of(predictions, n_bins, weights), fraction("threshold", threshold, ends=True))


def _set_above(confidences: Confidences, threshold: float) -> ConfidentSet:
    inside = confidences.above(threshold)
    with np.errstate(invalid="ignore"):
        values = {name: metric.value(inside) for name, metric in SET_METRICS.items()}
    return ConfidentSet(float(threshold), **values)  # type: ignore[arg-type] # a share is always defined


def without_infinity(content: Any) -> Any:
    """Plain values for JSON: numbers that are not finite become None."""
    if isinstance(content, Mapping):
        return {name: without_infinity(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_infinity(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


class Result(Displayed):
    """A result that is written as JSON, in fractions, and shown as a table, in percent."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        raise NotImplementedError

    def to_json(self) -> str:
        """The result as JSON, in fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def table(self) -> str:
        """A table for people, in percent, with intervals if there are any."""
        return self._overview().terminal(width=120)


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """All metrics, as fractions; docs/metrics.md defines each. `evaluation.ece` is `evaluation.metrics["ece"]`.

    Attributes:
        n: Rows.
        n_classes: Classes; "classes" in JSON.
        n_bins: Bins of the binned metrics.
        metrics: Value of each metric of all rows by name, None if it is not defined (AUROC if all rows are right; NLL
            for a class and its confidence). An NLL is infinite if a target has probability 0 (null in JSON). In JSON
            these keys are among the others.
        noise_floor: Mean ECE of a perfectly calibrated model with these confidences.
        noise_floor_95: Its 95 % quantile.
        thresholds: The high-confidence sets.
        intervals: Metric name (for a set: "share@0.95") to its interval; None unless asked for.
        level: Level of the intervals; None without them.
        balanced_error: Mean over classes of the class's error; see `evaluate_classes` for each class.
    """

    n: int
    n_classes: int
    n_bins: int
    metrics: Mapping[str, float | None]
    noise_floor: float
    noise_floor_95: float
    thresholds: tuple[ConfidentSet, ...]
    intervals: Mapping[str, Interval] | None = None
    level: float | None = None
    balanced_error: float | None = None

    def __getattr__(self, name: str) -> Any:
        """The value of a metric by its name."""
        metrics = self.__dict__.get("metrics", {})
        if name in metrics:
            return metrics[name]
        raise AttributeError(f"Evaluation has no attribute {name!r}. Its metrics: {', '.join(metrics)}.")

    def values(self) -> dict[str, float | None]:
        """Every metric under one flat name, those of the high-confidence sets as "share@0.95"; None: not defined."""
        flat = dict(self.metrics)
        for row in self.thresholds:
            for name in SET_METRICS:
                flat[set_metric(name, row.threshold)] = getattr(row, name)
        return flat

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no infinity: an infinite NLL, or end of its interval, becomes None."""
        content: dict[str, Any] = {"n": self.n, "classes": self.n_classes, "n_bins": self.n_bins, **self.metrics}
        content |= {"noise_floor": self.noise_floor, "noise_floor_95": self.noise_floor_95, "thresholds": []}
        for row in self.thresholds:
            values = asdict(row)
            content["thresholds"].append({"delta": values.pop("threshold"), **values})
        if self.intervals is not None:
            content |= {"intervals": self.intervals, "level": self.level}
        if self.balanced_error is not None:
            content["balanced_error"] = self.balanced_error
        finite: dict[str, Any] = without_infinity(content)
        return finite

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Build an evaluation from what `to_dict` returned."""
        try:
            own: dict[str, Any] = dict(content)
            own["n_classes"] = own.pop("classes")
            own["metrics"] = {name: own.pop(name) for name in METRICS if name in own}
            if own["metrics"]["nll"] is None and own["metrics"]["brier"] is not None:
                own["metrics"]["nll"] = math.inf
            own["thresholds"] = [dict(row) for row in own["thresholds"]]
            for row in own["thresholds"]:
                row["threshold"] = row.pop("delta")
            if "intervals" in own:
                intervals = {}
                for name, (low, high) in own["intervals"].items():
                    intervals[name] = (math.inf if low is None else low, math.inf if high is None else high)
                own["intervals"] = intervals
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise invalid("content", "be what Evaluation.to_dict gave", f"something else ({error})") from error
        return typed(cls, own, what="evaluation", where="content")

    def _overview(self) -> Table:
        return self._table(main=False)

    def _summary(self) -> Table:
        return self._table(main=True)

    def _table(self, *, main: bool) -> Table:
        """One row per metric, or per main metric."""
        headings, rows = ["metric", "value"], []
        reasons: dict[str, list[str]] = {}
        for name, value in self.values().items():
            metric = definition(name)
            # Not defined for scores of the predicted class alone, or for scores that are only ranked.
            undefined = value is None and (metric.all_classes or math.isnan(self.noise_floor))
            if undefined or (main and not metric.main):
                continue
            ends = (self.intervals or {}).get(name)
            rows.append([label(name), metric.number(value), metric.interval(ends)])
            if name == "ece":
                upper = f"95 % below {metric.number(self.noise_floor_95)}"
                rows.append(["  by chance alone", metric.number(self.noise_floor), upper])
            if value is not None and ends is None:
                reasons.setdefault(_why_no_interval(name), []).append(label(name))
        title = f"{self.n} rows, {self.n_classes} classes, {self.n_bins} bins"
        if self.intervals is None:
            return Table(title, [row[:2] for row in rows], headings)
        headings.append(f"{100 * (self.level or 0):g} % interval")
        missing = [f"No interval of {'; '.join(names)}: {reason}" for reason, names in reasons.items()]
        return Table(title, rows, headings, "\n".join(missing))

    def with_interval(self, name: str) -> str:
        """The value of a metric as text, and below it the ends of its interval if it has one."""
        metric, ends = definition(name), (self.intervals or {}).get(name)
        text = metric.number(self.values()[name])
        if ends is None:
            return text
        return f"{text}\n{metric.interval(ends)}"


def _why_no_interval(name: str) -> str:
    metric = definition(name)
    if metric.no_interval:
        return metric.no_interval
    if metric.family in FEWEST_WRONG:
        return f"Fewer than {FEWEST_WRONG[metric.family]} rows (or clusters) are wrong, or right."
    if "@" in name:
        return "The set has fewer than 10 rows, or rows have weights or come in clusters."
    return "No method that covers is known if rows have weights or come in clusters."


def evaluations_table(evaluations: Mapping[str, Evaluation]) -> str:
    """One set of predictions with its intervals, or several side by side."""
    results = list(evaluations.values())
    if len(results) == 1:
        return results[0].table()
    rows = [("rows", *(str(result.n) for result in results))]
    rows.append(("classes", *(str(result.n_classes) for result in results)))
    for name in results[0].values():
        rows.append((label(name), *(result.with_interval(name) for result in results)))
        if name == "ece":
            rows.append(("  by chance alone", *(METRICS[name].number(result.noise_floor) for result in results)))
    return Table("", rows, ("metric", *evaluations)).terminal(width=120)


@dataclass
class Sums:
    """What rows add to an evaluation: sums of metrics, and rows and errors of each class."""

    rows: int
    metrics: dict[str, Any] = field(default_factory=dict)
    class_rows: NDArray[Any] = field(default_factory=lambda: np.zeros(1))
    class_wrong: NDArray[Any] = field(default_factory=lambda: np.zeros(1))

    def __add__(self, other: "Sums") -> "Sums":
        """The sums over both parts."""
        metrics = {name: value + other.metrics[name] for name, value in self.metrics.items()}
        rows = self.class_rows + other.class_rows, self.class_wrong + other.class_wrong
        return Sums(self.rows + other.rows, metrics, *rows)


def read_sums(predictions: Predictions, n_bins: int, weights: Floats | None = None) -> tuple[Sums, RowConfidences]:
    """Walk through the rows once; only the confidence and correctness of each stay in memory."""
    precision, classes = edge_precision(predictions), predictions.n_classes
    edges = bin_edges(n_bins, precision)
    confidence: NDArray[Any] = np.empty(0)
    correct = np.empty(len(predictions), dtype=np.bool_)
    totals: dict[str, Any] = {}
    for part, chunk in read_chunks(predictions, edges, weights):
        if part.start == 0:
            confidence = np.empty(len(predictions), dtype=chunk.confidence.dtype)
        confidence[part], correct[part] = chunk.confidence, chunk.correct
        for metric in METRICS.values():
            before = totals.get(metric.name, 0.0)
            if metric.family in ("mean", "share"):
                totals[metric.name] = before + weighted_sum(metric.row_values(chunk), chunk.weights)
            elif metric.family == "table" and (predictions.has_all_classes or not metric.all_classes):
                totals[metric.name] = before + metric.compute(chunk)
    wrong_targets, wrong_weights = predictions.targets[~correct], weights
    if weights is not None:
        wrong_weights = weights[~correct]
    counts = np.bincount(predictions.targets, weights, classes), np.bincount(wrong_targets, wrong_weights, classes)
    rows = RowConfidences(confidence, correct, n_bins, precision, weights)
    if predictions.kind == "score":
        rows = rows.only_ranked()
    return Sums(len(predictions), totals, *counts), rows


def finish(
    sums: Sums,
    confidences: Confidences,
    limits: Sequence[float],
    floor: NoiseFloor | None,
) -> Evaluation:
    """The evaluation of rows from their sums and confidences; without a noise floor, confidences are only ranked."""
    values: dict[str, float | None] = {}
    for name, metric in METRICS.items():
        if floor is None and metric.family == "calibration":
            values[name] = None
        elif metric.family in ("calibration", "ranking"):
            values[name] = metric.value(confidences)
        elif name not in sums.metrics:
            values[name] = None
        elif metric.finish is None:
            mean = float(sums.metrics[name]) / sums.rows
            values[name] = None if math.isnan(mean) else mean
        else:
            values[name] = metric.finish(sums.metrics[name], sums.rows)
    if floor is None:
        floor, limits = NoiseFloor(math.nan, math.nan), ()
    there = sums.class_rows > 0
    return Evaluation(
        n=sums.rows,
        n_classes=len(there),
        n_bins=confidences.n_bins,
        metrics=values,
        noise_floor=floor.mean,
        noise_floor_95=floor.upper,
        thresholds=tuple(_set_above(confidences, limit) for limit in limits),
        balanced_error=float((sums.class_wrong[there] / sums.class_rows[there]).mean()),
    )


def evaluate(
    predictions: Predictions | Any,
    targets: Any = None,
    *,
    kind: Kind | None = None,
    class_names: Sequence[str] | Mapping[Any, str] | None = None,
    n_bins: int = DEFAULT_N_BINS,
    thresholds: Sequence[float] = (0.95, 0.99),
    n_resamples: int = 0,
    seed: int = 0,
    level: float = 0.95,
    weights: Weights | None = None,
    clusters: Weights | None = None,
) -> Evaluation:
    """Compute every metric.

    Args:
        predictions: What the model said; or an array of scores, shape (n, K), or (n,) for class 1 of two.
        targets: With an array: the true classes, as numbers or, with `class_names`, as names.
        kind: With an array: "logits" or "probabilities".
        class_names: With an array: one name per class.
        n_bins: Bins of every binned metric.
        thresholds: Least confidences of the high-confidence sets.
        n_resamples: Number of draws behind each interval, at least 20; 0 for no intervals, 1000 for a report.
        seed: Seed of the noise floor's simulation and of the bootstrap.
        level: Level of the intervals.
        weights: Name of an extra column, or one number per row: importance weights for another class mix or region.
            Only their ratios matter.
        clusters: Name of an extra column, or one value per row: rows that belong together (pictures of one patient).
            Intervals then go by clusters. With weights or clusters calibration errors have no interval.

    >>> predictions = Predictions.from_probabilities([[0.98, 0.02], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1])
    >>> round(evaluate(predictions).ece, 4)
    0.3067
    >>> round(evaluate([[0.98, 0.02], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1], kind="probabilities").ece, 4)
    0.3067
    """
    predictions = as_predictions(predictions, targets, kind, class_names)
    check_bins(n_bins)
    limits = check_thresholds(thresholds)
    check_resamples(n_resamples, level, seed)
    own_weights = optional_weights(predictions, weights)
    own_clusters = check_clusters(predictions, clusters)
    sums, rows = read_sums(predictions, n_bins, own_weights)
    floor = None
    if predictions.kind != "score":
        floor = simulate_noise(noise_bins(rows.confidence, n_bins, rows.precision, own_weights), seed=seed)
    evaluation = finish(sums, rows, limits, floor)
    if not n_resamples:
        return evaluation
    if weights is None and clusters is None:
        from calibrant.metrics.intervals import resample_models

        settings: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed, "level": level}
        (resampled,) = resample_models([predictions], [evaluation], **settings, paired=False)
        return replace(evaluation, intervals=resampled.intervals(), level=level)
    from calibrant.metrics.clusters import Sample, clustered_intervals

    if own_weights is None:
        own_weights = np.ones(len(predictions))
    sample = Sample(own_weights, own_clusters, n_resamples, seed, level)
    return replace(evaluation, intervals=clustered_intervals(predictions, sample, evaluation), level=level)


def check_thresholds(thresholds: Any) -> list[float]:
    """The limits of high-confidence sets, each in range."""
    if not isinstance(thresholds, Iterable):
        raise invalid("thresholds", "be a sequence of numbers", repr(thresholds), "One is written (0.95,).")
    return [fraction("thresholds", each, ends=True) for each in thresholds]


def check_resamples(n_resamples: int, level: float, seed: int = 0) -> None:
    """Refuse too few resamples for an interval (0 is none), a level outside 0..1 and a negative seed."""
    whole("seed", seed, 0)
    if 0 < whole("n_resamples", n_resamples, 0) < FEWEST_RESAMPLES:
        hint = "An interval from a few draws says nothing; 1000 are usual."
        raise invalid("n_resamples", f"be 0 for none, or at least {FEWEST_RESAMPLES}", n_resamples, hint)
    fraction("level", level)


def default_resamples(predictions: Predictions) -> int:
    """Draws behind intervals that nobody asked for: 200 up to 100,000 rows, which take 2.3 s of CPU time; else 0."""
    if len(predictions) > MOST_ROWS_BY_DEFAULT:
        return 0
    return 200


# -- limits for a pipeline ---------------------------------------------------------------------------------------------

_SIDES = {"higher": ("min",), "lower": ("max",), None: ("min", "max")}
# Metrics of the first high-confidence set, and the accuracy of all rows, which is no metric of its own.
_OTHERS: dict[str, Literal["min", "max"]] = {
    "accuracy": "min",
    "share": "min",
    "share_accuracy": "min",
    "share_ece": "max",
}


class Gates:
    """Limits on metrics, as fractions (0.02 for 2 %).

    Args:
        limits: `max_NAME` for a metric that is better if it is lower, `min_NAME` for one that is better if it is
            higher; NAME as in `calibrant.metrics.METRICS`. Also `min_accuracy`, and for the rows at or above the first
            threshold `min_share`, `min_share_accuracy` and `max_share_ece`. None is no limit.

    >>> from calibrant import Predictions, evaluate
    >>> Gates(max_ece=0.1).broken(evaluate(Predictions.from_probabilities([[0.8, 0.2]], [1])))
    ['ece 0.8 is above the limit 0.1']
    """

    def __init__(self, **limits: float | None) -> None:
        known = [f"{side}_{name}" for name, metric in METRICS.items() for side in _SIDES[metric.better]]
        known += [f"{side}_{name}" for name, side in _OTHERS.items()]
        for name in limits:
            if name not in known:
                raise invalid(name, "be the name of a limit", repr(name), did_you_mean(name, known))
        self.limits = {name: limit for name, limit in limits.items() if limit is not None}

    def check(self, thresholds: Sequence[float]) -> None:
        """Refuse limits that cannot hold: a share outside 0..1, or one about the first of no thresholds."""
        for name, limit in self.limits.items():
            metric = name[4:]
            if metric.startswith("share") and not thresholds:
                raise invalid(name, "be used with thresholds", "none")
            is_share = metric not in METRICS or METRICS[metric].percent
            if is_share and not 0.0 <= limit <= 1.0:
                raise invalid(name, "be a fraction in 0..1", limit, "Write 0.02 for 2 %.")

    def broken(self, result: Evaluation, *, name: str = "") -> list[str]:
        """One short sentence for each limit that does not hold; `name` says in it what was evaluated."""
        values = result.values()
        values["accuracy"] = 1.0 - result.test_error
        if result.thresholds:
            first = result.thresholds[0]
            values |= {"share": first.share, "share_accuracy": first.accuracy, "share_ece": first.ece}
        prefix = f"{name}: " if name else ""
        sentences = []
        for limit_name, limit in self.limits.items():
            side, metric = limit_name[:3], limit_name[4:]
            value = values.get(metric)
            if value is None:
                sentences.append(f"{prefix}{metric} is not defined here, so {limit_name} cannot hold")
            elif side == "max" and value > limit:
                sentences.append(f"{prefix}{metric} {value:.6g} is above the limit {limit:g}")
            elif side == "min" and value < limit:
                sentences.append(f"{prefix}{metric} {value:.6g} is below the limit {limit:g}")
        return sentences
