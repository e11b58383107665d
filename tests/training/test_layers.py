"""Batch normalisation over several processes, and convolutions of small batches."""

import pytest
import torch
from torch import Tensor, nn

from calibrant.training.network import GlobalBatchNorm2d, PaddedConvolutions, convolutions, synchronise_batch_norm


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_process_gets_torchs_own_batch_normalisation(affine, momentum):
    torch.manual_seed(0)
    settings = {"affine": affine, "momentum": momentum}
    ours, theirs = GlobalBatchNorm2d(3, **settings).double(), nn.BatchNorm2d(3, **settings).double()
    for step in range(3):
        images = torch.randn(5, 3, 4, 2, dtype=torch.float64) * 3 + step
        mine, other = images.clone().requires_grad_(), images.clone().requires_grad_()
        weights = torch.randn_like(images)
        (ours(mine) * weights).sum().backward()
        (theirs(other) * weights).sum().backward()
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-12, atol=1e-13)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=1e-12, atol=1e-13)


def test_without_running_statistics_nothing_is_tracked():
    layer = GlobalBatchNorm2d(3, track_running_stats=False)
    assert layer(torch.randn(4, 3, 2, 2)).mean().abs() < 1e-6
    assert layer.running_mean is None


def test_a_network_is_converted_in_place_with_its_state():
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.BatchNorm1d(3))
    names, weight = list(network.state_dict()), network[1].weight
    converted = synchronise_batch_norm(network, torch.device("cpu"))
    assert type(converted[1]) is GlobalBatchNorm2d
    assert converted[1].weight is weight
    assert list(converted.state_dict()) == names


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
    monkeypatch.setattr("calibrant.training.network._CONVOLUTIONS", (watching,))
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
