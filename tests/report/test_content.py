import base64
import json
import math

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.report import read_entries
from calibrant.report.content import method_contents, pruning_content, run_content, script_content
from calibrant.report.entries import ReportEntry
from calibrant.report.judged import judged
from calibrant.runs import load_audit, save_audit
from calibrant.training import Run


def content_of(*entries):
    shown = judged(entries)
    return method_contents(shown, threshold=0.9, n_bins=10, n_resamples=50)


def test_numbers_are_those_of_evaluate_and_compare(make):
    first, second = make(seed=1), make(seed=2, sharpness=2.0)
    content = content_of(ReportEntry("a", first), ReportEntry("b", second))[1]
    numbers = content["compared"]
    expected = evaluate(second, n_bins=10, thresholds=(0.9,), n_resamples=50)
    assert numbers.values == expected.values()
    assert numbers.intervals == expected.intervals
    verdicts = {row.name: row.verdict for row in compare(first, second, thresholds=(0.9,), n_resamples=50).rows}
    assert numbers.verdicts == {name: verdict for name, verdict in verdicts.items() if verdict != "cannot tell"}
    assert numbers.verdicts["ece"] == "worse"
    json.dumps(script_content(content), allow_nan=False)


def test_confidences_travel_exactly(predictions):
    content = script_content(*content_of(ReportEntry("a", predictions)))
    confidence = np.frombuffer(base64.b64decode(content["confidence"]), "<f8")
    bits = np.unpackbits(np.frombuffer(base64.b64decode(content["correct"]), np.uint8), bitorder="little")
    assert confidence.tolist() == sorted(predictions.confidence.tolist())
    pairs = sorted(zip(predictions.confidence.tolist(), predictions.correct.tolist(), strict=True))
    assert list(zip(confidence.tolist(), bits[:600].astype(bool).tolist(), strict=True)) == pairs


def test_a_probability_of_zero_for_the_truth_is_still_json():
    predictions = Predictions.from_probabilities([[1.0, 0.0], [0.0, 1.0], [0.8, 0.2]], [0, 0, 0])
    (content,) = content_of(ReportEntry("a", predictions))
    json.dumps(script_content(content), allow_nan=False)
    assert content["compared"].values["nll"] == math.inf


def test_runs_show_recipe_environment_and_costs(run_folder):
    run = Run(run_folder)
    content = run_content(run)
    assert content["recipe"] == (run_folder / "recipe.toml").read_text()
    assert content["environment"] == {"torch": "2.13.0", "device": "<cpu>"}
    entry = ReportEntry("a", run.predictions("test"), run)
    values = content_of(entry)[0]["compared"].values
    assert (values["samples_seen"], values["train_seconds"]) == (52, 1.25)
    assert run_content(None) is None


def test_an_unfinished_run_has_no_environment_yet(run_folder):
    (run_folder / "summary.json").unlink()
    assert run_content(Run(run_folder))["environment"] == {}


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_edges_follow_the_precision_of_the_scores(kind):
    scores = np.array([[0.75, 0.25], [0.5, 0.5]], dtype=kind)
    entry = ReportEntry("a", Predictions.from_probabilities(scores, [0, 1]))
    content = script_content(*content_of(entry))
    assert content["precision"] == kind
    assert content["edges"] == np.array([k / 10 for k in range(11)]).astype(kind).astype(float).tolist()


def test_shares_savings_and_suspects(run_folder):
    content = pruning_content(*read_entries(run_folder))
    assert content["epochs"] == [1, 2, 3]
    assert content["overall"] == [1.0, 0.8, 0.8]
    assert content["classes"] == [[1.0, 0.8, 0.8]] * 2
    assert (content["seen"], content["full"], content["kept_last"], content["samples"]) == (52, 60, 16, 20)
    assert content["saved_share"] == pytest.approx(8 / 60)
    # Surest first; the names are those of the predictions only where their number fits (10 digits, 2 classes here).
    assert [suspect["picture"] for suspect in content["suspects"]] == [None, None]
    assert [(s["identity"], s["label"], s["predicted"], s["excess"], s["left"]) for s in content["suspects"]] == [
        ("sample 12", "1", "0", 0.75, -1),
        ("sample 3", "0", "1", 0.25, -1),
    ]


def test_many_classes_become_the_lowest_and_the_highest(run_folder):
    audit = load_audit(run_folder / "pruning.npz")
    counts = np.stack([np.full(40, 10), np.arange(40) % 9 + 1])
    fields = {name: getattr(audit, name) for name in audit.__dataclass_fields__}
    fields |= {"kept_counts": counts, "class_sizes": np.full(40, 10)}
    save_audit(run_folder / "pruning.npz", type(audit)(**fields))
    content = pruning_content(*read_entries(run_folder))
    assert content["names"] == ["lowest of 40 classes", "highest of 40 classes"]
    assert content["classes"] == [[1.0, 0.1], [1.0, 0.9]]


def test_no_pruning_is_no_section(run_folder, predictions):
    assert pruning_content(*read_entries(predictions)) is None
    audit = load_audit(run_folder / "pruning.npz")
    fields = {name: getattr(audit, name) for name in audit.__dataclass_fields__}
    save_audit(run_folder / "pruning.npz", type(audit)(**fields | {"kept_counts": np.full((3, 2), 10)}))
    assert pruning_content(*read_entries(run_folder)) is None
    (run_folder / "pruning.npz").unlink()
    assert pruning_content(*read_entries(run_folder)) is None
