"""`Metric`: what a metric is. Values, weights, parts, intervals, comparisons, gates and tables follow from it.

The built-in metrics are listed in `calibrant.metrics.functions`. `register_metric` adds one from outside the package.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.errors import did_you_mean, invalid
from calibrant.metrics.binning import Floats
from calibrant.metrics.confidences import Confidences
from calibrant.predictions import Predictions, require_predictions
from calibrant.predictions.rows import Rows
from calibrant.tables import ShownFields

Weights = str | Sequence[float] | NDArray[Any]
"""Importance weights: the name of an extra column, or one number per row."""
Groups = str | Sequence[Any] | NDArray[Any]
"""The name of an extra column, or one value per row."""
Family = Literal["mean", "share", "calibration", "ranking", "table"]
Influence = Callable[[Floats, Floats], tuple[float, Floats, Floats]]
FEWEST_WRONG = {"mean": 3, "ranking": 10}
"""With fewer wrong rows, or right ones, no interval of such a metric holds the truth often enough."""
FEWEST_DIFFERING = 10
"""With fewer rows that two models see differently, no interval of the difference holds the truth often enough."""
# Names in an `Evaluation` that are no metrics.
_TAKEN = {"n", "classes", "n_classes", "n_bins", "metrics", "noise_floor", "noise_floor_95", "thresholds", "intervals"}
_TAKEN |= {"level", "balanced_error", "rounding", "values", "table"}


@dataclass(frozen=True)
class Chunk(ShownFields):
    """Some rows as metrics of the families "mean", "share" and "table" read them.

    Attributes:
        probabilities: Shape (rows, classes), float64.
        targets: True class of each row.
        rows: What was computed when the rows were checked.
        edges: Edges of the equal-width bins.
        weights: One weight per row; None if every row counts alike.
    """

    probabilities: Floats
    targets: NDArray[np.int64]
    rows: Rows
    edges: Floats
    weights: Floats | None = None

    @property
    def confidence(self) -> NDArray[Any]:
        """Top probability of each row."""
        return self.rows.confidence

    @property
    def predicted(self) -> NDArray[Any]:
        """Class with the top probability."""
        return self.rows.predicted

    @property
    def nll(self) -> NDArray[Any]:
        """Minus the log probability of the target."""
        return self.rows.nll

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the prediction is the target."""
        return np.asarray(self.predicted == self.targets)

    @cached_property
    def residual(self) -> Floats:
        """Probabilities minus the one-hot target."""
        residual = self.probabilities.copy()
        # Places in the flat array: half the time of pairs of a row and a column.
        residual.reshape(-1)[np.arange(0, residual.size, residual.shape[1]) + self.targets] -= 1.0
        return residual


