"""Networks of transformers from folders that are made here."""

import json
import shutil

import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.training.models import ModelInput, build_model, expected_input
from calibrant.training.models.libraries import cover, head_of

transformers = pytest.importorskip("transformers")

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A small ViT for seven classes, and what its images must be like."""
    folder = tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=7)
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = {"size": {"height": 16, "width": 16}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5]}
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "rescale_factor": 1 / 255}))
    return folder


def build(folder, **options):
    torch.manual_seed(1)
    return build_model(f"transformers:{folder}", n_classes=3, image_shape=SHAPE, **options).eval()


def test_the_backbone_is_the_files_and_the_head_is_new(vit):
    model = build(vit)
    theirs = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    images = torch.rand(4, *SHAPE)
    features = []
    theirs.classifier.register_forward_pre_hook(lambda module, given: features.append(given[0]))
    theirs(images)
    head = model.get_submodule(head_of(model))
    assert head.out_features == 3
    torch.testing.assert_close(model(images), head(features[0]))
    # What is new follows from the generator alone.
    assert torch.equal(build(vit)(images), model(images))


def test_a_backbone_saved_without_a_head_gets_one(vit, tmp_path):
    transformers.ViTModel.from_pretrained(vit).save_pretrained(tmp_path)
    assert build(tmp_path)(torch.rand(2, *SHAPE)).shape == (2, 3)


def test_without_weights_only_the_architecture_is_read(vit, tmp_path):
    (tmp_path / "config.json").write_text((vit / "config.json").read_text())
    model = build(tmp_path, pretrained=False)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in build(vit).named_parameters()]


def test_images_get_the_size_and_the_normalisation_of_the_folder(vit):
    expected = expected_input(f"transformers:{vit}")
    assert expected == ModelInput((16, 16), (0.5, 0.4, 0.3), (0.2, 0.25, 0.5))
    fitted = build(vit, expected=expected)
    plain = build(vit)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (expected.mean, expected.std))
    images = torch.rand(4, *SHAPE)
    torch.testing.assert_close(fitted(images), plain((images - mean) / std))
    # Larger, not square: the middle of what covers the input. Grey: three channels, each with its own numbers.
    wide = torch.rand(2, 3, 24, 40)
    torch.testing.assert_close(fitted(wide), fitted(cover(wide, (16, 16))))
    torch.manual_seed(1)
    grey = build_model(f"transformers:{vit}", n_classes=3, image_shape=(1, 16, 16), expected=expected).eval()
    one = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(grey(one), plain((one.repeat(1, 3, 1, 1) - mean) / std))


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({}, ModelInput((16, 16))),
        ({"size": 20, "do_normalize": False}, ModelInput((20, 20))),
        ({"size": {"shortest_edge": 20}, "crop_size": {"height": 12, "width": 14}, "do_center_crop": True}, (12, 14)),
        # Pixels from -1 to 1 before the normalisation: 2x - 1 - 0.5, over 0.25.
        (
            {"rescale_factor": 2 / 255, "rescale_offset": True, "image_mean": [0.5], "image_std": [0.25]},
            ModelInput((16, 16), (0.75,), (0.125,)),
        ),
        ({"do_rescale": False, "image_mean": [51], "image_std": [255]}, ModelInput((16, 16), (0.2,), (1.0,))),
    ],
)
def test_every_way_of_stating_the_input(vit, tmp_path, processor, expected):
    (tmp_path / "config.json").write_text((vit / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    found = expected_input(f"transformers:{tmp_path}")
    if isinstance(expected, tuple):
        assert found.size == expected
        return
    assert found.size == expected.size
    for name in ("mean", "std"):
        assert getattr(found, name) == (getattr(expected, name) and pytest.approx(getattr(expected, name)))


def test_what_cannot_be_used_is_one_line(vit, tmp_path):
    def refused(folder, message):
        with pytest.raises(InvalidInput, match=message) as caught:
            build(folder)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "missing", "model must name a folder with a config.json, got transformers:")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    refused(pickled, "model must name a folder with a config.json")
    (pickled / "config.json").write_text((vit / "config.json").read_text())
    refused(pickled, "must hold its weights as safetensors, got no weights")
    torch.save({}, pickled / "pytorch_model.bin")
    refused(pickled, r"must hold its weights as safetensors, got pytorch_model\.bin\. Formats that unpickle")
    # The configuration of another network beside the weights.
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((vit / "model.safetensors").read_bytes())
    config = json.loads((vit / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    refused(other, r"weights transformers:.* must hold .*mlp.* of shape \(48,?.*\), got one of shape \(32")
    (other / "config.json").write_text(json.dumps({"model_type": "no_such_network"}))
    refused(other, "cannot be read as a classifier of images")


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({}, None),  # a network of the library's own: its code is taken instead
        ({"model_type": "unheard_of"}, r"names code of its own \(auto_map\), and such code is never run"),
        ({"model_type": "bert"}, r"names code of its own \(auto_map\), and such code is never run"),
        ({"attn_implementation": "somebody/kernel"}, None),
        ({"_attn_implementation": "somebody/kernel"}, None),
        ({"experts_implementation": "somebody/kernel"}, None),
        ({"dtype": "__import__"}, "cannot be read as a classifier of images: module 'torch' has no attribute"),
    ],
)
def test_code_beside_valid_weights_is_never_run(vit, tmp_path, change, refusal, pretrained):
    """The folder is complete, and whichever of its Python files is imported leaves a mark."""
    shutil.copytree(vit, tmp_path, dirs_exist_ok=True)
    mark = tmp_path / "mark"
    for name in ("__init__.py", "modeling_x.py"):
        code = f"open({str(mark)!r}, 'w')\nfrom transformers import ViTConfig as C, ViTForImageClassification as M\n"
        (tmp_path / name).write_text(code)
    kinds = {"AutoConfig": "C", "AutoModel": "M", "AutoModelForImageClassification": "M", "AutoImageProcessor": "M"}
    named = {"auto_map": {kind: f"modeling_x.{name}" for kind, name in kinds.items()}}
    for name, more in (("config.json", change), ("preprocessor_config.json", {})):
        content = json.loads((vit / name).read_text())
        (tmp_path / name).write_text(json.dumps(content | named | more))
    assert expected_input(f"transformers:{tmp_path}") == expected_input(f"transformers:{vit}")
    if refusal is None:
        build(tmp_path, pretrained=pretrained)
    else:
        with pytest.raises(InvalidInput, match=refusal) as caught:
            build(tmp_path, pretrained=pretrained)
        assert "\n" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    "processor",
    [
        {"image_std": [0.5, 0.0, 0.5]},
        {"image_std": [0.5, -0.5, 0.5]},
        {"image_mean": [float("inf"), 0.5, 0.5]},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": "half"},
        {"image_mean": 5},
        {"rescale_factor": 0},
        {"rescale_factor": "none"},
        {"size": {"height": 10**9, "width": 10**9}},
    ],
)
def test_images_that_a_damaged_folder_asks_for_are_refused_in_one_line(tmp_path, processor):
    usual = {"size": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(usual | processor))
    with pytest.raises(InvalidInput) as caught:
        expected_input(f"transformers:{tmp_path}")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("path", ["/no/such/place", "./nothing", "no/such/place"])
def test_a_path_that_is_not_there_is_one_line_before_the_network_is_built(path):
    with pytest.raises(InvalidInput, match=rf"transformers:{path}") as caught:
        expected_input(f"transformers:{path}")
    assert "\n" not in str(caught.value)
