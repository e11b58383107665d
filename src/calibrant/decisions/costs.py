"""What automated errors and reviews cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, positive
from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path
from calibrant.predictions import Predictions, names_or_numbers, read_table

CostMatrix = Sequence[Sequence[float]] | NDArray[Any]
ErrorCost = float | tuple[tuple[float, ...], ...]
"""Of any error; or row y, column k for deciding k if y is true."""


def check_costs(
    cost_error: float | None, cost_review: float | None, cost_matrix: CostMatrix | None, predictions: Predictions
) -> tuple[ErrorCost, float] | None:
    """Return the cost of errors, as a number or a matrix, and the cost of one review; None if no cost is given."""
    if cost_error is None and cost_review is None and cost_matrix is None:
        return None
    if cost_review is None or (cost_error is None and cost_matrix is None):
        raise InvalidInput("Pass both costs: that of an error (cost_error or cost_matrix) and cost_review.")
    review = positive("cost_review", cost_review)
    if cost_matrix is None:
        return positive("cost_error", cost_error), review
    if cost_error is not None:
        raise invalid("cost_error", "be left out with cost_matrix", cost_error)
    predictions.require_all_classes("A cost matrix")
    shape = predictions.n_classes, predictions.n_classes
    matrix = as_array("cost_matrix", cost_matrix)
    if matrix.shape != shape or matrix.dtype.kind not in "iuf" or not (np.isfinite(matrix) & (matrix >= 0)).all():
        rule = f"be finite costs of at least 0 of shape {shape}: row y, column k for deciding k if y is true"
        raise invalid("cost_matrix", rule, f"{matrix.dtype} of shape {matrix.shape}")
    return tuple(tuple(row) for row in matrix.astype(np.float64).tolist()), review


def automated_costs(error: ErrorCost, targets: NDArray[np.int64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what each case costs if it is automated."""
    if isinstance(error, float):
        return np.where(targets == predicted, 0.0, error)
    return np.asarray(np.array(error)[targets, predicted])


def read_cost_matrix(path: str | Path, predictions: Predictions) -> NDArray[np.float64]:
    """Read the `cost_matrix` of `choose_threshold` from a CSV file.

    The first column names the true classes and the header the decided ones, both in any order.

    Args:
        path: The file.
        predictions: Cases with the same classes, which give the order of the result.
    """
    where = as_path(path)
    names = names_or_numbers(predictions.class_names, predictions.n_classes)
    columns = read_table(where)
    rows = [str(name) for name in columns.pop(next(iter(columns), ""), [])]
    if sorted(rows) != sorted(names) or sorted(columns) != sorted(names):
        rule = f"name each of the {len(names)} classes once as a row and once as a column"
        raise invalid(str(where), rule, f"{len(rows)} rows and {len(columns)} columns")
    order = [rows.index(name) for name in names]
    try:
        return np.array([columns[name] for name in names], dtype=np.float64).T[order]
    except ValueError as error:
        raise invalid(str(where), "be a table of numbers with names of classes", f"something else ({error})") from error
