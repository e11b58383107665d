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
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.monitor_stream import Stream, read_reference, read_stream
from calibrant.deployment.monitor_text import advice, describe, headline
from calibrant.deployment.networks import normalised
from calibrant.deployment.onnx_export import Exported, export_onnx
from calibrant.deployment.serve import serve_model
from calibrant.deployment.signals import GroupShare, Signal
from calibrant.deployment.watch import Watched, watch, watch_labels

__all__ = [
    "ContradictingLabel",
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
    "describe",
    "export_onnx",
    "headline",
    "normalised",
    "promise_capital",
    "read_reference",
    "read_stream",
    "serve_model",
    "watch",
    "watch_labels",
]
