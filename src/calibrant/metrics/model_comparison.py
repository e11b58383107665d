"""`compare`: is one model better than another on the same rows, or can we not tell?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.binning import check_bins
from calibrant.metrics.clusters import Sample, clustered_differences, effective_rows
from calibrant.metrics.evaluation import (
    FEWEST_RESAMPLES,
    Interval,
    Result,
    check_resamples,
    check_thresholds,
    evaluate,
    is_confident,
    without_infinity,
)
from calibrant.metrics.intervals import Resampled, resample_models
from calibrant.metrics.metric import Weights, check_clusters, definition, label, optional_weights
from calibrant.predictions import Predictions, names_or_numbers, require_predictions, same_targets
from calibrant.tables import ShownFields, Table

Verdict = Literal["better", "worse", "cannot tell"]
# With fewer rows than this in a high-confidence set (or in all) the verdict is "cannot tell".
ENOUGH = 30
# With fewer than this in a set there is no interval of the difference of accuracies.
_ENOUGH_FOR_AN_INTERVAL = 200


@dataclass(frozen=True)
class Difference(ShownFields):
    """One metric of two models.

    The interval is None for calibration errors, for accuracies in sets of fewer than 200 rows, and for all but shares
    if the models differ in fewer than 10 rows. The verdict says what b is, compared with a: "better" or "worse" if a
    difference of 0 is not plausible, else "cannot tell".
    """

    name: str  # as in `Evaluation.values`
    a: float | None  # None if it is not defined
    b: float | None
    difference: float | None  # b - a
    interval: Interval | None
    verdict: Verdict


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """All metrics of two models on the same rows; `comparison["ece"]` gives one of them."""

    n: int
    n_resamples: int
    level: float
    rows: tuple[Difference, ...]

    def __getitem__(self, name: str) -> Difference:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is infinite becomes None."""
        content = asdict(self)
        content["resamples"] = content.pop("n_resamples")
        finite: dict[str, Any] = without_infinity(content)
        return finite

    def _overview(self) -> Table:
        return self._table(main=False)

    def _summary(self) -> Table:
        return self._table(main=True)

    def _table(self, *, main: bool) -> Table:
        """One row per metric, or per main metric: both values, the difference, its interval, the verdict."""
        rows = []
        for row in self.rows:
            metric = definition(row.name)
            if main and not metric.main:
                continue
            values = metric.number(row.a), metric.number(row.b), metric.number(row.difference, signed=True)
            rows.append((label(row.name), *values, metric.interval(row.interval, signed=True), row.verdict))
        title = f"{self.n} rows, {self.n_resamples} paired resamples"
        return Table(title, rows, ("metric", "a", "b", "b - a", f"{100 * self.level:g} % interval", "b is"))


def compare(
    a: Predictions,
    b: Predictions,
    *,
    n_bins: int = DEFAULT_N_BINS,
    thresholds: Sequence[float] = (0.95, 0.99),
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    weights: Weights | None = None,
    clusters: Weights | None = None,
) -> Comparison:
    """Compare two models on the same rows: differences b - a with an interval and a verdict each.

    Every resample draws the same rows for both models, so what both find hard cancels. The intervals are not corrected
    for the number of metrics: choose the one that decides before you look.

    Args:
        a: The first model, the one you have.
        b: The second, the one you consider; verdicts are about it.
        n_bins: Bins of every binned metric.
        thresholds: Least confidences of the high-confidence sets.
        n_resamples: Number of resamples, at least 20.
        seed: Seed of the draws.
        level: Level of the intervals.
        weights: Name of an extra column of `a`, or one number per row, as `evaluate` takes them.
        clusters: Name of an extra column of `a`, or one value per row: rows that belong together. With weights or
            clusters calibration errors have no interval, so their verdict is "cannot tell".
    """
    require_predictions(a, "a")
    require_predictions(b, "b")
    check_bins(n_bins)
    check_resamples(n_resamples, level, seed)
    if n_resamples == 0:
        raise invalid("n_resamples", f"be at least {FEWEST_RESAMPLES} to compare", n_resamples)
    _check_same_rows(a, b)
    limits = check_thresholds(thresholds)
    own_weights = optional_weights(a, weights)
    first, second = (evaluate(each, n_bins=n_bins, thresholds=limits, weights=own_weights) for each in (a, b))
    if weights is None and clusters is None:
        both = resample_models([a, b], [first, second], n_resamples=n_resamples, seed=seed, level=level)
        return Comparison(len(a), n_resamples, level, differences(*both))
    counts = np.ones(len(a)) if own_weights is None else own_weights
    sample = Sample(counts, check_clusters(a, clusters), n_resamples, seed, level)
    intervals = clustered_differences(a, b, sample, (first, second))
    values = first.values(), second.values()
    rows = []
    for name in values[0]:
        few = _few_effective(name, a, b, counts)
        rows.append(judge(name, values[0][name], values[1][name], intervals.get(name), few=few))
    return Comparison(len(a), n_resamples, level, tuple(rows))


