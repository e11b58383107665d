"""Plans beside their controls."""

from dataclasses import replace

import numpy as np
import pytest

from calibrant.studies import summarise
from calibrant.studies.controls import METRICS, against_controls, find_controls, plans_without_control
from calibrant.studies.referee import Referee
from calibrant.studies.result_tables import control_table, paper_tables
from tests.studies.conftest import drawn


@pytest.fixture
def runs(make_record):
    """Seeds of all updates, of the control by a budget, and of the plan at the same budget."""

    def make(plan="nll+unbiased", *, seeds=(0, 1, 2), control_samples=600, full=True, **changed):
        half = {"samples_full": 1000, "seen_share": 0.6}
        rows = {"nll": [make_record("nll", seed=seed, sharpness=1.0) for seed in seeds]} if full else {}
        few = [make_record("nll", seed=seed, sharpness=2.0, **half, samples_seen=control_samples) for seed in seeds]
        plans = [make_record(plan, seed=seed, sharpness=3.0, **half, samples_seen=600, **changed) for seed in seeds]
        return {**rows, "nll@96": few, plan: plans}

    return make


def test_a_control_by_a_budget_is_found(runs):
    groups = runs()
    (found,) = find_controls(groups)
    assert (found.label, found.control_label, found.share) == ("nll+unbiased", "nll@96", 0.6)
    assert (found.full, found.control, found.plan) == tuple(map(tuple, groups.values()))
    (alone,) = find_controls(runs(full=False))
    assert alone.full == ()


def test_each_figure_by_hand(runs):
    groups = runs()
    made = against_controls(groups)
    assert [item.difference.metric for item in made] == list(METRICS)
    for item in made:
        metric = item.difference.metric
        full, control, plan = ([r.value(metric) for r in rows] for rows in groups.values())
        assert item.difference.difference == pytest.approx(np.mean(plan) - np.mean(control))
        referee = Referee(groups)
        alone = referee.compare("x", metric, groups["nll+unbiased"], groups["nll@96"])
        assert item.difference.interval == alone.interval
        if np.mean(control) > np.mean(full):
            lost, regained = np.mean(control) - np.mean(full), np.mean(control) - np.mean(plan)
            assert item.recovered == pytest.approx(regained / lost)
        else:
            assert item.recovered is None


def test_the_interval_holds_the_noise_of_the_images(runs):
    sharpness = {"nll": 2.0, "nll+unbiased": 3.0}

    def predictions_of(record, scaled):
        return drawn(record.seed, sharpness=sharpness[record.method])

    groups = runs(full=False)
    referee = Referee(groups, predictions_of)
    for alone, item in zip(against_controls(groups), against_controls(groups, referee), strict=True):
        metric = item.difference.metric
        added = referee.image_variance(metric, groups["nll+unbiased"], groups["nll@96"])
        without = alone.difference.spread
        seeds = 0.0 if without is None else without.error**2
        assert item.difference.spread.error == pytest.approx(np.sqrt(seeds + added))
    single = runs(full=False, seeds=(4,))
    (first, *_) = against_controls(single, Referee(single, predictions_of))
    assert first.difference.over == "images"


@pytest.mark.parametrize(
    "different",
    [
        {"control_samples": 480},
        {"settings": {"minimum_per_class": 1, "gamma": 2.0}, "method": "fl+unbiased"},
        {"environment": {"device": "another GPU"}},
    ],
)
def test_another_loss_cost_or_device_is_no_control(runs, make_record, different):
    method = different.pop("method", "nll+unbiased")
    groups = runs(method, **different)
    assert find_controls(groups) == []


def test_another_class_balance_is_no_control(runs):
    groups = runs()
    weighted = [r.model_copy(update={"recipe": {**r.recipe, "balance": "loss"}}) for r in groups["nll+unbiased"]]
    assert find_controls({**groups, "nll+unbiased": weighted}) == []


def test_a_plan_whose_updates_differ_from_seed_to_seed(runs):
    groups = runs(full=False)
    groups["nll+unbiased"][2] = groups["nll+unbiased"][2].model_copy(update={"samples_seen": 630})
    more = groups["nll@96"].pop().model_copy(update={"samples_seen": 630})
    (found,) = find_controls({**groups, "nll@101": [more]})
    assert found.control_label == "nll@96, nll@101"
    assert found.share == pytest.approx((600 + 600 + 630) / 3000)


def test_half_an_epoch_is_near_enough_and_the_nearest_is_taken(runs, make_record):
    groups = runs(control_samples=603)  # half an epoch is 1000 / 160 / 2 = 3.1 samples
    farther = [r.model_copy(update={"samples_seen": 606}) for r in groups["nll@96"]]
    (found,) = find_controls({"nll@97": farther, **groups})
    assert found.control_label == "nll@96"


def resized(record, *, share, samples):
    """The run with early epochs on smaller images; its compute is `share` of that of as many updates."""
    recipe = {**record.recipe, "schedule": {**record.recipe["schedule"], "resolution": [[24, 0.6]]}}
    costs = {"samples_seen": samples, "samples_full": samples, "flops": share * samples, "flops_full": float(samples)}
    return record.model_copy(update={"recipe": recipe, **costs})


def test_smaller_images_beside_fewer_epochs_and_pruning_beside_smaller_images(runs):
    groups = runs()
    groups["smaller"] = [resized(record, share=0.75, samples=800) for record in groups["nll"]]
    groups["both"] = [resized(record, share=0.6, samples=1000) for record in groups["nll+unbiased"]]
    found = {(item.label, item.control_label): item for item in find_controls(groups)}
    assert found.keys() == {
        *(("nll+unbiased", "nll@96"), ("smaller", "nll@96")),
        *(("both", "nll@96"), ("both", "smaller"), ("both", "nll+unbiased")),
    }
    smaller = found["smaller", "nll@96"]
    assert (smaller.share, smaller.updates) == pytest.approx((0.6, 0.8))
    assert [record.label for record in smaller.full] == ["nll"] * 3


def test_the_table_shows_them(runs):
    results = summarise(runs(), "nll")
    assert results.controls == against_controls(runs())
    assert len(paper_tables(results)) == len(paper_tables(replace(results, controls=()))) + 1
    grid = control_table(results)
    assert grid.columns[:2] == ("plan", "control")
    assert grid.rows[0][:7] == ("nll+unbiased", "nll@96", "3", "60.0", "60.0", "0.0", "NLL +TS")
    assert {row[12] for row in grid.rows} <= {"better", "worse", "cannot tell"}


def test_a_plan_without_a_control_is_named(runs):
    groups = runs(control_samples=480)
    beside = against_controls(groups)
    assert plans_without_control(groups, beside) == ("nll+unbiased",)
    assert plans_without_control(runs(), against_controls(runs())) == ()
    results = summarise(groups, "nll")
    assert results.uncontrolled == ("nll+unbiased",)
    (costs,) = [grid for grid in paper_tables(results) if grid.title.endswith("what it cost")]
    assert costs.caption.endswith("so nothing is said of the worth of: nll+unbiased.")
