import csv
import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from calibrant import Predictions, samples
from calibrant.calibration import METHODS, make_calibrator
from calibrant.decisions import Policy, RoutingRule, choose_shortlist, choose_threshold, fit_policy, route_file
from calibrant.deployment import Decider, DecisionLog, export_onnx
from calibrant.deployment.networks import InputSpec, weights_digest
from calibrant.deployment.onnx_file import SEAL, Contents, sealed
from calibrant.errors import CheckFailed, InvalidInput
from tests.deployment.conftest import with_rule

NAME = "cifar10-resnet32-nll"


@pytest.fixture(scope="module")
def val():
    return samples.load(NAME, "val").split(0.2)


@pytest.fixture(scope="module")
def test():
    return samples.load(NAME)


def fitted(method, val, test):
    """A policy of a calibrator, a rule and a shortlist."""
    calibrator = make_calibrator(method).fit(val[0])
    rule = choose_threshold(calibrator(val[1]), 0.97)
    return Policy(10, calibrator, rule, choose_shortlist(calibrator(test.subset(np.arange(3000))), rule=rule))


@pytest.fixture(scope="module")
def exported(val, test, tmp_path_factory):
    """CIFAR-10 logits as the input of a network that changes nothing, with a temperature."""
    folder = tmp_path_factory.mktemp("decider")
    policy = fitted("temperature", val, test)
    example = torch.from_numpy(test.logits[:1000].astype(np.float32))
    options = {"example": example, "ranges": {"inputs": (-60, 60)}}
    written = export_onnx(nn.Identity(), folder / "model.onnx", policy=policy, **options)
    assert (written.cases, written.decisions_differ) == (1000, 0)
    assert 500 < written.automated < 1000
    return folder / "model.onnx", policy


def around(model, policy, log=None):
    """A decider around a module that takes ten numbers or as many as there are classes."""
    inputs = (InputSpec("inputs", "float32", (policy.n_classes,), -60.0, 60.0),)
    contents = Contents(inputs=inputs, network=weights_digest(model), policy=policy)
    return Decider(contents, lambda arrays: model(torch.from_numpy(arrays["inputs"])).detach().numpy(), log=log)


@pytest.mark.parametrize("method", METHODS)
def test_every_calibrator_decides_in_the_file_as_in_python(method, val, test, tmp_path):
    policy = fitted(method, val, test)
    rows = test.logits.astype(np.float32)
    path = tmp_path / "model.onnx"
    example = torch.from_numpy(rows[:500])
    export_onnx(nn.Identity(), path, example=example, ranges={"inputs": (-60, 60)}, policy=policy)
    expected = policy.calibrator(test)
    routed, listed = policy.rule.route(expected), policy.shortlist.listed(expected)
    assert 0 < routed.automate.sum() < len(rows)
    decisions = Decider.load(path).decide(rows)
    assert [each.automate for each in decisions] == routed.automate.tolist()
    assert [each.predicted for each in decisions] == routed.predicted.tolist()
    assert [each.confidence for each in decisions] == routed.confidence.tolist()
    # Any other runtime gets the same from the file alone.
    names = ["probabilities", "predicted", "automate", "shortlist"]
    probabilities, predicted, automate, lists = onnxruntime.InferenceSession(str(path)).run(names, {"inputs": rows})
    np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-6)
    assert (predicted == routed.predicted).all()
    assert (automate == routed.automate).all()
    assert (lists == listed & ~routed.automate[:, None]).all()


def test_decisions_and_lists_are_those_of_route_apply(exported, test, tmp_path):
    path, policy = exported
    ids = [f"image {i}" for i in range(len(test))]
    source, target = tmp_path / "new.npz", tmp_path / "decisions.csv"
    Predictions.from_logits(test.logits, test.targets, ids=ids, class_names=test.class_names).save(source)
    route_file(policy, source, target)
    decider = Decider.load(path)
    said = [each.to_dict(decider.class_names) for each in decider.decide(test.logits.astype(np.float32), ids=ids)]
    with target.open() as lines:
        for row, ours in zip(csv.DictReader(lines), said, strict=True):
            assert row["id"] == ours["id"]
            assert row["decision"] == ours["decision"]
            assert row["class"] == ours["class"]
            assert float(row["confidence"]) == ours["confidence"]
            assert json.loads(row["shortlist"] or "[]") == ours["shortlist"]


