"""Metrics of each group and of each class: what an average over all rows hides."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid, printable
from calibrant.metrics.evaluation import Evaluation, Result, evaluate
from calibrant.metrics.functions import class_gap_sums
from calibrant.metrics.metric import Groups, Weights, check_weights, column_of, definition, higher_is_better, label
from calibrant.predictions import Predictions, names_or_numbers
from calibrant.predictions.columns import group_name
from calibrant.tables import FEW, UNLIMITED, Displayed, ShownFields, Table

# A column with more values than this names rows, not groups.
_MOST_GROUPS = 1000


def group_rows(predictions: Predictions, groups: Groups) -> dict[str, NDArray[np.int64]]:
    """Row numbers of every group, by the group's name, in the order of the names.

    >>> cases = Predictions.from_probabilities([[0.9, 0.1]] * 3, [0, 0, 1], extras={"site": ["b", "a", "b"]})
    >>> {name: rows.tolist() for name, rows in group_rows(cases, "site").items()}
    {'a': [1], 'b': [0, 2]}
    """
    values = column_of(predictions, groups, "groups")
    texts = np.asarray([group_name(value) for value in values.tolist()], dtype=object)
    names, places = np.unique(texts, return_inverse=True)
    if len(names) > _MOST_GROUPS:
        raise invalid("groups", f"have at most {_MOST_GROUPS:,} different values", f"{len(names):,}")
    return {str(name): np.flatnonzero(places == k) for k, name in enumerate(names)}


def split_groups(predictions: Predictions, groups: Groups) -> dict[str, Predictions]:
    """The predictions of every group, by its name: for figures and reports that take several sets."""
    return {name: predictions.subset(rows) for name, rows in group_rows(predictions, groups).items()}


@dataclass(frozen=True, repr=False)
class GroupedEvaluation(Result):
    """All metrics of all cases together and of every group.

    Intervals of G groups are at the level 1 - (1 - level) / G, so that for each metric all of them hold at once with
    probability `level` (Bonferroni). Without intervals `level` is None.
    """

    overall: Evaluation
    groups: Mapping[str, Evaluation]
    level: float | None

    def worst(self, metric: str = "test_error") -> str | None:
        """The group with the worst value of a metric, by its flat name; None if no group has one."""
        values = {name: each.values()[metric] for name, each in self.groups.items()}
        known = {name: value for name, value in values.items() if value is not None}
        worst = min if higher_is_better(metric) else max
        return worst(known, key=lambda name: known[name], default=None)

    def stand_out(self, metric: str = "test_error") -> list[str]:
        """Groups that are worse than all cases together beyond chance: their whole interval is."""
        overall = self.overall.values()[metric]
        worse = []
        for name, each in self.groups.items():
            ends = (each.intervals or {}).get(metric)
            if ends is None or overall is None:
                continue
            low, high = ends
            if (higher_is_better(metric) and high < overall) or (not higher_is_better(metric) and low > overall):
                worse.append(name)
        return worse

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "overall": self.overall.to_dict(),
            "groups": {name: each.to_dict() for name, each in self.groups.items()},
            "level": self.level,
            "worst": self.worst(),
            "stand_out": self.stand_out(),
        }

    def table(self) -> str:
        """A table for people, in percent: one row for each group."""
        lines = [replace(self._overview(), title="").terminal(width=UNLIMITED)]
        lines.append(f"Worst by test error: {printable(str(self.worst()))}.")
        if self.level is not None:
            apart = ", ".join(map(printable, self.stand_out())) or "none"
            lines.append(
                f"Intervals of the {len(self.groups)} groups hold together with {100 * self.level:g} % for each "
                f"metric (Bonferroni). Worse than all cases beyond chance: {apart}."
            )
        return "\n".join(lines)

    def _overview(self) -> Table:
        """One row for each group, all rows first, and a column for each main metric."""
        shown = [name for name in self.overall.values() if definition(name).main]
        rows = []
        for group, result in {"all": self.overall, **self.groups}.items():
            rows.append((group, f"{result.n:,}", *(result.with_interval(name) for name in shown)))
        title = f"{len(self.groups)} groups, worst by test error: {self.worst()}"
        return Table(title, rows, ("group", "rows", *map(label, shown)))


def evaluate_groups(
    predictions: Predictions, groups: Groups, *, n_resamples: int = 0, level: float = 0.95, **settings: Any
) -> GroupedEvaluation:
    """Evaluate all cases and each group of them.

    Args:
        predictions: What the model said.
        groups: Name of an extra column, or one value for each row.
        n_resamples: Draws behind each interval; 0 for none.
        level: Probability with which the intervals of all groups hold at once, metric by metric.
        settings: As `evaluate` takes them: bins, thresholds, seed, weights, clusters.

    >>> cases = Predictions.from_probabilities([[0.9, 0.1]] * 4, [0, 0, 1, 0], extras={"site": ["b", "a", "b", "a"]})
    >>> evaluate_groups(cases, "site").worst()
    'b'
    """
    rows = group_rows(predictions, groups)
    settings |= {"n_resamples": n_resamples}
    overall = evaluate(predictions, level=level, **settings)
    inner = 1.0 - (1.0 - level) / len(rows)
    evaluations = {}
    for name, own in rows.items():
        of_group = dict(settings)
        for argument in ("weights", "clusters"):
            if settings.get(argument) is not None and not isinstance(settings[argument], str):
                of_group[argument] = as_array(argument, settings[argument])[own]
        evaluations[name] = evaluate(predictions.subset(own), level=inner, **of_group)
    return GroupedEvaluation(overall, evaluations, level if n_resamples else None)


@dataclass(frozen=True)
class ClassMetrics(ShownFields):
    """One class."""

    name: str  # or its number as text
    n: int  # rows of this class
    error: float | None  # share of these rows that are predicted as another class; None without rows or weight
    predicted: int  # rows that are predicted as this class
    gap: float  # mean probability of this class minus its share, over all rows; above 0: predicted too often
    ece: float  # calibration error of this class's probability against all others


@dataclass(frozen=True, repr=False)
class ClassEvaluation(Displayed):
    """All classes in the order of the labels."""

    balanced_error: float  # mean error of the classes that have rows: each counts as much as any other
    classes: tuple[ClassMetrics, ...]

    @property
    def worst(self) -> ClassMetrics:
        """The class with the largest error, the first of them on a tie."""
        return max((each for each in self.classes if each.error is not None), key=lambda each: each.error or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings and cells of a table for people, in percent."""
        rows: list[tuple[str, ...]] = []
        for each in self.classes:
            error = "-" if each.error is None else f"{100 * each.error:.2f}"
            gap, ece = f"{100 * each.gap:+.2f}", f"{100 * each.ece:.2f}"
            rows.append((each.name, f"{each.n:,}", error, f"{each.predicted:,}", gap, ece))
        return ("class", "cases", "error %", "predicted", "said - true share %", "ECE %"), rows

    def _overview(self) -> Table:
        headings, rows = self.rows()
        more = [(f"{len(rows) - FEW:,} more", *[""] * (len(headings) - 1))] if len(rows) > FEW else []
        return Table(self.describe(), [*rows[:FEW], *more], headings)

    def describe(self) -> str:
        """One sentence for a person."""
        worst = self.worst
        return (
            f"balanced error {100 * self.balanced_error:.2f} % (each class counts alike); "
            f"worst: {worst.name}, {100 * (worst.error or 0.0):.2f} % of {worst.n:,}"
        )


