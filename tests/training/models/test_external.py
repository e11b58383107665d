import sys
from types import ModuleType, SimpleNamespace
from urllib.error import URLError

import pytest
import torch
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.training.models import ModelInput, build_model
from calibrant.training.models.libraries import cover, replace_head

OWN = """
from torch import nn
import torch


class Good(nn.Module):
    def __init__(self, *, n_classes, image_shape):
        super().__init__()
        self.norm = nn.BatchNorm2d(image_shape[0])
        self.head = nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], n_classes)

    def forward(self, images):
        return self.head(self.norm(images).flatten(1))


def probabilities(*, n_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(48, n_classes), nn.Softmax(dim=1))


def no_parameters(*, n_classes, image_shape):
    return nn.Sequential(nn.AdaptiveAvgPool3d((2, 1, 1)), nn.Flatten())


def wrong_width(*, n_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(48, n_classes + 1))

def wrong_input(*, n_classes, image_shape):
    return nn.Conv2d(5, 5, 3)

def tuple_output(*, n_classes, image_shape):
    class Pair(nn.Module):
        def forward(self, images):
            return images, images
    return Pair()

def no_module(*, n_classes, image_shape):
    return lambda images: images

def no_keywords(size):
    return Good(n_classes=2, image_shape=(3, 4, 4))

number = 3
"""


@pytest.fixture
def own(own_module):
    """A module `own_networks` in the working directory, and broken ones beside it."""
    own_module("own_networks", OWN)
    own_module("own_broken", "1 / 0")
    own_module("own_incomplete", "import a_package_that_is_missing")
    return "own_networks"


def build(name):
    return build_model(name, n_classes=2, image_shape=(3, 4, 4))


def test_the_users_own_network_from_the_working_directory(own):
    before = list(sys.path)
    model = build(f"{own}:Good")
    assert sys.path == before
    assert model(torch.zeros(5, 3, 4, 4)).shape == (5, 2)


def test_the_trial_leaves_no_trace(own):
    model = build(f"{own}:Good")
    assert model.training
    assert torch.equal(model.norm.running_mean, torch.zeros(3))
    assert int(model.norm.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "module must be importable, got 'no_such_module'"),
        ("own_networks.deeper:f", "module must be importable, got 'own_networks.deeper'"),
        ("own_broken:f", "own_broken cannot be imported: ZeroDivisionError: division by zero"),
        (
            "own_incomplete:f",
            "own_incomplete cannot be imported: ModuleNotFoundError: No module named 'a_package_that_is_missing'",
        ),
        ("own_networks:Goood", r"name a function or class in .*own_networks\.py, got 'Goood'. Did you mean 'Good'"),
        ("own_networks:", r"name a function or class in .*own_networks\.py, got"),
        ("own_networks:number", "got 'number'"),
        ("own_networks:no_keywords", "accept n_classes= and image_shape="),
        ("own_networks:no_module", "return a torch.nn.Module, got function"),
        ("own_networks:wrong_width", r"return logits of shape \(2, 2\) for two images, got \(2, 3\)"),
        ("own_networks:tuple_output", "for two images, got tuple"),
        ("own_networks:probabilities", r"return logits, got probabilities, which add up to 1\. Leave its softmax out"),
        ("own_networks:no_parameters", "have parameters to train, got none"),
        ("own_networks:wrong_input", r"accept images of shape \(3, 4, 4\), got RuntimeError"),
    ],
)
def test_what_is_wrong_with_an_own_network_is_one_line(own, name, message):
    with pytest.raises(InvalidInput, match=message):
        build(name)


def test_the_last_linear_layer_is_replaced():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Dropout(), nn.Linear(8, 1000)))
    first = model[1].weight.clone()
    replace_head(model, n_classes=3)
    assert model(torch.zeros(2, 4)).shape == (2, 3)
    assert torch.equal(model[1].weight, first)


def test_a_last_convolution_is_replaced_too():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    replace_head(model, n_classes=3)
    assert model(torch.zeros(2, 3, 5, 5)).shape == (2, 3)


def test_a_network_without_a_head_is_refused():
    with pytest.raises(InvalidInput, match="end in a linear layer, got Flatten"):
        replace_head(nn.Flatten(), n_classes=3)


