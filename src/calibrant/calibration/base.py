"""What every calibrator has in common: fit, transform, provenance, and JSON on disk."""

import inspect
import warnings
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from calibrant.calibration.operations import (
    NUMPY,
    Floats,
    Integers,
    Matrix,
    Operations,
    Recorder,
    Symbol,
    log_softmax,
    mean_nll,
)
from calibrant.checks import as_array, is_tensor, labels
from calibrant.errors import CalibrantWarning, InvalidInput, invalid
from calibrant.files import MOST_CLASSES, check_format, content_digest, read_json, typed, write_with_digest
from calibrant.predictions import Kind, Origin, Predictions, RowsPart, in_order_of, require_predictions
from calibrant.predictions.rows import warn_if_probabilities
from calibrant.tables import ShownFields, Table

FORMAT = "calibrant-calibrator"
VERSION = 1
# The keys of a file that say what the calibrator computes.
_MAP = ("method", "parameters", "classes", "identity", "fitted")
# Squares, and differences in float32, stay finite below it; no network says anything near it.
_LARGEST = 1e30
# Numbers per block: a block stays in the second-level cache, and a million cases never exist twice in float64.
BLOCK = 65536


@dataclass(frozen=True)
class Provenance(ShownFields):
    """What a calibrator was fitted on. None: not known.

    `fitted_on` is the SHA-256 of a file, and `part` says which of its rows were used, None for all. `class_names` is
    empty for classes without names.
    """

    kind: Kind | None = None
    class_names: tuple[str, ...] | None = None
    fitted_on: str | None = None
    part: RowsPart | None = None

    @classmethod
    def of(cls, predictions: Predictions) -> Self:
        """What predictions say about themselves."""
        origin = predictions.origin
        names: tuple[str, ...] = ()
        if predictions.has_all_classes:
            names = predictions.class_names or ()
        return cls(predictions.kind, names, origin.sha256, origin.part)

    def in_sample(self, origin: Origin) -> str:
        """A sentence if the calibrated scores of predictions with this origin are known to be in-sample, else ""."""
        if self.fitted_on is None or origin.sha256 != self.fitted_on:
            return ""
        if self.part is not None and origin.part == replace(self.part, index=1 - self.part.index):
            return ""
        some = "these cases"
        if self.part is not None:
            some = "some of these cases"
        return f"In-sample: the calibrator was fitted on {some}, so its numbers look better here than on new cases."


def warn_if_in_sample(provenance: Provenance, origin: Origin) -> None:
    """Warn if the calibrated scores of predictions are in-sample."""
    if sentence := provenance.in_sample(origin):
        warnings.warn(f"{origin.path}: {sentence}", CalibrantWarning, stacklevel=2)


@dataclass
class Progress(ShownFields):
    """What the `_fit` of a calibrator reports."""

    converged: bool = True  # whether the optimiser met its tolerance
    at_bound: bool = False  # whether the optimum lies at the edge of what the parameters allow
    iterations: int = 0  # passes over the fit set
    notes: tuple[str, ...] = ()  # sentences that are also given as warnings


@dataclass(kw_only=True)
class FitSummary(Progress):
    """What happened in `fit`: what `Progress` says, the number of cases, and their mean NLL before and after."""

    cases: int
    nll_before: float
    nll_after: float


