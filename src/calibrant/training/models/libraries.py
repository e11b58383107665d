"""Networks of torchvision, timm and Hugging Face's transformers, from what is installed and from local files.

transformers never downloads anything here; torchvision and timm read the library's cache, and fill it if they can.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path
from pickle import UnpicklingError  # only the error that torch raises on a damaged file
from typing import Any
from urllib.parse import parse_qs

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.errors import InvalidInput, at_level, did_you_mean, importing, invalid, one_line
from calibrant.files import read_json

_CHANNELS = 3
_LARGEST_SIDE = 4096


@dataclass(frozen=True)
class ModelInput:
    """Height and width, mean and standard deviation per channel on the scale from 0 to 1; None: not stated."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no image can be given: a file says it, and a deviation of 0 would make every pixel infinite."""
        size, statistics = self.size, [values for values in (self.mean, self.std) if values is not None]
        sides = range(1, _LARGEST_SIDE + 1)
        if size is not None and (len(size) != 2 or not all(type(side) is int and side in sides for side in size)):
            raise invalid("the network's size of images", f"be two whole numbers from 1 to {_LARGEST_SIDE}", size)
        if any(len(values) not in (1, _CHANNELS) or not all(map(math.isfinite, values)) for values in statistics):
            raise invalid("the network's mean and deviation of images", "be 1 or 3 finite numbers each", statistics)
        if self.std is not None and min(self.std) <= 0:
            raise invalid("the network's deviation of images", "be above 0", self.std)


