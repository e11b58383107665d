"""Padded convolutions: the step is that of the small batch, and cuDNN meets one number of rows."""

import pytest
import torch
from torch import Tensor, nn

from calibrant.training.layers import PaddedConvolutions, convolutions


class Watched(nn.Module):
    """Two convolutions and batch norm in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 5, 3, stride=2)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.first(images)).relu()
        output: Tensor = self.second(hidden).mean((2, 3))
        return output


def step(images: Tensor, size: int | None) -> list[Tensor]:
    """Output, gradients and running statistics of one step, from the same start."""
    torch.manual_seed(0)
    network = Watched()
    with PaddedConvolutions(size or 0):
        output = network(images)
        output.square().sum().backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return [output.detach(), *gradients, *(buffer.double() for buffer in network.buffers())]


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_the_step_is_that_of_the_rows_alone(rows: int) -> None:
    images = torch.randn(rows, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    plain, padded = step(images, None), step(images, 16)
    assert len(plain) == len(padded) == 1 + 6 + 3
    for one, other in zip(plain, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_every_convolution_meets_the_full_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    met = []
    real = torch.conv2d

    def watching(rows: Tensor, *rest: object, **named: object) -> Tensor:
        met.append(len(rows))
        return real(rows, *rest, **named)  # type: ignore[call-overload, no-any-return]

    mode = PaddedConvolutions(16)
    monkeypatch.setattr("calibrant.training.layers._CONVOLUTIONS", (watching,))
    for rows in (1, 5, 16, 20):
        image = torch.randn(rows, 3, 8, 8)
        answer = mode.__torch_function__(watching, (), (image, torch.randn(4, 3, 3, 3)))
        assert len(answer) == rows
    # A single image has no rows to pad.
    mode.__torch_function__(watching, (), (torch.randn(3, 8, 8), torch.randn(4, 3, 3, 3)))
    assert met == [16, 16, 16, 20, 3]


def test_only_a_small_batch_on_a_gpu_is_padded() -> None:
    assert isinstance(convolutions(5, 16, torch.device("cuda")), PaddedConvolutions)
    assert not isinstance(convolutions(16, 16, torch.device("cuda")), PaddedConvolutions)
    assert not isinstance(convolutions(5, 16, torch.device("cpu")), PaddedConvolutions)
