"""Weights from a file, for any network."""

import pytest
import torch
from safetensors.torch import save_file

from calibrant.errors import InvalidInput
from calibrant.training.models import build_model
from calibrant.training.models.libraries import load_weights


def build(n_classes=3, **options):
    return build_model("tiny", n_classes=n_classes, image_shape=(3, 8, 8), **options)


@pytest.fixture
def theirs():
    """A network for three classes."""
    torch.manual_seed(0)
    return build()


def assert_taken(model, theirs, *, head):
    for name, value in model.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]) == (head or not name.startswith("head")), name


def test_a_head_that_fits_is_taken_and_another_stays_new(theirs, tmp_path):
    save_file(theirs.state_dict(), tmp_path / "three.safetensors")
    assert_taken(build(weights=tmp_path / "three.safetensors"), theirs, head=True)
    five = build(5, weights=tmp_path / "three.safetensors")
    assert five(torch.zeros(2, 3, 8, 8)).shape == (2, 5)
    backbone = {name: value for name, value in theirs.state_dict().items() if not name.startswith("head")}
    save_file(backbone, tmp_path / "backbone.safetensors")
    assert_taken(build(weights=tmp_path / "backbone.safetensors"), theirs, head=False)


def test_the_checkpoint_of_a_run_is_a_file_of_weights(theirs, tmp_path):
    tensors = {f"model.{name}": value for name, value in theirs.state_dict().items()}
    save_file({**tensors, "optimiser.0.momentum_buffer": torch.ones(3)}, tmp_path / "epoch-00003.safetensors")
    assert_taken(build(weights=tmp_path / "epoch-00003.safetensors"), theirs, head=True)


def test_counters_may_be_missing(theirs, tmp_path):
    state = {name: value for name, value in theirs.state_dict().items() if "num_batches" not in name}
    save_file(state, tmp_path / "w.safetensors")
    assert_taken(build(weights=tmp_path / "w.safetensors"), theirs, head=True)


def test_what_does_not_fit_is_one_line_and_changes_nothing(theirs, tmp_path):
    def refused(name, message):
        before = {key: value.clone() for key, value in theirs.state_dict().items()}
        with pytest.raises(InvalidInput, match=message) as caught:
            load_weights(theirs, tmp_path / name)
        assert "\n" not in str(caught.value)
        assert all(torch.equal(value, before[key]) for key, value in theirs.state_dict().items())

    state = theirs.state_dict()
    save_file({**state, "features.0.weight": torch.ones(2, 3)}, tmp_path / "shape.safetensors")
    refused(
        "shape.safetensors",
        r"weights shape\.safetensors must hold features\.0\.weight of shape \(\d+, 3, 3, 3\), got one of shape "
        r"\(2, 3\)\. Name the network",
    )
    save_file({"head.weight": state["head.weight"]}, tmp_path / "little.safetensors")
    refused("little.safetensors", r"must hold features\.0\.weight .* got none \(15 weights do not fit\)")
    torch.save(state, tmp_path / "weights.bin")
    refused("weights.bin", r"model\.weights must be a \.safetensors file, .* Formats that unpickle may run code")
    refused("missing.safetensors", r"model\.weights must be a file that exists")
    (tmp_path / "torn.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    refused("torn.safetensors", r"weights torn\.safetensors cannot be read")