def evaluate_classes(
    predictions: Predictions, n_bins: int = DEFAULT_N_BINS, *, weights: Weights | None = None
) -> ClassEvaluation:
    """Error and calibration class by class.

    Args:
        predictions: What the model said.
        n_bins: Bins of each class's calibration error.
        weights: Name of an extra column, or one number per row: importance weights. Only their ratios matter; `n` and
            `predicted` are numbers of rows all the same.

    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 0, 0, 1])
    >>> evaluate_classes(predictions).balanced_error
    0.5
    """
    gaps = class_gap_sums(predictions, n_bins, weights)
    count, n, targets = predictions.n_classes, len(predictions), predictions.targets
    own = np.ones(n) if weights is None else check_weights(predictions, weights)
    size, predicted = (np.bincount(each, minlength=count) for each in (targets, predictions.predicted))
    weight, wrong = np.bincount(targets, own, count), np.bincount(targets, own * ~predictions.correct, count)
    there = weight > 0
    errors = wrong / np.where(there, weight, 1.0)
    classes = []
    for k, name in enumerate(names_or_numbers(predictions.class_names, count)):
        error = float(errors[k]) if there[k] else None
        gap, ece = float(gaps[:, k].sum()) / n, float(np.abs(gaps[:, k]).sum()) / n
        classes.append(ClassMetrics(str(name), int(size[k]), error, int(predicted[k]), gap, ece))
    return ClassEvaluation(float(errors[there].mean()), tuple(classes))