def test_a_torch_module_a_batch_and_a_single_case_agree(exported, test):
    path, policy = exported
    rows = test.logits[:200].astype(np.float32)
    from_file = Decider.load(path)
    from_torch = around(nn.Identity(), policy)
    assert from_torch.contents.network == from_file.contents.network
    assert from_torch.policy.digest == from_file.policy.digest == policy.digest
    ids = [str(i) for i in range(200)]
    batch = from_file.decide(rows, ids=ids)
    assert from_torch.decide(torch.from_numpy(rows), ids=ids) == batch
    assert from_torch.decide({"inputs": rows.tolist()}, ids=ids) == batch
    assert [from_file.decide(rows[i : i + 1], ids=[str(i)])[0] for i in range(20)] == batch[:20]
    reasons = {each.decision: each.reason for each in batch}
    assert "reaches the threshold" in reasons["auto"]
    assert "is below the threshold" in reasons["review"]
    assert len({each.id for each in from_file.decide(rows)}) == 200


def test_reasons():
    each = RoutingRule(threshold=None, n_classes=2, class_thresholds=(0.5, None), class_names=("cat", "dog"))
    (never,) = around(nn.Identity(), with_rule(each)).decide([[0.0, 5.0]])
    assert never.reason == "The rule never automates dog."
    for policy in (Policy(2), with_rule(RoutingRule(threshold=None, n_classes=2))):
        (decision,) = around(nn.Identity(), policy).decide([[0.0, 5.0]])
        assert decision.reason == "No rule promises anything, so a person decides."
        assert not decision.automate
    saturated = with_rule(RoutingRule(threshold=0.999999, n_classes=2, class_names=("cat", "dog")))
    below, above = around(nn.Identity(), saturated).decide([[0.0, 11.0], [0.0, 20.0]])
    assert below.reason.startswith("The probability 0.99998329")
    assert below.reason.endswith(" of dog is below the threshold 0.999999.")
    assert above.reason.startswith("The probability 0.99999999")
    assert above.reason.endswith(" of dog reaches the threshold 0.999999.")


def test_what_the_model_was_not_exported_for_is_refused(exported):
    decider = Decider.load(exported[0])
    row = [0.0] * 10
    for inputs, message in [
        ([row[:9]], r"input 'inputs' must be numbers in rows of the shape \(n, 10\), got a row of 9"),
        (row, r"rows of the shape \(n, 10\), got float"),
        ([row, row[:9]], "got a row of 9"),
        ([["a"] * 10], "got str"),
        ([[None] * 10], "got NoneType"),
        ([[True] * 10], "got bool"),
        ([], r"the shape \(n, 10\)"),
        (np.zeros((0, 10), dtype=np.float32), "hold at least one case"),
        ([row, [*row[:9], 61.0]], "input 'inputs' of case 1 must lie in -60 to 60, which the model was exported"),
        ([[*row[:9], float("nan")]], "input 'inputs' of case 0 must be finite, got nan"),
        ([[*row[:9], 1e60]], "must be finite, got inf"),
        ({"input": [row]}, r"inputs must be given by name \(inputs\), got input"),
        ({}, r"inputs must be given by name \(inputs\), got none"),
    ]:
        with pytest.raises(InvalidInput, match=message) as caught:
            decider.decide(inputs)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="ids must be as many as the 1 cases"):
        decider.decide([row], ids=["a", "b"])


def test_the_file_itself_never_automates_what_it_was_not_exported_for(exported):
    far = np.zeros((2, 10), dtype=np.float32)
    far[:, 3] = [59.0, 61.0]
    automate, listed = onnxruntime.InferenceSession(str(exported[0])).run(["automate", "shortlist"], {"inputs": far})
    assert automate.tolist() == [True, False]
    assert listed.nonzero()[0].tolist() == [1]


