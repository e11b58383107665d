"""Are kernels of our own for batch normalisation faster than the compiler's? Prints images per second in training.

    python benchmarks/fused_norm.py

Needs a GPU and Triton. Half of a step of ResNet-50 is batch normalisation, which only waits for memory. The kernels
here do it together with the sum with the shortcut and ReLU: they read the input twice forward (statistics, then the
result) and twice backward. They are compared with torch's layers, each step captured in a CUDA graph, with and without
the compiler; `ready` is the time from a new network to the captured step. results/benchmarks/fused-norm-h200.txt has
what was measured: without the compiler they beat torch's layers, but the compiler's kernels are still faster, so the
engine uses the compiler.

Tensors are in channels-last order, so that each is a matrix with a row per pixel and a column per channel.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional

from calibrant.training.models import build_model
from calibrant.training.models.resnet import pool

_WIDTH = 128  # columns of a tile, at most
_TILE = 2048  # numbers of a tile
_WARPS = 4
_PROGRAMS = 528  # that sum at the same time: four on each multiprocessor of an H200


@triton.jit
def _sum_columns(x, partial_sums, rows, channels, rows_of_part, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Sums and sums of squares of the columns, over one part of the rows."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    first = tl.program_id(1) * rows_of_part
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    squares = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for offset in range(0, rows_of_part, HEIGHT):
        row = first + offset + tl.arange(0, HEIGHT)
        inside = (row[:, None] < rows) & (column[None, :] < channels)
        value = tl.load(x + row[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
        total += value
        squares += value * value
    place = partial_sums + tl.program_id(1) * 2 * channels + column
    tl.store(place, tl.sum(total, 0), mask=column < channels)
    tl.store(place + channels, tl.sum(squares, 0), mask=column < channels)


@triton.jit
def _moments(sums, column, inside, rows, channels, eps):
    """Mean, variance and inverse standard deviation of each column."""
    mean = tl.load(sums + column, mask=inside, other=0.0) / rows
    square = tl.load(sums + channels + column, mask=inside, other=0.0) / rows
    variance = tl.maximum(square - mean * mean, 0.0)
    return mean, variance, 1.0 / tl.sqrt(variance + eps)


@triton.jit
def _normalise(
    x, shortcut, y, sums, weight, bias, running_mean, running_var, batches, rows, channels, momentum, eps,
    ADD: tl.constexpr, RELU: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Normalise one tile; the first tile of each column also updates the running statistics."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = column < channels
    mean, variance, inverse = _moments(sums, column, known, rows, channels, eps)
    if tl.program_id(1) == 0:
        before = tl.load(running_mean + column, mask=known)
        tl.store(running_mean + column, before + momentum * (mean - before), mask=known)
        before = tl.load(running_var + column, mask=known)
        unbiased = variance * (rows / (rows - 1))
        tl.store(running_var + column, before + momentum * (unbiased - before), mask=known)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)
    row = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    place = row[:, None] * channels + column[None, :]
    inside = (row[:, None] < rows) & known[None, :]
    scale = tl.load(weight + column, mask=known, other=0.0) * inverse
    shift = tl.load(bias + column, mask=known, other=0.0) - mean * scale
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if ADD:
        value += tl.load(shortcut + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _sum_gradients(
    dy, x, y, through, sums, weight, bias, partial_sums, rows, channels, rows_of_part, eps,
    ADD: tl.constexpr, RELU: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient and of its products with the normalised input, over one part of the rows.

    With a shortcut, `through` gets the gradient behind ReLU, which is the gradient of the shortcut.
    """
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = column < channels
    mean, _, inverse = _moments(sums, column, known, rows, channels, eps)
    w = tl.load(weight + column, mask=known, other=0.0)
    b = tl.load(bias + column, mask=known, other=0.0)
    first = tl.program_id(1) * rows_of_part
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    products = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for offset in range(0, rows_of_part, HEIGHT):
        row = first + offset + tl.arange(0, HEIGHT)
        place = row[:, None] * channels + column[None, :]
        inside = (row[:, None] < rows) & known[None, :]
        gradient = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        standard = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
        if RELU:
            if ADD:
                positive = tl.load(y + place, mask=inside, other=0.0) > 0
            else:
                positive = standard * w[None, :] + b[None, :] > 0
            gradient = tl.where(positive & inside, gradient, 0.0)
        if ADD:
            tl.store(through + place, gradient.to(through.dtype.element_ty), mask=inside)
        total += gradient
        products += gradient * tl.where(inside, standard, 0.0)
    place = partial_sums + tl.program_id(1) * 2 * channels + column
    tl.store(place, tl.sum(products, 0), mask=known)
    tl.store(place + channels, tl.sum(total, 0), mask=known)


