"""A budget of updates: fewer epochs without a plan, another rate with one."""

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.pruning import ConfidencePruner
from calibrant.studies import record_run
from calibrant.training import Recipe, Run, recipe_from, resume, train


@pytest.fixture
def plain(toy_recipe):
    """Plain training for ten epochs with a schedule in shares of the run."""

    def make(method="nll", **changes):
        options = {"method__name": method, "method__options": {}, "epochs": 10, "schedule__kind": "cosine"}
        return toy_recipe(**{**options, **changes})

    return make


def same_run(one, other):
    for split in ("val", "test"):
        assert one.predictions_path(split).read_bytes() == other.predictions_path(split).read_bytes()
    timed = {"seconds", "train_seconds", "samples_per_second"}
    lines = [[{k: v for k, v in line.items() if k not in timed} for line in run.epochs()] for run in (one, other)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    "changes", [{}, {"schedule__floor": 0.2, "schedule__average": 0.25}, {"schedule__kind": "step"}]
)
def test_without_a_plan_a_budget_is_fewer_epochs_bit_for_bit(plain, toy, tmp_path, changes):
    whole = plain(**changes)
    shorter = train(whole.changed({"epochs": 6}), tmp_path / "shorter", data=toy)
    budget = train(whole.changed({"budget": 0.6}), tmp_path / "budget", data=toy)
    same_run(shorter, budget)
    assert budget.recipe.epochs == 10
    assert (budget.summary["epochs"], budget.summary["samples_seen"]) == (6, 81 * 6)
    assert (budget.summary["samples_full"], budget.summary["seen_share"]) == (810, 0.6)
    assert (shorter.summary["samples_full"], shorter.summary["seen_share"]) == (81 * 6, 1.0)
    assert budget.summary["samples_scored"] == 0


def test_a_budget_of_one_changes_nothing(plain, toy, tmp_path):
    one, none = (train(plain("nll+random", **more), tmp_path / name, data=toy)
                 for name, more in (("one", {"budget": 1.0}), ("none", {})))  # fmt: skip
    same_run(one, none)
    assert one.recipe == none.recipe


@pytest.mark.parametrize("method", ["nll+unbiased", "brier+h+random"])
def test_samples_counted_equal_samples_planned(plain, toy, tmp_path, method):
    recipe = plain(method, budget=0.6, method__options={"anneal": 0.1})
    run = train(recipe, tmp_path / "run", data=toy)
    assert run.summary["samples_seen"] == int(0.6 * 81 * 10)
    assert sum(line["samples"] for line in run.epochs()) == int(0.6 * 81 * 10)
    assert (run.summary["epochs"], run.summary["seen_share"]) == (10, 486 / 810)
    pruner = ConfidencePruner([0, 1, 2] * 27, epochs=10, **recipe.plan().pruning)
    assert [line["samples"] for line in run.epochs()] == pruner.samples_by_epoch(10)
    # The rate is the budget's: it is no setting, and a record's name says the budget alone.
    assert not {"drop", "rest"} & run.summary["method"]["settings"].keys()
    assert record_run(run).changes.keys() >= {"budget"}
    assert not any(key.endswith((".drop", ".rest")) for key in record_run(run).changes)
    assert "budget=0.6" in record_run(run).file_name


def test_smaller_images_within_a_budget_are_no_overspending(plain, toy, tmp_path):
    run = train(plain(budget=0.6, schedule__resolution=[[4, 0.6]]), tmp_path / "run", data=toy)
    assert run.summary["seen_share"] > 0.7
    assert run.summary["flops"] / run.summary["flops_full"] <= 0.6
    assert not [text for text in run.summary["warnings"] if "budget" in text]


@pytest.mark.parametrize("anneal", [0, 0.4])
@pytest.mark.parametrize("method", ["nll+unbiased", "nll+random", "nll+selective"])
def test_pruning_and_smaller_images_together_cost_the_budget(plain, toy, tmp_path, method, anneal):
    changes = {"schedule__resolution": [[4, 0.6]], "method__options": {"anneal": anneal}}
    run = train(plain(method, budget=0.6, **changes), tmp_path / "run", data=toy)
    # Whole samples rest: it is the budget up to one sample.
    assert run.summary["flops"] / run.summary["flops_full"] == pytest.approx(0.6, abs=1 / 810)


