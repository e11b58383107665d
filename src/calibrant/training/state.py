"""A run's state as a checkpoint and back: network and mean of its weights, optimiser, pruner, adaptive loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InvalidInput
from calibrant.training.checkpoint import Checkpoint
from calibrant.training.log import Line
from calibrant.training.setup import Setup

# A longer log would take more time to save at every epoch than the epoch itself; the file is then the only copy.
_LONGEST_LOG = 10_000


def pack(setup: Setup, log: Sequence[Line]) -> Checkpoint:
    """Everything that the rest of the run depends on. Generators have no state worth keeping: see `seeds`.

    Args:
        setup: The run's objects as they are now.
        log: The epoch log so far, one line per finished epoch. The summary is made from it; here it has a digest.
    """
    tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in setup.network.state_dict().items()}
    for number, slots in setup.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{slot}": value for slot, value in slots.items() if value is not None}
    if setup.average is not None:
        tensors |= {f"average.{name}": value for name, value in setup.average.state_dict().items()}
    if setup.loss.follows_validation:
        tensors |= {f"loss.{name}": value for name, value in setup.loss.state_dict().items()}
    more: dict[str, Any] = {}
    if setup.best is not None:
        weights, more["best"] = setup.best.state_dict()
        tensors |= {f"best.{name}": value for name, value in weights.items()}
    values: dict[str, Any] = {}
    for name, value in setup.pruner.state_dict().items():
        if isinstance(value, Tensor):
            tensors[f"pruner.{name}"] = value
        else:
            values[name] = value
    data = setup.data
    about = {"data": data.fingerprint, "classes": data.n_classes, "image_shape": list(data.image_shape)}
    # Export puts the normalisation into the deployed file, where the data set is not at hand.
    about |= {"mean": list(data.mean), "std": list(data.std)}
    if setup.expected_input is not None:
        about["model_input"] = setup.expected_input.to_dict()
    saved = list(log) if len(log) <= _LONGEST_LOG else None
    return Checkpoint(len(log), tensors, {"pruner": values, "log": saved, **about, **more})


def unpack(setup: Setup, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's state into a freshly built setup; one that does not fit is refused in one line."""
    try:
        _unpack(setup, checkpoint)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The digest holds, so no disk did this: the files belong to another run, or were made by hand.
        told = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        name = checkpoint.path.name if checkpoint.path else "of this run"
        raise InvalidInput(f"checkpoint {name} does not fit the recipe and the data of its run: {told}") from error


def _unpack(setup: Setup, checkpoint: Checkpoint) -> None:
    owners = ("model", "optimiser", "pruner", "average", "loss", "best")
    by_owner: dict[str, dict[str, Tensor]] = {name: {} for name in owners}
    for name, value in checkpoint.tensors.items():
        owner, rest = name.split(".", 1)
        by_owner[owner][rest] = value
    setup.network.load_state_dict(by_owner["model"])
    if setup.average is not None:
        setup.average.load_state_dict(by_owner["average"])
    if setup.loss.follows_validation:
        setup.loss.load_state_dict(by_owner["loss"])
    if setup.best is not None:
        setup.best.load_state_dict(by_owner["best"], checkpoint.values["best"])
    # Checkpoints lie between epochs, when all ranks hold the same rows.
    setup.pruner.load_state_dict({**by_owner["pruner"], **checkpoint.values["pruner"]}, shared=True)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in by_owner["optimiser"].items():
        number, slot = name.split(".", 1)
        state.setdefault(int(number), {})[slot] = value
    optimiser = setup.optimiser
    rates = [group["lr"] for group in optimiser.param_groups]
    with torch.no_grad():
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        # Loading copies the groups; on a GPU the rate must stay the very tensor that the engine changes in place.
        group["lr"] = rate
    for parameter, slots in optimiser.state.items():
        for slot, value in slots.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                # Files hold rows in plain order; the fused optimiser wants its buffers laid out like the parameters.
                slots[slot] = torch.empty_like(parameter).copy_(value)
