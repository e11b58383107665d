"""Models of users as networks: torch modules behind one signature, scikit-learn classifiers as ONNX.

torch is imported only if a module is given.
"""

import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.deployment.input_spec import IMAGES, INPUTS, Arrays, InputSpec, read_specs
from calibrant.deployment.onnx_file import library, open_session
from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.files import reading
from calibrant.own_code import load, own_code_at_work

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Score = Callable[[Arrays], NDArray[Any]]
_EXPORT_IT = "Export a model of another kind with export_onnx, and open the file with Decider.load."
# The oldest that has every operator of the policy.
_OPSET = 18


def is_module(model: object) -> bool:
    """Whether a model is a `torch.nn.Module`; asked without importing torch."""
    torch = sys.modules.get("torch")  # without it nobody can have made a module
    return torch is not None and isinstance(model, torch.nn.Module)


def normalised(model: "nn.Module", *, mean: Sequence[float], std: Sequence[float]) -> "nn.Module":
    """A network for images (n, C, H, W) on the scale from 0 to 1, with its normalisation per channel."""
    import torch

    class Normalised(torch.nn.Module):
        mean: "Tensor"
        std: "Tensor"

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
            self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

        def forward(self, images: "Tensor") -> Any:
            return self.model((images - self.mean) / self.std)

    return Normalised()


def as_network(model: "nn.Module", names: Sequence[str], *, by_name: bool) -> "nn.Module":
    """A classifier that takes tensors in the order of `names` and returns logits (n, K) in float32 or float64.

    The model returns logits, or an object with `logits`, as Hugging Face's models do.
    """
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: "Tensor") -> "Tensor":
            if by_name:
                logits = self.model(**dict(zip(names, inputs, strict=True)))
            else:
                logits = self.model(*inputs)
            if not isinstance(logits, torch.Tensor):
                logits = logits.logits
            if logits.dtype != torch.float64:
                logits = logits.float()
            result: Tensor = logits
            return result

    return Network()


def input_names(example: Any) -> dict[str, "Tensor"]:
    """An example as tensors by name. One without names holds images or the only input."""
    import torch

    if isinstance(example, Mapping):
        return {name: torch.as_tensor(values) for name, values in example.items()}
    values = torch.as_tensor(example)
    if values.ndim == 4 and values.is_floating_point():
        return {IMAGES: values}
    return {INPUTS: values}


def prepare(
    model: "nn.Module", example: Any, ranges: Mapping[str, tuple[float, float]] | None
) -> tuple["nn.Module", tuple[InputSpec, ...], int]:
    """A model behind one signature, what its inputs are, and its number of classes; tried on two cases."""
    if not is_module(model):
        raise invalid("model", "be a torch.nn.Module", type(model).__name__, _EXPORT_IT)
    import torch

    tensors = input_names(example)
    specs = read_specs(tensors, ranges)
    by_name = isinstance(example, Mapping)
    network = as_network(model.eval(), [spec.name for spec in specs], by_name=by_name).eval()
    try:
        with torch.no_grad():
            scores: Any = network(*(values[:2].to(_device(model)) for values in tensors.values()))
    except Exception as error:
        raise InvalidInput(f"model must take its example: {type(error).__name__}: {str(error)[:200]}") from error
    shape: tuple[int, ...] = tuple(getattr(scores, "shape", ()))
    if not isinstance(scores, torch.Tensor) or len(shape) != 2 or shape[1] < 2:
        raise invalid("model", "give logits of shape (cases, classes)", f"{type(scores).__name__} {shape}")
    return network, specs, int(scores.shape[1])


def torch_scores(network: "nn.Module", specs: Sequence[InputSpec]) -> Score:
    """A torch network as a function of arrays."""
    import torch

    def score(arrays: Arrays) -> NDArray[Any]:
        device = _device(network)
        with torch.no_grad():
            scores = network(*(torch.from_numpy(arrays[spec.name]).to(device) for spec in specs))
        return np.asarray(scores.cpu().numpy())

    return score


def _device(model: "nn.Module") -> "torch.device":
    import torch

    return next((each.device for each in model.parameters()), torch.device("cpu"))


def weights_digest(model: "nn.Module") -> str:
    """SHA-256 of a network's weights and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{tuple(values.shape)};".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def open_model(factory: str, weights: str | Path | None = None) -> Any:
    """What a function of your own returns; `export_onnx` takes it.

    Args:
        factory: `module:function`; called without arguments it gives a `torch.nn.Module` or a fitted scikit-learn
            classifier. Naming it here is to trust it.
        weights: For a torch module: a `.safetensors` file with its state dict.
    """
    make = load(factory, kind="model", trusted=True)
    with own_code_at_work(f"model {factory} raised"):
        model = make()
    if weights is None:
        return model
    if not is_module(model):
        raise invalid("weights", "be left out for what is no torch.nn.Module", type(model).__name__)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with reading(f"weights {weights}"):
            tensors = load_file(weights)
        model.load_state_dict(tensors)
    except SafetensorError as error:
        raise invalid(f"weights {weights}", "be a .safetensors file", one_line(error, most=150)) from error
    except RuntimeError as error:
        raise InvalidInput(f"weights {weights} do not fit the model: {one_line(error, most=250)}") from error
    return model


def estimator_scores(estimator: Any) -> Score:
    """A scikit-learn classifier as a function of arrays."""

    def score(arrays: Arrays) -> NDArray[Any]:
        with warnings.catch_warnings():
            # An estimator that was fitted on a table with named columns warns that an array has none.
            warnings.simplefilter("ignore")
            return np.asarray(estimator.predict_proba(arrays[INPUTS]))

    return score


def convert_estimator(estimator: Any, rows: NDArray[Any]) -> tuple[Any, str]:
    """The estimator as ONNX, and the type of its inputs.

    In double precision if the converter and the runtime can do it: linear models then equal scikit-learn's to the last
    digits. Trees exist in single precision only.
    """
    skl2onnx = library("skl2onnx", "sklearn-export")
    types = library("skl2onnx.common.data_types", "sklearn-export")
    message = ""
    for dtype, kind in (("float64", types.DoubleTensorType), ("float32", types.FloatTensorType)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                proto = skl2onnx.to_onnx(
                    estimator,
                    initial_types=[(INPUTS, kind([None, rows.shape[1]]))],
                    options={"zipmap": False},
                    target_opset={"": _OPSET, "ai.onnx.ml": 3},
                )
            session = open_session(proto.SerializeToString(), "the estimator")
            output = session.get_outputs()[1].name
            session.run([output], {INPUTS: rows[:2].astype(dtype)})
        except Exception as error:  # noqa: BLE001 (the other type may work; the last message is shown)
            message = " ".join(str(error).split())[:200]
        else:
            return proto, dtype
    raise InvalidInput(f"skl2onnx cannot convert {type(estimator).__name__}: {message}")
