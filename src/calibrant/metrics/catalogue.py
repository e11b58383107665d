"""The list of built-in metrics, in the order of tables. docs/metrics.md defines each."""

from calibrant.metrics.binning import debiased_errors, expected_errors, maximum_errors
from calibrant.metrics.errors import class_error, class_gaps, ks_errors, smooth_errors
from calibrant.metrics.metric import METRICS, SET_METRICS, Metric
from calibrant.metrics.scores import (
    ranking_area_influence,
    ranking_areas,
    risk_area_influence,
    risk_areas,
    squared_distance,
)

_ALL_ROWS = (
    Metric("test_error", "test error", "lower", "share", lambda chunk: ~chunk.correct, main=True),
    Metric("nll", "NLL", "lower", "mean", lambda chunk: chunk.nll, scale="log", percent=False, main=True),
    Metric("brier", "Brier score", "lower", "mean", squared_distance, scale="log", percent=False),
    Metric("ece", "ECE", "lower", "calibration", lambda rows: expected_errors(rows.bins()), main=True),
    Metric("ece_equal_mass", "ECE, equal mass", "lower", "calibration", lambda rows: expected_errors(rows.equal_mass)),
    Metric(
        "mce",
        "MCE",
        "lower",
        "calibration",
        lambda rows: maximum_errors(rows.bins()),
        no_interval="One bin with a few rows decides it, and none of the methods tried covers its true value.",
    ),
    Metric(
        "classwise_ece",
        "class-wise ECE",
        "lower",
        "table",
        class_gaps,
        finish=class_error,
        no_interval="How far noise raises it depends on whether the true gaps lie in many cells or in a few.",
    ),
    Metric("smooth_ece", "smooth ECE", "lower", "calibration", smooth_errors),
    Metric(
        "debiased_ece",
        "debiased ECE",
        "lower",
        "calibration",
        lambda rows: debiased_errors(rows.equal_mass),
        counts_rows=True,
        no_interval="It is 0 whenever the noise that it subtracts is the larger part, in very different worlds.",
    ),
    Metric("ks", "KS error", "lower", "calibration", ks_errors),
    # Not the area between two classes: how well confidence separates right rows from wrong ones.
    Metric(
        "auroc",
        "AUROC, right or wrong",
        "higher",
        "ranking",
        ranking_areas,
        influence=ranking_area_influence,
        scale="logit",
    ),
    Metric("aurc", "AURC", "lower", "ranking", risk_areas, influence=risk_area_influence, scale="log"),
)
_SETS = (
    Metric("share", "share, ≥ {} % sure", "higher", "share", lambda rows: rows.rows / rows.all_rows, main=True),
    Metric("accuracy", "accuracy, ≥ {} % sure", "higher", "share", lambda rows: rows.right / rows.rows, main=True),
    Metric("ece", "ECE, ≥ {} % sure", "lower", "calibration", lambda rows: expected_errors(rows.bins())),
    Metric(
        "ece_inside",
        "ECE, ≥ {} % sure, own bins",
        "lower",
        "calibration",
        lambda rows: expected_errors(rows.bins(rows.low)),
    ),
)
METRICS.update({metric.name: metric for metric in _ALL_ROWS})
SET_METRICS.update({metric.name: metric for metric in _SETS})
