import pytest

from calibrant.errors import InvalidInput
from calibrant.training.models import build_model, model_names


def test_names():
    assert model_names() == ("resnet18", "resnet32", "resnet50", "tiny")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet23", {}, "model must be a known network, got 'resnet23'. Did you mean 'resnet32'"),
        ("vgg", {}, "Known: resnet18, resnet32, resnet50, tiny, torchvision:NAME, timm:NAME, module:factory"),
        ("tiny", {"n_classes": 1}, "n_classes must"),
        ("tiny", {"image_shape": (8, 8)}, r"image_shape must be \(channels, height, width\)"),
        ("tiny", {"image_shape": (0, 8, 8)}, "each at least 1"),
        ("resnet50", {"image_shape": (3, 2, 32)}, "images for resnet50 must"),
    ],
)
def test_bad_input_is_one_clear_line(name, arguments, message):
    with pytest.raises(InvalidInput, match=message):
        build_model(name, **{"n_classes": 10, "image_shape": (3, 32, 32)} | arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"name": 5}, "model must be the name of a network, got 5"), ({"image_shape": 8}, "image_shape must be")],
)
def test_wrong_types_are_one_line(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        build_model(**({"name": "tiny", "n_classes": 3, "image_shape": (1, 8, 8)} | arguments))
