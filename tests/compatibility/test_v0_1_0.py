"""Files that 0.1.0 wrote are read by today's code and mean the same; v0.1.0/README.md says how they were made."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.calibration import Calibrator
from calibrant.decisions import RoutingRule, Shortlist, check_promise
from calibrant.deployment import rule_digest
from calibrant.pruning import load_audit
from calibrant.studies import Study, StudySpec, read_records
from calibrant.training import Recipe, Run, flatten, resume

HERE = Path(__file__).parent / "v0.1.0"
EXPECTED = json.loads((HERE / "expected.json").read_text())
# Sums of float32 logits may differ in the last digits between processors; a changed format differs in the first.
CLOSE = {"rel": 1e-6, "abs": 1e-9}


def files(folder):
    """Names below a folder; a missing folder is a mistake, not an empty list of tests."""
    found = sorted(path.name for path in (HERE / folder).iterdir() if path.name != "shortlist.json")
    assert found
    return found


@pytest.fixture
def copy(tmp_path):
    """`copy("runs/finished")`: the folder where it may be written to."""
    return lambda name: Path(shutil.copytree(HERE / name, tmp_path / name))


@pytest.fixture
def cases():
    return Predictions.load(HERE / "runs/finished/predictions/test.npz")


def same_numbers(found, expected):
    """Every number that 0.1.0 noted is there under its name; today's code may give more."""
    for name, value in expected.items():
        if name == "thresholds":
            for now, then in zip(found[name], value, strict=True):
                same_numbers(now, then)
        else:
            assert found[name] == (pytest.approx(value, **CLOSE) if isinstance(value, float) else value), name


def test_every_file_is_tested():
    """A file that is added here without its number would be tested by nothing."""
    assert files("predictions") == sorted(EXPECTED["predictions"])
    assert files("calibrators") == sorted(f"{name}.json" for name in EXPECTED["calibrators"])
    assert files("rules") == sorted(f"{name}.json" for name in EXPECTED["rules"])
    assert files("records") == sorted(EXPECTED["records"])


@pytest.mark.parametrize("name", files("predictions"))
@pytest.mark.parametrize("mmap", [False, True])
def test_predictions(name, mmap):
    expected = EXPECTED["predictions"][name]
    found = Predictions.load(HERE / "predictions" / name, kind="logits" if name == "scores.npz" else None, mmap=mmap)
    assert (found.kind, found.precision) == (expected["kind"], expected["precision"])
    assert (None if found.class_names is None else list(found.class_names)) == expected["class_names"]
    assert (None if found.ids is None else found.ids.tolist()) == expected["ids"]
    assert found.targets.tolist() == expected["targets"]
    assert found.scores[0].astype(float).tolist() == expected["first_scores"]
    assert found.confidence.tolist() == pytest.approx(expected["confidence"], **CLOSE)
    same_numbers(evaluate(found, n_bins=10, thresholds=(0.5, 0.95)).to_dict(), expected["evaluation"])


@pytest.mark.parametrize("name", files("calibrators"))
def test_calibrators(name, cases):
    calibrator = Calibrator.load(HERE / "calibrators" / name)
    probabilities = calibrator.transform(np.array(cases.logits[:5], dtype=np.float64))
    np.testing.assert_allclose(probabilities, EXPECTED["calibrators"][Path(name).stem], rtol=1e-9)


@pytest.mark.parametrize("name", files("rules"))
def test_rules(name, cases):
    expected = EXPECTED["rules"][Path(name).stem]
    rule = RoutingRule.load(HERE / "rules" / name)
    thresholds = None if rule.class_thresholds is None else list(rule.class_thresholds)
    assert (rule.threshold, thresholds, rule.temperature, rule.note) == (
        expected["threshold"],
        expected["class_thresholds"],
        expected["temperature"],
        expected["note"],
    )
    routed = rule.route_logits(cases.logits)
    assert np.flatnonzero(routed.automate).tolist() == expected["automated"]
    if expected["checked"] is not None:
        groups = check_promise(rule, cases).groups
        assert [[group.automated, group.errors] for group in groups] == expected["checked"]