def test_a_budget_that_pruning_and_smaller_images_cannot_meet_names_both_units(plain, toy, tmp_path):
    recipe = plain("nll+random", budget=0.05, schedule__resolution=[[4, 0.6]], method__options={"anneal": 0.4})
    with pytest.raises(InvalidInput, match=r"shares of all updates; 0\.05 is the share of the compute") as caught:
        train(recipe, tmp_path / "run", data=toy)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("budget", [float("nan"), float("inf")])
def test_a_budget_that_is_no_number_is_refused(budget):
    with pytest.raises(InvalidInput, match="'budget' must be"):
        recipe_from(None, "cifar10", {"budget": budget})


@pytest.mark.parametrize("method", ["nll", "nll+unbiased"])
def test_a_stopped_run_goes_on_to_the_same_numbers(plain, toy, tmp_path, stopped, method):
    recipe = plain(method, budget=0.7)
    folder = stopped(recipe, tmp_path / "stopped", toy, epoch=3)
    assert Run(folder).epochs()
    same_run(train(recipe, tmp_path / "whole", data=toy), resume(folder, data=toy))


def test_schedules_in_epochs_are_stretched():
    step = Recipe().changed({"epochs": 160, "budget": 0.6, "schedule.milestones": (80, 0.75), "schedule.warmup": 5.0})
    trained = step.within_budget()
    assert (trained.epochs, trained.budget, trained.schedule.warmup) == (96, 1.0, 3.0)
    assert trained.schedule.milestones == (0.5, 0.75)
    falling = Recipe().changed({"epochs": 100, "budget": 0.5, "schedule.kind": "exponential", "schedule.factor": 0.98})
    np.testing.assert_allclose(falling.within_budget().learning_rate(50), falling.learning_rate(100))
    assert Recipe(epochs=30, budget=0.55).within_budget().epochs == 16  # never more than the budget
    assert Recipe(epochs=100, budget=0.29).within_budget().epochs == 29  # 0.29 * 100 is 28.99... in floating point


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 0}, "recipe key 'budget' must be greater than 0, got 0"),
        ({"budget": 1.5}, "recipe key 'budget' must be less than or equal to 1, got 1.5"),
        ({"budget": 0.05}, "budget must pay for at least one of the 10 epochs, got 0.05"),
        (
            {"method.name": "flsd+h+p-ema", "budget": 0.6},
            r"budget must be 1 with flsd\+h\+p-ema, whose plan has a rate of its own, got 0.6. Use a plan with a free",
        ),
        ({"method.name": "nll+unbiased", "budget": 0.4}, "budget must be at least 0.638 with Unbiased"),
        ({"method.name": "nll+random", "method.options.anneal": 0.5, "budget": 0.5}, "budget must be at least 0.615"),
        (
            {"method.name": "nll+random", "method.options.minimum_per_class": 20, "budget": 0.5},
            "budget must be at least 0.819",
        ),
        (
            {"method.name": "nll+random", "method.options.rest": 0.3, "budget": 0.6},
            "rest must be left out with a budget, which replaces it, got 0.3",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(plain, toy, tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        train(plain().changed(changes), tmp_path / "run", data=toy)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_without_a_method_it_is_the_best_known_way():
    recipe = recipe_from(None, "cifar10", {"budget": 0.6})
    assert (recipe.method.name, recipe.schedule.average) == ("nll", 0.25)
    assert (recipe.schedule.resolution, recipe.optimiser.nesterov, recipe.data.mirror) == ("auto", True, "alternate")
    assert "schedule.resolution" in recipe.reasons
    assert recipe.within_budget().epochs == 96
    digits = recipe_from(None, "svhn", {"budget": 0.6, "optimiser.name": "adam"})  # house numbers have no mirror image
    assert (digits.schedule.resolution, digits.optimiser.nesterov, digits.data.mirror) == ("auto", False, None)
    elsewhere = recipe_from(None, "cifar10", {"budget": 0.6, "model.name": "timm:vit"})
    assert elsewhere.schedule.resolution == ()
    # Where the budget leaves too few epochs for an average, there is none.
    short = recipe_from(None, "digits", {"budget": 0.6, "epochs": 5})
    assert (short.within_budget().epochs, short.schedule.average) == (3, 0.0)
    given = recipe_from(None, "cifar10", {"budget": 0.6, "method.name": "brier+unbiased"})
    assert given.within_budget() == given
