"""What a trained model says: the one thing that metrics, post-hoc calibration, routing and reports read."""

from calibrant.defaults import Kind
from calibrant.predictions.checks import (
    SUM_TOLERANCE,
    Precision,
    as_class_names,
    as_scores,
    as_targets,
    refuse_scores,
    warn_if_probabilities,
)
from calibrant.predictions.class_order import class_order, in_order_of, names_or_numbers, shortened
from calibrant.predictions.columns import parse_columns
from calibrant.predictions.core import Predictions
from calibrant.predictions.csv_file import csv_records
from calibrant.predictions.files import load_part
from calibrant.predictions.guard import require_predictions
from calibrant.predictions.origin import Origin, RowsPart
from calibrant.predictions.parquet_file import parquet_module
from calibrant.predictions.parquet_table import parquet_columns, parquet_table
from calibrant.predictions.reader import Block, DistinctIds, Scan, parquet_parts, scan
from calibrant.predictions.rows import (
    Rows,
    check_tops,
    logits_of,
    probabilities_of,
    stands_for_zero,
)
from calibrant.predictions.threads import share

__all__ = [
    "SUM_TOLERANCE",
    "Block",
    "DistinctIds",
    "Kind",
    "Origin",
    "Precision",
    "Predictions",
    "Rows",
    "RowsPart",
    "Scan",
    "as_class_names",
    "as_scores",
    "as_targets",
    "check_tops",
    "class_order",
    "csv_records",
    "in_order_of",
    "load_part",
    "logits_of",
    "names_or_numbers",
    "parquet_columns",
    "parquet_module",
    "parquet_parts",
    "parquet_table",
    "parse_columns",
    "probabilities_of",
    "refuse_scores",
    "require_predictions",
    "scan",
    "share",
    "shortened",
    "stands_for_zero",
    "warn_if_probabilities",
]
