"""Repair after training: learn on held-out cases how to turn logits into probabilities that can be trusted."""

from calibrant.calibration.affine import DirichletScaling, MatrixScaling, VectorScaling
from calibrant.calibration.base import Calibrator, FitSummary
from calibrant.calibration.beta import BetaCalibration
from calibrant.calibration.curves import HistogramBinning, IsotonicCalibration
from calibrant.calibration.module import CalibrationModule
from calibrant.calibration.parts import calibrate_parts, fit_parts
from calibrant.calibration.prior import PriorCorrection
from calibrant.calibration.provenance import Provenance, warn_if_in_sample
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
from calibrant.calibration.temperature import FEWEST_CASES, TemperatureScaling, temperature_share

__all__ = [
    "FEWEST_CASES",
    "METHODS",
    "BetaCalibration",
    "CalibrationModule",
    "Calibrator",
    "Candidate",
    "DirichletScaling",
    "FitSummary",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "NoCalibration",
    "PriorCorrection",
    "Provenance",
    "Selection",
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
