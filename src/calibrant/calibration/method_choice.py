"""Which calibrator? The simplest of those that are as good as the best on cases they were not fitted on."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from calibrant.calibration.affine import DirichletScaling, MatrixScaling, VectorScaling, stratified_folds
from calibrant.calibration.base import Calibrator, Progress, check_fit
from calibrant.calibration.curves import BetaCalibration, HistogramBinning, IsotonicCalibration, PlattScaling
from calibrant.calibration.operations import Floats, Integers, Matrix, Operations
from calibrant.calibration.temperature import TemperatureScaling
from calibrant.errors import CalibrantWarning, did_you_mean, invalid
from calibrant.predictions import Predictions, require_predictions
from calibrant.tables import Displayed, ShownFields, Table


class NoCalibration(Calibrator):
    """Plain softmax: what the others have to beat."""

    method: ClassVar[str] = "none"

    def _fit(self, logits: Matrix, targets: Integers, weights: Floats) -> Progress:  # noqa: ARG002
        self.identity_ = True
        return Progress()

    def _formula(self, operations: Operations, logits: Any) -> Any:
        return operations.log_softmax(logits)

    def _state(self) -> dict[str, Any]:
        return {}

    def _set_state(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError("no fitted values are expected")


# With fewer cases the choice among many methods loses more than it gains.
_ENOUGH_TO_CHOOSE = 300
_SIMPLEST = ("none", "temperature")
# Every calibrator by name, from the fewest to the most numbers to learn; of equally good ones the earlier one wins. A
# calibrator of your own can be added: METHODS["mine"] = Mine.
METHODS: dict[str, Callable[[], Calibrator]] = {
    "none": NoCalibration,
    "temperature": TemperatureScaling,
    "isotonic-top": lambda: IsotonicCalibration(mode="top-label"),
    "histogram-top": lambda: HistogramBinning(mode="top-label"),
    "vector": VectorScaling,
    "beta": BetaCalibration,
    "histogram": HistogramBinning,
    "isotonic": IsotonicCalibration,
    "dirichlet": DirichletScaling,
    "matrix": MatrixScaling,
}


# Those that map one confidence in different ways.
_FOR_ONE_CONFIDENCE = ("none", "temperature", "platt", "beta", "histogram", "isotonic")


@dataclass(frozen=True)
class Candidate(ShownFields):
    """One line of the comparison: a key in `METHODS` and its mean held-out NLL.

    `behind` is how much larger the NLL is than the lowest, with its standard error from case-by-case differences.
    """

    name: str
    nll: float
    behind: float
    standard_error: float


@dataclass(frozen=True, repr=False)
class Selection(Displayed):
    """The winner, fitted on all cases, and how the others did."""

    name: str  # key in `METHODS`
    calibrator: Calibrator
    candidates: tuple[Candidate, ...]  # best first; empty if nothing was compared
    reason: str  # one sentence for a person; empty if nothing was compared

    def to_dict(self) -> dict[str, Any] | None:
        """The comparison as plain JSON values; None if nothing was compared."""
        if not self.candidates:
            return None
        return {"reason": self.reason, "candidates": [asdict(candidate) for candidate in self.candidates]}

    def _overview(self) -> Table:
        rows = [
            (each.name, f"{each.nll:.4f}", f"{each.behind:.4f} ± {each.standard_error:.4f}") for each in self.candidates
        ]
        headings = ("held-out", "NLL", "behind the best")[: 3 * bool(rows)]
        return Table(f"{self.name}. {self.reason}".rstrip(), rows, headings)

    def describe(self) -> str:
        """What was compared and fitted, for a person."""
        calibrator = self.calibrator
        numbers = "".join(f", {name} {value:.4f}" for name, value in calibrator.fitted_numbers().items())
        lines = [f"Fitted {calibrator!r} on {calibrator.summary_.cases:,} cases{numbers}."]
        if self.candidates:
            lines.insert(0, f"Chosen: {self._overview().text()}")
        if calibrator.identity_ and calibrator.method != "none":
            lines.append("No map was kept: the probabilities stay as they are.")
        return "\n".join(lines)


def make_calibrator(name: str) -> Calibrator:
    """A fresh calibrator by its name in `METHODS`, with default parameters."""
    if name == PlattScaling.method:  # for two classes, or a class and its score
        return PlattScaling()
    if name == "sigmoid":  # scikit-learn's default
        hint = "Of two classes 'platt' is the sigmoid. For more, 'beta' is the nearest; 'temperature' is the default."
        raise invalid("method", "be a known one", repr(name), hint)
    if not isinstance(name, str) or name not in METHODS:
        raise invalid("method", "be a known one", repr(name), did_you_mean(str(name), [*METHODS, "platt"]))
    return METHODS[name]()


def cross_validated_nll(
    make: Callable[[], Calibrator], logits: Any, targets: Any = None, *, folds: int = 5, seed: int = 0
) -> Floats:
    """Negative log-likelihood of each case under a calibrator of `make` that is fitted on the other folds."""
    matrix, labels, _ = check_fit(logits, targets)
    fold = stratified_folds(labels, folds, seed)
    result = np.empty(len(labels))
    for held_out in range(folds):
        outside = fold == held_out
        with warnings.catch_warnings():
            # A fold may lack a class or be separable: that is about the fold. The final fit speaks for itself.
            warnings.simplefilter("ignore", CalibrantWarning)
            calibrator = make().fit(matrix[~outside], labels[~outside])
        logs = calibrator.transform_logits(matrix[outside].astype(np.float64))
        result[outside] = -logs[np.arange(len(logs)), labels[outside]]
    return result


def fit_calibrator(
    predictions: Predictions,
    method: str = "temperature",
    *,
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Selection:
    """Fit a method of `METHODS`, or with "best" the one that `select_calibrator` chooses with the other arguments.

    The predictions must be cases that nothing else was fitted on.
    """
    require_predictions(predictions)
    if method == "best":
        return select_calibrator(predictions, folds=folds, seed=seed, progress=progress)
    return Selection(method, make_calibrator(method).fit(predictions), (), "")


def warn_if_worse(before: Predictions, after: Predictions) -> None:
    """Warn if calibrated predictions have a larger NLL than raw ones by more than two standard errors."""
    if not before.has_all_classes:  # they have no NLL
        return
    losses = [np.minimum(each.nll, 1e6) for each in (before, after)]
    change = losses[1] - losses[0]
    if change.mean() > 2.0 * change.std() / len(change) ** 0.5:
        warnings.warn(
            f"calibration made the NLL of the predictions it was applied to larger: {losses[0].mean():.4g} before, "
            f"{losses[1].mean():.4g} after. Fit on more cases, use another method, or leave the scores as they are.",
            CalibrantWarning,
            stacklevel=2,
        )


def select_calibrator(
    logits: Any,
    targets: Any = None,
    *,
    methods: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Selection:
    """Compare methods by cross-validated NLL and fit the one that is chosen on all cases.

    From 300 cases on, the simplest method whose held-out NLL is within one standard error of the lowest is chosen: the
    lowest of ten is in part luck. Simplest is the first in the order of `METHODS`, with Platt scaling behind the
    temperature. Every method sees the same folds.

    Args:
        logits: Predictions, or an array of shape (n, K).
        targets: With an array: shape (n,).
        methods: Names in `METHODS`. None: all but those that have more numbers to learn than there are cases; with
            fewer than 300 cases none and temperature; for a class and a score those that map one confidence.
        folds: Number of stratified folds.
        seed: Seed of the folds.
        progress: Called before each method with its name, its place from 0 on, and the number of methods.
    """
    if methods is None:
        cases, n_classes = check_fit(logits, targets)[0].shape
        # A regulariser would all but turn a matrix of more numbers than there are cases into temperature scaling, and
        # with 100 classes that takes minutes.
        methods = [name for name, make in METHODS.items() if make().numbers_to_learn(n_classes) <= cases]
        if cases < _ENOUGH_TO_CHOOSE:
            methods = _SIMPLEST
        if isinstance(logits, Predictions) and not logits.has_all_classes:
            methods = _FOR_ONE_CONFIDENCE
    if isinstance(methods, str) or not methods:
        raise invalid("methods", "be a list of at least one method", repr(methods))
    for name in methods:
        make_calibrator(name)
    losses: dict[str, Floats] = {}
    for place, name in enumerate(methods):
        if progress is not None:
            progress(name, place, len(methods))
        losses[name] = cross_validated_nll(partial(make_calibrator, name), logits, targets, folds=folds, seed=seed)
    best = min(losses, key=lambda name: float(losses[name].mean()))
    candidates = []
    for name, loss in losses.items():
        behind = loss - losses[best]
        error = float(behind.std(ddof=1)) / math.sqrt(len(behind))
        candidates.append(Candidate(name, float(loss.mean()), float(behind.mean()), error))
    candidates.sort(key=lambda candidate: candidate.nll)
    chosen = candidates[0]
    if len(losses[best]) >= _ENOUGH_TO_CHOOSE:
        as_good = {each.name: each for each in candidates if each.behind <= each.standard_error}
        simplest_first = (*_SIMPLEST, PlattScaling.method, *METHODS)
        chosen = next(as_good[name] for name in simplest_first if name in as_good)
    calibrator = make_calibrator(chosen.name).fit(logits, targets)
    return Selection(chosen.name, calibrator, tuple(candidates), _reason(chosen, candidates, folds))


def _reason(chosen: Candidate, candidates: Sequence[Candidate], folds: int) -> str:
    first = candidates[0]
    reason = f"{first.name} has the lowest NLL on held-out cases ({first.nll:.4f}, {folds}-fold cross-validation)"
    if chosen is not first:
        gap = f"only {chosen.behind:.4f} ± {chosen.standard_error:.4f} behind"
        reason += f"; {chosen.name} is simpler and {gap}, which is within the noise"
    return f"{reason}."
