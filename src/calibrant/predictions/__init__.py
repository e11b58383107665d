"""Predictions of a model: what metrics, calibration, decisions and reports take."""

from calibrant.defaults import Kind
from calibrant.predictions.checks import (
    SUM_TOLERANCE,
    Precision,
    as_class_names,
    as_scores,
    as_targets,
    names_or_numbers,
    refuse_scores,
    shortened,
    warn_if_probabilities,
)
from calibrant.predictions.columns import parse_columns
from calibrant.predictions.core import Origin, Predictions, RowsPart, in_order_of, load_part, require_predictions
from calibrant.predictions.npz import Npz, calibrated_by, read_npz
from calibrant.predictions.reader import Block, DistinctIds, Scan, prediction_files, scan
from calibrant.predictions.rows import check_tops, logits_of, probabilities_of, share, stands_for_zero
from calibrant.predictions.source import check_unfolded
from calibrant.predictions.table_files import read_table, table_columns, table_writer

__all__ = [
    "SUM_TOLERANCE",
    "Block",
    "DistinctIds",
    "Kind",
    "Npz",
    "Origin",
    "Precision",
    "Predictions",
    "RowsPart",
    "Scan",
    "as_class_names",
    "as_scores",
    "as_targets",
    "calibrated_by",
    "check_tops",
    "check_unfolded",
    "in_order_of",
    "load_part",
    "logits_of",
    "names_or_numbers",
    "parse_columns",
    "prediction_files",
    "probabilities_of",
    "read_npz",
    "read_table",
    "refuse_scores",
    "require_predictions",
    "scan",
    "share",
    "shortened",
    "stands_for_zero",
    "table_columns",
    "table_writer",
    "warn_if_probabilities",
]
