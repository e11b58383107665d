"""One file for deployment: what a model says, how far it is calibrated, and what it may decide alone."""

from calibrant.serving.module import Deployed
from calibrant.serving.onnx import INPUT, OUTPUTS, TOLERANCE, ExportCheck, Exported, compare_onnx, export_onnx
from calibrant.serving.parts import Parts

__all__ = [
    "INPUT",
    "OUTPUTS",
    "TOLERANCE",
    "Deployed",
    "ExportCheck",
    "Exported",
    "Parts",
    "compare_onnx",
    "export_onnx",
]
