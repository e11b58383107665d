"""What the adapters share: the running mean loss of an epoch, and a pruner's state as a file in a checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from calibrant.errors import InvalidInput, invalid
from calibrant.files import atomic_write, parse_json
from calibrant.losses import distributed
from calibrant.pruning import ConfidencePruner


class RunningEpoch:
    """The batches of the current epoch and their mean loss, summed on the device without waiting for it.

    >>> epoch = RunningEpoch()
    >>> epoch.add(torch.tensor(2.0), samples=3)
    >>> epoch.add(torch.tensor(1.0), samples=1)
    >>> epoch.batches, epoch.mean_loss()
    (2, 1.75)
    """

    def __init__(self) -> None:
        self.batches = self.samples = 0
        self._loss_sum: Tensor | None = None

    def add(self, loss: Tensor, *, samples: int) -> None:
        """Count a batch with its mean loss."""
        weighted = loss.detach() * samples
        self._loss_sum = weighted if self._loss_sum is None else self._loss_sum.to(weighted.device) + weighted
        self.batches += 1
        self.samples += samples

    def skip(self) -> None:
        """Count a batch that was left out of the training."""
        self.batches += 1

    def mean_loss(self) -> float | None:
        """Mean over the samples so far; None before the first."""
        return None if self._loss_sum is None else float(self._loss_sum) / self.samples

    def state_dict(self) -> dict[str, Any]:
        """Plain values; the loss as the float64 that holds it exactly."""
        total = None if self._loss_sum is None else float(self._loss_sum)
        dtype = None if self._loss_sum is None else str(self._loss_sum.dtype).removeprefix("torch.")
        return {"batches": self.batches, "samples": self.samples, "loss_sum": total, "loss_dtype": dtype}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.batches, self.samples = int(state["batches"]), int(state["samples"])
        total, dtype = state["loss_sum"], state["loss_dtype"]
        self._loss_sum = None if total is None else torch.tensor(total, dtype=getattr(torch, dtype))


def share_scores(pruner: ConfidencePruner) -> None:
    """Merge the ranks' scores before a checkpoint in the middle of an epoch, which only one rank writes. Collective."""
    if distributed.is_distributed():
        pruner.table.share(distributed.rank())


def write_state(path: Path, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Write named states of tensors and plain values as one safetensors file; the values are JSON in its header."""
    tensors = {
        f"{owner}.{name}": value.contiguous()
        for owner, entries in state.items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }
    plain = {
        owner: {name: value for name, value in entries.items() if not isinstance(value, Tensor)}
        for owner, entries in state.items()
    }
    blob = save(tensors, metadata={"values": json.dumps(plain)})
    with atomic_write(path) as temporary:
        temporary.write_bytes(blob)


def read_state(path: Path) -> dict[str, dict[str, Any]]:
    """Read what `write_state` wrote."""
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist. Resume from a checkpoint that was written with a pruner.")
    try:
        with safe_open(path, "pt") as file:
            state: dict[str, dict[str, Any]] = parse_json(file.metadata()["values"], f"{path}: values")
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                owner, name = key.split(".", 1)
                state[owner][name] = file.get_tensor(key)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise invalid(str(path), "be a pruner's state", f"something else ({error})") from error
    return state
