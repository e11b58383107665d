"""How far confidence is from truth: metrics on `Predictions`, their intervals, and meters for training loops."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.metrics.binning import DEFAULT_N_BINS, Bins, accumulate_bins, expected_error
from calibrant.metrics.comparison import Comparison, Difference, compare
from calibrant.metrics.confident import ConfidentSet, confident_set
from calibrant.metrics.errors import (
    classwise_calibration_error,
    debiased_calibration_error,
    equal_mass_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from calibrant.metrics.evaluation import Evaluation, evaluate
from calibrant.metrics.names import higher_is_better, set_metric
from calibrant.metrics.noise import NoiseFloor, noise_floor
from calibrant.metrics.proper import accuracy, brier_score, error_rate, negative_log_likelihood
from calibrant.metrics.ranking import AccuracyCoverage, accuracy_coverage, aurc, auroc, ks_calibration_error
from calibrant.metrics.smooth import smooth_calibration_error
from calibrant.metrics.tables import evaluations_table

if TYPE_CHECKING:
    from calibrant.metrics.meter import Meter
    from calibrant.metrics.meters import (
        BrierScore,
        CalibrationError,
        ClasswiseCalibrationError,
        ConfidentSetMeter,
        NegativeLogLikelihood,
    )

__all__ = [
    "DEFAULT_N_BINS",
    "AccuracyCoverage",
    "Bins",
    "BrierScore",
    "CalibrationError",
    "ClasswiseCalibrationError",
    "Comparison",
    "ConfidentSet",
    "ConfidentSetMeter",
    "Difference",
    "Evaluation",
    "Meter",
    "NegativeLogLikelihood",
    "NoiseFloor",
    "accumulate_bins",
    "accuracy",
    "accuracy_coverage",
    "aurc",
    "auroc",
    "brier_score",
    "classwise_calibration_error",
    "compare",
    "confident_set",
    "debiased_calibration_error",
    "equal_mass_calibration_error",
    "error_rate",
    "evaluate",
    "evaluations_table",
    "expected_calibration_error",
    "expected_error",
    "higher_is_better",
    "ks_calibration_error",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "noise_floor",
    "reliability_bins",
    "set_metric",
    "smooth_calibration_error",
]

_METERS = {
    "BrierScore",
    "CalibrationError",
    "ClasswiseCalibrationError",
    "ConfidentSetMeter",
    "Meter",
    "NegativeLogLikelihood",
}


def __getattr__(name: str) -> Any:
    # torchmetrics takes a second to import; only those who use a meter wait for it.
    if name not in _METERS:
        raise AttributeError(f"module 'calibrant.metrics' has no attribute {name!r}")
    return getattr(import_module("calibrant.metrics.meters"), name)
