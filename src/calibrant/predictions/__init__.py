"""Predictions of a model: what metrics, calibration, decisions and reports take."""

from calibrant.defaults import Kind
from calibrant.predictions.columns import names_or_numbers
from calibrant.predictions.core import Origin, Predictions, RowsPart, in_order_of, require_predictions, same_targets
from calibrant.predictions.npz import Npz, read_npz
from calibrant.predictions.reader import Block, Scan, prediction_files, scan
from calibrant.predictions.readings import parse_columns
from calibrant.predictions.table_files import read_table, table_writer

__all__ = [
    "Block",
    "Kind",
    "Npz",
    "Origin",
    "Predictions",
    "RowsPart",
    "Scan",
    "in_order_of",
    "names_or_numbers",
    "parse_columns",
    "prediction_files",
    "read_npz",
    "read_table",
    "require_predictions",
    "same_targets",
    "scan",
    "table_writer",
]
