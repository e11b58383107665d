import dataclasses
import json
import math

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from calibrant import Predictions
from calibrant.calibration import METHODS, TemperatureScaling, make_calibrator
from calibrant.decisions import Policy, RoutingRule, choose_shortlist, choose_threshold
from calibrant.decisions.ranking import rank
from calibrant.deployment import Decider, export_onnx, normalised
from calibrant.deployment.onnx_export import compare_onnx
from calibrant.deployment.onnx_file import SCORES, open_onnx
from calibrant.errors import CheckFailed, InvalidInput


class Small(nn.Module):
    """Convolution, batch norm, dropout: what must be in evaluation mode."""

    def __init__(self, classes=10, channels=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Dropout(0.1)
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


@pytest.fixture(scope="module")
def digits():
    return torch.tensor(load_digits().images[:1000] / 16.0, dtype=torch.float32)[:, None]


@pytest.fixture(scope="module")
def trained(digits):
    """A few steps, so that confidences spread over 0..1."""
    torch.manual_seed(0)
    model, targets = Small(), torch.tensor(load_digits().target[:1000])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model((digits - 0.3) / 0.37), targets).backward()
        optimiser.step()
    return model.eval()


OUTPUTS = ("probabilities", "predicted", "automate")
RULE = RoutingRule(threshold=0.85, n_classes=10, target_accuracy=0.9, confidence=0.95, class_names=tuple("abcdefghij"))
POLICY = Policy(10, TemperatureScaling.known(2.6, 10), RULE)


