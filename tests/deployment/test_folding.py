import numpy as np
import pytest
import torch
from torch import nn

from calibrant.deployment import export_onnx, fold_temperature
from calibrant.errors import InvalidInput
from calibrant.training import default_recipe, train
from calibrant.training.data import load_dataset, normalise

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # A third of the training images, so that there are enough validation cases for a temperature.
    return train(default_recipe("digits", epochs=2, data__validation=0.3), tmp_path_factory.mktemp("fold") / "run")


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def test_an_exported_file_with_a_folded_temperature_gives_the_calibrated_predictions(run, digits, tmp_path):
    calibrator = run.policy().calibrator
    assert abs(calibrator.temperature_ - 1) > 0.05  # else the test would show nothing
    wanted = calibrator(run.predictions("test")).probabilities
    images = digits.test.images.float() / 255
    inputs = normalise(digits.test.images, digits.mean, digits.std)
    folded = fold_temperature(run.load_model(), calibrator.temperature_, inputs[:8])
    export_onnx(folded, tmp_path / "one.onnx", example=images[:8], mean=digits.mean, std=digits.std)
    (found,) = onnxruntime.InferenceSession(str(tmp_path / "one.onnx")).run(
        ["probabilities"], {"images": images.numpy()}
    )
    # Logits of 15 in float32 are exact to about 1e-6, and each runtime sums their products in an order of its own.
    with torch.no_grad():
        ours = torch.softmax(folded(inputs), dim=1).numpy()
    for each in (ours, found):
        np.testing.assert_allclose(each, wanted, atol=5e-6)
        assert np.quantile(np.abs(each - wanted), 0.99) < 1e-6
    # In float64 the two are one and the same.
    with torch.no_grad():
        network, wide = run.load_model().double(), inputs.double()
        exact = fold_temperature(network, calibrator.temperature_, wide[:8])(wide)
        torch.testing.assert_close(exact, network(wide) / calibrator.temperature_, atol=1e-12, rtol=0)
    # The same without a calibrator is something else: the temperature is in the file and nowhere beside it.
    assert np.abs(run.predictions("test").probabilities - wanted).max() > 1e-3


def test_the_network_itself_is_left_as_it_is():
    torch.manual_seed(0)
    network, images = (
        nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).train(),
        torch.rand(5, 1, 2, 2),
    )
    before = {name: value.clone() for name, value in network.state_dict().items()}
    folded = fold_temperature(network, 1.7, images)
    torch.testing.assert_close(folded(images), network(images) / 1.7)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training


class HeadFirst(nn.Module):
    """The layer that gives the logits is not the one that was made last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())

    def forward(self, inputs):
        return self.head(self.body(inputs))


def test_the_layer_that_gives_the_logits_is_found_wherever_it_stands():
    torch.manual_seed(0)
    network, inputs = HeadFirst(), torch.randn(7, 4)
    folded = fold_temperature(network, 1.0001, inputs)
    assert torch.equal(folded.body[0].weight, network.body[0].weight)
    assert not torch.equal(folded.head.weight, network.head.weight)


def test_a_network_that_ends_in_something_else_is_refused():
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with pytest.raises(InvalidInput, match="model must end in a linear layer"):
        fold_temperature(network, 2.0, torch.randn(3, 4))
    with pytest.raises(InvalidInput, match="temperature must be finite and positive"):
        fold_temperature(network, 0.0, torch.randn(3, 4))
