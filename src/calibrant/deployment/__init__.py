"""Deploy a model with its policy, log what it decided, and monitor whether the promise still holds."""

from calibrant.deployment.betting import promise_capital
from calibrant.deployment.decider import Decider
from calibrant.deployment.decision import (
    ContradictingLabel,
    Decision,
    DuplicateId,
    Logged,
    LoggedDecisions,
    UnknownId,
)
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
from calibrant.deployment.http import create_app, serve_model
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.networks import fold_temperature
from calibrant.deployment.onnx_export import Exported, export_onnx
from calibrant.deployment.ranks import conformal_ranks
from calibrant.deployment.signals import PROMISED, Curve, GroupShare, Signal
from calibrant.deployment.stream import Stream
from calibrant.deployment.watch import Watched, watch

__all__ = [
    "PROMISED",
    "SHARE_HEADINGS",
    "SHARE_TITLE",
    "SIGNAL_HEADINGS",
    "ContradictingLabel",
    "Curve",
    "Decider",
    "Decision",
    "DecisionLog",
    "DuplicateId",
    "Exported",
    "GroupShare",
    "Logged",
    "LoggedDecisions",
    "Signal",
    "Stream",
    "UnknownId",
    "Watched",
    "advice",
    "conformal_ranks",
    "create_app",
    "describe",
    "export_onnx",
    "findings",
    "fold_temperature",
    "headline",
    "is_log",
    "promise_capital",
    "read_reference",
    "read_stream",
    "row_of",
    "serve_model",
    "share_row",
    "stream_of_log",
    "watch",
]
