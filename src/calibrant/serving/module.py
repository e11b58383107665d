"""What a deployed model computes, as one PyTorch module: normalisation, network, calibrator and routing rule."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Rounding in a resized image may leave the scale by this much.
_SLACK = 1e-3


class Deployed(nn.Module):
    """Images in, decisions out: what the ONNX file computes, as a PyTorch module.

    Takes float32 images on the scale from 0 to 1, shape (n, C, H, W). Gives calibrated `probabilities` (n, K) float32,
    `predicted` (n,) int64, and `automate` (n,) bool: whether the top probability reaches the threshold. An image off
    that scale (0 to 255 by mistake, NaN) is never automated: no promise was made for it, and networks are sure of
    anything.

    Args:
        model: A classifier that gives logits.
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
        temperature: Logits are divided by it, after the calibrator.
        thresholds: One for each predicted class; infinity where nothing is automated.
        calibrator: Maps logits to logits, as `Calibrator.to_module()` does; None: nothing is mapped.
    """

    mean: Tensor
    std: Tensor
    thresholds: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        temperature: float,
        thresholds: Sequence[float],
        calibrator: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.calibrator = nn.Identity() if calibrator is None else calibrator
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))
        # Rounded to float32 a threshold may fall below itself; the next larger one keeps the promise.
        bars = torch.tensor(thresholds, dtype=torch.float64)
        rounded = bars.float()
        rounded = torch.where(rounded.double() < bars, torch.nextafter(rounded, torch.tensor(math.inf)), rounded)
        self.register_buffer("thresholds", rounded)
        self.temperature = float(temperature)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, predicted class, and whether the model may decide alone."""
        logits = self.calibrator(self.model((images - self.mean) / self.std).float())
        probabilities = torch.softmax(logits / self.temperature, dim=1)
        predicted = probabilities.argmax(dim=1)
        # Not `max`: a gather of the chosen entry is the same number, and exports to plain operators.
        confidence = probabilities.gather(1, predicted[:, None])[:, 0]
        return probabilities, predicted, (confidence >= self.thresholds[predicted]) & _on_scale(images)


def _on_scale(images: Tensor) -> Tensor:
    """Which images lie between 0 and 1, up to rounding.

    Pixel by pixel, because a comparison with NaN is False everywhere, while runtimes' minima and maxima may skip it.
    """
    inside = (images >= -_SLACK) & (images <= 1.0 + _SLACK)
    return inside.flatten(1).float().amin(dim=1) > 0.5
