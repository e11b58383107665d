"""Networks from elsewhere: torchvision and timm, where they are installed, and a function of the user's own."""

from pathlib import Path
from pickle import UnpicklingError  # only the error that torch raises on a damaged file
from typing import Any
from urllib.parse import parse_qs

import torch
from torch import nn

from calibrant.errors import InvalidInput, did_you_mean, importing, invalid, one_line
from calibrant.own_code import load, own_code_at_work
from calibrant.training.models.inputs import ModelInput
from calibrant.training.models.weights import head_of


def torchvision_model(text: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """A torchvision classifier whose last linear layer is replaced by a fresh one with `n_classes` outputs.

    Args:
        text: `NAME`, or `NAME?weights=DEFAULT` (or another of its weights) to start from pretrained weights.
        n_classes: Number of outputs.
        pretrained: False leaves the weights that `text` names out, for a network that gets others.
    """
    name, weights = _name_and_weights(f"torchvision:{text}")
    models = _torchvision(text)
    known = models.list_models(module=models)
    if name not in known:
        raise invalid("model", "be one of torchvision's classifiers", repr(name), did_you_mean(name, known))
    if weights is not None:
        available = list(models.get_model_weights(name).__members__)
        if weights not in available:
            way_out = did_you_mean(weights, available) if available else "Leave weights out."
            raise invalid(f"weights of {name}", "be some that torchvision has", repr(weights), way_out)
    model: Any = _with_weights(models, name, weights if pretrained else None)
    if weights is not None and hasattr(model, "transform_input"):
        model.transform_input = True  # what torchvision does where it loads the weights itself
    _drop_side_heads(model)
    replace_head(model, n_classes=n_classes)
    network: nn.Module = model
    return network


def torchvision_input(text: str) -> ModelInput:
    """Size and normalisation by the named weights, by the default ones where none are named."""
    name, weights = _name_and_weights(f"torchvision:{text}")
    available = _torchvision(text).get_model_weights(name)
    preset = getattr(available, weights or "DEFAULT").transforms()
    side = preset.crop_size[0]
    return ModelInput((side, side), tuple(preset.mean), tuple(preset.std))


def timm_model(text: str, *, n_classes: int, pretrained: bool = True) -> nn.Module:
    """A timm classifier with a fresh head of `n_classes` outputs.

    Args:
        text: `NAME`, or `NAME?weights=pretrained` for the weights that the name stands for, from the library's cache.
        n_classes: Number of outputs.
        pretrained: False leaves the weights that `text` names out, for a network that gets others.
    """
    name, weights = _name_and_weights(f"timm:{text}")
    timm = _timm(text)
    if not timm.is_model(name):
        raise invalid("model", "be one of timm's classifiers", repr(name), did_you_mean(name, timm.list_models()))
    if weights not in (None, "pretrained"):
        raise invalid(f"weights of {name}", "be pretrained", repr(weights), "A tag is a part of the name: NAME.TAG.")
    try:
        model: nn.Module = timm.create_model(name, pretrained=bool(weights) and pretrained, num_classes=n_classes)
    except (OSError, RuntimeError, ValueError) as error:  # no network, a full disk, a tag that is unknown
        told = one_line(f"{type(error).__name__}: {error}", most=200)
        raise InvalidInput(f"timm:{text} cannot be made ({told}). Give a file as model.weights instead.") from error
    return model


def timm_input(text: str) -> ModelInput:
    """Size and normalisation by timm's own list."""
    stated = _timm(text).get_pretrained_cfg(_name_and_weights(f"timm:{text}")[0])
    if stated is None:
        return ModelInput()
    _, height, width = stated.input_size
    return ModelInput((height, width), tuple(stated.mean), tuple(stated.std))


def _name_and_weights(model: str) -> tuple[str, str | None]:
    """`NAME?weights=W` behind the library's name, as two."""
    name, _, query = model.partition(":")[2].partition("?")
    options = parse_qs(query, keep_blank_values=True)
    if set(options) - {"weights"}:
        raise invalid(model, "have no option but weights", repr(query), "For example ?weights=DEFAULT.")
    return name, options.get("weights", [None])[-1]


def _torchvision(text: str) -> Any:
    with importing(f"torchvision:{text}", "torchvision", "vision"):
        from torchvision import models
    return models


def _timm(text: str) -> Any:
    with importing(f"timm:{text}", "timm", "vision"):
        import timm
    return timm


def _with_weights(models: Any, name: str, weights: str | None) -> nn.Module:
    try:
        model: nn.Module = models.get_model(name, weights=weights)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:  # no network, a full disk, a damaged file
        if weights is None:
            raise
        url = getattr(getattr(models.get_model_weights(name), weights), "url", "")
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        kept = folder / url.rpartition("/")[2]
        where = f"{kept}" if kept.is_file() else f"{folder}, nor downloaded there"
        reason = one_line(f"{type(error).__name__}: {error}", most=120)
        raise InvalidInput(
            f"the weights {weights} of torchvision:{name} could not be read from {where} ({reason}). "
            f"Put {url or 'their file'} there, or leave weights out."
        ) from error
    return model


def factory_model(module: str, attribute: str, *, n_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """The network that the user's `module:attribute`, called with `n_classes` and `image_shape`, returns.

    Args:
        module: A module that can be imported from here (the working directory counts).
        attribute: A function or class in it.
        n_classes: Number of outputs.
        image_shape: Channels, height and width.
    """
    name = f"{module}:{attribute}"
    factory = load(name, kind="model")
    with own_code_at_work(f"model {name} raised"):
        try:
            model = factory(n_classes=n_classes, image_shape=image_shape)
        except TypeError as error:
            raise invalid(
                f"model {name}", "accept n_classes= and image_shape=", f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(model, nn.Module):
        raise invalid(f"model {name}", "return a torch.nn.Module", type(model).__name__)
    return model


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


def _drop_side_heads(model: Any) -> None:
    """GoogLeNet and Inception answer with three results while they train; only the main one is wanted here."""
    if getattr(model, "aux_logits", False):
        model.aux_logits = False
        for name in ("aux1", "aux2", "AuxLogits"):
            if hasattr(model, name):
                setattr(model, name, None)


def checked(model: nn.Module, name: str, n_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Run two blank images through the network, so that a wrong shape is found before any time is spent."""
    was_training = model.training
    try:
        with torch.no_grad():
            first = next(model.parameters(), torch.empty(0))
            # Evaluation mode: a trial must not move the statistics of batch normalisation.
            logits = model.eval()(torch.zeros(2, *image_shape, dtype=first.dtype, device=first.device))
    except Exception as error:  # any failure inside a foreign network becomes one line
        raise invalid(
            f"model {name}", f"accept images of shape {image_shape}", f"{type(error).__name__}: {error}"
        ) from error
    model.train(was_training)
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, n_classes):
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise invalid(f"model {name}", f"return logits of shape (2, {n_classes}) for two images", got)
    return model
