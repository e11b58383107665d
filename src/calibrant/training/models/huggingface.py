"""Image classifiers of Hugging Face's transformers, from a folder or from its cache; nothing is ever downloaded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import InvalidInput, at_level, importing, invalid, one_line
from calibrant.files import read_json
from calibrant.training.models.inputs import ModelInput
from calibrant.training.models.weights import head_of, refuse_misfits

_SOURCE = "transformers:"
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


def transformers_model(path: str, *, pretrained: bool) -> nn.Module:
    """A classifier for images whose head the caller replaces.

    Args:
        path: A folder that `save_pretrained` wrote, or a name in the library's cache.
        pretrained: Whether to read its weights, which must be safetensors.
    """
    _check_folder(path, weights=pretrained)
    with importing(f"{_SOURCE}{path}", "transformers", "transformers"):
        from transformers import AutoConfig, AutoModelForImageClassification
    with _quiet(), _one_line(path):
        config = AutoConfig.from_pretrained(path, **_SAFE)
        # A network that was saved without a head has none to replace; with two classes it gets one.
        config.num_labels = 2
        # A config.json may name kernels here, which the library would download and run.
        config._attn_implementation = config._experts_implementation = None  # noqa: SLF001 (the public keys end here)
        if not pretrained:
            kind: Any = AutoModelForImageClassification  # without types
            return _Logits(kind.from_config(config, trust_remote_code=False))
        model, told = AutoModelForImageClassification.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # of the head; others are refused below
            output_loading_info=True,
            **_SAFE,
        )
    _refuse_misfits(path, model, told)
    return _Logits(model)


def transformers_input(path: str) -> ModelInput:
    """Size and normalisation by the folder's `preprocessor_config.json`; without one the size by `config.json`."""
    _check_folder(path, weights=False)
    processor = _settings(path, "preprocessor_config.json")
    size = _sides(processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size"))
    if size is None:
        size = _sides(_settings(path, "config.json").get("image_size"))
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if not processor.get("do_normalize", True) or mean is None or std is None:
        return ModelInput(size)
    try:
        # Its numbers are for pixels times this factor; ours are for pixels from 0 to 1.
        rescaled = float(processor.get("rescale_factor", 1 / _UINT8)) if processor.get("do_rescale", True) else 1.0
        factor, offset = _UINT8 * rescaled, 1.0 if processor.get("rescale_offset") else 0.0
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
    """A JSON file of a folder or of a model in the cache; empty where it is not there."""
    from transformers.utils.hub import cached_file

    with _one_line(path):  # a path that is not there is taken for a name, and not every path can be one
        found = cached_file(path, name, local_files_only=True, _raise_exceptions_for_missing_entries=False)
    content = {} if found is None else read_json(found)
    return content if isinstance(content, dict) else {}


def _check_folder(path: str, *, weights: bool) -> None:
    folder = Path(path)
    if not folder.is_dir():
        if path.startswith((".", "/", "~")) or folder.exists():
            raise invalid("model", "name a folder with a config.json", f"{_SOURCE}{path}")
        return
    if not (folder / "config.json").is_file():
        raise invalid("model", "name a folder with a config.json", f"{_SOURCE}{path}", "save_pretrained writes one.")
    if weights and not any(folder.glob("*.safetensors")):
        found = ", ".join(sorted(file.name for file in folder.glob("*.bin"))) or "no weights"
        way_out = "Formats that unpickle may run code: save_pretrained writes safetensors."
        raise invalid(f"{_SOURCE}{path}", "hold its weights as safetensors", found, way_out)


def _refuse_misfits(path: str, model: nn.Module, told: Mapping[str, Any]) -> None:
    head = f"{head_of(model)}."
    shapes = {name: torch.empty(shape, device="meta") for name, shape, _ in told["mismatched_keys"]}
    names = sorted(name for name in (*shapes, *told["missing_keys"]) if not name.startswith(head))
    refuse_misfits(f"{_SOURCE}{path}", names, shapes, model.state_dict())


@contextmanager
def _one_line(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError) as error:
        told = one_line(error, most=200)
        if "trust_remote_code" in str(error):
            told = "its config.json names code of its own (auto_map), and such code is never run."
        raise InvalidInput(f"{_SOURCE}{path} cannot be read as a classifier of images: {told}") from error


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
