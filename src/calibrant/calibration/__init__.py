"""Post-hoc calibration: learn on held-out cases how to turn logits into probabilities that can be trusted."""

from calibrant.calibration.affine import DirichletScaling, MatrixScaling, VectorScaling
from calibrant.calibration.base import Calibrator, Progress
from calibrant.calibration.curves import BetaCalibration, HistogramBinning, IsotonicCalibration, PlattScaling
from calibrant.calibration.method_choice import METHODS, fit_calibrator, make_calibrator, select_calibrator
from calibrant.calibration.prior import PriorCorrection
from calibrant.calibration.temperature import TemperatureScaling

__all__ = [
    "METHODS",
    "BetaCalibration",
    "Calibrator",
    "DirichletScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "PlattScaling",
    "PriorCorrection",
    "Progress",
    "TemperatureScaling",
    "VectorScaling",
    "fit_calibrator",
    "make_calibrator",
    "select_calibrator",
]
