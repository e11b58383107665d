"""Every metric of the list, and a metric that a user adds, get all that the engine offers."""

import json

import numpy as np
import pytest

from calibrant import Evaluation, Predictions, compare, evaluate
from calibrant.errors import InvalidInput
from calibrant.metrics import (
    METRICS,
    Gates,
    Metric,
    evaluate_groups,
    evaluate_parts,
    register_metric,
    unregister_metric,
)
from calibrant.metrics.evaluation import evaluations_table
from calibrant.metrics.metric import SET_METRICS, label


def in_top_two(chunk):
    best = np.argsort(-chunk.probabilities, axis=1)[:, :2]
    return (best == chunk.targets[:, None]).any(axis=1)


@pytest.fixture
def top2():
    yield register_metric(Metric("top2_accuracy", "top-2 accuracy", "higher", "share", in_top_two))
    unregister_metric("top2_accuracy")


@pytest.fixture(params=[*METRICS, "top2_accuracy", "margin", "overconfidence", "lift"])
def metric(request):
    """Each metric of the list, and one of each family that a user registers."""
    added = {
        "top2_accuracy": Metric("top2_accuracy", "top-2 accuracy", "higher", "share", in_top_two),
        "margin": Metric("margin", "mean confidence", None, "mean", lambda chunk: chunk.confidence),
        "overconfidence": Metric(
            "overconfidence",
            "overconfidence",
            "lower",
            "calibration",
            lambda rows: np.abs(rows.bins().confidence_sum.sum(axis=-1) - rows.right) / rows.rows,
        ),
        "lift": Metric("lift", "lift", "lower", "ranking", lambda rows: rows.ranked.total_wrong / rows.ranked.total),
    }
    if request.param in METRICS:
        yield METRICS[request.param]
        return
    yield register_metric(added[request.param])
    unregister_metric(request.param)


def draw(n=400, seed=0, *, ties=False):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(n, 4))
    z = z.round() if ties else z
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), extras={"site": np.arange(n) % 3})


def test_it_has_a_label_a_direction_and_an_interval_or_a_reason(metric):
    result = evaluate(draw(), n_resamples=20)
    assert label(metric.name) == metric.label
    assert metric.better in ("higher", "lower", None)
    assert (metric.name in result.intervals) != bool(metric.no_interval)
    if not metric.no_interval:
        low, high = result.intervals[metric.name]
        assert low < high
        assert low <= result.values()[metric.name] <= high
    assert [line for line in result.table().splitlines() if line.strip().startswith(f"{metric.label}  ")]


@pytest.mark.parametrize("ties", [False, True])
def test_weights_of_one_change_nothing_and_whole_weights_are_repeated_rows(metric, ties):
    cases = draw(240, 1, ties=ties)
    value = evaluate(cases).values()[metric.name]
    assert evaluate(cases, weights=np.full(240, 7.0)).values()[metric.name] == pytest.approx(value, abs=1e-12)
    counts = np.tile([0, 1, 2, 1], 60)
    often = evaluate(cases.subset(np.repeat(np.arange(240), counts))).values()[metric.name]
    if not metric.counts_rows:
        assert evaluate(cases, weights=counts).values()[metric.name] == pytest.approx(often, abs=1e-10)


def test_parts_give_the_value_of_all_rows(metric, tmp_path):
    cases = draw(300, 2)
    for number, rows in enumerate(np.array_split(np.arange(300), [40, 41, 200])):
        cases.subset(rows).save(tmp_path / f"{number}.parquet")
    expected = evaluate(cases).values()[metric.name]
    assert evaluate_parts(tmp_path).values()[metric.name] == pytest.approx(expected, rel=1e-12)


def test_a_comparison_has_a_verdict_in_its_direction(metric):
    cases = draw(1500, 3)
    # A quarter of the rows becomes wrong and very sure.
    worse = np.where(np.arange(1500)[:, None] % 4 == 0, 4 * np.roll(cases.logits, 1, axis=1), cases.logits)
    row = compare(cases, Predictions.from_logits(worse, cases.targets), n_resamples=100)[metric.name]
    assert row.difference == row.b - row.a
    assert row.verdict == ("cannot tell" if metric.no_interval or metric.better is None else "worse")


def test_a_gate_stands_on_the_side_of_its_direction(metric):
    result = evaluate(draw())
    value = result.values()[metric.name]
    side, other = ("min", value - 1e-6) if metric.better == "higher" else ("max", value + 1e-6)
    assert Gates(**{f"{side}_{metric.name}": other}).broken(result) == []
    broken = {"min": value + 1e-6, "max": value - 1e-6}[side]
    (sentence,) = Gates(**{f"{side}_{metric.name}": broken}).broken(result)
    assert sentence.startswith(f"{metric.name} ")


def test_a_metric_from_outside_gets_everything(top2):
    cases = draw(500)
    best = np.argsort(-cases.probabilities, axis=1)[:, :2]
    hits = (best == cases.targets[:, None]).any(axis=1)
    result = evaluate(cases, n_resamples=50)
    assert result.top2_accuracy == hits.mean()
    assert result.intervals["top2_accuracy"][0] < hits.mean() < result.intervals["top2_accuracy"][1]
    assert Evaluation.from_dict(json.loads(result.to_json())) == result
    assert "top-2 accuracy" in result.table()
    assert "top-2 accuracy" in evaluations_table({"a": result, "b": result})
    assert evaluate_groups(cases, "site").worst("top2_accuracy") in ("0", "1", "2")
    by_cluster = evaluate(cases, clusters=np.arange(500) // 5, weights=np.arange(500) % 3 + 1, n_resamples=50)
    assert by_cluster.intervals["top2_accuracy"][0] < by_cluster.top2_accuracy
    turned = Predictions.from_logits(np.roll(cases.logits, 1, axis=1), cases.targets)
    comparison = compare(cases, turned, n_resamples=50)
    assert comparison["top2_accuracy"].verdict == "worse"
    assert "top-2 accuracy" in comparison.table()


def test_metrics_of_sets_have_a_direction_too():
    assert {name: each.better for name, each in SET_METRICS.items()} == {
        "share": "higher",
        "accuracy": "higher",
        "ece": "lower",
        "ece_inside": "lower",
    }


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"name": "two words"}, "name"),
        ({"name": "n_bins"}, "name"),
        ({"better": "up"}, "better"),
        ({"family": "median"}, "family"),
        ({"family": "table"}, "finish"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(changes, argument):
    with pytest.raises(InvalidInput, match=argument):
        Metric(**{"name": "mine", "label": "mine", "better": "lower", "family": "mean", "compute": np.sum} | changes)


def test_a_name_is_registered_once_and_a_compute_returns_one_value_per_row(top2):
    with pytest.raises(InvalidInput, match="top2_accuracy"):
        register_metric(top2)
    with pytest.raises(InvalidInput, match="nothing"):
        unregister_metric("nothing")
    register_metric(Metric("wrong", "wrong", "lower", "mean", lambda chunk: chunk.probabilities))
    try:
        with pytest.raises(InvalidInput, match="one value per row"):
            evaluate(draw(20))
    finally:
        unregister_metric("wrong")
