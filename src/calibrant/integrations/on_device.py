"""What runs on a device: a fitted calibrator inside a network, and sums over bins of a batch inside a training step."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from calibrant.calibration import Calibrator
from calibrant.calibration.operations import Recorder
from calibrant.checks import as_array
from calibrant.errors import invalid

# Comparisons of a batch with all edges: up to so many, they cost less than waking the threads of a search.
_SMALL_BATCH = 2**15
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


def accumulate_bins(
    confidence: Tensor, correct: Tensor, n_bins: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over bins for one batch on its own device, with static shapes and no host synchronisation.

    It can be captured in a CUDA graph, and it returns the same bits on every run (no atomic additions). Returns counts
    (int64), sums of confidence (float64) and of correct (int64), each of shape (n_bins,); with float64 `weights` all
    three are float64.
    """
    # Cached on the CPU alone: memory of a captured CUDA graph must not outlive it.
    make_edges = _host_edges if confidence.device.type == "cpu" else device_edges
    edges = make_edges(n_bins, confidence.dtype, confidence.device)
    wide = confidence.to(torch.float64)
    if confidence.device.type == "cpu" and wide.numel() * len(edges) <= _SMALL_BATCH:
        index = (wide > edges.unsqueeze(1)).sum(dim=0)
    else:
        index = torch.bucketize(wide, edges)
    if weights is None and confidence.device.type == "cpu":
        # Wrong and right rows apart: one count serves both.
        counts = torch.bincount(2 * index + correct, minlength=2 * n_bins).view(n_bins, 2)
        return counts.sum(dim=1), torch.bincount(index, wide, n_bins), counts[:, 1]
    if weights is None:
        terms = torch.ones_like(index), wide, correct.to(torch.int64)
    else:
        terms = weights, weights * wide, weights * correct
    # On a GPU, bincount adds atomically, in an order that changes between runs.
    return add_by_product(index, *terms, n_bins)


def add_by_product(
    index: Tensor, count: Tensor, sums: Tensor, right: Tensor, n_bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over bins by a product with the membership matrix."""
    member = (index.unsqueeze(0) == torch.arange(n_bins, device=index.device).unsqueeze(1)).to(torch.float64)
    total = member @ torch.stack([values.to(torch.float64) for values in (count, sums, right)], dim=1)
    return total[:, 0].to(count.dtype), total[:, 1], total[:, 2].to(right.dtype)


def device_edges(n_bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The inner edges k / n_bins, rounded to the type of the confidences, as float64 on their device."""
    steps = torch.arange(1, n_bins, dtype=torch.float64, device=device)
    # Divided by a tensor: division by a Python number becomes, on CUDA, a multiplication by a rounded inverse.
    return (steps / torch.full_like(steps, n_bins)).to(dtype).to(torch.float64)


_host_edges = lru_cache(maxsize=64)(device_edges)
