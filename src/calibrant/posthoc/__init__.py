"""Repair after training: learn on held-out cases how to turn logits into probabilities that can be trusted."""

from calibrant.posthoc.affine import DirichletScaling, MatrixScaling, VectorScaling
from calibrant.posthoc.base import Calibrator, FitSummary
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.curves import HistogramBinning, IsotonicCalibration
from calibrant.posthoc.module import CalibrationModule
from calibrant.posthoc.parts import calibrate_parts, fit_parts
from calibrant.posthoc.prior import PriorCorrection
from calibrant.posthoc.provenance import Provenance, warn_if_in_sample
from calibrant.posthoc.selection import (
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
from calibrant.posthoc.temperature import FEWEST_CASES, TemperatureScaling, temperature_share

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
