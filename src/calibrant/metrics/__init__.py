"""How far confidence is from truth: metrics on `Predictions`, their intervals, and meters for training loops."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.gates import Gates
from calibrant.metrics.binning import Bins, accumulate_bins, edge_precision, expected_error
from calibrant.metrics.classes import ClassEvaluation, ClassMetrics, evaluate_classes
from calibrant.metrics.comparison import Comparison, Difference, Verdict, compare, differences, rests_on_few
from calibrant.metrics.confident import ConfidentSet, confident_set, is_confident
from calibrant.metrics.errors import (
    classwise_calibration_error,
    debiased_calibration_error,
    equal_mass_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from calibrant.metrics.evaluation import (
    FEWEST_RESAMPLES,
    NO_INTERVALS,
    Evaluation,
    default_resamples,
    evaluate,
    without_intervals,
)
from calibrant.metrics.groups import (
    GroupedEvaluation,
    Groups,
    column_of,
    compare_groups,
    evaluate_groups,
    group_rows,
    split_groups,
)
from calibrant.metrics.intervals import Resampled, percentiles, resample_models, share_intervals
from calibrant.metrics.names import higher_is_better, set_metric
from calibrant.metrics.noise import NoiseFloor, noise_floor
from calibrant.metrics.parts import describe_rounding, evaluate_parts
from calibrant.metrics.proper import accuracy, brier_score, error_rate, negative_log_likelihood
from calibrant.metrics.proportion import wilson
from calibrant.metrics.ranking import AccuracyCoverage, accuracy_coverage, aurc, auroc, ks_calibration_error
from calibrant.metrics.resampling import bootstrap
from calibrant.metrics.smooth import smooth_calibration_error
from calibrant.metrics.tables import (
    evaluations_dict,
    evaluations_table,
    grouped_dict,
    grouped_table,
    label,
    plain_table,
)
from calibrant.metrics.tops import Weights
from calibrant.metrics.weighted import check_weights

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
    "FEWEST_RESAMPLES",
    "NO_INTERVALS",
    "AccuracyCoverage",
    "Bins",
    "BrierScore",
    "CalibrationError",
    "ClassEvaluation",
    "ClassMetrics",
    "ClasswiseCalibrationError",
    "Comparison",
    "ConfidentSet",
    "ConfidentSetMeter",
    "Difference",
    "Evaluation",
    "Gates",
    "GroupedEvaluation",
    "Groups",
    "Meter",
    "NegativeLogLikelihood",
    "NoiseFloor",
    "Resampled",
    "Verdict",
    "Weights",
    "accumulate_bins",
    "accuracy",
    "accuracy_coverage",
    "aurc",
    "auroc",
    "bootstrap",
    "brier_score",
    "check_weights",
    "classwise_calibration_error",
    "column_of",
    "compare",
    "compare_groups",
    "confident_set",
    "debiased_calibration_error",
    "default_resamples",
    "describe_rounding",
    "differences",
    "edge_precision",
    "equal_mass_calibration_error",
    "error_rate",
    "evaluate",
    "evaluate_classes",
    "evaluate_groups",
    "evaluate_parts",
    "evaluations_dict",
    "evaluations_table",
    "expected_calibration_error",
    "expected_error",
    "group_rows",
    "grouped_dict",
    "grouped_table",
    "higher_is_better",
    "is_confident",
    "ks_calibration_error",
    "label",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "noise_floor",
    "percentiles",
    "plain_table",
    "reliability_bins",
    "resample_models",
    "rests_on_few",
    "set_metric",
    "share_intervals",
    "smooth_calibration_error",
    "split_groups",
    "wilson",
    "without_intervals",
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