@triton.jit
def _input_gradient(
    dy, x, dx, sums, weight, bias, gradients, rows, channels, eps,
    RELU: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of one tile of the input, from that of the output and its sums."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = column < channels
    mean, _, inverse = _moments(sums, column, known, rows, channels, eps)
    w = tl.load(weight + column, mask=known, other=0.0)
    b = tl.load(bias + column, mask=known, other=0.0)
    mean_product = tl.load(gradients + column, mask=known, other=0.0) / rows
    mean_gradient = tl.load(gradients + channels + column, mask=known, other=0.0) / rows
    row = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    place = row[:, None] * channels + column[None, :]
    inside = (row[:, None] < rows) & known[None, :]
    gradient = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
    standard = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    if RELU:
        gradient = tl.where(standard * w[None, :] + b[None, :] > 0, gradient, 0.0)
    result = (w * inverse)[None, :] * (gradient - mean_gradient[None, :] - standard * mean_product[None, :])
    tl.store(dx + place, result.to(dx.dtype.element_ty), mask=inside)


class _Layout:
    """How a matrix of pixels and channels is cut into tiles and parts."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.rows = x.numel() // self.channels
        width = min(_WIDTH, triton.next_power_of_2(self.channels))
        height = _TILE // width
        self.tile = {"HEIGHT": height, "WIDTH": width, "num_warps": _WARPS}
        across = triton.cdiv(self.channels, width)
        tiles = triton.cdiv(self.rows, height)
        self.tiles = (across, tiles)
        self.rows_of_part = triton.cdiv(tiles, max(1, _PROGRAMS // across)) * height
        self.parts = (across, triton.cdiv(self.rows, self.rows_of_part))

    def partial_sums(self, x: Tensor) -> Tensor:
        """Room for two sums of each column and part."""
        return torch.empty(self.parts[1], 2, self.channels, dtype=torch.float32, device=x.device)


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, norm: nn.BatchNorm2d, relu: bool
    ) -> Tensor:
        layout = _Layout(x)
        rows, channels = layout.rows, layout.channels
        partial_sums = layout.partial_sums(x)
        _sum_columns[layout.parts](x, partial_sums, rows, channels, layout.rows_of_part, **layout.tile)
        sums = partial_sums.sum(dim=0)
        y = torch.empty_like(x)
        _normalise[layout.tiles](
            x, x if shortcut is None else shortcut, y, sums, weight, bias, norm.running_mean, norm.running_var,
            norm.num_batches_tracked, rows, channels, norm.momentum, norm.eps,
            ADD=shortcut is not None, RELU=relu, **layout.tile,
        )  # fmt: skip
        ctx.save_for_backward(x, sums, weight, bias, y if shortcut is not None else None)
        ctx.layout, ctx.eps, ctx.relu = layout, norm.eps, relu
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, sums, weight, bias, y = ctx.saved_tensors
        layout, add = ctx.layout, y is not None
        rows, channels = layout.rows, layout.channels
        dy = dy.contiguous(memory_format=torch.channels_last)
        through = torch.empty_like(x) if add else dy
        partial_sums = layout.partial_sums(x)
        _sum_gradients[layout.parts](
            dy, x, y if add else x, through, sums, weight, bias, partial_sums, rows, channels, layout.rows_of_part,
            ctx.eps, ADD=add, RELU=ctx.relu, **layout.tile,
        )  # fmt: skip
        gradients = partial_sums.sum(dim=0)
        dx = torch.empty_like(x)
        _input_gradient[layout.tiles](
            through, x, dx, sums, weight, bias, gradients, rows, channels, ctx.eps,
            RELU=ctx.relu and not add, **layout.tile,
        )  # fmt: skip
        return dx, gradients[0], gradients[1], through if add else None, None, None


def fused(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """Normalise a channels-last batch in training, add the shortcut, and apply ReLU."""
    y: Tensor = _NormReLU.apply(x, norm.weight, norm.bias, shortcut, norm, relu)
    return y


def plain(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """The same with torch's layers."""
    y: Tensor = norm(x)
    if shortcut is not None:
        y = y + shortcut
    return functional.relu(y) if relu else y


def forward_fused(model: nn.Module, images: Tensor) -> Tensor:
    """What our residual networks do, with the kernels of this file."""
    x = fused(model.norm, model.stem(images))
    for block in model.blocks:
        shortcut = x
        if isinstance(block.shortcut, nn.Sequential):
            convolution, norm = block.shortcut
            shortcut = fused(norm, convolution(x), relu=False)
        *inner, last_convolution, last_norm = [layer for layer in block.body if not isinstance(layer, nn.ReLU)]
        for convolution, norm in zip(inner[::2], inner[1::2], strict=True):
            x = fused(norm, convolution(x))
        x = fused(last_norm, last_convolution(x), shortcut)
    return model.head(pool(x, model.grid))


def check(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> float:
    """Largest relative difference of results, gradients and statistics from torch's layers in float64."""
    worst = 0.0
    for add in (False, True):
        for relu in (False, True):
            torch.manual_seed(0)
            drawn = [torch.randn(shape, device=device).to(dtype) for _ in range(3)]
            x, shortcut, gradient = [one.contiguous(memory_format=torch.channels_last) for one in drawn]
            norm = nn.BatchNorm2d(shape[1]).to(device)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            results = []
            for function, layer, wide in (
                (fused, deepcopy(norm), dtype),
                (plain, deepcopy(norm).double(), torch.float64),
            ):
                inputs = [tensor.detach().to(wide).requires_grad_() for tensor in (x, shortcut)]
                y = function(layer, inputs[0], inputs[1] if add else None, relu=relu)
                y.backward(gradient.to(wide))
                numbers = [y, inputs[0].grad, layer.weight.grad, layer.bias.grad, layer.running_mean, layer.running_var]
                results.append([*numbers, *([inputs[1].grad] if add else [])])
            for ours, exact in zip(*results, strict=True):
                worst = max(worst, float((ours.double() - exact).detach().norm() / exact.detach().norm()))
    return worst


def speed(model_name: str, side: int, way: str, batch: int = 128) -> None:
    """Time one training step in a CUDA graph."""
    started = time.perf_counter()
    torch.manual_seed(0)
    model = build_model(model_name, n_classes=10, image_shape=(3, 32, 32)).to("cuda", memory_format=torch.channels_last)
    forward: Callable[[Tensor], Tensor] = model
    if way == "fused":
        forward = partial(forward_fused, model)
    elif way == "compiled":
        torch.compiler.reset()
        forward = torch.compile(model, dynamic=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    images = torch.randn(batch, 3, side, side, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device="cuda") % 10

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = forward(images)
        functional.cross_entropy(logits.float(), labels).backward()
        optimiser.step()

    stream: Any = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    ready = time.perf_counter() - started
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(60):
            graph.replay()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begun) / 60)
    per_second = batch / min(seconds)
    print(f"{model_name} {side}x{side} {way:9s} {per_second:8,.0f} images/s   ready after {ready:5.1f} s", flush=True)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU with TRITON_INTERPRET=1: the check alone
    for shape in ((4, 24, 5, 3), (2, 200, 4, 4)):
        for dtype in (torch.float32, torch.bfloat16):
            print(f"{shape} {dtype}: largest difference from float64 {check(shape, dtype, device):.1e}")
    if device == "cpu":
        return
    torch.backends.cudnn.benchmark = True
    for model_name in ("resnet50", "resnet32"):
        for side in (32, 24):
            for way in ("layers", "fused", "compiled"):
                speed(model_name, side, way)


if __name__ == "__main__":
    main()