@pytest.fixture(scope="module")
def exported(trained, digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    check = export_onnx(normalised(trained, mean=[0.3], std=[0.37]), path, example=digits[:16], policy=POLICY)
    return path, check


def run(path, images):
    return onnxruntime.InferenceSession(str(path)).run(list(OUTPUTS), {"images": images.numpy()})


def test_a_thousand_digits_equal_pytorch(exported, trained, digits):
    path, check = exported
    probabilities, predicted, automate = run(path, digits)
    with torch.no_grad():
        logits = trained((digits - 0.3) / 0.37).double()
    expected = torch.softmax(logits / 2.6, dim=1).numpy()
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert (predicted == expected.argmax(axis=1)).all()
    clear = np.abs(expected.max(axis=1) - 0.85) > 1e-5
    assert (automate == (expected.max(axis=1) >= 0.85))[clear].all()
    assert 50 < automate.sum() < 950
    assert check.cases == 16
    assert check.largest_difference <= 1e-5


def test_decides_as_the_rule_does(exported, trained, digits):
    with torch.no_grad():
        routed = POLICY.decide(trained((digits - 0.3) / 0.37), "logits")
    _, predicted, automate = run(exported[0], digits)
    assert (predicted == routed.predicted).all()
    clear = np.abs(routed.confidence - 0.85) > 1e-5
    assert (automate == routed.automate)[clear].all()


@pytest.mark.parametrize("n", [1, 3, 100])
def test_any_batch_size(exported, digits, n):
    assert [len(output) for output in run(exported[0], digits[:n])] == [n] * 3


def test_names_and_types_and_metadata(exported):
    model = onnx.load(exported[0])
    assert [each.name for each in model.graph.input] == ["images"]
    assert tuple(each.name for each in model.graph.output) == (*OUTPUTS, SCORES)
    kinds = [each.type.tensor_type.elem_type for each in model.graph.output]
    assert kinds == [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT]
    facts = {each.key: each.value for each in model.metadata_props}
    policy = Policy.from_dict(json.loads(facts["calibrant.contents"])["policy"])
    assert policy.digest == POLICY.digest
    assert policy.class_names == tuple("abcdefghij")


def test_class_thresholds_and_nothing_to_automate(trained, digits, tmp_path):
    each = (0.5, None, *[0.9] * 8)
    rule = RoutingRule(threshold=None, n_classes=10, class_thresholds=each)
    export_onnx(trained, tmp_path / "each.onnx", example=digits[:8], policy=Policy(10, rule=rule))
    probabilities, predicted, automate = run(tmp_path / "each.onnx", digits)
    bars = np.array([math.inf if value is None else value for value in each])[predicted]
    assert (automate == (probabilities.max(axis=1) >= bars)).all()
    export_onnx(trained, tmp_path / "none.onnx", example=digits[:8])
    assert not run(tmp_path / "none.onnx", digits)[2].any()


def test_images_off_the_scale_are_never_automated(exported, digits):
    images = digits[:200].clone()
    automated = run(exported[0], images)[2]
    assert automated.sum() > 20
    # The usual mistake, raw bytes: the network is surer than ever.
    probabilities, _, automate = run(exported[0], 255 * images)
    assert (probabilities.max(axis=1) >= 0.85).mean() > 0.9
    assert not automate.any()
    one_pixel = images.clone()
    one_pixel[:, 0, 3, 3] = float("nan")
    assert not run(exported[0], one_pixel)[2].any()
    # Rounding of a resized image is no mistake.
    one_pixel[:, 0, 3, 3] = 1.0005
    assert run(exported[0], one_pixel)[2].any()


def test_a_pixel_that_is_no_number_is_never_automated_wherever_it_lies(digits, tmp_path):
    """A network whose pooling drops NaN in some runtimes: the guard must not rely on it."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32, 10))
    rule = RoutingRule(threshold=0.05, n_classes=10)
    export_onnx(network, tmp_path / "m.onnx", example=digits[:8], policy=Policy(10, rule=rule))
    assert run(tmp_path / "m.onnx", digits[:8])[2].all()
    images = digits[:1].repeat(64, 1, 1, 1)
    images.view(64, 64)[torch.arange(64), torch.arange(64)] = float("nan")
    assert not run(tmp_path / "m.onnx", images)[2].any()


def test_thresholds_are_compared_in_double_precision(tmp_path):
    """A threshold between two float32 numbers, and confidences a billionth on either side of it."""
    threshold = 0.1 + 0.7
    logits = np.log((threshold + np.array([-1e-9, 1e-9])) / (1 - threshold - np.array([-1e-9, 1e-9])))
    example = torch.tensor(np.stack([logits, np.zeros(2)], axis=1))
    export_onnx(nn.Identity(), tmp_path / "m.onnx", example=example, policy=Policy(2, rule=RoutingRule(threshold, 2)))
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    assert session.run(["automate"], {"inputs": example.numpy()})[0].tolist() == [False, True]


def test_a_threshold_of_one_automates_no_confidence_just_below(tmp_path):
    """Confidences of a saturated model lie within 1e-12 of 1, and a rule may automate those of exactly 1 alone."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        net[1].weight[:] = torch.tensor([[100.0], [0.0]])
    path, policy = tmp_path / "m.onnx", Policy(2, rule=RoutingRule(1.0, 2))
    images = torch.tensor([0.2, 0.3, 0.34, 0.5, 0.9]).reshape(-1, 1, 1, 1)
    export_onnx(net, path, example=images, policy=policy)
    with torch.no_grad():
        expected = policy.decide(net(images), "logits").automate
    assert expected.tolist() == [False, False, False, True, True]
    assert run(path, images)[2].tolist() == expected.tolist()


def overconfident(n, classes, seed):
    rng = np.random.default_rng(seed)
    truth = 5.0 * rng.normal(size=(n, classes))
    targets = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return Predictions.from_logits(2.0 * truth + np.eye(classes)[0], targets)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("method", METHODS)
def test_the_file_decides_as_the_policy_with_every_calibrator(tmp_path, method, classes, dtype):
    """Ordinary, saturated and tied scores, among them those that the rule was chosen on."""
    calibrator = make_calibrator(method).fit(overconfident(600, classes, 0))
    chosen_on = overconfident(2000, classes, 1)
    policy = Policy(classes, calibrator)
    policy = policy.with_rule(choose_threshold(policy.calibrate(chosen_on), 0.97))
    shortlist = choose_shortlist(policy.calibrate(overconfident(500, classes, 2)), 0.9, rule=policy.rule)
    policy = dataclasses.replace(policy, shortlist=shortlist)
    eye = 1000.0 * np.eye(classes)
    scores = np.vstack([chosen_on.scores[:700], 30 * chosen_on.scores[:50], eye, -eye, 0 * eye]).astype(dtype)
    ranges = {"inputs": (-2000, 2000)}
    written = export_onnx(
        nn.Identity(), tmp_path / "m.onnx", policy=policy, example=torch.from_numpy(scores), ranges=ranges
    )
    assert written.decisions_differ == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    outputs = [*OUTPUTS, SCORES, "shortlist"]
    probabilities, predicted, automate, raw, listed = session.run(outputs, {"inputs": scores})
    expected = policy.probabilities(scores, "logits")
    routed = policy.decide(scores, "logits")
    np.testing.assert_allclose(probabilities, expected, atol=1e-7)
    np.testing.assert_array_equal(predicted, routed.predicted)
    np.testing.assert_array_equal(automate, routed.automate)
    np.testing.assert_array_equal(listed, policy.listed(expected, routed.automate))
    np.testing.assert_array_equal(raw, scores)
    assert 0 < automate.sum() < len(scores)


@pytest.mark.parametrize("score", ["margin", "entropy", "pnorm2", "pnorm4"])
def test_the_file_and_the_decider_rank_as_the_policy_with_every_score(tmp_path, score):
    """Ordinary, saturated and tied scores; the threshold is the score of one of them."""
    chosen_on = overconfident(1000, 5, 1)
    calibrator = TemperatureScaling.known(2.0, 5)
    ranks = rank(score, calibrator(chosen_on).probabilities)
    policy = Policy(5, calibrator, RoutingRule(float(np.sort(ranks)[400]), 5, score=score))
    cases = policy.calibrate(overconfident(500, 5, 2))
    policy = dataclasses.replace(policy, shortlist=choose_shortlist(cases, 0.9, rule=policy.rule))
    eye = 1000.0 * np.eye(5)
    scores = np.vstack([chosen_on.scores, 30 * chosen_on.scores[:50], eye, -eye, 0 * eye]).astype(np.float32)
    example, ranges = torch.from_numpy(scores), {"inputs": (-2000, 2000)}
    written = export_onnx(nn.Identity(), tmp_path / "m.onnx", policy=policy, example=example, ranges=ranges)
    assert written.decisions_differ == 0
    routed = policy.decide(scores, "logits")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    automate, listed = session.run(["automate", "shortlist"], {"inputs": scores})
    np.testing.assert_array_equal(automate, routed.automate)
    np.testing.assert_array_equal(listed, policy.listed(policy.probabilities(scores, "logits"), routed.automate))
    assert 0 < automate.sum() < len(scores)
    decisions = Decider.load(tmp_path / "m.onnx").decide(scores)
    assert [decision.automate for decision in decisions] == routed.automate.tolist()
    words = {True: "reaches the threshold", False: "is below the threshold"}
    first = decisions[0]
    assert first.reason.startswith(f"The score {score} of {routed.ranking[0]:.4f} {words[first.automate]}")


def test_a_score_of_ones_own_is_not_exported(tmp_path):
    policy = Policy(3, rule=RoutingRule(0.5, 3, score=lambda probabilities: probabilities[:, 0]))
    with pytest.raises(InvalidInput, match="policy must rank by a score that can be computed"):
        export_onnx(nn.Identity(), tmp_path / "m.onnx", policy=policy, example=torch.eye(3))


def test_a_file_that_computes_something_else_is_refused(exported, trained, digits):
    contents, _ = open_onnx(exported[0])
    with pytest.raises(CheckFailed, match="ONNX and Python disagree, probabilities differ by up to"):
        compare_onnx(exported[0], contents, trained(digits[:50]).detach().numpy(), {"images": digits[:50].numpy()})


def test_a_failed_check_leaves_what_was_there(trained, digits, tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_text("before")
    monkeypatch.setattr("calibrant.deployment.onnx_export._TOLERANCE", -1.0)
    with pytest.raises(CheckFailed):
        export_onnx(trained, tmp_path / "model.onnx", example=digits[:8])
    assert (tmp_path / "model.onnx").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": Policy(3)}, "policy must"),
        ({"example": torch.zeros(1, 1, 8, 8)}, "example must"),
        ({"example": torch.zeros(4, 1, 8, 8, dtype=torch.uint8)}, "input 'inputs' must be one of float32"),
        ({"example": torch.full((4, 1, 8, 8), torch.nan)}, "example of 'images' must hold finite numbers"),
        ({"example": torch.zeros(4, 1, 3)}, "model must take its example"),
        ({"model": nn.Flatten(0)}, "model must give logits of shape"),
        ({"ranges": {"image": (0, 1)}}, "ranges must name inputs of the model, got 'image'. Did you mean 'images'"),
        ({"ranges": {"images": (1, 0)}}, "range of input 'images' must be two finite numbers that rise"),
        ({"class_names": ["a", "b"]}, "class_names"),
        ({"policy": POLICY, "class_names": tuple("bacdefghij")}, "same classes in the same order"),
    ],
)
def test_bad_arguments(trained, digits, tmp_path, arguments, message):
    with pytest.raises(InvalidInput, match=message):
        export_onnx(path=tmp_path / "model.onnx", **{"model": trained, "example": digits[:4], **arguments})


def test_bad_ending(trained, digits, tmp_path):
    with pytest.raises(InvalidInput, match=r"end in \.onnx"):
        export_onnx(trained, tmp_path / "model.pt", example=digits[:4])