class Saved(ABC):
    """What is kept in a JSON file with a digest."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain JSON values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build it from what `to_dict` returned. Damaged content is refused; `where` names its file."""

    def save(self, path: str | Path) -> None:
        """Write a file. Its float64 values come back bit for bit."""
        write_with_digest(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. A file that was changed since is refused."""
        content = read_json(path)
        loaded = cls.from_dict(content, where=str(path))
        if "sha256" not in content:
            raise invalid(str(path), "have the digest that calibrant writes", "none", "Restore the file from a copy.")
        return loaded


class Calibrator(Saved):
    """A map from logits to calibrated probabilities, learned on held-out cases.

    Computed in float64 whatever comes in. NumPy in, NumPy out; torch in, torch out (same device, without gradient).
    float32 and float64 keep their type, half precision comes back as float32.

    `fit` never makes the negative log-likelihood of the fit set larger. If the fitted map would, the identity is kept,
    `identity_` is True and a `CalibrantWarning` says so.

    Attributes:
        n_classes_: Number of classes K of the fit set.
        identity_: Whether `transform` is a plain softmax.
        summary_: A `FitSummary`.
        provenance_: Which predictions it was fitted on, as far as that is known.
        depends_on_level: Whether adding a number to all logits of a row changes the result.

    A subclass names its `method` and states `_fit`, `_formula`, `_state` and `_set_state`. Add it to `METHODS` to use
    it by name; files that hold it can be read as soon as the class exists.

    >>> rows = Predictions.from_logits([[4.0, 0.0], [0.0, 3.0], [2.0, 0.0]], [0, 1, 1])
    >>> from calibrant.calibration import TemperatureScaling
    >>> TemperatureScaling().fit(rows)(rows).confidence.round(2).tolist()
    [0.98, 0.95, 0.87]
    """

    method: ClassVar[str]
    n_classes_: int
    identity_: bool
    summary_: FitSummary
    provenance_: Provenance = Provenance()
    depends_on_level: ClassVar[bool] = False

    @abstractmethod
    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:
        """Learn from checked arrays and set the fitted attributes. The weights of the cases have a mean of 1."""

    @abstractmethod
    def _formula(self, operations: Operations, logits: Any) -> Any:
        """Calibrated log-probabilities, finite, of float64 logits: what NumPy, ONNX and torch compute."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Fitted values as plain JSON."""

    @abstractmethod
    def _set_state(self, state: dict[str, Any]) -> None:
        """Restore fitted values; `n_classes_` is already set. Raises on anything malformed."""

    def _useful(self, logits: Matrix, targets: Integers) -> tuple[Any, tuple[str, ...]]:  # noqa: ARG002
        """An index of the cases that say something about the map, and a note if others are left out."""
        return slice(None), ()

    def numbers_to_learn(self, n_classes: int) -> int:  # noqa: ARG002 (most maps need few cases)
        """`select_calibrator` leaves the method out if there are fewer cases than this."""
        return 0

    def fitted_numbers(self) -> dict[str, float]:
        """Fitted values that are worth showing, by name; a temperature has one, most maps have too many."""
        return {}

    def fit(self, logits: Any, targets: Any = None, *, weights: Any = None) -> Self:
        """Learn the map: `fit(predictions)` or `fit(logits, targets)`.

        Args:
            logits: `Predictions`; or an array of shape (n, K), finite. Probabilities are not logits: make predictions
                of them, or pass their logarithm.
            targets: With an array: shape (n,), integers in 0..K-1, at least two of the classes present.
            weights: Shape (n,), not negative: how much each case counts. Only their ratios matter; a case of weight 0
                is left out.
        """
        provenance = Provenance()
        if isinstance(logits, Predictions):
            provenance = Provenance.of(logits)
            if not logits.has_all_classes and getattr(self, "mode", None) == "top-label":
                hint = f"Use {self.method}, which then calibrates this confidence."
                raise invalid("method", "not be a top-label one for a class and its confidence", self.method, hint)
        matrix, classes, case_weights = check_fit(logits, targets, weights)
        self.provenance_ = provenance
        self.n_classes_, self.identity_ = matrix.shape[1], True
        useful, notes = self._useful(matrix, classes)
        matrix, classes = matrix[useful], classes[useful]
        case_weights = case_weights[useful] / case_weights[useful].mean()
        before = after = self._mean_nll(matrix, classes, case_weights)
        self.identity_ = False
        progress = self._fit(matrix, classes, case_weights)
        notes = (*notes, *progress.notes)
        if not self.identity_:
            after = self._mean_nll(matrix, classes, case_weights)
        # Both sums carry rounding of about 1e-15; a fit that only ties is kept.
        if not after <= before + 1e-12 * (1.0 + abs(before)):
            notes = (*notes, f"the fitted map has a larger NLL ({after:.6g}) than none ({before:.6g}): none is kept")
            self.identity_, after = True, before
        self.summary_ = FitSummary(
            cases=len(classes),
            nll_before=before,
            nll_after=min(after, before),
            **asdict(replace(progress, notes=notes)),
        )
        for note in notes:
            warnings.warn(f"{type(self).__name__}: {note}.", CalibrantWarning, stacklevel=2)
        return self

    def __call__(self, predictions: Predictions) -> Predictions:
        """Calibrated predictions of the same rows, in the fit set's order of classes.

        They are kept as log-probabilities, which are logits, so that small probabilities do not become 0.
        """
        require_predictions(predictions)
        self._refuse_unfitted()
        if not predictions.has_all_classes or self.provenance_.kind in ("confidence", "score"):
            if predictions.kind != self.provenance_.kind:
                rule = f"have the kind that the calibrator was fitted on, {self.provenance_.kind}"
                raise invalid("predictions", rule, predictions.kind, "Fit a calibrator on predictions of this kind.")
            logs = self.transform_logits(predictions.right_or_wrong_logits())
            calibrated = predictions.with_confidence(np.minimum(np.exp(logs[:, 1]), 1.0))
        else:
            self.refuse_other_kind(predictions.kind)
            names = self.provenance_.class_names
            ordered = predictions
            if names is not None:
                ordered = in_order_of(names, predictions, where="predictions")
            calibrated = ordered.with_logits(self.transform_logits(ordered.as_logits()))
        calibrated.origin = replace(predictions.origin, calibrated_by=self.digest)
        return calibrated

    def refuse_other_kind(self, kind: Kind) -> None:
        """Refuse scores of another kind than those of the fit if the map depends on it.

        Vector and matrix scaling depend on the level of a row of logits, which its probabilities have lost.
        """
        fitted = self.provenance_.kind
        if self.depends_on_level and not self.identity_ and fitted not in (None, kind):
            hint = "Use predictions of that kind, or temperature, beta or dirichlet, which do not depend on it."
            raise invalid("predictions", f"be {fitted}, as {self.method} scaling was fitted on", kind, hint)

    def transform(self, logits: Any) -> Any:
        """Calibrated probabilities, shape (n, K), rows sum to 1."""
        return self._map(logits, exponentiate=True)

    def transform_logits(self, logits: Any) -> Any:
        """Calibrated log-probabilities, shape (n, K), which are logits again."""
        return self._map(logits, exponentiate=False)

    def record(self, recorder: Recorder, logits: Symbol) -> Symbol:
        """Add the steps of the fitted map to a recorder: float64 logits in, calibrated log-probabilities out.

        ONNX files and torch modules repeat these steps. The edges of steps are moved by a relative 1e-12, so that a
        case of the fit set stays on its side if another library rounds its probability differently.
        """
        self._refuse_unfitted()
        if self.identity_:
            return recorder.log_softmax(logits)
        recorded: Symbol = self._formula(recorder, logits)
        return recorded

    def describe(self) -> str:
        """A few words on what the fitted calibrator does, for sentences such as "calibrated by ..."."""
        self._refuse_unfitted()
        if self.identity_:
            return "a map that changes nothing"
        if "temperature" in self.fitted_numbers():
            return f"the temperature {self.fitted_numbers()['temperature']:.4f}"
        return f"the {self.method} map"

    def _map(self, logits: Any, *, exponentiate: bool) -> Any:
        self._refuse_unfitted()
        matrix = check_logits(logits, self.n_classes_)
        warn_if_probabilities(matrix, stacklevel=4)
        dtype = np.float64 if as_array("logits", logits).dtype == np.float64 else np.float32
        result: Matrix = np.empty(matrix.shape, dtype=dtype)
        for rows in _blocks(matrix):
            block = self._block(matrix[rows])
            if exponentiate:
                np.exp(block, out=block)
            result[rows] = block
        if not is_tensor(logits):
            return result
        import torch

        return torch.from_numpy(result).to(logits.device)

    def _block(self, logits: Matrix) -> Floats:
        if self.identity_:
            return log_softmax(logits)
        return np.asarray(self._formula(NUMPY, logits.astype(np.float64)))

    def _mean_nll(self, logits: Matrix, targets: Integers, weights: Floats) -> float:
        total = 0.0
        for rows in _blocks(logits):
            total += mean_nll(self._block(logits[rows]), targets[rows], weights[rows]) * len(targets[rows])
        return total / len(targets)

    def _refuse_unfitted(self) -> None:
        if not hasattr(self, "summary_"):
            name = type(self).__name__
            raise InvalidInput(f"this {name} is not fitted yet: call fit(logits, targets) or load(path) first.")

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 (scikit-learn's signature)
        """Constructor parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.get_params().items())})"

    def _repr_html_(self) -> str:
        """Parameters and the result of the fit, for a notebook."""
        rows: list[tuple[str, object]] = list(self.get_params().items())
        if not hasattr(self, "summary_"):
            return Table(f"{type(self).__name__}, not fitted yet", rows).html()
        rows += [("classes", self.n_classes_), ("changes nothing", self.identity_)]
        rows += self.fitted_numbers().items()
        rows += asdict(self.summary_).items()
        return Table(type(self).__name__, rows).html()

    @property
    def digest(self) -> str:
        """SHA-256 of the fitted map, whatever it was fitted on: equal for calibrators that compute the same."""
        return content_digest({key: value for key, value in self.to_dict().items() if key in _MAP})

    def to_dict(self) -> dict[str, Any]:
        """Everything `load` needs, as plain JSON values."""
        self._refuse_unfitted()
        return {
            "format": FORMAT,
            "version": VERSION,
            "method": self.method,
            "parameters": {k: list(v) if isinstance(v, tuple) else v for k, v in self.get_params().items()},
            "classes": self.n_classes_,
            "identity": self.identity_,
            "fitted": self._state(),
            "summary": asdict(self.summary_),
            "provenance": asdict(self.provenance_),
        }

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build a fitted calibrator: `Calibrator` reads any method, a subclass only its own."""
        members, _ = check_format(content, what="calibrator", name=FORMAT, version=VERSION, where=where)
        file = typed(_File, members, what="calibrator", where=where)
        kinds = {kind.method: kind for kind in _all_kinds(cls)}
        if file.method not in kinds:
            raise invalid(where, f"hold one of the methods {sorted(kinds)}", repr(file.method))
        if not 2 <= file.classes <= MOST_CLASSES:
            raise invalid(where, "be an undamaged calibrator", f"one for {file.classes} classes")
        try:
            parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in file.parameters.items()}
            restored: Self = kinds[file.method](**parameters)
            restored.n_classes_, restored.identity_ = file.classes, file.identity
            restored._set_state(file.fitted)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise invalid(where, "be an undamaged calibrator", f"one with a fault: {error}") from error
        restored.summary_, restored.provenance_ = file.summary, file.provenance
        return restored


@dataclass(frozen=True)
class _File:
    """What a calibrator's file says besides its format."""

    method: str
    parameters: dict[str, Any]
    classes: int
    identity: bool
    fitted: Any
    summary: FitSummary
    provenance: Provenance


def _blocks(matrix: Matrix) -> list[slice]:
    rows = max(16, BLOCK // matrix.shape[1])
    return [slice(start, start + rows) for start in range(0, len(matrix), rows)]


def _all_kinds(cls: type[Any]) -> list[type[Any]]:
    # A calibrator has a name of its own; what several of them share has none.
    kinds = [cls] if "method" in vars(cls) else []
    return kinds + [kind for child in cls.__subclasses__() for kind in _all_kinds(child)]


# -- checks of arrays --------------------------------------------------------------------------------------------------


def check_logits(logits: Any, classes: int | None = None) -> Matrix:
    """Return logits as a finite float array of shape (n, K), K >= 2; float32 and float64 are kept as they are."""
    if isinstance(logits, Predictions):
        raise invalid("logits", "be an array", "Predictions", "Call calibrator(predictions).")
    matrix = as_array("logits", logits)
    if matrix.ndim != 2 or matrix.shape[0] == 0 or matrix.shape[1] < 2:
        rule = "have shape (cases, classes) with at least 1 case and 2 classes"
        raise invalid("logits", rule, matrix.shape, "For one logit per case use Predictions.from_binary.")
    if matrix.dtype.kind not in "iuf":
        raise invalid("logits", "be floating-point numbers", matrix.dtype)
    if matrix.dtype not in (np.float32, np.float64):  # half precision, whole numbers, the other byte order
        matrix = matrix.astype({np.dtype(np.float16): np.float32}.get(matrix.dtype, np.float64))
    if classes is not None and matrix.shape[1] != classes:
        rule, hint = f"have {classes} columns", "Fit a calibrator on predictions with the same classes."
        raise invalid("logits", f"{rule}, one for each class of the fit set", f"{matrix.shape[1]} columns", hint)
    fine = np.abs(matrix) <= _LARGEST  # False for NaN too
    if not fine.all():
        row = int(np.argmin(fine.all(axis=1)))
        rule = f"be finite, and at most {_LARGEST:g} in size"
        raise invalid("logits", rule, f"{matrix[row]} in row {row}", "Remove or repair such rows first.")
    return matrix


def check_fit(logits: Any, targets: Any, weights: Any = None) -> tuple[Matrix, Integers, Floats]:
    """Logits, targets and weights of a fit set; one that cannot teach a calibrator anything is refused."""
    if isinstance(logits, Predictions):
        if targets is not None:
            raise invalid("targets", "be left out with predictions, which hold them", type(targets).__name__)
        if logits.has_all_classes:
            logits, targets = logits.as_logits(), logits.targets
        else:
            logits, targets = logits.right_or_wrong_logits(), logits.correct.astype(np.int64)
    elif targets is None:
        raise invalid("targets", "be given with an array of logits", "none")
    matrix = check_logits(logits)
    classes = labels("targets", as_array("targets", targets), rows=len(matrix), n_classes=matrix.shape[1])
    classes = classes.astype(np.int64)
    case_weights = np.ones(len(matrix))
    if weights is not None:
        values = as_array("weights", weights)
        fine = values.shape == classes.shape and values.dtype.kind in "iuf" and np.isfinite(values).all()
        if not fine or values.min() < 0 or values.max() <= 0:
            rule = f"be {len(classes)} numbers, one per case, finite, not negative and not all 0"
            raise invalid("weights", rule, f"{values.dtype} of shape {values.shape}")
        used = values > 0
        matrix, classes, case_weights = matrix[used], classes[used], values[used].astype(np.float64)
    if (classes == classes[0]).all():
        hint = "A calibrator learns from cases that differ: fit on a sample of the whole stream."
        got = f"class {classes[0]} in all {len(classes)} cases"
        raise invalid("targets", "hold at least two classes", got, hint)
    shifted = matrix - matrix.max(axis=1, keepdims=True)
    if np.ptp(shifted, axis=0).max() <= 1e-12 * max(1.0, float(np.abs(shifted).max())):
        hint = "The model ignores its input, which no calibrator can repair: check its weights and its inputs."
        raise invalid("logits", "differ between cases", "the same prediction in every row", hint)
    warn_if_probabilities(matrix, stacklevel=4)
    return matrix, classes, case_weights


def finite_array(values: Any, shape: tuple[int, ...]) -> Floats:
    """A float64 array of this shape from JSON; anything else is refused. -1 in `shape` stands for any length."""
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == len(shape) and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or not np.isfinite(array).all():
        raise ValueError(f"an array of shape {shape} with finite values is missing")
    return array
