import pytest
import torch
from torch import nn

from calibrant.training.models import build_model
from calibrant.training.models.resnet import pool


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "image_shape", "count"),
    [
        ("resnet18", 1000, (3, 224, 224), 11_689_512),
        ("resnet32", 10, (3, 32, 32), 466_906),
        ("resnet32", 100, (3, 32, 32), 472_756),
        ("resnet50", 10, (3, 32, 32), 23_520_842),
        ("resnet50", 100, (3, 32, 32), 23_705_252),
        ("resnet50", 200, (3, 64, 64), 25_138_952),
        # A grey image leaves out two thirds of the first convolution: 3 * 3 * 2 weights for each of its channels.
        ("resnet32", 10, (1, 32, 32), 466_906 - 18 * 16),
        ("resnet50", 2, (1, 64, 64), 25_138_952 - 18 * 64 - 198 * 8193),
    ],
)
def test_has_exactly_the_published_parameters(name, classes, image_shape, count):
    assert parameters(build_model(name, n_classes=classes, image_shape=image_shape)) == count


@pytest.mark.parametrize(
    ("name", "image_shape"),
    [
        ("resnet18", (3, 96, 128)), ("resnet18", (1, 100, 97)),
        ("resnet32", (3, 32, 32)), ("resnet32", (1, 8, 8)), ("resnet32", (3, 28, 20)),
        ("resnet50", (3, 32, 32)), ("resnet50", (1, 64, 64)), ("resnet50", (3, 68, 72)),
        ("tiny", (1, 8, 8)), ("tiny", (3, 32, 32)), ("tiny", (1, 7, 5)),
    ],
)  # fmt: skip
def test_maps_images_to_logits_and_every_parameter_learns(name, image_shape):
    model = build_model(name, n_classes=7, image_shape=image_shape)
    logits = model(torch.randn(3, *image_shape))
    assert logits.shape == (3, 7)
    nn.functional.cross_entropy(logits, torch.tensor([0, 3, 6])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


def test_resolution_falls_by_the_published_factors():
    for name, side, last in (("resnet18", 128, 4), ("resnet32", 32, 8), ("resnet50", 32, 4)):
        model = build_model(name, n_classes=10, image_shape=(3, side, side))
        shapes = []
        model.blocks.register_forward_hook(lambda module, inputs, output, shapes=shapes: shapes.append(output.shape))
        model(torch.randn(2, 3, side, side))
        assert shapes[0][2:] == (last, last)


def test_the_number_of_weighted_layers_is_in_the_name():
    for name, depth in (("resnet18", 18), ("resnet32", 32), ("resnet50", 50)):
        model = build_model(name, n_classes=10, image_shape=(3, 32, 32))
        layers = [key for key, part in model.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)]
        assert len([key for key in layers if "shortcut" not in key]) == depth


def test_convolutions_start_with_he_variance_by_fan_out():
    torch.manual_seed(0)
    model = build_model("resnet50", n_classes=10, image_shape=(3, 32, 32))
    for part in model.modules():
        if isinstance(part, nn.Conv2d) and part.weight.numel() > 50_000:
            fan_out = part.out_channels * part.kernel_size[0] * part.kernel_size[1]
            torch.testing.assert_close(part.weight.var() * fan_out / 2, torch.tensor(1.0), rtol=0.05, atol=0.0)


def test_weights_depend_on_the_callers_generator_alone():
    states = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            states.append(build_model("resnet32", n_classes=3, image_shape=(1, 8, 8)).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["stem.weight"], states[2]["stem.weight"])


def test_a_residual_block_without_its_branch_is_the_shortcut():
    model = build_model("resnet32", n_classes=3, image_shape=(3, 8, 8)).eval()
    block = model.blocks[1]
    nn.init.zeros_(block.body[-1].weight)
    features = torch.rand(2, 16, 8, 8)
    torch.testing.assert_close(block(features), features)


@pytest.mark.parametrize("name", ["resnet32", "tiny"])
def test_channels_last_and_compilation_change_nothing(name):
    torch.manual_seed(0)
    model = build_model(name, n_classes=4, image_shape=(3, 8, 8)).eval()
    images = torch.randn(2, 3, 8, 8)
    expected = model(images)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), expected, rtol=1e-4, atol=1e-5)
    model.to(memory_format=torch.channels_last)
    last = model(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (8, 6), (7, 9)])
def test_pool_averages_cells(size):
    features = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(pool(features, 1), features.flatten(2).mean(2))
    expected = nn.functional.adaptive_avg_pool2d(features, 2).flatten(1)
    torch.testing.assert_close(pool(features, 2), expected)
