"""Networks from elsewhere: torchvision, where it is installed, and a function of the user's own."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import torch
from torch import nn

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.own_code import load, own_code_at_work


def torchvision_model(text: str, *, n_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """A torchvision classifier whose last linear layer is replaced by a fresh one with `n_classes` outputs.

    Args:
        text: `NAME`, or `NAME?weights=DEFAULT` (or another of its weights) to start from pretrained weights.
        n_classes: Number of outputs.
        image_shape: Channels, height and width; images with one channel are shown to the network three times.
    """
    try:
        from torchvision import models
    except ImportError as error:
        raise InvalidInput(
            f"torchvision:{text} needs torchvision: pip install 'calibrant[vision]' (it must fit the installed torch)."
        ) from error
    except (RuntimeError, OSError, AttributeError) as error:
        # A build for another torch breaks while it is imported, for example over an operator that was not registered.
        raise InvalidInput(
            f"the installed torchvision does not fit torch {torch.__version__} ({error}). Install the build that does."
        ) from error
    name, _, query = text.partition("?")
    known = models.list_models(module=models)
    if name not in known:
        raise invalid("model", "be one of torchvision's classifiers", repr(name), did_you_mean(name, known))
    options = parse_qs(query, keep_blank_values=True)
    if set(options) - {"weights"}:
        raise invalid(f"torchvision:{text}", "have no option but weights", repr(query), "For example ?weights=DEFAULT.")
    weights = options.get("weights", [None])[-1]
    if weights is not None:
        available = list(models.get_model_weights(name).__members__)
        if weights not in available:
            way_out = did_you_mean(weights, available) if available else "Leave weights out."
            raise invalid(f"weights of {name}", "be some that torchvision has", repr(weights), way_out)
    model = _with_weights(models, name, weights)
    _drop_side_heads(model)
    replace_head(model, n_classes=n_classes)
    return _checked(
        model if image_shape[0] == 3 else _Grey(model, image_shape[0]), f"torchvision:{text}", n_classes, image_shape
    )


def _with_weights(models: Any, name: str, weights: str | None) -> nn.Module:
    try:
        model: nn.Module = models.get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:  # no network, a full disk, a download whose digest is wrong
        if weights is None:
            raise
        kept = Path(torch.hub.get_dir()) / "checkpoints"
        url = getattr(getattr(models.get_model_weights(name), weights), "url", "")
        raise InvalidInput(
            f"the weights {weights} of torchvision:{name} could not be read from {kept}, nor downloaded there "
            f"({type(error).__name__}: {str(error)[:100]}). Put {url or 'their file'} there, or leave weights out."
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
    return _checked(model, name, n_classes, image_shape)


def replace_head(model: nn.Module, *, n_classes: int) -> None:
    """Replace the last linear layer (or 1x1 convolution) of a classifier, in place, by one with `n_classes` outputs."""
    heads = [(path, part) for path, part in model.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    if not heads:
        raise invalid("model", "end in a linear layer", type(model).__name__, "Pass a module:factory of your own.")
    path, head = heads[-1]
    fresh: nn.Module
    if isinstance(head, nn.Linear):
        fresh = nn.Linear(head.in_features, n_classes, bias=head.bias is not None)
    else:
        fresh = nn.Conv2d(head.in_channels, n_classes, kernel_size=1, bias=head.bias is not None)
    model.set_submodule(path, fresh)


def _drop_side_heads(model: Any) -> None:
    """GoogLeNet and Inception answer with three results while they train; only the main one is wanted here."""
    if getattr(model, "aux_logits", False):
        model.aux_logits = False
        for name in ("aux1", "aux2", "AuxLogits"):
            if hasattr(model, name):
                setattr(model, name, None)


class _Grey(nn.Module):
    """Shows an image with one channel to a network made for three."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        super().__init__()
        if channels != 1:
            raise invalid("images for a torchvision network", "have 1 or 3 channels", channels)
        self.model = model

    def forward(self, images: torch.Tensor) -> Any:
        return self.model(images.expand(-1, 3, -1, -1))


def _checked(model: nn.Module, name: str, n_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
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
