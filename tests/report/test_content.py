import base64
import json

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.report.content import method_contents, run_content
from calibrant.report.entries import ReportEntry
from calibrant.training import Run


def content_of(*entries):
    return method_contents(entries, threshold=0.9, n_bins=10, n_resamples=50)


def test_numbers_are_those_of_evaluate_and_compare(make):
    first, second = make(seed=1), make(seed=2, sharpness=2.0)
    content = content_of(ReportEntry("a", first), ReportEntry("b", second))[1]
    expected = evaluate(second, 10, thresholds=(0.9,), n_resamples=50)
    assert {key: content["metrics"][key] for key in expected.values()} == expected.values()
    assert content["intervals"]["ece"] == list(expected.intervals["ece"])
    verdicts = {row.name: row.verdict for row in compare(first, second, thresholds=(0.9,), n_resamples=50).rows}
    assert content["verdicts"] == {name: verdict for name, verdict in verdicts.items() if verdict != "cannot tell"}
    assert content["verdicts"]["ece"] == "worse"
    json.dumps(content, allow_nan=False)


def test_confidences_travel_exactly(predictions):
    (content,) = content_of(ReportEntry("a", predictions))
    confidence = np.frombuffer(base64.b64decode(content["confidence"]), "<f8")
    bits = np.unpackbits(np.frombuffer(base64.b64decode(content["correct"]), np.uint8), bitorder="little")
    assert confidence.tolist() == sorted(predictions.confidence.tolist())
    pairs = sorted(zip(predictions.confidence.tolist(), predictions.correct.tolist(), strict=True))
    assert list(zip(confidence.tolist(), bits[:600].astype(bool).tolist(), strict=True)) == pairs
    assert content["verdicts"] == {}


def test_a_probability_of_zero_for_the_truth_is_still_json():
    predictions = Predictions.from_probabilities([[1.0, 0.0], [0.0, 1.0], [0.8, 0.2]], [0, 0, 0])
    (content,) = content_of(ReportEntry("a", predictions))
    json.dumps(content, allow_nan=False)
    assert content["metrics"]["nll"] is None


def test_runs_show_recipe_environment_and_costs(run_folder):
    run = Run.open(run_folder)
    content = run_content(run)
    assert content["recipe"] == (run_folder / "recipe.toml").read_text()
    assert content["environment"] == {"torch": "2.13.0", "device": "<cpu>"}
    entry = ReportEntry("a", run.predictions("test"), run)
    metrics = content_of(entry)[0]["metrics"]
    assert (metrics["samples_seen"], metrics["train_seconds"]) == (52, 1.25)
    assert run_content(None) is None


def test_an_unfinished_run_has_no_environment_yet(run_folder):
    (run_folder / "summary.json").unlink()
    assert run_content(Run.open(run_folder))["environment"] == {}


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_edges_follow_the_precision_of_the_scores(kind):
    scores = np.array([[0.75, 0.25], [0.5, 0.5]], dtype=kind)
    entry = ReportEntry("a", Predictions.from_probabilities(scores, [0, 1]))
    (content,) = content_of(entry)
    assert content["precision"] == kind
    assert content["edges"] == np.array([k / 10 for k in range(11)]).astype(kind).astype(float).tolist()