class Fitted(nn.Module):
    """Takes images of any size on the scale from 0 to 1 and shows them to a network as it expects them.

    The aspect is kept: a picture is resized until it covers the network's input, and its middle is taken. Grey images
    (1 channel) are shown in three channels. All of this is a part of the network, so an exported file contains it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, expected: ModelInput, *, channels: int) -> None:
        super().__init__()
        if channels not in (1, _CHANNELS):
            raise invalid("images for a network of a library", "have 1 or 3 channels", channels)
        self.model, self.size = model, expected.size
        mean, std = expected.mean or (0.0,), expected.std or (1.0,)
        # Not in the state: these numbers belong to the recipe and not to what is learned.
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Any:
        """Logits of images `(N, C, H, W)`."""
        if self.size is not None:
            images = cover(images, self.size)
        return self.model(((images - self.mean) / self.std).expand(-1, _CHANNELS, -1, -1))


def cover(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images until they cover `size`, keeping their aspect, and take the middle.

    >>> cover(torch.zeros(1, 3, 20, 40), (10, 10)).shape
    torch.Size([1, 3, 10, 10])
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    scale = max(size[0] / height, size[1] / width)
    resized = max(size[0], round(height * scale)), max(size[1], round(width * scale))
    # Without the filter a smaller picture shows patterns that are not there. A larger one needs none.
    images = functional.interpolate(images, resized, mode="bilinear", align_corners=False, antialias=scale < 1)
    top, left = (resized[0] - size[0]) // 2, (resized[1] - size[1]) // 2
    return images[..., top : top + size[0], left : left + size[1]]


def head_of(network: nn.Module) -> str:
    """Name of the layer that gives the logits: the last linear layer, or 1x1 convolution.

    >>> head_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    '2'
    """
    found: list[str] = [name for name, part in network.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    if not found:
        raise invalid("model", "end in a linear layer", type(network).__name__, "Pass a module:factory of your own.")
    return found[-1]


def check_weights(path: str | Path) -> Path:
    """The path of a file of weights; one that is missing, or of a format that may run code, is refused."""
    file = Path(path).expanduser()
    if file.suffix != ".safetensors":
        hint = "Formats that unpickle may run code: convert it once with safetensors.torch.save_file."
        raise invalid("model.weights", "be a .safetensors file", str(path), hint)
    if not file.is_file():
        raise invalid("model.weights", "be a file that exists", str(path))
    return file


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Give a network the weights of a safetensors file, in place; if they do not fit, it stays as it is.

    Every weight but the head's must be there in the right shape. A head of another shape, or none, leaves the
    network's own. Checkpoints of runs (`RUN/checkpoints/epoch-00030.safetensors`) can be read, too.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = check_weights(path)
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"weights {file.name} cannot be read: {str(error)[:200]}.") from error
    wanted, head = network.state_dict(), f"{head_of(network)}."
    if not wanted.keys() & found.keys():
        of_a_run = "model."
        found = {name.removeprefix(of_a_run): value for name, value in found.items() if name.startswith(of_a_run)}
    fitting = {name: value for name, value in found.items() if name in wanted and value.shape == wanted[name].shape}
    # A counter that no forward pass reads; files of other tools often lack it.
    needed = [name for name in wanted if not name.startswith(head) and not name.endswith("num_batches_tracked")]
    refuse_misfits(file.name, [name for name in needed if name not in fitting], found, wanted)
    network.load_state_dict(fitting, strict=False)


def refuse_misfits(source: str, names: list[str], found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """One line about weights that a network needs and a source has not, or has in another shape."""
    if not names:
        return
    first = names[0]
    shape = f"of shape {tuple(wanted[first].shape)}"
    got = "none"
    if first in found:
        got = f"one of shape {tuple(found[first].shape)}"
    if len(names) > 1:
        got += f" ({len(names)} weights do not fit)"
    hint = "Name the network that these weights were made with as model.name."
    raise invalid(f"weights {source}", f"hold {first} {shape}", got, hint)


def _name_and_weights(library: str, text: str) -> tuple[str, str | None]:
    """`NAME?weights=W` as two."""
    name, _, query = text.partition("?")
    options = parse_qs(query, keep_blank_values=True)
    if set(options) - {"weights"}:
        raise invalid(f"{library}:{text}", "have no option but weights", repr(query), "For example ?weights=DEFAULT.")
    return name, options.get("weights", [None])[-1]


def _torchvision(text: str) -> Any:
    with importing(f"torchvision:{text}", "torchvision", "vision"):
        from torchvision import models
    return models


def torchvision_model(text: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """The torchvision classifier `NAME`, or `NAME?weights=DEFAULT`, with a fresh head of `n_classes` outputs.

    Without `pretrained` the named weights are left out, for a network that gets others.
    """
    name, weights = _name_and_weights("torchvision", text)
    models = _torchvision(text)
    known = models.list_models(module=models)
    if name not in known:
        raise invalid("model", "be one of torchvision's classifiers", repr(name), did_you_mean(name, known))
    if weights is not None:
        available = models.get_model_weights(name).__members__
        if weights not in available:
            hint = did_you_mean(weights, available)
            raise invalid(f"weights of {name}", "be some that torchvision has", repr(weights), hint)
    try:
        model: Any = models.get_model(name, weights=weights if pretrained else None)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:  # no network, a full disk, a damaged file
        if weights is None:
            raise
        url = getattr(getattr(models.get_model_weights(name), weights), "url", "their file")
        reason = one_line(f"{type(error).__name__}: {error}", most=120)
        raise InvalidInput(
            f"the weights {weights} of torchvision:{name} could not be read from {torch.hub.get_dir()}/checkpoints, "
            f"nor downloaded there ({reason}). Put {url} there, or leave weights out."
        ) from error
    if weights is not None and hasattr(model, "transform_input"):
        model.transform_input = True  # what torchvision does if it loads the weights itself
    # GoogLeNet and Inception answer with three results while they train; only the main one is wanted here.
    if getattr(model, "aux_logits", False):
        model.aux_logits = False
        for side_head in {"aux1", "aux2", "AuxLogits"} & dict(model.named_children()).keys():
            setattr(model, side_head, None)
    replace_head(model, n_classes=n_classes)
    network: nn.Module = model
    return network


def torchvision_input(text: str) -> ModelInput:
    """Size and normalisation by the named weights, by the default ones if none are named."""
    name, weights = _name_and_weights("torchvision", text)
    preset = getattr(_torchvision(text).get_model_weights(name), weights or "DEFAULT").transforms()
    side = preset.crop_size[0]
    return ModelInput((side, side), tuple(preset.mean), tuple(preset.std))


def _timm(text: str) -> Any:
    with importing(f"timm:{text}", "timm", "vision"):
        import timm
    return timm


def timm_model(text: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """The same of timm: `NAME`, or `NAME?weights=pretrained`."""
    name, weights = _name_and_weights("timm", text)
    timm = _timm(text)
    if not timm.is_model(name):
        raise invalid("model", "be one of timm's classifiers", repr(name), did_you_mean(name, timm.list_models()))
    if weights not in (None, "pretrained"):
        raise invalid(f"weights of {name}", "be pretrained", repr(weights), "A tag is a part of the name: NAME.TAG.")
    try:
        model: nn.Module = timm.create_model(name, pretrained=bool(weights) and pretrained, num_classes=n_classes)
    except (OSError, RuntimeError, ValueError) as error:  # no network, a full disk, a tag that is unknown
        reason = one_line(f"{type(error).__name__}: {error}", most=200)
        raise InvalidInput(f"timm:{text} cannot be made ({reason}). Give a file as model.weights instead.") from error
    return model


def timm_input(text: str) -> ModelInput:
    """Size and normalisation by timm's own list."""
    stated = _timm(text).get_pretrained_cfg(_name_and_weights("timm", text)[0])
    if stated is None:
        return ModelInput()
    return ModelInput(tuple(stated.input_size[1:]), tuple(stated.mean), tuple(stated.std))


def replace_head(model: nn.Module, *, n_classes: int) -> None:
    """Replace the last linear layer (or 1x1 convolution) of a classifier, in place, by one with `n_classes` outputs."""
    path = head_of(model)
    head = model.get_submodule(path)
    fresh: nn.Module
    if isinstance(head, nn.Linear):
        fresh = nn.Linear(head.in_features, n_classes, bias=head.bias is not None)
    else:
        assert isinstance(head, nn.Conv2d)
        fresh = nn.Conv2d(head.in_channels, n_classes, kernel_size=1, bias=head.bias is not None)
    model.set_submodule(path, fresh)


