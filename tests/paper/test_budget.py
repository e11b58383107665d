import math

import pytest
from scipy.stats import ttest_rel

from paper.budget import METRICS, budget_grid, budgets, verdict

SAVED = {"seen_share": 0.6, "samples_seen": 600}


@pytest.fixture
def runs(make_record):
    """Three seeds of all updates, of the control with fewer epochs, and of the plan."""

    def make(plan="nll+unbiased", *, control_samples=600, seeds=(0, 1, 2), **changed):
        full = [make_record("nll", seed=seed, sharpness=1.0) for seed in seeds]
        few = {"samples_seen": control_samples, "samples_full": control_samples}
        control = [make_record("nll", seed=seed, sharpness=2.0, **few) for seed in seeds]
        plans = [make_record(plan, seed=seed, sharpness=3.0, **SAVED, **changed) for seed in seeds]
        return {"nll": full, "nll (fewer epochs)": control, plan: plans}

    return make


def test_a_plan_stands_beside_its_control(runs):
    groups = runs()
    (budget,) = budgets(groups)
    assert budget.label == "nll+unbiased"
    assert budget.share == 0.6
    assert (budget.full, budget.control, budget.plan) == tuple(groups.values())


def test_the_interval_is_that_of_a_paired_t_test(runs):
    (budget,) = budgets(runs())
    for metric, of in METRICS.items():
        difference, half = budget.difference(metric)
        interval = ttest_rel([of(r) for r in budget.plan], [of(r) for r in budget.control]).confidence_interval()
        if math.isfinite(interval.low):
            assert (difference - half, difference + half) == pytest.approx((interval.low, interval.high))


def test_the_recovered_share_is_one_where_nothing_is_lost_and_zero_at_the_control(runs):
    (budget,) = budgets(runs())
    metric = "NLL +TS"
    of = METRICS[metric]
    full, control, plan = (sum(map(of, rows)) / 3 for rows in (budget.full, budget.control, budget.plan))
    if control > full:
        assert budget.recovered(metric) == pytest.approx((control - plan) / (control - full))
    same = type(budget)("x", budget.full, budget.control, budget.control)
    assert same.recovered(metric) in (None, 0.0)
    assert type(budget)("x", budget.full, budget.full, budget.full).recovered(metric) is None


@pytest.mark.parametrize(
    "different",
    [
        {"control_samples": 500},
        {"plan": "flsd+h+unbiased"},
        {"environment": {"device": "another GPU"}},
    ],
)
def test_what_differs_in_more_than_the_plan_is_no_control(runs, different):
    assert budgets(runs(**different)) == []


def test_another_schedule_is_no_control(runs):
    groups = runs()
    other = [
        record.model_copy(update={"recipe": {**record.recipe, "schedule": {"kind": "cosine"}}})
        for record in groups["nll (fewer epochs)"]
    ]
    assert budgets({**groups, "nll (fewer epochs)": other}) == []


def test_only_seeds_that_all_three_have_are_paired(runs):
    groups = runs()
    groups["nll (fewer epochs)"] = groups["nll (fewer epochs)"][1:]
    (budget,) = budgets(groups)
    assert [record.seed for record in budget.plan] == [record.seed for record in budget.control] == [1, 2]


@pytest.mark.parametrize(
    ("difference", "half", "word"),
    [(-1.0, 0.5, "plan better"), (1.0, 0.5, "plan worse"), (0.4, 0.5, "cannot tell"), (1.0, None, "one seed")],
)
def test_the_verdict_needs_an_interval_that_excludes_zero(difference, half, word):
    assert verdict(difference, half) == word


def test_the_table_names_plans_without_a_control(runs, make_record):
    groups = {("cifar10", "resnet32"): {**runs(), "flsd+h+unbiased": [make_record("flsd+h+unbiased", **SAVED)]}}
    rows = budget_grid(groups).rows
    assert [row[:4] for row in rows[:-1]] == [("cifar10, resnet32", "nll+unbiased", "60.0", "3")] * len(METRICS)
    assert rows[-1][1] == "flsd+h+unbiased"
    assert "nothing claimed" in rows[-1]
    assert len({len(row) for row in rows}) == 1
    assert budget_grid({}).rows == ()
