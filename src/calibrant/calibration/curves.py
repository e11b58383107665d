"""Maps that bend probabilities one number at a time: isotonic regression and histogram binning."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.optimize import isotonic_regression

from calibrant.calibration._arrays import Floats, Integers, Matrix, log_softmax
from calibrant.calibration.base import Calibrator, Progress, finite_array
from calibrant.calibration.curve_module import CurveModule, identity_pieces, level_pieces, linear_pieces
from calibrant.calibration.module import CalibrationModule
from calibrant.checks import whole
from calibrant.errors import invalid

Mode = Literal["one-vs-rest", "top-label"]


class _CurveCalibration(Calibrator):
    """Bends each class's probability by its own curve, or the top probability by a common one."""

    mode: Mode

    def _check_parameters(self) -> None:
        if self.mode not in ("one-vs-rest", "top-label"):
            raise invalid("mode", "be 'one-vs-rest' or 'top-label'", repr(self.mode))

    @abstractmethod
    def _curve(self, probability: Floats, hit: Floats) -> Floats:
        """Learn a curve: row 0 its knots, row 1 its values."""

    @staticmethod
    @abstractmethod
    def _bend(curve: Floats, probability: Floats) -> Floats:
        """Apply a curve."""

    @staticmethod
    @abstractmethod
    def _pieces(curve: Floats) -> Floats:
        """A curve as the straight pieces of a `CurveModule`."""

    def _module(self) -> CalibrationModule:
        pieces = [identity_pieces() if curve is None else self._pieces(curve) for curve in self.curves_]
        top = self.mode == "top-label"
        return CurveModule(pieces, n_classes=self.n_classes_, prior_weight=self.prior_weight_, top_label=top)

    def _fit(self, logits: Matrix, targets: Integers) -> Progress:
        p = np.exp(log_softmax(logits))
        # One imagined case, spread evenly over the classes, keeps every probability above 0 and below 1.
        self.prior_weight_ = 1.0 / (len(targets) + 1.0)
        self.curves_: list[Floats | None]
        right = p.argmax(axis=1) == targets
        notes = ["every case is classified correctly, which cannot tell over- from underconfidence. Fit on more cases"]
        notes = notes if right.all() else []
        if self.mode == "top-label":
            self.curves_ = [self._curve(p.max(axis=1), right.astype(np.float64))]
            return Progress(notes=tuple(notes))
        # Two classes are one question: the curve of class 1 settles both.
        classes = [1] if self.n_classes_ == 2 else list(range(self.n_classes_))
        present = np.bincount(targets, minlength=self.n_classes_) > 0
        self.curves_ = [
            self._curve(p[:, k], (targets == k).astype(np.float64)) if present[k] else None for k in classes
        ]
        missing = [k for k in classes if not present[k]]
        if missing:
            count = f"{len(missing)} of {self.n_classes_} classes (first: {missing[0]})"
            notes.append(f"{count} without a case in the fit set: their probabilities are kept")
        return Progress(notes=tuple(notes))

    def _log_probabilities(self, logits: Matrix) -> Floats:
        p = np.exp(log_softmax(logits))
        q = self._top_label(p) if self.mode == "top-label" else self._one_vs_rest(p)
        return np.asarray(np.log((1.0 - self.prior_weight_) * q + self.prior_weight_ / self.n_classes_))

    def _one_vs_rest(self, p: Floats) -> Floats:
        if self.n_classes_ == 2:
            (curve,) = self.curves_
            one = p[:, 1] if curve is None else self._bend(curve, p[:, 1])
            return np.stack([1.0 - one, one], axis=1)
        columns = [p[:, k] if curve is None else self._bend(curve, p[:, k]) for k, curve in enumerate(self.curves_)]
        q = np.stack(columns, axis=1)
        total = q.sum(axis=1, keepdims=True)
        # Where every curve says 0 there is nothing to share out: such a row stays as it came.
        q = np.where(total > 0, q, p)
        return np.asarray(q / q.sum(axis=1, keepdims=True))

    def _top_label(self, p: Floats) -> Floats:
        rows, top = np.arange(len(p)), p.argmax(axis=1)
        confidence = p[rows, top]
        rest = p.copy()
        rest[rows, top] = 0.0
        mass = rest.sum(axis=1)
        share = np.where(mass[:, None] > 0, rest / np.where(mass > 0, mass, 1.0)[:, None], 1.0 / (p.shape[1] - 1))
        share[rows, top] = 0.0
        (curve,) = self.curves_
        assert curve is not None
        # No lower than what keeps the predicted class on top, by a margin that float32 shows: about 1/2 at most.
        runner_up = share.max(axis=1)
        bent = np.maximum(self._bend(curve, confidence), runner_up / (1.0 + runner_up) + 1e-6)
        q = share * (1.0 - bent)[:, None]
        q[rows, top] = bent
        return np.asarray(q)

    def _state(self) -> dict[str, Any]:
        curves = [None if curve is None else curve.tolist() for curve in self.curves_]
        return {"curves": curves, "prior_weight": self.prior_weight_}

    def _set_state(self, state: dict[str, Any]) -> None:
        wanted = 1 if self.mode == "top-label" or self.n_classes_ == 2 else self.n_classes_
        curves = [None if curve is None else finite_array(curve, (2, -1)) for curve in state["curves"]]
        if len(curves) != wanted or (self.mode == "top-label" and curves[0] is None):
            raise ValueError(f"{wanted} curves are needed")
        for curve in curves:
            if curve is not None and not _is_curve(curve):
                raise ValueError("a curve with rising knots and values in 0..1 is needed")
        self.curves_ = curves
        self.prior_weight_ = float(state["prior_weight"])
        if not 0 < self.prior_weight_ < 1:
            raise ValueError(f"prior_weight {self.prior_weight_}")


