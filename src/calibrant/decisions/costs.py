"""What decisions cost: one number for every error or a matrix of them, and one for each review."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, positive
from calibrant.decisions.rule import Costs, Evidence
from calibrant.errors import invalid
from calibrant.files import as_path
from calibrant.predictions import Predictions, names_or_numbers, read_table
from calibrant.predictions.columns import shortened
from calibrant.tables import ShownFields

CostMatrix = Sequence[Sequence[float]] | NDArray[Any]


@dataclass(frozen=True)
class CostModel(ShownFields):
    """Costs in one unit; a person who looks at a case decides it rightly.

    Attributes:
        error: Cost of an automated error; None where a matrix says it.
        review: Cost of one review.
        matrix: Row y, column k: cost of deciding k alone where y is true; None where `error` says it.
    """

    error: float | None
    review: float
    matrix: NDArray[np.float64] | None

    def of_rows(self, targets: NDArray[np.int64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each case would cost if it were automated."""
        if self.matrix is not None:
            return np.asarray(self.matrix[targets, predicted])
        return np.where(targets == predicted, 0.0, self.error or 0.0)

    def change(
        self,
        automated: NDArray[np.int64],
        errors: NDArray[np.int64],
        confidence: NDArray[np.float64],
        paid: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """What automating the surest cases changes against a person seeing every case: costs paid, reviews saved.

        Args:
            automated: Numbers of the surest cases that are automated.
            errors: Errors among them.
            confidence: Of each case.
            paid: What each case costs if it is automated.
        """
        if self.matrix is None:
            return np.asarray((self.error or 0.0) * errors - self.review * automated)
        total = np.concatenate([[0.0], np.cumsum(paid[np.argsort(-confidence, kind="stable")])])
        return np.asarray(total[automated] - self.review * automated)

    def total(self, cases: int, automated: int, errors: int, paid: float) -> float:
        """What some cases cost together, of which the automated ones cost `paid`."""
        # In this form the numbers of rules without a matrix are those of older versions to the last bit.
        own = (self.error or 0.0) * errors if self.matrix is None else paid
        return own + self.review * (cases - automated)

    def of_rule(self, evidence: Evidence, paid: float) -> Costs:
        """What a rule costs for 1,000 cases like its evidence, of which the automated ones cost `paid` together."""
        total = self.total(evidence.cases, evidence.automated, evidence.errors, paid)
        matrix = None if self.matrix is None else tuple(tuple(row) for row in self.matrix.tolist())
        return Costs(self.error, self.review, 1000.0 * total / evidence.cases, 1000.0 * self.review, matrix)


def check_costs(
    cost_error: float | None, cost_review: float | None, cost_matrix: CostMatrix | None, predictions: Predictions
) -> CostModel | None:
    """A cost of errors, as a number or a matrix, and one of reviews; all or none."""
    if cost_error is None and cost_review is None and cost_matrix is None:
        return None
    if cost_error is not None and cost_matrix is not None:
        raise invalid("cost_error", "be left out beside cost_matrix", cost_error)
    if cost_review is None or (cost_error is None and cost_matrix is None):
        raise invalid(
            "cost_error (or cost_matrix) and cost_review", "be given together", f"{cost_error} and {cost_review}"
        )
    review = positive("cost_review", cost_review)
    if cost_matrix is None:
        return CostModel(positive("cost_error", cost_error), review, None)
    return CostModel(None, review, _check_matrix(cost_matrix, predictions.n_classes))


def _check_matrix(values: CostMatrix, n_classes: int) -> NDArray[np.float64]:
    found = as_array("cost_matrix", values)
    if found.shape != (n_classes, n_classes) or found.dtype.kind not in "iuf":
        rule = f"be numbers of shape ({n_classes}, {n_classes}): row y, column k for deciding k where y is true"
        raise invalid("cost_matrix", rule, f"{found.dtype} of shape {found.shape}")
    matrix = found.astype(np.float64)
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise invalid("cost_matrix", "hold finite costs that are not negative", matrix.min())
    return matrix


def read_cost_matrix(path: str | Path, predictions: Predictions) -> NDArray[np.float64]:
    """Costs from a CSV file: a column for each decided class, a row for each true one, the first cell of each its name.

    Args:
        path: The file; its first line names the decided classes, after one cell of any content.
        predictions: Their classes say the order, and which there must be.
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
