"""The network of a run: the input it expects, which parts are trained, and layers under training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.losses.distributed import global_sum
from calibrant.training.data.dataset import Size
from calibrant.training.models import ModelInput, build_model, expected_input
from calibrant.training.models.build import PHOTOGRAPHS_FROM, SMALLEST_SIDE
from calibrant.training.models.libraries import head_of
from calibrant.training.recipe import ModelSection, Recipe
from calibrant.training.reproducibility import seeded
from calibrant.training.run_data import SeededItems, TrainingData

_BACKBONE = "backbone"
# Modules that only wrap a network: their name is no part of what a user calls its layers.
_WRAPPER = "model."


def make_model(recipe: Recipe, data: TrainingData, expected: ModelInput | None = None) -> nn.Module:
    """The network, with the weights that the recipe names; everything else is drawn from the recipe's seed."""
    settings = recipe.model
    if settings.views != "none" and min(data.image_shape[1:]) < SMALLEST_SIDE:
        raise invalid("model.views", "be none for inputs that are not pictures", f"shape {data.image_shape}")
    with seeded(recipe.seed, "initialise"):
        return build_model(
            settings.name,
            n_classes=data.n_classes,
            image_shape=data.image_shape,
            weights=settings.weights,
            expected=expected,
        )


def choose_input(settings: ModelSection, data: TrainingData) -> ModelInput | None:
    """Size and normalisation that the network gives its images; None if they are the data set's."""
    # Networks of torchvision state their input, too, but `auto` means the data set's in recorded recipes.
    if settings.input == "data" or (settings.input == "auto" and not settings.name.startswith("timm:")):
        return None
    if isinstance(data.train, SeededItems):  # the user's own datasets
        if settings.input == "model":
            hint = "Their images are finished input: resize and normalise them there."
            raise invalid("model.input", "be auto or data for your own torch datasets", "model", hint)
        return None
    expected = expected_input(settings.name)
    if expected is None and settings.input == "model":
        hint = "Networks of timm: and torchvision: state what they expect."
        raise invalid("model.input", f"be auto or data for {settings.name}", "model", hint)
    return expected


def with_input(data: TrainingData, expected: ModelInput | None) -> TrainingData:
    """The data for a network that normalises by itself: images from 0 to 1."""
    if expected is None:
        return data
    channels = data.image_shape[0]
    return replace(data, mean=(0.0,) * channels, std=(1.0,) * channels)


def freeze(network: nn.Module, parts: Sequence[str]) -> list[nn.Module]:
    """Freeze parts of a network by the start of their names; `backbone` is everything but the last layer.

    Returns the modules of these parts: in evaluation mode their statistics and dropout rest, too.
    """
    if not parts:
        return []
    head = _bare(head_of(network))
    known = [_bare(name) for name, _ in (*network.named_parameters(), *network.named_modules()) if name]
    for part in parts:
        if part != _BACKBONE and not any(_within(name, part) for name in known):
            tops = dict.fromkeys(name.partition(".")[0] for name in known)
            hint = did_you_mean(part, [_BACKBONE, *tops])
            raise invalid("model.freeze", "name parts of the network", repr(part), hint)

    def rests(name: str) -> bool:
        if _BACKBONE in parts:
            return not _within(_bare(name), head)
        return any(_within(_bare(name), part) for part in parts)

    for name, parameter in network.named_parameters():
        if rests(name):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise invalid("model.freeze", "leave something to train", ", ".join(parts))
    return [module for name, module in network.named_modules() if name and rests(name)]


def _bare(name: str) -> str:
    while name.startswith(_WRAPPER):
        name = name.removeprefix(_WRAPPER)
    return name


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