def differences(a: Resampled, b: Resampled) -> tuple[Difference, ...]:
    """Every metric of the second model beside that of the first, resampled by the same draws."""
    values_a, values_b = a.evaluation.values(), b.evaluation.values()
    rows = []
    for name in values_a:
        n, (metric, _, threshold) = a.evaluation.n, name.partition("@")
        # Whether the range covers as often as it says (docs/appendix/intervals.md has the counts): it is too wide for
        # calibration errors close to 0, and for accuracies of small sets.
        printed = name not in a.plausible
        if metric == "accuracy":
            shares = [values[f"share@{threshold}"] or 0.0 for values in (values_a, values_b)]
            printed = all(round(share * n) >= _ENOUGH_FOR_AN_INTERVAL for share in shares)
        few = rests_on_few(name, values_a, values_b, n)
        ends = b.difference(a, name)
        rows.append(judge(name, values_a[name], values_b[name], ends, few=few, printed=printed))
    return tuple(rows)


def rests_on_few(name: str, a: Mapping[str, float | None], b: Mapping[str, float | None], n: int) -> bool:
    """Whether a metric rests on so few rows that resampling them hides the chance in it (3 of 3 right stays 3 of 3)."""
    metric, _, threshold = name.partition("@")
    if metric == "share" or not threshold:
        return n < ENOUGH
    # Rounded: the share of 30 of 44 rows, times 44, is a little less than 30.
    return any(round((values[f"share@{threshold}"] or 0.0) * n) < ENOUGH for values in (a, b))


def _few_effective(name: str, a: Predictions, b: Predictions, weights: Any) -> bool:
    """The same for rows with weights, by the effective number of rows."""
    metric, _, threshold = name.partition("@")
    if metric != "accuracy" or not threshold:
        return effective_rows(weights) < ENOUGH
    sets = [is_confident(each, float(threshold)) for each in (a, b)]
    return any(effective_rows(weights[inside]) < ENOUGH for inside in sets)


def judge(
    name: str, a: float | None, b: float | None, ends: Interval | None, *, few: bool, printed: bool = True
) -> Difference:
    """One metric of two models, with the verdict that its range allows; "cannot tell" if it rests on few rows."""
    if a is None or b is None:
        return Difference(name, a, b, None, None, "cannot tell")
    verdict: Verdict = "cannot tell"
    better = definition(name).better
    if better is not None and not few and ends is not None:
        if (ends[0] > 0.0 and better == "higher") or (ends[1] < 0.0 and better == "lower"):
            verdict = "better"
        elif ends[0] > 0.0 or ends[1] < 0.0:
            verdict = "worse"
    if not printed:
        ends = None
    return Difference(name, a, b, b - a, ends, verdict)


def _check_same_rows(a: Predictions, b: Predictions) -> None:
    hint = "compare needs the same rows in the same order."
    if len(a) != len(b):
        raise invalid("b", f"have the {len(a)} rows of a", f"{len(b)} rows", hint)
    if a.has_all_classes and b.has_all_classes and a.n_classes != b.n_classes:
        raise invalid("b", f"have the {a.n_classes} classes of a", f"{b.n_classes} classes")
    if a.ids is not None and b.ids is not None:
        other = a.ids.astype(np.str_) != b.ids.astype(np.str_)
        if other.any():
            row = int(np.argmax(other))
            rule = f"have the ids of a ({a.ids[row]} in row {row})"
            raise invalid("b", rule, b.ids[row], f"{hint} Sort both by id.")
    same = same_targets(a, b)
    if not same.all():
        row = int(np.argmin(same))
        own, other = (names_or_numbers(each.class_names, each.n_classes)[each.targets[row]] for each in (a, b))
        raise InvalidInput(f"b must have the targets of a, got {other} instead of {own} in row {row}. {hint}")
