"""How far confidence is from accuracy: metrics of `Predictions`, their intervals, comparisons and gates.

`METRICS` lists the metrics; `register_metric` adds one. Meters for training loops are in `calibrant.integrations`.
"""

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics import catalogue as catalogue
from calibrant.metrics.binning import Bins, edge_precision
from calibrant.metrics.comparison import Comparison, Difference, Verdict, compare, differences, rests_on_few
from calibrant.metrics.confidences import Confidences
from calibrant.metrics.errors import (
    NoiseFloor,
    classwise_calibration_error,
    debiased_calibration_error,
    equal_mass_calibration_error,
    expected_calibration_error,
    ks_calibration_error,
    maximum_calibration_error,
    noise_floor,
    reliability_bins,
    smooth_calibration_error,
)
from calibrant.metrics.evaluation import (
    FEWEST_RESAMPLES,
    NO_INTERVALS,
    ConfidentSet,
    Evaluation,
    confident_set,
    default_resamples,
    evaluate,
    is_confident,
)
from calibrant.metrics.gates import Gates
from calibrant.metrics.groups import (
    ClassEvaluation,
    ClassMetrics,
    GroupedEvaluation,
    compare_groups,
    evaluate_classes,
    evaluate_groups,
    group_rows,
    split_groups,
)
from calibrant.metrics.intervals import Resampled, percentiles, resample_models, share_intervals, wilson
from calibrant.metrics.metric import (
    METRICS,
    SET_METRICS,
    Chunk,
    Metric,
    higher_is_better,
    label,
    register_metric,
    set_metric,
    unregister_metric,
)
from calibrant.metrics.parts import describe_rounding, evaluate_parts
from calibrant.metrics.scores import (
    AccuracyCoverage,
    accuracy,
    accuracy_coverage,
    aurc,
    auroc,
    brier_score,
    error_rate,
    negative_log_likelihood,
)
from calibrant.metrics.tables import evaluations_dict, evaluations_table, grouped_table, plain_table
from calibrant.metrics.weights import Groups, Weights, check_weights, column_of

__all__ = [
    "DEFAULT_N_BINS",
    "FEWEST_RESAMPLES",
    "METRICS",
    "NO_INTERVALS",
    "SET_METRICS",
    "AccuracyCoverage",
    "Bins",
    "Chunk",
    "ClassEvaluation",
    "ClassMetrics",
    "Comparison",
    "Confidences",
    "ConfidentSet",
    "Difference",
    "Evaluation",
    "Gates",
    "GroupedEvaluation",
    "Groups",
    "Metric",
    "NoiseFloor",
    "Resampled",
    "Verdict",
    "Weights",
    "accuracy",
    "accuracy_coverage",
    "aurc",
    "auroc",
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
    "group_rows",
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
    "register_metric",
    "reliability_bins",
    "resample_models",
    "rests_on_few",
    "set_metric",
    "share_intervals",
    "smooth_calibration_error",
    "split_groups",
    "unregister_metric",
    "wilson",
]
