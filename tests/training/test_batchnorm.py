import pytest
import torch
from torch import nn

from calibrant.training.layers import GlobalBatchNorm2d, synchronise_batch_norm


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
