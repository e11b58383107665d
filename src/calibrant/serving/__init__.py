"""One file for deployment: what a model says, how far it is calibrated, and what it may decide alone."""

from calibrant.serving.module import Deployed
from calibrant.serving.onnx import INPUT, OUTPUTS, TOLERANCE, ExportCheck, compare_onnx, export_onnx

__all__ = ["INPUT", "OUTPUTS", "TOLERANCE", "Deployed", "ExportCheck", "compare_onnx", "export_onnx"]
