"""Weights from a file: safetensors only, because such a file cannot run code when it is read."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from calibrant.errors import InvalidInput, invalid

_ENDING = ".safetensors"
_OF_A_RUN = "model."


def head_of(network: nn.Module) -> str:
    """Name of the layer that gives the logits: the last linear layer, or 1x1 convolution.

    >>> head_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    '2'
    """
    found = [name for name, part in network.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    if not found:
        raise invalid("model", "end in a linear layer", type(network).__name__, "Pass a module:factory of your own.")
    last: str = found[-1]
    return last


def check_weights(path: str | Path) -> Path:
    """The path of a file of weights; one that is missing, or of a format that may run code, is refused."""
    file = Path(path).expanduser()
    if file.suffix != _ENDING:
        way_out = "Formats that unpickle may run code: convert it once with safetensors.torch.save_file."
        raise invalid("model.weights", f"be a {_ENDING} file", str(path), way_out)
    if not file.is_file():
        raise invalid("model.weights", "be a file that exists", str(path))
    return file


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Give a network the weights of a file, in place; if they do not fit, it stays as it is.

    Every weight but the head's must be there in the right shape. A head of another shape, or none, leaves the
    network's own. Checkpoints of runs (`RUN/checkpoints/epoch-00030.safetensors`) can be read, too.

    Args:
        network: Any network.
        path: A safetensors file.
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
        found = {name.removeprefix(_OF_A_RUN): value for name, value in found.items() if name.startswith(_OF_A_RUN)}
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
    way_out = "Name the network that these weights were made with as model.name."
    raise invalid(f"weights {source}", f"hold {first} {shape}", got, way_out)
