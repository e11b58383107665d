"""A network that is compiled block by block gives the numbers of the network as written."""

import torch
from torch import nn

from calibrant.training.models.build import build_model
from calibrant.training.models.resnet import ResNet
from calibrant.training.step import CompiledBlocks, repeated_blocks


def test_the_blocks_of_a_residual_network_are_found():
    network = build_model("resnet32", n_classes=10, image_shape=(3, 32, 32))
    assert len(repeated_blocks(network)) == 15


def test_layers_of_torch_and_single_modules_are_no_blocks():
    assert repeated_blocks(build_model("tiny", n_classes=10, image_shape=(3, 8, 8))) == []
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_outputs_and_gradients_are_those_of_the_network():
    torch.manual_seed(0)
    network = ResNet((2,), bottleneck=False, widths=(4,), n_classes=3).double()
    model = CompiledBlocks(network, repeated_blocks(network))
    for side in (8, 4):
        images = torch.randn(4, 3, side, side, dtype=torch.float64)
        outcomes = []
        for forward in (network, model):
            network.zero_grad()
            logits = forward(images)
            logits.square().sum().backward()
            outcomes.append([logits.detach(), *(parameter.grad.clone() for parameter in network.parameters())])
        torch.testing.assert_close(outcomes[1], outcomes[0])
    assert "forward" not in vars(network.blocks[0])  # other callers get the network as written
