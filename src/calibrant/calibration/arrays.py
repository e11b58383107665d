"""Checks of logits and targets, stratified folds, and the few float64 formulas that every calibrator shares."""

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, labels, whole
from calibrant.errors import invalid
from calibrant.predictions import Predictions
from calibrant.predictions.rows import warn_if_probabilities

if TYPE_CHECKING:
    from torch import Tensor

# NumPy in, NumPy out; torch in, torch out.
ArrayT = TypeVar("ArrayT", NDArray[Any], "Tensor")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Matrix = NDArray[np.floating[Any]]
# Squares, and differences in float32, stay finite below it; no network says anything near it.
_LARGEST = 1e30


def like(probabilities: NDArray[Any], template: Any) -> Any:
    """Return `probabilities` in the container of `template`, and on its device."""
    torch = sys.modules.get("torch")  # without it nobody can have passed a tensor
    if torch is not None and isinstance(template, torch.Tensor):
        return torch.from_numpy(probabilities).to(template.device)
    return probabilities


def as_arrays(logits: Any, targets: Any) -> tuple[Any, Any]:
    """Logits and targets of predictions, or the two arrays as they are."""
    if not isinstance(logits, Predictions):
        if targets is None:
            raise invalid("targets", "be given with an array of logits", "none")
        return logits, targets
    if targets is not None:
        raise invalid("targets", "be left out with predictions, which hold them", type(targets).__name__)
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
        matrix = matrix.astype({np.dtype(np.float16): np.float32}.get(matrix.dtype, np.float64))
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
        rule = "be finite"
        if np.isfinite(matrix[row]).all():
            rule = f"be at most {_LARGEST:g} in size"
        raise invalid("logits", rule, f"{matrix[row]} in row {row}", "Remove or repair such rows first.")
    return matrix


def _as_rows(shape: tuple[int, ...]) -> str:
    """How to get one row per prediction from logits of another shape."""
    if len(shape) > 2:
        return "Make one row of each pixel or position first."
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        return "One logit z of a binary classifier is the same as two: np.stack([0 * z, z], axis=1) with z of (n,)."
    return ""


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
    if _all_rows_agree(matrix):
        raise invalid(
            "logits",
            "differ between cases",
            "the same prediction in every row",
            "The model ignores its input, which no calibrator can repair: check its weights and its inputs.",
        )
    warn_if_probabilities(matrix, stacklevel=4)
    return matrix, classes


def _all_rows_agree(matrix: Matrix) -> bool:
    # Two rows settle it for any live model, so that the full test costs nothing in practice.
    first = matrix[:2] - matrix[:2].max(axis=1, keepdims=True)
    if not np.allclose(first[0], first[-1], rtol=1e-9, atol=1e-12):
        return False
    shifted = matrix - matrix.max(axis=1, keepdims=True)
    return bool(np.ptp(shifted, axis=0).max() <= 1e-12 * max(1.0, float(np.abs(shifted).max())))


def log_softmax(logits: Matrix) -> Floats:
    """Row-wise log-softmax in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def mean_nll(log_probabilities: Floats, targets: Integers) -> float:
    """Mean negative log-likelihood of the targets."""
    return float(-np.take_along_axis(log_probabilities, targets[:, None], axis=1).mean())


def finite_array(values: Any, shape: tuple[int, ...]) -> Floats:
    """A float64 array of this shape from JSON; anything else is refused. -1 in `shape` stands for any length."""
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == len(shape) and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or not np.isfinite(array).all():
        raise ValueError(f"an array of shape {shape} with finite values is missing")
    return array


def stratified_folds(targets: Integers, folds: int, seed: int) -> Integers:
    """The fold 0..folds-1 of each case. Every class is spread as evenly as possible.

    Not scikit-learn's, which warns of classes with fewer cases than folds and is not needed by anything else here.

    Args:
        targets: Class indices, shape (n,).
        folds: At least 2.
        seed: The same seed gives the same folds on every machine.
    """
    order = np.random.default_rng(seed).permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    # Dealt like cards, class after class without a break, so that the folds also end up equally large.
    fold = np.empty(len(targets), dtype=np.int64)
    fold[order] = np.arange(len(targets)) % folds
    for held_out in range(folds):
        rest = targets[fold != held_out]
        if len(rest) == len(targets) or len(rest) == 0 or (rest == rest[0]).all():
            raise invalid(
                "targets",
                f"hold enough cases of two classes for {folds} folds",
                f"{len(targets)} cases",
                "Use more cases or fewer folds.",
            )
    return fold


def check_folds(folds: Any, seed: Any) -> None:
    """Refuse fewer than two folds and seeds that are not whole numbers."""
    whole("folds", folds, 2)
    whole("seed", seed, 0)