# Noted at 627c1d4: decision logs keep the digests of the rules that decided, for ever.
DIGESTS = {
    "costs": "4fea40b758c3a797fdc37543b8bd5c4a1a55c7fb629b3f4055ab05c6b8051d15",
    "plain": "7149be4efc4053680822c2d8e5dd686a7cda1c3d73056259801581e090d0f2d7",
    "temperature": "716b3e20d27a3798e1b2a72362756ad6b96f3408a1524e4f8685301a398f4f81",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_decision_logs_know_old_rules_by_the_same_digest(name):
    assert rule_digest(RoutingRule.load(HERE / "rules" / f"{name}.json")) == DIGESTS[name]


def test_shortlist(cases):
    expected, shortlist = EXPECTED["shortlist"], Shortlist.load(HERE / "rules/shortlist.json")
    assert (shortlist.least, shortlist.note) == (expected["least"], expected["note"])
    assert shortlist.names(cases.probabilities[:40]) == expected["names"]


def test_rules_decide_on_the_command_line_as_they_did(calibrant, tmp_path):
    out = tmp_path / "decisions.csv"
    rule, shortlist = HERE / "rules/plain.json", HERE / "rules/shortlist.json"
    code, _, err = calibrant("route", "apply", rule, HERE / "runs/finished", "--shortlist", shortlist, "--out", out)
    assert code == 0, err
    with out.open() as now, (HERE / "decisions/plain.csv").open() as then:
        for new, old in zip(csv.DictReader(now), csv.DictReader(then), strict=True):
            assert float(new.pop("confidence")) == pytest.approx(float(old.pop("confidence")), **CLOSE)
            assert new == old


def test_finished_run():
    run, expected = Run.open(HERE / "runs/finished"), EXPECTED["runs/finished"]
    assert run.finished
    assert run.recipe.schedule.average == 0.5
    assert run.summary["samples_seen"] == expected["samples_seen"]
    assert [[line["epoch"], line["loss"], line["kept"]] for line in run.epochs()] == expected["epochs"]
    for split in ("val", "test"):
        same_numbers(evaluate(run.predictions(split), n_bins=10, thresholds=(0.5, 0.95)).to_dict(), expected[split])
    weights = {name: value.double().sum().item() for name, value in run.load_model().state_dict().items()}
    assert weights == pytest.approx(expected["weights"], **CLOSE)


def test_pruning_audit():
    audit, expected = load_audit(HERE / "runs/finished/pruning.npz"), EXPECTED["runs/finished"]
    assert audit.kept_counts.tolist() == expected["kept_counts"]
    assert audit.left.tolist() == expected["left"]


@pytest.mark.filterwarnings("ignore::calibrant.errors.CalibrantWarning")
def test_finished_run_is_recorded_as_it_was(calibrant, copy, tmp_path):
    code, _, err = calibrant("record", copy("runs/finished"), "--out", tmp_path / "records")
    assert code == 0, err
    [path] = (tmp_path / "records").iterdir()
    new, old = (json.loads((folder / path.name).read_text()) for folder in (path.parent, HERE / "records"))
    assert flatten(new["recipe"]).items() >= flatten(old["recipe"]).items()  # a version may add keys
    for name in ("settings", "samples_seen", "predictions_sha256"):
        assert new[name] == old[name], name
    assert new["temperature"] == pytest.approx(old["temperature"], rel=1e-6)
    assert new["test"]["10"]["ece"] == pytest.approx(old["test"]["10"]["ece"], **CLOSE)


def test_finished_run_is_reported(calibrant, copy, tmp_path):
    page = tmp_path / "page.html"
    code, _, err = calibrant("report", copy("runs/finished"), "-o", page, "--no-pictures")
    assert code == 0, err
    assert "flsd+h+p-ema" in page.read_text(encoding="utf-8")


def test_finished_run_is_exported(calibrant, copy, tmp_path, cases):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from calibrant.training.data import load_dataset

    model = tmp_path / "model.onnx"
    code, _, err = calibrant("export", copy("runs/finished"), "--out", model)
    assert code == 0, err
    session = onnxruntime.InferenceSession(model.read_bytes())
    images = load_dataset("digits").test.images[:40].numpy().astype(np.float32) / 255
    named = dict(zip((each.name for each in session.get_outputs()), session.run(None, {"images": images}), strict=True))
    routed = RoutingRule.load(HERE / "runs/finished/rule.json").route_logits(cases.logits[:40])
    np.testing.assert_allclose(named["probabilities"].max(axis=1), routed.confidence, atol=1e-4)
    assert named["automate"].tolist() == routed.automate.tolist()


def test_interrupted_run_is_resumed_to_what_it_would_have_been(copy, cases):
    run = resume(copy("runs/interrupted"))
    assert run.finished
    np.testing.assert_allclose(run.predictions("test").logits, cases.logits, atol=1e-4)
    expected = EXPECTED["runs/finished"]
    assert load_audit(run.path / "pruning.npz").left.tolist() == expected["left"]
    [*begun, last] = [[line["epoch"], line["loss"], line["kept"]] for line in run.epochs()]
    assert begun == expected["epochs"][:-1]
    assert last == pytest.approx(expected["epochs"][-1], rel=1e-5)


def test_records():
    found = {record.file_name: record for record in read_records(HERE / "records")}
    for name, expected in EXPECTED["records"].items():
        record = found[name]
        assert record.label == expected["label"]
        assert record.value("ece", n_bins=10) == expected["ece"]
        assert record.value("ece", n_bins=15, scaled=True) == expected["ece_15_scaled"]
        assert record.temperature == expected["temperature"]
        assert record.to_dict()["takeover"]["0.99"] == expected["automated_at_0.99"]


def test_study_is_read_and_not_run_again(copy):
    study = Study(copy("study"))
    assert study.pending() == []
    [results] = study.results()
    assert [row.label for row in results.rows] == list(EXPECTED["study"])
    for row in results.rows:
        expected = EXPECTED["study"][row.label]
        assert list(row.seeds) == expected["seeds"]
        assert row.test["ece"].mean == pytest.approx(expected["ece"], **CLOSE)
        assert row.temperature.mean == pytest.approx(expected["temperature"], rel=1e-6)


def test_study_is_compared_on_the_command_line(calibrant, copy):
    code, out, err = calibrant("compare", "--out", copy("study"), "--no-page", "--json")
    assert code == 0, err
    assert "strong term" in out


def test_recipe_and_study_files():
    assert Recipe.load(HERE / "study/recipes/digits-tiny-strong_term-seed1.toml").optimiser.lr == 0.05
    asked, kept = StudySpec.load(HERE / "asked.toml"), StudySpec.load(HERE / "study/study.toml")
    assert asked.runs() == kept.runs()