def _is_curve(curve: Floats) -> bool:
    knots, values = curve
    return curve.shape[1] > 0 and bool((np.diff(knots) >= 0).all() and values.min() >= 0 and values.max() <= 1)


class IsotonicCalibration(_CurveCalibration):
    """The best non-decreasing curve from predicted to true frequency (Zadrozny and Elkan 2002).

    Pool-adjacent-violators on the fit set; between its points the curve is interpolated, beyond them it is flat.

    Args:
        mode: "one-vs-rest" bends each class's probability by its own curve and renormalises the row (two classes: one
            curve). "top-label" bends the top probability by one common curve and shares the rest out in the old
            proportions; it never changes the predicted class and wants far fewer cases.

    Attributes:
        curves_: One array (2, knots) for each curve: knots, values. None for a class without a case.
        prior_weight_: 1 / (n + 1): the share of the uniform distribution that is mixed in, so that no probability is 0.
    """

    method: ClassVar[str] = "isotonic"

    def __init__(self, *, mode: Mode = "one-vs-rest") -> None:
        self.mode = mode
        self._check_parameters()

    def _curve(self, probability: Floats, hit: Floats) -> Floats:
        knots, inverse, counts = np.unique(probability, return_inverse=True, return_counts=True)
        # Equal probabilities must get equal values, so they enter as one point with their mean and weight.
        means = np.bincount(inverse, weights=hit) / counts
        values = np.clip(isotonic_regression(means, weights=counts).x, 0.0, 1.0)
        # A level stretch needs only its two ends.
        keep = np.ones(len(knots), dtype=bool)
        keep[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
        return np.stack([knots[keep], values[keep]])

    @staticmethod
    def _bend(curve: Floats, probability: Floats) -> Floats:
        return np.asarray(np.interp(probability, curve[0], curve[1]))

    @staticmethod
    def _pieces(curve: Floats) -> Floats:
        return linear_pieces(*curve)


class HistogramBinning(_CurveCalibration):
    """The observed frequency of each bin (Zadrozny and Elkan 2001). A bin is (lo, hi]; 0 falls into the first.

    Args:
        n_bins: Number of bins; with equal mass fewer where probabilities tie.
        strategy: "equal-mass" puts as many cases into each bin, which bounds the error of each (Gupta and Ramdas 2021);
            "equal-width" divides 0..1 evenly, and an empty bin keeps its centre.
        mode: "one-vs-rest" or "top-label", as in `IsotonicCalibration`.

    Attributes:
        curves_: One array (2, bins) for each curve: upper edges, values. None for a class without a case.
        prior_weight_: 1 / (n + 1): the share of the uniform distribution that is mixed in, so that no probability is 0.
    """

    method: ClassVar[str] = "histogram"

    def __init__(
        self,
        *,
        n_bins: int = 15,
        strategy: Literal["equal-mass", "equal-width"] = "equal-mass",
        mode: Mode = "one-vs-rest",
    ) -> None:
        self.n_bins = n_bins
        self.strategy = strategy
        self.mode = mode
        self._check_parameters()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        whole("n_bins", self.n_bins, 1)
        if self.strategy not in ("equal-mass", "equal-width"):
            raise invalid("strategy", "be 'equal-mass' or 'equal-width'", repr(self.strategy))

    def _curve(self, probability: Floats, hit: Floats) -> Floats:
        if self.strategy == "equal-mass":
            # Inner edges are observed probabilities: with (lo, hi] every bin then holds at least one case.
            ranks = [-(-len(hit) * j // self.n_bins) - 1 for j in range(1, self.n_bins)]
            inner = np.sort(probability)[ranks]
            edges = np.append(np.unique(inner[inner < probability.max()]), 1.0)
        else:
            edges = np.linspace(0.0, 1.0, self.n_bins + 1)[1:]
        which = np.searchsorted(edges, np.minimum(probability, 1.0), side="left")
        cases = np.bincount(which, minlength=len(edges))
        hits = np.bincount(which, weights=hit, minlength=len(edges))
        centres = edges - 0.5 / self.n_bins
        return np.stack([edges, np.where(cases > 0, hits / np.maximum(cases, 1), np.clip(centres, 0.0, 1.0))])

    @staticmethod
    def _bend(curve: Floats, probability: Floats) -> Floats:
        edges, values = curve
        which = np.searchsorted(edges, np.minimum(probability, 1.0), side="left")
        return np.asarray(values[np.minimum(which, len(values) - 1)])

    @staticmethod
    def _pieces(curve: Floats) -> Floats:
        return level_pieces(*curve)
