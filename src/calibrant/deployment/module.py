"""What a deployed model computes, as one PyTorch module: network, calibrator, routing rule and shortlist."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.calibration import Calibrator
from calibrant.decisions import RoutingRule, Shortlist
from calibrant.deployment.inputs import IMAGES, INPUTS, InputSpec
from calibrant.predictions import Kind

# A threshold is the confidence of a case, and behind a map with level stretches that of many. Another library's softmax
# differs in the last digits: a threshold that is a little lower keeps such cases on their side.
_NUDGE = 1e-12


class Normalised(nn.Module):
    """A network for images on the scale from 0 to 1, with its normalisation.

    Args:
        model: Takes normalised images (n, C, H, W).
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Any:
        """Logits."""
        return self.model((images - self.mean) / self.std)


class Scaled(nn.Module):
    """A classifier whose logits are divided by a temperature.

    Args:
        model: The classifier.
        temperature: Above 0.
    """

    temperature: Tensor

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Scaled logits."""
        said = self.model(*inputs, **named)
        logits: Tensor = said if isinstance(said, Tensor) else said.logits
        return logits / self.temperature


class Network(nn.Module):
    """A classifier of any make behind one signature: tensors in the order of `names` in, logits (n, K) out.

    Args:
        model: Gives logits, or an object with `logits`, as Hugging Face's models do.
        names: Names of the inputs.
        by_name: Whether the model is called with its inputs by name.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], *, by_name: bool) -> None:
        super().__init__()
        self.model = model
        self.names, self.by_name = tuple(names), by_name

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits in float32 or float64."""
        said = self.model(**dict(zip(self.names, inputs, strict=True))) if self.by_name else self.model(*inputs)
        logits: Tensor = said if isinstance(said, Tensor) else said.logits
        return logits if logits.dtype == torch.float64 else logits.float()


class Head(nn.Module):
    """From scores (n, K) to decisions: the calibrator and the rule, in float64 as the library computes them.

    Gives probabilities (n, K) float32, the predicted class int64, whether the rule automates it, and, with a
    shortlist, which classes a person should look at first, bool (n, K).

    Args:
        rule: The rule; its own temperature comes after the calibrator.
        calibrator: None for none.
        shortlist: None for none.
        kind: What the scores are.
        smallest: What stands for a probability of 0 where its logarithm is needed.
    """

    thresholds: Tensor
    temperature: Tensor | None
    least: Tensor | None
    smallest: Tensor

    def __init__(
        self,
        rule: RoutingRule,
        calibrator: Calibrator | None,
        shortlist: Shortlist | None,
        *,
        kind: Kind = "logits",
        smallest: float = 1e-45,
    ) -> None:
        super().__init__()
        self.calibrator = None if calibrator is None else calibrator.to_module()
        # In float64, and as tensors: the exporter writes Python's numbers as float32. Where a confidence is a
        # threshold, the last digit decides.
        self.register_buffer("thresholds", torch.from_numpy(_lowered(rule.thresholds)))
        self.register_buffer("temperature", _number(rule.temperature))
        self.register_buffer("least", _number(None if shortlist is None else shortlist.least))
        self.register_buffer("smallest", _number(smallest))
        self.kind = kind

    def forward(self, scores: Tensor) -> tuple[Tensor, ...]:
        """Probabilities, predicted class, automated or not, and the shortlist where there is one."""
        probabilities = self._probabilities(scores)
        predicted = probabilities.argmax(dim=1)
        # Not `max`: a gather of the chosen entry is the same number, and exports to plain operators.
        confidence = probabilities.gather(1, predicted[:, None])[:, 0].clamp(max=1.0)
        automate = confidence >= self.thresholds[predicted]
        found = probabilities.float(), predicted, automate
        if self.least is None:
            return found
        is_top = torch.arange(probabilities.shape[1], device=scores.device) == predicted[:, None]
        return *found, (probabilities >= self.least) | is_top

    def _probabilities(self, scores: Tensor) -> Tensor:
        if self.kind == "probabilities":
            if self.calibrator is None and self.temperature is None:
                return scores.double()
            scores = scores.double()
            scores = torch.log(scores if self.calibrator is None else torch.maximum(scores, self.smallest))
        if self.calibrator is not None:
            scores = self.calibrator(scores)
        wide = scores.double()
        if self.temperature is not None:
            wide = (wide - wide.amax(dim=1, keepdim=True)) / self.temperature
        return torch.softmax(wide, dim=1)


def _lowered(thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thresholds a little lower, but never by more than half of what is left above them.

    Confidences of a saturated model lie within 1e-12 of 1. A rule that automates a confidence of 1 alone was not shown
    to be right for those just below.
    """
    # Infinity stands for a class that is never automated, and stays.
    left = np.maximum(1.0 - thresholds, 0.0) / 2.0
    return thresholds - np.minimum(_NUDGE, left)


def _number(value: float | None) -> Tensor | None:
    return None if value is None else torch.tensor(value, dtype=torch.float64)


class Deployed(nn.Module):
    """Raw inputs in, decisions out: what the ONNX file computes.

    A case with a number outside the range of its input (images from 0 to 255 by mistake, NaN) is never automated: no
    promise was made for it, and networks are sure of anything.

    Args:
        network: Inputs to scores.
        head: Scores to decisions.
        specs: The inputs.
    """

    def __init__(self, network: nn.Module, head: Head, specs: Sequence[InputSpec]) -> None:
        super().__init__()
        self.network, self.head = network, head
        self.specs = tuple(specs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Probabilities, predicted, automate, scores, and the shortlist where there is one."""
        inside = torch.ones_like(inputs[0].reshape(len(inputs[0]), -1)[:, 0], dtype=torch.bool)
        taken = []
        for spec, values in zip(self.specs, inputs, strict=True):
            inside = inside & inside_of(spec, values)
            # A token id that the table does not have would end the run of the file for all other cases, too.
            taken.append(values.clamp(math.ceil(spec.low), math.floor(spec.high)) if spec.whole else values)
        scores = self.network(*taken)
        probabilities, predicted, automate, *listed = self.head(scores)
        automate = automate & inside
        # Automated cases have no list: nobody looks at them.
        return probabilities, predicted, automate, scores, *(each & ~automate[:, None] for each in listed)


def inside_of(spec: InputSpec, values: Tensor) -> Tensor:
    """Which cases lie in the range.

    Number by number, because a comparison with NaN is False everywhere, while runtimes' minima and maxima may skip it.
    """
    # As tensors, because the exporter writes Python's numbers as float32.
    low, high = (math.ceil(spec.low), math.floor(spec.high)) if spec.whole else (spec.low, spec.high)
    limits = [torch.tensor(limit, dtype=values.dtype) for limit in (low, high)]
    fine = (values >= limits[0]) & (values <= limits[1])
    return fine.flatten(1).float().amin(dim=1) > 0.5


def input_names(model: nn.Module, example: Any) -> tuple[dict[str, Tensor], bool]:
    """An example as tensors by name, and whether the model is called by name.

    Args:
        model: The model.
        example: Tensors by name, called by name; a sequence of tensors, named as the parameters of `forward`; or one.
    """
    if isinstance(example, Mapping):
        return {name: torch.as_tensor(values) for name, values in example.items()}, True
    if isinstance(example, Sequence):
        parameters = list(inspect.signature(model.forward).parameters)
        return dict(zip(parameters, map(torch.as_tensor, example), strict=False)), False
    values = torch.as_tensor(example)
    return {IMAGES if values.ndim == 4 and values.is_floating_point() else INPUTS: values}, False
