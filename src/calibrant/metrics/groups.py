"""Metrics group by group: where a model is worse than over all cases, with intervals that hold in all groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array
from calibrant.display import Overview
from calibrant.errors import did_you_mean, invalid
from calibrant.metrics.comparison import Comparison, compare
from calibrant.metrics.evaluation import Evaluation, evaluate
from calibrant.metrics.names import higher_is_better
from calibrant.metrics.result import Result
from calibrant.predictions import Predictions, require_predictions

# A column with more values than this names cases, not groups.
MOST_GROUPS = 1000
Groups = str | Sequence[Any] | NDArray[Any]


def group_rows(predictions: Predictions, groups: Groups) -> dict[str, NDArray[np.int64]]:
    """Row numbers of every group, by the group's name, in the order of the names.

    Args:
        predictions: The cases.
        groups: Name of one of their extra columns, or one value for each row.

    >>> cases = Predictions.from_probabilities([[0.9, 0.1]] * 3, [0, 0, 1], extras={"site": ["b", "a", "b"]})
    >>> {name: rows.tolist() for name, rows in group_rows(cases, "site").items()}
    {'a': [1], 'b': [0, 2]}
    """
    require_predictions(predictions)
    values = column_of(predictions, groups, "groups")
    names = np.asarray([str(value) for value in values.tolist()], dtype=object)
    found, places = np.unique(names, return_inverse=True)
    if len(found) > MOST_GROUPS:
        raise invalid("groups", f"have at most {MOST_GROUPS:,} different values", f"{len(found):,}")
    return {str(name): np.flatnonzero(places == k) for k, name in enumerate(found)}


def column_of(predictions: Predictions, column: Groups, argument: str) -> NDArray[Any]:
    """One value for each row: an extra column by its name, or the values themselves."""
    if isinstance(column, str):
        if column not in predictions.extras:
            known = list(predictions.extras)
            way_out = did_you_mean(column, known) if known else "There are no other columns."
            raise invalid(argument, "be a column of the predictions", repr(column), way_out)
        return predictions.extras[column]
    values = as_array(argument, column)
    if values.shape != (len(predictions),):
        raise invalid(argument, f"hold {len(predictions)} values, one per row", f"shape {values.shape}")
    return values


def split_groups(predictions: Predictions, groups: Groups) -> dict[str, Predictions]:
    """The predictions of every group, by its name: for pictures and pages that take several sets."""
    return {name: predictions.subset(rows) for name, rows in group_rows(predictions, groups).items()}


@dataclass(frozen=True, repr=False)
class GroupedEvaluation(Result):
    """All metrics of every group.

    Attributes:
        overall: Of all cases together.
        groups: Group to its metrics. Intervals are at the level 1 - (1 - level) / G for G groups, so that for each
            metric all of them hold at once with probability `level` (Bonferroni).
        level: That probability; None without intervals.
    """

    overall: Evaluation
    groups: Mapping[str, Evaluation]
    level: float | None

    def worst(self, metric: str = "test_error") -> str | None:
        """The group with the worst value of a metric, by its flat name; None where no group has one."""
        values = {name: each.values()[metric] for name, each in self.groups.items()}
        known = {name: value for name, value in values.items() if value is not None}
        if not known:
            return None
        pick = min if higher_is_better(metric) else max
        return pick(known, key=lambda name: known[name])

    def stand_out(self, metric: str = "test_error") -> list[str]:
        """Groups that are worse than all cases together beyond chance: their whole interval is."""
        overall = self.overall.values()[metric]
        found = []
        for name, each in self.groups.items():
            ends = None if each.intervals is None else each.intervals.get(metric)
            if ends is not None and overall is not None:
                worse = ends[1] < overall if higher_is_better(metric) else ends[0] > overall
                found += [name] if worse else []
        return found

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
        from calibrant.metrics.tables import groups_table

        return groups_table(self)

    def _overview(self) -> Overview:
        from calibrant.metrics.tables import groups_overview

        return groups_overview(self)


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
    found = {
        name: evaluate(predictions.subset(own), level=inner, **_of_rows(settings, own)) for name, own in rows.items()
    }
    return GroupedEvaluation(overall, found, level if n_resamples else None)


def compare_groups(
    a: Predictions, b: Predictions, groups: Groups, *, level: float = 0.95, **settings: Any
) -> dict[str, Comparison]:
    """Compare two models on the same rows in each group; "better" and "worse" hold for all groups at once.

    Args:
        a: The first model.
        b: The second.
        groups: Name of an extra column of `a`, or one value for each row.
        level: Probability with which the intervals of all groups hold at once, metric by metric (Bonferroni).
        settings: As `compare` takes them.
    """
    rows = group_rows(a, groups)
    if len(b) != len(a):
        raise invalid("b", f"have the {len(a)} rows of a", len(b))
    inner = 1.0 - (1.0 - level) / len(rows)
    return {
        name: compare(a.subset(own), b.subset(own), level=inner, **_of_rows(settings, own))
        for name, own in rows.items()
    }


def _of_rows(settings: Mapping[str, Any], rows: NDArray[np.int64]) -> dict[str, Any]:
    """The settings for some of the rows: weights and clusters that are no names of columns have one value per row."""
    own = dict(settings)
    for name in ("weights", "clusters"):
        if own.get(name) is not None and not isinstance(own[name], str):
            own[name] = as_array(name, own[name])[rows]
    return own