@dataclass(frozen=True)
class Metric(ShownFields):
    """One metric.

    What `compute` gets and returns depends on the family:

    - "mean": gets a `Chunk`, returns one number per row. The metric is their mean; its interval is a bootstrap's.
    - "share": gets a `Chunk`, returns whether each row counts. The metric is the share of rows; its interval is
      exact.
    - "calibration": gets `Confidences`, returns an error of at least 0 for each resample (shape (resamples,)). Its
      interval comes from inverted tests.
    - "ranking": gets `Confidences`, returns a number for each resample, NaN if it is not defined. Its interval is a
      bootstrap's.
    - "table": gets a `Chunk`, returns sums that add up over chunks. `finish` turns their total and the number of rows
      into the metric. It has no interval.

    Attributes:
        name: Key in JSON and in `Evaluation.values`.
        label: Name in tables.
        better: Which values are better; None if neither direction is.
        family: See above.
        compute: See above.
        finish: Of the family "table" only.
        influence: Of the family "ranking" only, for intervals of weighted or clustered rows: gets the weight of wrong
            and of right rows in each group of equal confidence, in ascending order. Returns the value and its
            derivative by the weight of a wrong and of a right row in each group. None: no interval in that case.
        scale: Scale on which the interval of weighted rows is computed; "log" keeps it above 0, "logit" in 0..1.
        percent: Whether tables show it in percent. If so, it lies in 0..1.
        highest: Largest possible value of a metric that is not shown in percent.
        main: Whether it belongs to the few metrics that the Python prompt and tables of groups show.
        no_interval: Why the metric has no interval; empty if it has one.
        all_classes: Whether it reads the probabilities of all classes or the NLL. Then it is not defined for a class
            and its confidence.
        counts_rows: Whether the definition depends on the number of rows, so that a row of weight 2 is not exactly the
            same as two rows.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None
    family: Family
    compute: Callable[[Any], NDArray[Any]]
    finish: Callable[[Floats, float], float] | None = None
    influence: Influence | None = None
    scale: Literal["plain", "log", "logit"] = "plain"
    percent: bool = True
    highest: float = math.inf
    main: bool = False
    no_interval: str = ""
    counts_rows: bool = False
    all_classes: bool = False

    def __post_init__(self) -> None:
        """Refuse a definition that cannot work."""
        if not self.name.isidentifier() or self.name in _TAKEN:
            raise invalid("name", "be a Python name that no other value of an evaluation has", repr(self.name))
        if self.better not in ("higher", "lower", None):
            raise invalid("better", "be 'higher', 'lower' or None", repr(self.better))
        if self.family not in get_args(Family):
            raise invalid("family", f"be one of {', '.join(get_args(Family))}", repr(self.family))
        if self.family == "table" and (self.finish is None or not self.no_interval):
            raise invalid("finish and no_interval", "be given for a metric of the family 'table'", "none")

    def row_values(self, chunk: Chunk) -> NDArray[Any]:
        """The value of each row of a chunk; NaN if it needs all classes and there is only the predicted one."""
        if self.all_classes and not chunk.probabilities.shape[1]:
            return np.full(chunk.targets.shape, np.nan)
        values = np.asarray(self.compute(chunk))
        if values.shape != chunk.targets.shape:
            raise invalid(f"compute of {self.name}", "return one value per row", f"shape {values.shape}")
        return values

    def value(self, confidences: Confidences) -> float | None:
        """The value of confidences without resamples; None if it is not defined."""
        value = float(np.asarray(self.compute(confidences)).item())
        return None if np.isnan(value) else value

    def number(self, value: float | None, *, signed: bool = False) -> str:
        """A value as text: in percent with two digits, or with four; a dash if it is not defined."""
        if value is None or np.isnan(value):
            return "-"
        if np.isinf(value):
            return "inf"
        sign = "+" if signed else ""
        if self.percent:
            return f"{100 * value:{sign}.2f} %"
        return f"{value:{sign}.4f}"

    def interval(self, ends: tuple[float, float] | None, *, signed: bool = False) -> str:
        """The ends of an interval as text; a dash without one."""
        if ends is None:
            return "-"
        if ends[0] == np.inf:
            return "a true class has probability 0"
        return " to ".join(self.number(end, signed=signed) for end in ends)


METRICS: dict[str, Metric] = {}
"""Metrics of all rows, by name, in the order of tables."""
SET_METRICS: dict[str, Metric] = {}
"""Metrics of a high-confidence set, by name; `compute` gets the `Confidences` of the set."""


def register_metric(metric: Metric) -> Metric:
    """Add a metric: from now on `evaluate`, `compare`, gates and tables contain it.

    >>> def in_top_two(chunk):
    ...     best = np.argsort(-chunk.probabilities, axis=1)[:, :2]
    ...     return (best == chunk.targets[:, None]).any(axis=1)
    >>> _ = register_metric(Metric("top2_accuracy", "top-2 accuracy", "higher", "share", in_top_two))
    >>> from calibrant import Predictions, evaluate
    >>> evaluate(Predictions.from_probabilities([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2])).top2_accuracy
    0.5
    >>> unregister_metric("top2_accuracy")
    """
    if metric.name in METRICS:
        raise invalid("name", "be that of a new metric", repr(metric.name))
    METRICS[metric.name] = metric
    return metric


def unregister_metric(name: str) -> None:
    """Remove a metric that `register_metric` added."""
    definition(name)
    del METRICS[name]


def definition(name: str) -> Metric:
    """The metric of a flat name: "ece", or "share@0.95" of a high-confidence set."""
    metric, _, threshold = name.partition("@")
    known: Mapping[str, Metric] = SET_METRICS if threshold else METRICS
    if metric not in known:
        raise invalid("name", "be that of a metric", repr(name), f"Known: {', '.join(known)}.")
    return known[metric]


def set_metric(metric: str, threshold: float) -> str:
    """The flat name of a metric of a high-confidence set; two thresholds never share one.

    >>> set_metric("share", 0.95), set_metric("share", 1.0), set_metric("share", 0.9999999)
    ('share@0.95', 'share@1', 'share@0.9999999')
    """
    return f"{metric}@{np.format_float_positional(threshold, trim='-')}"


def higher_is_better(name: str) -> bool:
    """Whether a metric is better if it is higher."""
    return definition(name).better == "higher"


def label(name: str) -> str:
    """The label of a flat metric name: "share@0.95" is "share, ≥ 95 % sure"."""
    _, _, threshold = name.partition("@")
    text = definition(name).label
    if not threshold:
        return text
    return text.format(f"{100 * float(threshold):.12g}")


def row_values(predictions: Predictions, *families: Family) -> dict[str, Floats]:
    """The value of each row for all metrics of the families "mean" or "share", by name."""
    metrics = [metric for metric in METRICS.values() if metric.family in families]
    values = {metric.name: np.empty(len(predictions)) for metric in metrics}
    for part, chunk in read_chunks(predictions):
        for metric in metrics:
            values[metric.name][part] = metric.row_values(chunk)
    return values


def read_chunks(
    predictions: Predictions, edges: Floats | None = None, weights: Floats | None = None
) -> Iterator[tuple[slice, Chunk]]:
    """Walk through the rows: a slice of row numbers and the chunk of these rows."""
    bins = np.empty(0) if edges is None else edges
    for part, rows, probabilities in predictions.walk():
        own = None if weights is None else weights[part]
        yield part, Chunk(probabilities, predictions.targets[part], rows, bins, own)


# -- columns of predictions: weights, clusters and groups --------------------------------------------------------------


def column_of(predictions: Predictions, column: Groups, argument: str) -> NDArray[Any]:
    """One value for each row: an extra column by its name, or the values themselves."""
    if isinstance(column, str):
        if column not in predictions.extras:
            known = list(predictions.extras)
            hint = did_you_mean(column, known) if known else "There are no other columns."
            raise invalid(argument, "be a column of the predictions", repr(column), hint)
        return predictions.extras[column]
    values = as_array(argument, column)
    if values.shape != (len(predictions),):
        raise invalid(argument, f"hold {len(predictions)} values, one per row", f"shape {values.shape}")
    return values


def check_weights(predictions: Predictions, weights: Weights) -> Floats:
    """One weight per row, scaled to a mean of 1, so that only ratios matter and equal weights change nothing."""
    require_predictions(predictions)
    values = column_of(predictions, weights, "weights")
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise invalid("weights", "be numbers", str(error)) from error
    if not np.isfinite(numbers).all() or (numbers < 0).any() or not (numbers > 0).any():
        raise invalid("weights", "be finite, not negative, and not all 0", f"{numbers.min()} to {numbers.max()}")
    return np.asarray(numbers / numbers.mean())


def check_clusters(predictions: Predictions, clusters: Weights | None) -> NDArray[np.int64]:
    """The number of each row's cluster, from 0 on; without clusters each row is its own."""
    if clusters is None:
        return np.arange(len(predictions))
    names = [str(value) for value in column_of(predictions, clusters, "clusters").tolist()]
    return np.unique(names, return_inverse=True)[1]


def optional_weights(predictions: Predictions, weights: Weights | None) -> Floats | None:
    """The same, or None if every row counts alike."""
    if weights is None:
        return None
    return check_weights(predictions, weights)


def weighted_sum(values: NDArray[Any], weights: Floats | None) -> float:
    """Sum of one value per row; rows without weight do not count, even if their value is infinite."""
    if weights is None:
        return float(values.sum())
    return float((weights * np.where(weights > 0.0, values, 0.0)).sum())
