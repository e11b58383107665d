"""A fitted calibrator as a torch module, for use inside a network."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from calibrant.calibration import Calibrator
from calibrant.calibration.operations import Recorder
from calibrant.checks import as_array
from calibrant.errors import invalid

_TYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}


class CalibrationModule(nn.Module):
    """Logits (n, K) in, calibrated log-probabilities out, on any device and with gradient.

    Computed in float64, by the steps that also make up an ONNX file. float64 stays float64, everything else comes back
    as float32. It works with `torch.compile`, `torch.export`, `torch.jit.trace` and `torch.onnx`. A network that is
    cast to another type leaves the module in float64.

    The steps of isotonic regression and histogram binning are moved by a relative 1e-12, so that two ways to compute
    the same logits end on the same side.

    Args:
        calibrator: A fitted calibrator.

    >>> from calibrant.calibration import TemperatureScaling
    >>> module = CalibrationModule(TemperatureScaling.known(2.0, n_classes=2))
    >>> module(torch.tensor([[2.0, 0.0]])).exp()
    tensor([[0.7311, 0.2689]])
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        if not isinstance(calibrator, Calibrator):
            raise invalid("calibrator", "be a fitted calibrator", type(calibrator).__name__)
        recorder = Recorder()
        self.result = calibrator.record(recorder, recorder.input("logits")).name
        self.steps = recorder.steps_taken
        for name, array in recorder.constants.items():
            self.register_buffer(name, torch.from_numpy(as_array(name, array).copy()))

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated log-probabilities."""
        values: dict[str, Tensor] = {"logits": logits.double(), **dict(self.named_buffers(recurse=False))}
        for step in self.steps:
            inputs = [values[name] for name in step.inputs]
            values[step.output] = _OPERATORS[step.operator](*inputs, **step.attributes)
        if logits.dtype == torch.float64:
            return values[self.result]
        return values[self.result].float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Go where the network goes, but stay in float64 when it is cast."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        for name, value in before.items():
            self.register_buffer(name, value.to(getattr(self, name).device))
        return self


def _gather(table: Tensor, places: Tensor, axis: int) -> Tensor:
    picked = table.index_select(axis, places.reshape(-1))
    return picked.reshape(*table.shape[:axis], *places.shape, *table.shape[axis + 1 :])


# What ONNX means by the operators that a `Recorder` writes down.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "ArgMax": lambda x, axis, keepdims: x.argmax(dim=axis, keepdim=bool(keepdims)),
    "Cast": lambda x, to: x.to(_TYPES[to]),
    "Concat": lambda *parts, axis: torch.cat(parts, dim=axis),
    "Div": torch.div,
    "Equal": torch.eq,
    "Exp": torch.exp,
    "Gather": _gather,
    "Greater": torch.gt,
    "Less": torch.lt,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mul": torch.mul,
    "Neg": torch.neg,
    # The axes are the second input, and always those of a row.
    "ReduceMax": lambda x, _, keepdims: x.amax(dim=1, keepdim=bool(keepdims)),
    "ReduceSum": lambda x, _, keepdims: x.sum(dim=1, keepdim=bool(keepdims)),
    "Sub": torch.sub,
    "Where": torch.where,
}