# transformers ---------------------------------------------------------------------------------------------------------


# No access to the network, and no code that a folder brings along.
_SAFE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_UINT8 = 255


class _Logits(nn.Module):
    """A classifier of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model(pixel_values=images).logits


def transformers_model(path: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """The same of transformers: a folder of `save_pretrained`, or a name in the cache, always with its weights."""
    _check_folder(path, weights=pretrained)
    with importing(f"transformers:{path}", "transformers", "transformers"):
        from transformers import AutoConfig, AutoModelForImageClassification
    with _quiet(), _one_line(path):
        config = AutoConfig.from_pretrained(path, **_SAFE)
        # A network that was saved without a head has none to replace; with two classes it gets one.
        config.num_labels = 2
        # A config.json may name kernels here, which the library would download and run.
        config._attn_implementation = config._experts_implementation = None  # noqa: SLF001 (the public keys end here)
        kind: Any = AutoModelForImageClassification  # without types
        report: dict[str, Any] = {"mismatched_keys": (), "missing_keys": ()}
        if pretrained:
            model, report = kind.from_pretrained(
                path,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # of the head; others are refused below
                output_loading_info=True,
                **_SAFE,
            )
        else:
            model = kind.from_config(config, trust_remote_code=False)
    shapes = {name: torch.empty(shape, device="meta") for name, shape, _ in report["mismatched_keys"]}
    misfits = [name for name in (*shapes, *report["missing_keys"]) if not name.startswith(f"{head_of(model)}.")]
    refuse_misfits(f"transformers:{path}", sorted(misfits), shapes, model.state_dict())
    network = _Logits(model)
    replace_head(network, n_classes=n_classes)
    return network


def transformers_input(path: str) -> ModelInput:
    """Size and normalisation by the folder's `preprocessor_config.json`; without one the size by `config.json`."""
    _check_folder(path, weights=False)
    processor = _settings(path, "preprocessor_config.json")
    size = _sides(processor.get("size"))
    if processor.get("do_center_crop"):
        size = _sides(processor.get("crop_size"))
    if size is None:
        size = _sides(_settings(path, "config.json").get("image_size"))
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if not processor.get("do_normalize", True) or mean is None or std is None:
        return ModelInput(size)
    try:
        # Its numbers are for pixels times this factor; ours are for pixels from 0 to 1.
        factor, offset = float(_UINT8), float(bool(processor.get("rescale_offset")))
        if processor.get("do_rescale", True):
            factor *= float(processor.get("rescale_factor", 1 / _UINT8))
        mean = tuple((float(value) + offset) / factor for value in mean)
        std = tuple(float(value) / factor for value in std)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        where = f"{path}/preprocessor_config.json"
        raise invalid(where, "say with numbers how images are prepared", one_line(error, most=100)) from error
    return ModelInput(size, mean, std)


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width, in whichever way a file says it."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = [size.get("height", edge), size.get("width", edge)]
    if isinstance(size, int):
        size = [size, size]
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        return None
    return size[0], size[1]


def _settings(path: str, name: str) -> dict[str, Any]:
    """A JSON file of a folder or of a model in the cache; empty if it is not there."""
    from transformers.utils.hub import cached_file

    with _one_line(path):  # a path that is not there is taken for a name, and not every path can be one
        found = cached_file(path, name, local_files_only=True, _raise_exceptions_for_missing_entries=False)
    content = None if found is None else read_json(found)
    return content if isinstance(content, dict) else {}


def _check_folder(path: str, *, weights: bool) -> None:
    folder = Path(path)
    if not folder.is_dir() and not path.startswith((".", "/", "~")):
        return  # a name in the cache
    if not (folder / "config.json").is_file():
        hint = "save_pretrained writes one."
        raise invalid("model", "name a folder with a config.json", f"transformers:{path}", hint)
    if weights and not any(folder.glob("*.safetensors")):
        found = ", ".join(sorted(file.name for file in folder.glob("*.bin"))) or "no weights"
        hint = "Formats that unpickle may run code: save_pretrained writes safetensors."
        raise invalid(f"transformers:{path}", "hold its weights as safetensors", found, hint)


@contextmanager
def _one_line(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = one_line(error, most=200)
        if "trust_remote_code" in str(error):
            reason = "its config.json names code of its own (auto_map), and such code is never run."
        raise InvalidInput(f"transformers:{path} cannot be read as a classifier of images: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's bars and its table of weights that were left out: we say what matters in one line."""
    from transformers.utils import logging

    theirs: Any = logging  # without types
    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        with at_level(ERROR, "transformers"):
            yield
    finally:
        if shown:
            theirs.enable_progress_bar()
