"""Whatever way the same cases take to a rule, it automates just those that its evidence counts."""

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.calibration import make_calibrator
from calibrant.decisions import Policy, RoutingRule, choose_shortlist, choose_threshold, route_file

CLASSES = [2, 3, 10, 31, 32, 33, 100]  # sums over few and over many classes are made in different ways
DTYPES = [np.float16, np.float32, np.float64]


def random_set(rng, kind):
    n, classes = int(rng.integers(20, 300)), int(rng.choice(CLASSES))
    z = rng.normal(size=(n, classes)) * rng.choice([0.3, 3.0, 30.0])
    targets = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    if kind == "logits":
        return Predictions.from_logits(z.astype(rng.choice(DTYPES)), targets)
    scores = Predictions.from_logits(z, targets).probabilities.astype(rng.choice(DTYPES[1:]))
    return Predictions.from_probabilities(scores, targets)


def random_rules(rng, predictions):
    """Rules whose thresholds are confidences of the cases, where one unit in the last place decides."""
    seen = RoutingRule(0.0, predictions.n_classes).route(predictions).confidence
    costs = {"cost_error": float(rng.uniform(1.1, 20)), "cost_review": 1.0}
    yield choose_threshold(predictions, 0.2, confidence=0.5, thresholds=seen, **costs)
    thresholds = rng.choice(seen, size=3)
    for per_class in (False, True):
        yield choose_threshold(
            predictions,
            0.2,
            confidence=0.5,
            per_class=per_class,
            thresholds=thresholds,
            starts=[thresholds.max()],
        )


def automated_by_array(rule, predictions, scores):
    return Policy(predictions.n_classes, rule=rule).decide(scores, predictions.kind).automate


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_arrays_of_every_layout_give_what_the_evidence_counts(kind):
    rng = np.random.default_rng(0 if kind == "logits" else 1)
    automating = 0
    for _ in range(40):
        predictions = random_set(rng, kind)
        scores = predictions.scores
        cuts = np.sort(rng.integers(0, len(scores), size=3))
        for rule in random_rules(rng, predictions):
            routed = rule.route(predictions)
            assert routed.automate.sum() == rule.evidence.automated
            assert (routed.automate & (routed.predicted != predictions.targets)).sum() == rule.evidence.errors
            ways = {
                "an array": automated_by_array(rule, predictions, scores),
                "a tensor": automated_by_array(rule, predictions, torch.tensor(scores)),
                "by columns": automated_by_array(rule, predictions, np.asfortranarray(scores)),
                "in parts": np.concatenate(
                    [automated_by_array(rule, predictions, part) for part in np.split(scores, cuts) if len(part)]
                ),
                "backwards": rule.route(predictions.subset(np.arange(len(scores))[::-1])).automate[::-1],
                "after a save": RoutingRule.from_dict(rule.to_dict()).route(predictions).automate,
            }
            for way, automate in ways.items():
                np.testing.assert_array_equal(automate, routed.automate, err_msg=way)
            for row in range(20):
                assert automated_by_array(rule, predictions, scores[row : row + 1])[0] == routed.automate[row]
            automating += rule.automates
    assert automating > 60


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_files_of_every_kind_give_what_the_evidence_counts(tmp_path, kind):
    rng = np.random.default_rng(2)
    for number in range(8):
        predictions = random_set(rng, kind)
        for ending in ("npz", "csv", "parquet"):
            path = tmp_path / f"{number}.{ending}"
            predictions.save(path)
            # A table of text holds float32 in fewer digits than float64 has: what is read back is what counts.
            again = Predictions.load(path)
            for rule in random_rules(rng, again):
                counts = route_file(Policy(again.n_classes, rule=rule), path, tmp_path / "decisions.csv")
                assert counts.automated == rule.evidence.automated, ending


METHODS = ["temperature", "vector", "matrix", "dirichlet", "beta", "isotonic", "histogram-top"]


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("method", METHODS)
def test_raw_scores_behind_a_calibrator_give_what_the_evidence_counts(tmp_path, draw, method, kind):
    # In float32, as networks give them: BLAS may round float64 products of matrices otherwise in another block.
    drawn = draw(400, classes=4, temperature=0.4)
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probabilities
    raw = make((drawn.logits if kind == "logits" else drawn.probabilities).astype(np.float32), drawn.targets)
    calibrator = make_calibrator(method).fit(raw)
    calibrated = calibrator(raw)
    rule = choose_threshold(calibrated, 0.5, thresholds=np.minimum(calibrated.confidence, 1.0))
    policy = Policy(4, calibrator, rule)
    for ending in ("npz", "parquet"):
        raw.save(tmp_path / f"raw.{ending}")
        counts = route_file(policy, tmp_path / f"raw.{ending}", tmp_path / "decisions.csv")
        assert counts.automated == rule.evidence.automated > 0
    expected = policy.decide(raw).automate
    assert expected.sum() == rule.evidence.automated
    np.testing.assert_array_equal(policy.decide(raw.scores, kind).automate, expected)
    rows = [policy.decide(raw.subset([i])).automate for i in range(100)]
    np.testing.assert_array_equal(np.concatenate(rows), expected[:100])


def test_lists_do_not_depend_on_the_way_either(draw):
    predictions = draw(500, classes=40, temperature=0.2)
    shortlist = choose_shortlist(predictions, 0.9, rule=RoutingRule(0.7, 40))
    expected = shortlist.listed(predictions)
    np.testing.assert_array_equal(shortlist.listed(predictions.logits, "logits"), expected)
    rows = [shortlist.listed(predictions.logits[i : i + 1], "logits") for i in range(500)]
    np.testing.assert_array_equal(np.concatenate(rows), expected)