def test_a_file_that_automates_nothing_where_the_rule_does_is_not_written(test, tmp_path):
    policy = with_rule(RoutingRule(threshold=0.9, n_classes=10))
    example = torch.from_numpy(test.logits[:100].astype(np.float32))
    with pytest.raises(CheckFailed, match=r"the rule automates \d+ of 100 cases and the file none: the cases lie outs"):
        export_onnx(nn.Identity(), tmp_path / "m.onnx", example=example, policy=policy, ranges={"inputs": (0, 0.001)})
    assert not list(tmp_path.iterdir())
    # Where the cases say nothing about what is automated, that is said.
    written = export_onnx(nn.Identity(), tmp_path / "m.onnx", example=0.01 * example, policy=policy)
    assert "the rule automates none of them" in written.describe()


def test_a_file_that_was_changed_is_refused(exported, tmp_path):
    content = exported[0].read_bytes()
    rng = np.random.default_rng(0)
    changed = tmp_path / "changed.onnx"
    for at in rng.integers(0, len(content), 40).tolist():
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        changed.write_bytes(bytes(damaged))
        with pytest.raises(InvalidInput, match=r"changed\.onnx must be an undamaged file|by this calibrant"):
            Decider.load(changed)
    for other in (b"", content[:-1], content + b"\0", content + content):
        changed.write_bytes(other)
        with pytest.raises(InvalidInput, match=r"undamaged|written by this calibrant"):
            Decider.load(changed)
    with pytest.raises(InvalidInput, match="does not exist"):
        Decider.load(tmp_path / "missing.onnx")


@pytest.mark.parametrize("place", ["secret", "folder/../secret", "/etc/hostname"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_file_that_reads_other_files_is_refused(exported, tmp_path, monkeypatch, place, swapped):
    """onnxruntime would read the numbers of such a tensor from a file of the working directory."""
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret").write_bytes(np.arange(10, dtype=np.float32).tobytes())
    model = onnx.load(exported[0])
    tensor = model.graph.initializer.add()
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(10, dtype=np.float32), "outside"))
    onnx.external_data_helper.set_external_data(tensor, place)
    tensor.ClearField("raw_data")
    model.graph.output.append(onnx.helper.make_tensor_value_info("outside", onnx.TensorProto.FLOAT, [10]))
    for entry in model.metadata_props:
        if entry.key == SEAL:
            entry.value = "0" * 64
    content = model.SerializeToString()
    if swapped:  # protobuf reads the fields of an entry in any order
        key, value = b"\x0a\x08location", bytes([0x12, len(place)]) + place.encode()
        assert content.count(key + value) == 1
        content = content.replace(key + value, value + key)
    (tmp_path / "other.onnx").write_bytes(sealed(content))
    with pytest.raises(InvalidInput, match=r"other.onnx cannot be run by onnxruntime.*[Ee]xternal data"):
        Decider.load(tmp_path / "other.onnx")


def test_an_input_may_have_any_name(tmp_path):
    class Network(nn.Linear):
        def forward(self, location):
            return super().forward(location)

    rows = torch.rand(50, 3)
    export_onnx(Network(3, 2), tmp_path / "model.onnx", example={"location": rows}, policy=Policy(2))
    assert len(Decider.load(tmp_path / "model.onnx").decide({"location": rows})) == 50


