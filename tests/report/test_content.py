import base64
import json

import numpy as np
import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.metrics.intervals import exact_interval
from calibrant.report import read_entries
from calibrant.report.content import method_contents, pruning_content, run_content, same_cases, uncertainties
from calibrant.report.entries import ReportEntry
from calibrant.report.summaries import automated
from calibrant.runs import load_audit, save_audit
from calibrant.training import Run


def content_of(*entries):
    return method_contents(entries, threshold=0.9, n_bins=10, n_resamples=50)


def test_numbers_are_those_of_evaluate_and_compare(make):
    first, second = make(seed=1), make(seed=2, sharpness=2.0)
    content = content_of(ReportEntry("a", first), ReportEntry("b", second))[1]
    expected = evaluate(second, n_bins=10, thresholds=(0.9,), n_resamples=50)
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
    run = Run(run_folder)
    content = run_content(run)
    assert content["recipe"] == (run_folder / "recipe.toml").read_text()
    assert content["environment"] == {"torch": "2.13.0", "device": "<cpu>"}
    entry = ReportEntry("a", run.predictions("test"), run)
    metrics = content_of(entry)[0]["metrics"]
    assert (metrics["samples_seen"], metrics["train_seconds"]) == (52, 1.25)
    assert run_content(None) is None


def test_an_unfinished_run_has_no_environment_yet(run_folder):
    (run_folder / "summary.json").unlink()
    assert run_content(Run(run_folder))["environment"] == {}


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_edges_follow_the_precision_of_the_scores(kind):
    scores = np.array([[0.75, 0.25], [0.5, 0.5]], dtype=kind)
    entry = ReportEntry("a", Predictions.from_probabilities(scores, [0, 1]))
    (content,) = content_of(entry)
    assert content["precision"] == kind
    assert content["edges"] == np.array([k / 10 for k in range(11)]).astype(kind).astype(float).tolist()


def measured(methods, n_resamples=40):
    return uncertainties(methods, [evaluate(each, thresholds=(0.9,)) for each in methods], n_resamples=n_resamples)


def test_one_shared_pass_gives_what_evaluate_and_compare_give(make):
    methods = [make(seed=1), make(seed=2, sharpness=2.0), make(seed=3)]
    for each, found in zip(methods, measured(methods), strict=True):
        expected = evaluate(each, thresholds=(0.9,), n_resamples=40).intervals
        assert found.intervals == expected
        rows = [] if each is methods[0] else compare(methods[0], each, thresholds=(0.9,), n_resamples=40).rows
        assert found.verdicts == {row.name: row.verdict for row in rows if row.verdict != "cannot tell"}
    assert measured(methods)[1].verdicts["ece"] == "worse"


def test_a_method_wins_a_metric_only_against_every_other_one(make):
    sharp, plain, again = make(seed=1, sharpness=3.0), make(seed=1), make(seed=1, sharpness=1.001)
    results = measured([sharp, plain])
    assert "ece" in results[1].wins
    assert results[0].wins == [name for name in results[0].wins if name.startswith("share@")]
    # Two that are almost equal: neither wins, though both are better than the first.
    results = measured([sharp, plain, again])
    assert [result.verdicts.get("ece") for result in results] == [None, "better", "better"]
    assert not any("ece" in result.wins for result in results)


def test_shares_have_exact_intervals_with_and_without_resamples(predictions):
    result = automated(predictions, 0.9)
    expected = {
        "test_error": exact_interval(int((~predictions.correct).sum()), 600),
        "share@0.9": exact_interval(result.automated, 600),
        "accuracy@0.9": result.interval,
    }
    assert measured([predictions], n_resamples=0)[0] == (expected, {}, [])
    found = measured([predictions])[0].intervals
    assert {name: found[name] for name in expected} == expected


def test_nothing_wrong_is_not_certainty():
    predictions = Predictions.from_probabilities([[0.99, 0.01]] * 20, [0] * 20)
    low, high = measured([predictions])[0].intervals["accuracy@0.9"]
    assert (low, high) == (pytest.approx(0.025 ** (1 / 20)), 1.0)


def test_nothing_automated_has_no_interval():
    ends = measured([Predictions.from_probabilities([[0.6, 0.4]], [0])], n_resamples=0)[0].intervals
    assert set(ends) == {"test_error", "share@0.9"}


def test_methods_on_other_cases_are_measured_but_not_judged(make):
    methods = [make(n=300), make(n=200, sharpness=0.3), make(n=300, sharpness=0.3)]
    found = measured(methods)
    assert found[1].intervals["ece"] == evaluate(methods[1], thresholds=(0.9,), n_resamples=40).intervals["ece"]
    assert found[1].verdicts == {}
    assert found[2].verdicts["ece"] == "worse"


def test_same_cases_looks_at_targets_and_ids(make):
    ids = [f"case {i}" for i in range(100)]
    assert same_cases(make(n=100), make(n=100, seed=1))
    assert same_cases(make(n=100, ids=ids), make(n=100, seed=1))
    assert not same_cases(make(n=100, ids=ids), make(n=100, ids=ids[::-1]))
    assert not same_cases(make(n=100), make(n=101))
    assert not same_cases(make(n=100), make(n=100, classes=5))


def test_shares_savings_and_suspects(run_folder):
    content = pruning_content(*read_entries(run_folder))
    assert content["epochs"] == [1, 2, 3]
    assert content["overall"] == [1.0, 0.8, 0.8]
    assert content["classes"] == [[1.0, 0.8, 0.8]] * 2
    assert (content["seen"], content["full"], content["kept_last"], content["samples"]) == (52, 60, 16, 20)
    assert content["saved_share"] == pytest.approx(8 / 60)
    # Surest first; the names are those of the predictions only where their number fits (10 digits, 2 classes here).
    assert {(s["identity"], s["picture"]) for s in content["suspects"]} == {("sample 12", None), ("sample 3", None)}
    assert [(s["index"], s["label"], s["predicted"], s["excess"], s["left"]) for s in content["suspects"]] == [
        (12, "1", "0", 0.75, -1),
        (3, "0", "1", 0.25, -1),
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
