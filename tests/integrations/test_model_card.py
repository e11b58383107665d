"""A model card that the hub's own reader understands, and that keeps what a person wrote."""

import pytest

from calibrant import evaluate, samples
from calibrant.decisions import fit_policy
from calibrant.integrations.model_card import write_model_card

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def policy():
    return fit_policy(samples.load("cifar10-resnet32-nll", "val"), 0.99)


def test_the_card_says_what_was_measured(policy, tmp_path):
    test = samples.load("cifar10-resnet32-nll", "test")
    path = write_model_card(tmp_path / "small-net", test, policy=policy, dataset="CIFAR-10 test")
    card = hub.ModelCard.load(path)
    found = evaluate(policy.calibrate(test))
    results = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert results == pytest.approx({"accuracy": 1 - found.test_error, "ece": found.ece, "nll": found.nll}, abs=1e-6)
    assert {each.dataset_name for each in card.data.eval_results} == {"CIFAR-10 test"}
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.model_name == "small-net"
    raw = evaluate(test)
    assert f"| ECE | {raw.ece:.4f} | {found.ece:.4f} |" in card.text
    assert f"**Temperature {policy.calibrator.temperature_:.4f}**" in card.text
    assert policy.rule.note in card.text
    assert f"{policy.rule.automation_rate:.1%}" in card.text
    assert (path.parent / "reliability.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(each.name for each in path.parent.iterdir()) == ["README.md", "reliability.png"]


def test_what_a_person_wrote_stays(policy, tmp_path):
    (tmp_path / "README.md").write_text(
        "---\nlicense: mit\ntags:\n- mine\nmodel-index:\n- name: theirs\n  results:\n  - task:\n      type: x\n"
        "    dataset:\n      type: other\n      name: other\n    metrics:\n    - type: ece\n      value: 0.5\n---\n"
        "# Mine\nBy hand.\n"
    )
    test = samples.load("cifar10-resnet32-nll", "test")
    write_model_card(tmp_path, test, dataset="test")
    first = (tmp_path / "README.md").read_text()
    assert "What it may decide alone" not in first
    path = write_model_card(tmp_path, test, policy=policy, dataset="test")
    card = hub.ModelCard.load(path)
    assert (card.data.license, card.data.model_name) == ("mit", "theirs")
    assert card.data.tags == ["calibrant", "calibration", "mine"]
    assert sorted((each.dataset_name, each.metric_type) for each in card.data.eval_results) == [
        ("other", "ece"),
        ("test", "accuracy"),
        ("test", "ece"),
        ("test", "nll"),
    ]
    assert card.text.startswith("# Mine\nBy hand.\n")
    assert card.text.count("## How far its confidence can be trusted") == 1
    assert "What it may decide alone" in card.text
    again = path.read_text()
    write_model_card(tmp_path, test, policy=policy, dataset="test")
    assert path.read_text() == again