# batch normalisation over all processes, and convolutions of batches of several sizes ---------------------------------


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose training statistics are those of the global batch.

    torch's own `SyncBatchNorm` runs on GPUs only. With this one a run over several CPU processes equals the run of one
    process with the same global batch, also if the processes hold batches of unequal size.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is torch's)
        """Normalise `(N, C, H, W)` by the mean and variance over N, H, W of every rank."""
        if not self.training:
            return super().forward(input)
        count = global_sum(input.new_full((1,), input.numel() / input.shape[1]))
        mean = global_sum(input.sum((0, 2, 3))) / count
        centred = input - mean.view(1, -1, 1, 1)
        variance = global_sum(centred.square().sum((0, 2, 3))) / count
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                self.num_batches_tracked += 1
                share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                unbiased = variance * count / (count - 1).clamp(min=1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        result = centred * torch.rsqrt(variance + self.eps).view(1, -1, 1, 1)
        if self.affine:
            result = result * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return result


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """Replace each batch normalisation by one over the global batch, keeping parameters and buffers."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch's
        return converted
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            # Same attributes, another forward: nothing has to be copied, and names in the state stay the same.
            module.__class__ = GlobalBatchNorm2d
    return model


_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def convolutions(size: int, full_size: int, device: torch.device) -> AbstractContextManager[object]:
    """How to run the convolutions of a batch of `size` samples if most batches have `full_size`."""
    if size == full_size:
        return _measured()
    return padded(full_size, device)


def padded(full_size: int, device: torch.device) -> AbstractContextManager[object]:
    """On a GPU, `PaddedConvolutions`; elsewhere sizes cost nothing."""
    if device.type != "cuda":
        return nullcontext()
    return PaddedConvolutions(full_size)


@contextmanager
def _measured() -> Iterator[None]:
    """On a GPU, let cuDNN time its algorithms once for every new shape and take the fastest.

    Its own guess is poor for few channels: on an H200, ResNet-32 trained 19 % faster this way, six runs at once
    (results/benchmarks/together-h200.txt). The measuring takes seconds, so it pays for the shapes that come again at
    every step, not for a last partial batch.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class PaddedConvolutions(TorchFunctionMode):
    """Convolve small batches with rows of zeros up to `size`, and leave these rows out of what follows.

    A row of zeros adds nothing to the gradient of a kernel, so the step is the same up to rounding. What it saves: for
    every number of rows that it has not met, cuDNN plans every layer anew. With ResNet-32 on an H200 that took .1 s,
    and 1.2 s for a batch of two, where an epoch takes 1 s; and a plan that lets samples rest can end every epoch with a
    batch of another size.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pad if `func` is a convolution of fewer rows than `size`."""
        kwargs = kwargs or {}
        if func not in _CONVOLUTIONS or len(args) < 2 or args[0].ndim != args[1].ndim or len(args[0]) >= self.size:
            return func(*args, **kwargs)
        rows: Tensor = args[0]
        padded = functional.pad(rows, (0, 0) * (rows.ndim - 1) + (0, self.size - len(rows)))
        return func(padded, *args[1:], **kwargs)[: len(rows)]


# smaller images early in a run ----------------------------------------------------------------------------------------

# `auto`: three quarters of the side for the first 60 % of the epochs (docs/budgets.md).
_AUTO_SCALE, _AUTO_SHARE = 0.75, 0.6
_SMALLEST_AUTO_SIDE = 16
# Backpropagation takes about twice the compute of the forward pass.
FLOPS_PER_GRADIENT = 3


def epoch_sizes(recipe: Recipe, image_shape: tuple[int, int, int]) -> list[Size]:
    """The size of the training images in each epoch.

    The first epochs learn coarse features, for which fewer pixels are enough. Nothing is reset when the size changes,
    and the averaged part of a run is always at full size.

    >>> from calibrant.training import Recipe
    >>> recipe = Recipe(epochs=5, schedule={"resolution": [[24, 0.6]]})
    >>> epoch_sizes(recipe, (3, 32, 32))
    [(24, 24), (24, 24), (24, 24), (32, 32), (32, 32)]
    """
    _, height, width = image_shape
    side = min(height, width)
    stages = recipe.schedule.resolution
    if stages == "auto":
        # As often as our networks halve the side: three times, or five times for photographs.
        multiple = 8
        if side >= PHOTOGRAPHS_FROM:
            multiple = 32
        small_side = round(side * _AUTO_SCALE / multiple) * multiple
        stages = ()
        if _SMALLEST_AUTO_SIDE <= small_side < side:
            stages = ((small_side, min(_AUTO_SHARE, 1 - recipe.schedule.average)),)
    sizes: list[Size] = []
    share_so_far = 0.0
    for small_side, share in stages:
        if not SMALLEST_SIDE <= small_side < side:
            rule = f"have sides from {SMALLEST_SIDE} pixels on that are smaller than the images' side of {side} pixels"
            raise invalid("schedule.resolution", rule, small_side)
        share_so_far += share
        small = (round(height * small_side / side), round(width * small_side / side))
        # Also a run of few epochs ends at full size: predictions are made at it.
        until = min(round(share_so_far * recipe.epochs), recipe.epochs - 1)
        sizes += [small] * (until - len(sizes))
    return sizes + [(height, width)] * (recipe.epochs - len(sizes))


def forward_flops(network: nn.Module, image_shape: tuple[int, int, int], size: Size) -> int:
    """Floating-point operations of the forward pass of one image of this size, as torch counts them.

    A network that cannot take images of this size is refused, unless it is the data set's own.
    """
    parameter = next(network.parameters())
    image = torch.zeros(1, image_shape[0], *size, device=parameter.device, dtype=parameter.dtype)
    before = network.training
    network.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(image)
    except Exception as error:
        if size == image_shape[1:]:
            raise
        height, width = size
        raise InvalidInput(
            f"The network cannot take images of {height} x {width} pixels ({type(error).__name__}: {error}). "
            "Choose another size in schedule.resolution, or leave it out."
        ) from error
    finally:
        network.train(before)
    return int(counter.get_total_flops())
