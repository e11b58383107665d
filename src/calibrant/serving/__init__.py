"""One file for deployment: what a model says, how far it is calibrated, and what it may decide alone."""

from calibrant.serving.check import ExportCheck, compare_onnx
from calibrant.serving.contents import Contents
from calibrant.serving.decider import Decider
from calibrant.serving.decision import Decision, Logged, LoggedDecisions
from calibrant.serving.folding import fold_temperature
from calibrant.serving.http import create_app, serve_model
from calibrant.serving.inputs import InputSpec
from calibrant.serving.log import ContradictingLabel, DecisionLog, DuplicateId, UnknownId
from calibrant.serving.onnx import Exported, export_onnx
from calibrant.serving.onnx_file import OUTPUTS, SCORES
from calibrant.serving.parts import Parts
from calibrant.serving.sources import open_model, parse_ranges, read_example
from calibrant.serving.stored import rule_digest

__all__ = [
    "OUTPUTS",
    "SCORES",
    "Contents",
    "ContradictingLabel",
    "Decider",
    "Decision",
    "DecisionLog",
    "DuplicateId",
    "ExportCheck",
    "Exported",
    "InputSpec",
    "Logged",
    "LoggedDecisions",
    "Parts",
    "UnknownId",
    "compare_onnx",
    "create_app",
    "export_onnx",
    "fold_temperature",
    "open_model",
    "parse_ranges",
    "read_example",
    "rule_digest",
    "serve_model",
]
