"""How accuracy and cost change with the share that is automated: tables and rules without a promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, positive
from calibrant.decisions.bounds import check_numbers, interval
from calibrant.decisions.rule import Costs, Evidence, RoutingRule, route_all, told_apart
from calibrant.errors import invalid
from calibrant.files import as_path
from calibrant.predictions import Predictions, names_or_numbers, read_table
from calibrant.predictions.readings import shortened
from calibrant.tables import ShownFields, plain_table

CostMatrix = Sequence[Sequence[float]] | NDArray[Any]


@dataclass(frozen=True)
class CostModel(ShownFields):
    """Costs in one unit. A person who looks at a case is taken to decide it rightly.

    Attributes:
        error, review: Cost of an automated error (None if a matrix is given) and of one review.
        matrix: Row y, column k: cost of deciding k alone if y is true; None if `error` is given.
    """

    error: float | None
    review: float
    matrix: NDArray[np.float64] | None

    @property
    def unit(self) -> float:
        """What the numbers of `of_rows` are multiples of. Sums of whole numbers are exact, sums of costs are not."""
        if self.error is None:
            return 1.0
        return self.error

    def of_rows(self, targets: NDArray[np.int64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each case would cost if it were automated, in units."""
        if self.matrix is None:
            return np.asarray(targets != predicted, dtype=np.float64)
        return np.asarray(self.matrix[targets, predicted])

    def of_surest(
        self, automated: NDArray[np.int64], confidence: NDArray[np.float64], units: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What the `automated` surest cases cost together."""
        total = np.concatenate([[0.0], np.cumsum(units[np.argsort(-confidence, kind="stable")])])
        return np.asarray(self.unit * total[automated])

    def of_rule(self, evidence: Evidence, units: float) -> Costs:
        """What a rule costs for 1,000 cases like its evidence, of which the automated ones cost `units` together."""
        total = self.unit * units + self.review * (evidence.cases - evidence.automated)
        matrix = None
        if self.matrix is not None:
            matrix = tuple(tuple(row) for row in self.matrix.tolist())
        return Costs(self.error, self.review, 1000.0 * total / evidence.cases, 1000.0 * self.review, matrix)


def check_costs(
    cost_error: float | None, cost_review: float | None, cost_matrix: CostMatrix | None, predictions: Predictions
) -> CostModel | None:
    """A cost of errors, as a number or a matrix, and one of reviews; all or none."""
    errors = [cost for cost in (cost_error, cost_matrix) if cost is not None]
    if cost_review is None and not errors:
        return None
    if cost_review is None or len(errors) != 1:
        got = f"{cost_review} and {len(errors)} of these"
        raise invalid("cost_review", "be given with cost_error or cost_matrix, one of the two", got)
    review = positive("cost_review", cost_review)
    if cost_matrix is None:
        return CostModel(positive("cost_error", cost_error), review, None)
    predictions.require_all_classes("A cost matrix")
    n_classes = predictions.n_classes
    matrix = as_array("cost_matrix", cost_matrix)
    right_shape = matrix.shape == (n_classes, n_classes) and matrix.dtype.kind in "iuf"
    if not right_shape or not np.isfinite(matrix).all() or matrix.min() < 0:
        rule = f"be finite costs of at least 0 of shape ({n_classes}, {n_classes}): row y, column k for k if y is true"
        raise invalid("cost_matrix", rule, f"{matrix.dtype} of shape {matrix.shape}")
    return CostModel(None, review, matrix.astype(np.float64))


def read_cost_matrix(path: str | Path, predictions: Predictions) -> NDArray[np.float64]:
    """Costs from a CSV file: a column for each decided class, a row for each true one, the first cell of each its name.

    Args:
        path: The file; its first line names the decided classes, after one cell of any content.
        predictions: Their classes give the order, and each must have a row and a column.
    """
    names = names_or_numbers(predictions.class_names, predictions.n_classes)
    where = f"{as_path(path)}"
    columns = read_table(as_path(path))
    rows = columns.pop(next(iter(columns), ""), [])
    if sorted(rows) != sorted(names) or sorted(columns) != sorted(names):
        raise invalid(where, "name each class once as a row and once as a column", shortened(list(columns)))
    order = [rows.index(name) for name in names]
    try:
        return np.array([columns[name] for name in names], dtype=np.float64).T[order]
    except ValueError as error:
        raise invalid(where, "be a table of numbers with names of classes", f"something else ({error})") from error


@dataclass(frozen=True)
class CoverageRow(ShownFields):
    """One line of the risk-coverage table.

    Attributes:
        threshold: Automate at this confidence and above.
        coverage, automated, errors: Share and number of cases that are automated, and the wrong ones of these.
        accuracy, accuracy_low, accuracy_high: Share of them that is right, and its interval. The interval holds for
            this line alone, not over a choice of lines.
        review_per_1000, review_low, review_high: How many of 1,000 cases go to a person, and its interval.
        cost_per_1000: Cost of 1,000 cases, if costs were given.
    """

    threshold: float
    coverage: float
    automated: int
    errors: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    review_per_1000: float
    review_low: float
    review_high: float
    cost_per_1000: float | None


def risk_coverage(
    predictions: Predictions,
    coverages: Sequence[float] = (1.0, 0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    *,
    confidence: float = 0.95,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: CostMatrix | None = None,
) -> list[CoverageRow]:
    """Accuracy of the most confident part of the cases, for several sizes of that part.

    Equal confidences stay together, so a line may cover somewhat more than asked.

    Args:
        predictions: Labelled cases.
        coverages: Shares of the cases in (0, 1].
        confidence: Confidence level of the intervals (Clopper-Pearson, each for its own line).
        cost_error: Cost of an automated error.
        cost_review: Cost of one review.
        cost_matrix: Instead of `cost_error`: row y, column k is the cost of deciding k if y is true.
    """
    shares = check_numbers("coverages", coverages, "be shares in (0, 1], at least one")
    if not shares.all():
        raise invalid("coverages", "be shares in (0, 1], at least one", coverages)
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    routed = route_all(predictions)
    thresholds, automated, errors = coverage_curve(routed.confidence, routed.predicted != predictions.targets)
    cases = len(predictions)
    spent = np.zeros(len(thresholds))
    if costs is not None:
        spent = costs.of_surest(automated, routed.ranking, costs.of_rows(predictions.targets, routed.predicted))
    wanted = np.searchsorted(automated, np.ceil(np.sort(shares)[::-1] * cases - 1e-9), side="left")
    rows = []
    for at in dict.fromkeys(wanted.tolist()):
        count, wrong = int(automated[at]), int(errors[at])
        low, high = interval(count - wrong, count, confidence=confidence)
        share_low, share_high = interval(count, cases, confidence=confidence)
        price = None
        if costs is not None:
            price = 1000.0 * (float(spent[at]) + costs.review * (cases - count)) / cases
        row = CoverageRow(
            threshold=float(thresholds[at]),
            coverage=count / cases,
            automated=count,
            errors=wrong,
            accuracy=1.0 - wrong / count,
            accuracy_low=float(low),
            accuracy_high=float(high),
            review_per_1000=1000.0 * (1.0 - count / cases),
            review_low=float(1000.0 * (1.0 - share_high)),
            review_high=float(1000.0 * (1.0 - share_low)),
            cost_per_1000=price,
        )
        rows.append(row)
    return rows


def coverage_table(rows: list[CoverageRow]) -> str:
    """What `risk_coverage` returned, as text."""
    headings = ["automated", "threshold", "accuracy %", "interval %", "review"]
    costs = rows[0].cost_per_1000 is not None
    if costs:
        headings.append("cost")
    lines = []
    for row, threshold in zip(rows, told_apart([row.threshold for row in rows]), strict=True):
        cells = [
            f"{1000 * row.coverage:.0f}",
            threshold,
            f"{100 * row.accuracy:.2f}",
            f"{100 * row.accuracy_low:.1f} to {100 * row.accuracy_high:.1f}",
            f"{row.review_per_1000:.0f} ({row.review_low:.0f} to {row.review_high:.0f})",
        ]
        if costs:
            cells.append(f"{row.cost_per_1000:.1f}")
        lines.append(cells)
    return plain_table(headings, lines, title="Risk and coverage, per 1,000 cases (each interval for its own line)")


def cheapest_threshold(
    predictions: Predictions,
    *,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: CostMatrix | None = None,
) -> RoutingRule:
    """The threshold with the lowest cost on these cases, without a promise about accuracy.

    Cost at t: `cost_error` for each error at or above t (or the entry of `cost_matrix`: row y, column k for deciding k
    if y is true), `cost_review` for each case below. For a calibrated model the best threshold is
    1 - cost_review / cost_error. `choose_threshold` with costs adds the promise.

    >>> from calibrant.predictions import Predictions
    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]], [0, 0, 1])
    >>> cheapest_threshold(predictions, cost_error=10, cost_review=1).threshold
    0.8
    """
    predictions = predictions.as_right_or_wrong()
    costs = check_costs(cost_error, cost_review, cost_matrix, predictions)
    if costs is None:
        raise invalid("cost_error and cost_review", "be given where nothing is promised", "none")
    routed = route_all(predictions)
    thresholds, automated, errors = coverage_curve(routed.confidence, routed.predicted != predictions.targets)
    units = costs.of_rows(predictions.targets, routed.predicted)
    change = costs.of_surest(automated, routed.confidence, units) - costs.review * automated
    best = last_minimum(change)
    threshold, spent = None, 0.0
    evidence = Evidence.of_counts(len(predictions), 0, 0)
    note = "Reviewing every case costs less than automating at any threshold."
    if change[best] < 0:
        threshold = float(thresholds[best])
        spent = float(units[routed.confidence >= threshold].sum())
        evidence = Evidence.of_counts(len(predictions), int(automated[best]), int(errors[best]))
        note = "The cheapest threshold on these cases; it promises no accuracy."
    return RoutingRule(
        threshold=threshold,
        n_classes=predictions.n_classes,
        class_names=predictions.class_names,
        evidence=evidence,
        costs=costs.of_rule(evidence, spent),
        note=note,
        fitted_on=predictions.origin.sha256,
    )


def last_minimum(values: NDArray[np.float64]) -> int:
    """Place of the smallest value, the last of equal ones: the threshold that automates most."""
    return len(values) - 1 - int(np.argmin(values[::-1]))


def coverage_curve(
    confidence: NDArray[np.float64], wrong: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Every distinct confidence, strictest first, with the cases and the errors at or above it."""
    order = np.argsort(-confidence, kind="stable")
    ranked = confidence[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)])
    return ranked[last], last + 1, np.cumsum(wrong[order], dtype=np.int64)[last]
