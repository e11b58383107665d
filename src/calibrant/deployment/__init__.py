"""Deploy a model with its policy, log what it decided, and monitor whether the promise still holds."""

from calibrant.deployment.betting import promise_capital
from calibrant.deployment.check import ExportCheck, compare_onnx
from calibrant.deployment.contents import Contents
from calibrant.deployment.decider import Decider
from calibrant.deployment.decision import Decision, Logged, LoggedDecisions
from calibrant.deployment.describe import (
    SHARE_HEADINGS,
    SHARE_TITLE,
    SIGNAL_HEADINGS,
    advice,
    describe,
    findings,
    headline,
    row_of,
    share_row,
)
from calibrant.deployment.files import is_log, read_reference, read_stream, stream_of_log
from calibrant.deployment.folding import fold_temperature
from calibrant.deployment.http import create_app, serve_model
from calibrant.deployment.inputs import InputSpec
from calibrant.deployment.log import ContradictingLabel, DecisionLog, DuplicateId, UnknownId
from calibrant.deployment.onnx import Exported, export_onnx
from calibrant.deployment.onnx_file import OUTPUTS, SCORES
from calibrant.deployment.ranks import conformal_ranks
from calibrant.deployment.signals import PROMISED, Curve, GroupShare, Signal
from calibrant.deployment.sources import open_model, parse_ranges, read_example
from calibrant.deployment.stream import Stream
from calibrant.deployment.watch import Watched, watch

__all__ = [
    "OUTPUTS",
    "PROMISED",
    "SCORES",
    "SHARE_HEADINGS",
    "SHARE_TITLE",
    "SIGNAL_HEADINGS",
    "Contents",
    "ContradictingLabel",
    "Curve",
    "Decider",
    "Decision",
    "DecisionLog",
    "DuplicateId",
    "ExportCheck",
    "Exported",
    "GroupShare",
    "InputSpec",
    "Logged",
    "LoggedDecisions",
    "Signal",
    "Stream",
    "UnknownId",
    "Watched",
    "advice",
    "compare_onnx",
    "conformal_ranks",
    "create_app",
    "describe",
    "export_onnx",
    "findings",
    "fold_temperature",
    "headline",
    "is_log",
    "open_model",
    "parse_ranges",
    "promise_capital",
    "read_example",
    "read_reference",
    "read_stream",
    "row_of",
    "serve_model",
    "share_row",
    "stream_of_log",
    "watch",
]