def test_decisions_are_logged_before_they_are_answered(exported, test, val, tmp_path):
    path, policy = exported
    place = tmp_path / "decisions.db"
    decider = Decider.load(path, log=place)
    rows = test.logits[:20].astype(np.float32)
    facts = [{"site": "north" if i % 2 else "south"} for i in range(20)]
    decisions = decider.decide(rows, ids=[str(i) for i in range(20)], extras=facts)
    with DecisionLog(place) as log:
        (block,) = log.decisions()
        assert block.confidence.tolist() == [each.confidence for each in decisions]
        assert block.shortlists == [each.shortlist for each in decisions]
        assert block.extras["site"].tolist() == [each["site"] for each in facts]
        assert list(log.policies()) == [block.policy[0]] == [policy.digest]
        assert log.class_names == test.class_names
    with pytest.raises(InvalidInput, match="id '3' was decided before"):
        decider.decide(rows[:1], ids=["3"])
    # A renewed policy, with another temperature, too, continues the same log; another network does not.
    renewed = fit_policy(val[1], 0.9)
    around(nn.Identity(), renewed, place).decide(rows[:1], ids=["new"])
    with DecisionLog(place) as log:
        assert list(log.policies()) == [policy.digest, renewed.digest]
    with pytest.raises(InvalidInput, match="decision log must be one of the model"):
        around(nn.Linear(10, 10), renewed, place)
    with DecisionLog(place) as log, pytest.raises(InvalidInput, match="log must be one of the model"):
        around(nn.Linear(10, 10), renewed, log)


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, mask):
        kept = mask.unsqueeze(-1).float()
        return self.head((self.table(input_ids) * kept).sum(1) / kept.sum(1).clamp(min=1.0))
"""


def test_the_command_exports_a_module_of_your_own(calibrant, own_module, tmp_path, monkeypatch):
    own_module("mine", OWN, trusted=False)
    monkeypatch.syspath_prepend(tmp_path)
    import mine

    torch.manual_seed(0)
    network = mine.Net().eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 40, (300, 6)), (rng.random((300, 6)) < 0.8).astype(np.int64)
    np.savez(tmp_path / "rows.npz", input_ids=ids, mask=mask)
    with torch.no_grad():
        logits = network(torch.from_numpy(ids), torch.from_numpy(mask))
    rule = RoutingRule(threshold=float(logits.softmax(1).amax(1).median()) + 1e-5, n_classes=3)
    with_rule(rule).save(tmp_path / "policy.json")
    given = ["--model", "mine:Net", "--weights", tmp_path / "w.safetensors", "--example", tmp_path / "rows.npz"]
    code, out, err = calibrant("export", *given, "--policy", tmp_path / "policy.json", "-o", tmp_path / "m.onnx",
                               "--range", "input_ids=0:49", "--json")  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out)["decisions_differ"] == 0
    assert json.loads(out)["automated"] == 150
    decider = Decider.load(tmp_path / "m.onnx")
    decisions = decider.decide({"input_ids": ids, "mask": mask})
    assert [each.automate for each in decisions] == rule.route(logits.softmax(1)).automate.tolist()
    # A token that the table has not is refused.
    ids[0, 0] = 50
    with pytest.raises(InvalidInput, match="input 'input_ids' of case 0 must lie in 0 to 49"):
        decider.decide({"input_ids": ids, "mask": mask})
    # The file itself leaves it to a person without a crash.
    assert not onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["automate"], {"input_ids": ids, "mask": mask})[0][
        0
    ]
    for arguments, message in [
        (["--model", "mine:Nothing", "-o", "x.onnx"], "name a function or class"),
        ([*given[:2], "--weights", tmp_path / "none", "-o", "x.onnx"], "does not exist"),
        ([*given, "--range", "mask=0:1_000", "-o", "x.onnx"], "range must be written as name=low:high"),
        ([*given, "--range", "mask=0:\N{ARABIC-INDIC DIGIT THREE}", "-o", "x.onnx"], "range must be written"),
        ([*given[:2], "--weights", tmp_path / "policy.json", "-o", "x.onnx"], "be a .safetensors file"),
        (given, "--example and --out must be given"),
        ([*given, "-o", tmp_path / "w.safetensors"], "which is read here"),
    ]:
        code, _, err = calibrant("export", *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    shutil.copy(tmp_path / "policy.json", tmp_path / "text.npz")
    code, _, err = calibrant("export", *given[:2], "--example", tmp_path / "text.npz", "-o", "x.onnx")
    assert (code, err.count("\n")) == (2, 1)