@pytest.fixture
def torchvision(monkeypatch):
    """A stand-in with the four functions that we call, so that the suite needs no torchvision."""
    asked = []

    def get_model(name, weights=None):
        asked.append((name, weights))
        return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 1000))

    models = ModuleType("torchvision.models")
    models.list_models = lambda module: ["resnet18", "resnet50"]
    models.get_model = get_model
    models.get_model_weights = lambda name: SimpleNamespace(__members__={"IMAGENET1K_V1": 1, "DEFAULT": 1})
    package = ModuleType("torchvision")
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return asked


def test_torchvision_networks_get_a_new_head_and_asked_weights(torchvision):
    assert build("torchvision:resnet18")(torch.zeros(4, 3, 9, 9)).shape == (4, 2)
    build("torchvision:resnet50?weights=DEFAULT")
    assert torchvision == [("resnet18", None), ("resnet50", "DEFAULT")]


def test_weights_that_cannot_be_downloaded_give_the_reason_and_the_way(torchvision, monkeypatch):
    def get_model(name, weights=None):
        raise URLError("Name or service not known")

    monkeypatch.setattr(sys.modules["torchvision"].models, "get_model", get_model)
    with pytest.raises(InvalidInput) as caught:
        build("torchvision:resnet18?weights=DEFAULT")
    message = str(caught.value)
    assert "torchvision:resnet18?weights=DEFAULT cannot be made (URLError" in message
    assert "Name or service not known" in message
    assert "Give a .safetensors file as model.weights instead." in message
    assert "\n" not in message


def test_side_heads_are_dropped(torchvision, monkeypatch):
    class Sided(nn.Module):
        def __init__(self):
            super().__init__()
            self.aux_logits, self.aux1, self.fc = True, nn.Linear(3, 1000), nn.Linear(3, 1000)

        def forward(self, images):
            pooled = images.mean((2, 3))
            return (self.fc(pooled), self.aux1(pooled)) if self.training and self.aux_logits else self.fc(pooled)

    monkeypatch.setattr(sys.modules["torchvision"].models, "get_model", lambda name, weights=None: Sided())
    model = build("torchvision:resnet18")
    assert model.training
    assert model(torch.zeros(4, 3, 9, 9)).shape == (4, 2)
    assert sorted(key for key, _ in model.named_parameters()) == ["fc.bias", "fc.weight"]


def test_a_grey_image_is_shown_to_torchvision_networks_in_three_channels(torchvision):
    model = build_model("torchvision:resnet18", n_classes=2, image_shape=(1, 8, 8)).eval()
    image = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(model(image), model.model(image.repeat(1, 3, 1, 1)))
    with pytest.raises(InvalidInput, match="have 1 or 3 channels, got 2"):
        build_model("torchvision:resnet18", n_classes=2, image_shape=(2, 8, 8))


def test_images_get_the_size_and_the_normalisation_that_a_network_expects(torchvision):
    def make(channels, expected=None):
        torch.manual_seed(1)
        shape = (channels, 16, 16)
        return build_model("torchvision:resnet18", n_classes=3, image_shape=shape, expected=expected).eval()

    expected = ModelInput((16, 16), (0.5, 0.4, 0.3), (0.2, 0.25, 0.5))
    fitted, plain = make(3, expected), make(3)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (expected.mean, expected.std))
    images = torch.rand(4, 3, 16, 16)
    torch.testing.assert_close(fitted(images), plain((images - mean) / std))
    # Larger, not square: the middle of what covers the input. Grey: three channels, each with its own numbers.
    wide = torch.rand(2, 3, 24, 40)
    torch.testing.assert_close(fitted(wide), fitted(cover(wide, (16, 16))))
    one = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(make(1, expected)(one), plain((one.repeat(1, 3, 1, 1) - mean) / std))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:resnet19", "be one of torchvision's classifiers, got 'resnet19'. Did you mean 'resnet18'"),
        ("torchvision:resnet18?weights=DEFALT", "Did you mean 'DEFAULT'"),
        ("torchvision:resnet18?size=3", "have no option but weights"),
    ],
)
def test_bad_torchvision_names(torchvision, name, message):
    with pytest.raises(InvalidInput, match=message):
        build(name)


def test_a_torchvision_for_another_torch_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=r"does not fit torch .*nms is missing.*Install the pair: pip install"):
        build("torchvision:resnet18")


def test_says_how_to_get_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InvalidInput, match=r"needs torchvision. Install it with: pip install 'calibrant\[vision\]'"):
        build("torchvision:resnet18")
