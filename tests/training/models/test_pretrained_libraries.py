"""The networks of timm and torchvision themselves, with weights that are made here: nothing is downloaded.

torchvision cannot be imported beside a torch that it was not built for, and timm imports it. Where that is so, these
tests are left out; `tests/training/models/test_external.py` tests the same code with stand-ins. On a machine with both:
pytest -q tests/training/models/test_pretrained_libraries.py
"""

import pytest
import torch
from safetensors.torch import save_file

from calibrant.errors import InvalidInput
from calibrant.training import Recipe, train
from calibrant.training.data import Augmentation, Dataset, Images
from calibrant.training.models import build_model, expected_input
from calibrant.training.models.libraries import head_of

try:
    import timm
    import torchvision
except Exception as error:  # noqa: BLE001 (a build for another torch breaks in many ways)
    pytest.skip(f"timm and torchvision cannot be imported: {error}", allow_module_level=True)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
TIMM = ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050", "regnetx_002"]
TORCHVISION = ["resnet18", "mobilenet_v3_small", "squeezenet1_0", "vit_b_16", "convnext_tiny", "googlenet"]
NAMES = [f"timm:{name}" for name in TIMM] + [f"torchvision:{name}" for name in TORCHVISION]


def colours(n, side=20, channels=3):
    """Images whose class is their brightest third."""
    generator = torch.Generator().manual_seed(n)
    labels = torch.arange(n) % 3
    images = torch.randint(0, 120, (n, channels, side, side), generator=generator)
    for row, label in enumerate(labels.tolist()):
        images[row, :, label::3] += 100
    return Images(images.to(torch.uint8), labels)


@pytest.fixture(scope="module")
def data():
    return Dataset("colours", colours(150), colours(60), ("a", "b", "c"), (0.4,) * 3, (0.2,) * 3, Augmentation(1, True))


@pytest.mark.parametrize("name", NAMES)
def test_the_head_is_new_and_the_input_is_the_librarys(name):
    expected = expected_input(name)
    assert expected.size == ((176, 176) if name == "timm:resnet10t" else (224, 224))
    assert expected.mean == ((0.5,) * 3 if "vit_tiny" in name else (0.485, 0.456, 0.406))
    for channels in (1, 3):
        shape = (channels, 24, 32)
        model = build_model(name, n_classes=5, image_shape=shape, expected=expected).eval()
        with torch.no_grad():
            assert model(torch.rand(2, *shape)).shape == (2, 5)
    head = model.get_submodule(head_of(model))
    assert 5 in (getattr(head, "out_features", None), getattr(head, "out_channels", None))


@pytest.mark.parametrize("name", ["timm:resnet10t", "torchvision:resnet18"])
def test_weights_from_a_file_are_those_of_the_library_and_what_does_not_fit_is_one_line(name, tmp_path):
    source, _, short = name.partition(":")
    theirs = timm.create_model(short) if source == "timm" else torchvision.models.get_model(short)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    model = build_model(name, n_classes=3, image_shape=(3, 64, 64), weights=tmp_path / "weights.safetensors")
    head = head_of(model)
    for key, value in model.state_dict().items():
        assert key.startswith(head) or torch.equal(value, theirs.state_dict()[key]), key
    other = {"timm:resnet10t": "timm:resnet14t", "torchvision:resnet18": "torchvision:resnet34"}[name]
    with pytest.raises(InvalidInput, match=r"weights weights\.safetensors must hold .* of shape .*, got ") as caught:
        build_model(other, n_classes=3, image_shape=(3, 64, 64), weights=tmp_path / "weights.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["timm:resnet10t", "torchvision:resnet18"])
def test_fine_tuning_learns_and_its_run_is_read_again(name, device, data, tmp_path):
    recipe = Recipe().changed(
        {
            "epochs": 4,
            "model.name": name,
            "model.input": "model",
            "optimiser.batch_size": 30,
            "optimiser.lr": 0.02,
            "schedule.kind": "cosine",
            "engine.accelerator": device,
        }
    )
    run = train(recipe, tmp_path / "run", data=data)
    losses = [line["loss"] for line in run.epochs()]
    assert losses[-1] < losses[0]
    again = run.load_model()
    images = data.test.images.float() / 255
    with torch.no_grad():
        logits = again(images)
    # A GPU adds in another order, and its convolutions round.
    torch.testing.assert_close(logits, torch.tensor(run.predictions("test").logits), rtol=1e-2, atol=1e-2)


def test_names_and_weights_that_do_not_exist_are_one_line():
    for name, message in [
        ("timm:resnet10x", "model must be one of timm's classifiers, got 'resnet10x'. Did you mean"),
        ("timm:resnet10t?weights=DEFAULT", "weights of resnet10t must be pretrained"),
        (
            "timm:resnet10t.no_such_tag?weights=pretrained",
            "timm:resnet10t.no_such_tag?weights=pretrained cannot be made",
        ),
        ("torchvision:resnet18?weights=IMAGENET", "weights of resnet18 must be some that torchvision has"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            build_model(name, n_classes=3, image_shape=(3, 64, 64))
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_weights_that_are_neither_here_nor_to_be_had_give_the_true_reason_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody answers there
    name, file = "torchvision:resnet18?weights=DEFAULT", "resnet18-f37072fd.pth"
    with pytest.raises(InvalidInput, match=r"DEFAULT cannot be made \(URLError: .*\)\. Give a \.safetensors"):
        build_model(name, n_classes=3, image_shape=(3, 64, 64))
    for content in (b"", b"no weights", b"PK\x03\x04"):
        (tmp_path / "hub/checkpoints" / file).write_bytes(content)
        with pytest.raises(InvalidInput, match="cannot be made") as caught:
            build_model(name, n_classes=3, image_shape=(3, 64, 64))
        assert "\n" not in str(caught.value)
