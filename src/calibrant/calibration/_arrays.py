"""Checks at the door and the few float64 formulas that every calibrator shares."""

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import as_array, labels
from calibrant.errors import invalid
from calibrant.predictions import Predictions, warn_if_probabilities

# NumPy in, NumPy out; torch in, torch out.
ArrayT = TypeVar("ArrayT", NDArray[Any], torch.Tensor)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = NDArray[np.floating[Any]]
# Squares, and differences in float32, stay finite below it; no network says anything near it.
_LARGEST = 1e30


def like(probabilities: NDArray[Any], template: Any) -> Any:
    """Hand `probabilities` back in the container, and on the device, that `template` came in."""
    if isinstance(template, torch.Tensor):
        return torch.from_numpy(probabilities).to(template.device)
    return probabilities


def as_arrays(logits: Any, targets: Any) -> tuple[Any, Any]:
    """Logits and targets of predictions, or the two arrays as they are."""
    if not isinstance(logits, Predictions):
        if targets is None:
            raise invalid("targets", "be given beside an array of logits", "none")
        return logits, targets
    if targets is not None:
        raise invalid("targets", "be left out where predictions are given, which hold them", type(targets).__name__)
    return logits.as_logits(), logits.targets


def check_logits(logits: Any, classes: int | None = None) -> Matrix:
    """Return logits as a finite float array of shape (n, K), K >= 2; float32 and float64 are kept as they are."""
    if isinstance(logits, Predictions):
        raise invalid("logits", "be an array", "Predictions", "Call calibrator(predictions).")
    matrix = as_array("logits", logits)
    if matrix.ndim != 2 or matrix.shape[0] == 0 or matrix.shape[1] < 2:
        rule = "have shape (cases, classes) with at least 1 case and 2 classes"
        raise invalid("logits", rule, matrix.shape, _as_rows(matrix.shape))
    if matrix.dtype.kind not in "iuf":
        raise invalid("logits", "be floating-point numbers", matrix.dtype)
    if matrix.dtype not in (np.float32, np.float64):  # half precision, whole numbers, the other byte order
        matrix = matrix.astype(np.float32 if matrix.dtype == np.float16 else np.float64)
    if classes is not None and matrix.shape[1] != classes:
        raise invalid(
            "logits",
            f"have {classes} columns, one for each class of the fit set",
            f"{matrix.shape[1]} columns",
            "Fit a calibrator on predictions with the same classes.",
        )
    fine = np.abs(matrix) <= _LARGEST  # False for NaN too
    if not fine.all():
        row = int(np.argmin(fine.all(axis=1)))
        rule = f"be at most {_LARGEST:g} in size" if np.isfinite(matrix[row]).all() else "be finite"
        raise invalid("logits", rule, f"{matrix[row]} in row {row}", "Remove or repair such rows first.")
    return matrix


def _as_rows(shape: tuple[int, ...]) -> str:
    """How to get one row a prediction from logits of another shape."""
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        return "One logit z of a binary classifier is the same as two: np.stack([0 * z, z], axis=1) with z of (n,)."
    return "Make one row of each pixel or position first." if len(shape) > 2 else ""


def check_targets(targets: Any, shape: tuple[int, ...]) -> Integers:
    """Return targets as int64 of shape (n,) in 0..K-1."""
    cases, classes = shape
    return labels("targets", as_array("targets", targets), rows=cases, n_classes=classes).astype(np.int64)


def check_fit(logits: Any, targets: Any) -> tuple[Matrix, Integers]:
    """Check a fit set; one that cannot teach a calibrator anything is refused."""
    matrix = check_logits(logits)
    classes = check_targets(targets, matrix.shape)
    if (classes == classes[0]).all():
        raise invalid(
            "targets",
            "hold at least two classes",
            f"class {classes[0]} in all {len(classes)} cases",
            "A calibrator learns from cases that differ: fit on a sample of the whole stream.",
        )
    shifted = matrix - matrix.max(axis=1, keepdims=True) if _first_rows_agree(matrix) else None
    if shifted is not None and np.ptp(shifted, axis=0).max() <= 1e-12 * max(1.0, float(np.abs(shifted).max())):
        raise invalid(
            "logits",
            "differ between cases",
            "the same prediction in every row",
            "The model ignores its input, which no calibrator can repair: check its weights and its inputs.",
        )
    warn_if_probabilities(matrix, stacklevel=4)
    return matrix, classes


def _first_rows_agree(matrix: Matrix) -> bool:
    # Two rows settle it for any live model, so that the full test costs nothing in practice.
    first = matrix[:2] - matrix[:2].max(axis=1, keepdims=True)
    return bool(np.allclose(first[0], first[-1], rtol=1e-9, atol=1e-12))


def log_softmax(logits: Matrix) -> Floats:
    """Row-wise log-softmax in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def log_one_minus(log_probabilities: Floats) -> Floats:
    """log(1 - p) for each entry of rows of log-probabilities, exact also where p rounds to 1.

    For p <= 1/2 it is log1p(-p). At most one entry of a row is larger; there the others are summed instead.
    """
    result = np.log1p(-np.minimum(np.exp(log_probabilities), 0.5))
    rows, columns = np.nonzero(log_probabilities > np.log(0.5))
    others = np.exp(log_probabilities[rows])
    others[np.arange(len(rows)), columns] = 0.0
    # The smallest double stands for "none": the logarithm stays finite where every other class underflowed.
    result[rows, columns] = np.log(np.maximum(others.sum(axis=1), np.finfo(np.float64).tiny))
    return result


def mean_nll(log_probabilities: Floats, targets: Integers) -> float:
    """Mean negative log-likelihood of the targets."""
    return float(-np.take_along_axis(log_probabilities, targets[:, None], axis=1).mean())
