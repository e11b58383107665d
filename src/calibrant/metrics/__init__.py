"""How far confidence is from accuracy: metrics of `Predictions`, their intervals, comparisons and gates.

`METRICS` lists the metrics; `register_metric` adds one. Meters for training loops are in `calibrant.integrations`.
"""

from calibrant.metrics.binning import Bins
from calibrant.metrics.confidences import Confidences
from calibrant.metrics.evaluation import Evaluation, Gates, confident_set, evaluate
from calibrant.metrics.functions import (
    accuracy,
    accuracy_coverage,
    aurc,
    auroc,
    brier_score,
    classwise_calibration_error,
    debiased_calibration_error,
    equal_mass_calibration_error,
    error_rate,
    expected_calibration_error,
    ks_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    noise_floor,
    reliability_bins,
    smooth_calibration_error,
)
from calibrant.metrics.metric import METRICS, Chunk, Metric, register_metric, unregister_metric
from calibrant.metrics.model_comparison import Comparison, compare
from calibrant.metrics.partitioned import evaluate_parts
from calibrant.metrics.subgroups import evaluate_classes, evaluate_groups, split_groups

__all__ = [
    "METRICS",
    "Bins",
    "Chunk",
    "Comparison",
    "Confidences",
    "Evaluation",
    "Gates",
    "Metric",
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
    "evaluate_classes",
    "evaluate_groups",
    "evaluate_parts",
    "expected_calibration_error",
    "ks_calibration_error",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "noise_floor",
    "register_metric",
    "reliability_bins",
    "smooth_calibration_error",
    "split_groups",
    "unregister_metric",
]
