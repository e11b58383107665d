"""Post-hoc calibration: learn on held-out cases how to turn logits into probabilities that can be trusted."""

from calibrant.calibration.affine import DirichletScaling, MatrixScaling, VectorScaling
from calibrant.calibration.base import Calibrator, FitSummary, Progress, Provenance, warn_if_in_sample
from calibrant.calibration.curves import BetaCalibration, HistogramBinning, IsotonicCalibration
from calibrant.calibration.operations import Operations, Recorder, Step, Symbol
from calibrant.calibration.prior import PriorCorrection
from calibrant.calibration.selection import (
    METHODS,
    Candidate,
    NoCalibration,
    Selection,
    cross_validated_nll,
    fit_calibrator,
    make_calibrator,
    select_calibrator,
    warn_if_worse,
)
from calibrant.calibration.temperature import (
    FEWEST_CASES,
    TemperatureScaling,
    calibrate_parts,
    fit_parts,
    temperature_share,
)

__all__ = [
    "FEWEST_CASES",
    "METHODS",
    "BetaCalibration",
    "Calibrator",
    "Candidate",
    "DirichletScaling",
    "FitSummary",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "NoCalibration",
    "Operations",
    "PriorCorrection",
    "Progress",
    "Provenance",
    "Recorder",
    "Selection",
    "Step",
    "Symbol",
    "TemperatureScaling",
    "VectorScaling",
    "calibrate_parts",
    "cross_validated_nll",
    "fit_calibrator",
    "fit_parts",
    "make_calibrator",
    "select_calibrator",
    "temperature_share",
    "warn_if_in_sample",
    "warn_if_worse",
]
