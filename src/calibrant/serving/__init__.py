"""One file for deployment: what a model says, how far it is calibrated, and what it may decide alone."""

from calibrant.serving.decision import Decision, Logged, LoggedDecisions
from calibrant.serving.folding import fold_temperature
from calibrant.serving.log import ContradictingLabel, DecisionLog, DuplicateId, UnknownId, rule_digest
from calibrant.serving.module import Deployed
from calibrant.serving.onnx import INPUT, OUTPUTS, TOLERANCE, ExportCheck, Exported, compare_onnx, export_onnx
from calibrant.serving.parts import Parts

__all__ = [
    "INPUT",
    "OUTPUTS",
    "TOLERANCE",
    "ContradictingLabel",
    "Decision",
    "DecisionLog",
    "Deployed",
    "DuplicateId",
    "ExportCheck",
    "Exported",
    "Logged",
    "LoggedDecisions",
    "Parts",
    "UnknownId",
    "compare_onnx",
    "export_onnx",
    "fold_temperature",
    "rule_digest",
]
