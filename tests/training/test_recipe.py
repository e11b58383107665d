import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from calibrant.errors import InvalidInput
from calibrant.training import Recipe
from calibrant.training.recipe import OptimiserSection, recipe_keys


def test_a_recipe_survives_toml(tmp_path):
    recipe = Recipe().changed({"seed": 7, "method.options.gamma": 2.5, "schedule.milestones": (3, 4.5), "epochs": 9})
    recipe.save(tmp_path / "recipe.toml")
    assert Recipe.load(tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", r"recipe key 'epoch' is unknown\. Did you mean 'epochs'\?"),
        ("[optimiser]\nlearning = 1", r"recipe key 'optimiser\.learning' is unknown\. Did you mean"),
        ("[optimizer]\nlr = 1", r"recipe key 'optimizer' is unknown\."),
        ("epochs = 0", r"recipe key 'epochs' must be greater than or equal to 1, got 0\."),
        ("epochs = 'many'", r"recipe key 'epochs' must be a valid integer, got 'many'"),
        ("[optimiser]\nlr = -1", r"recipe key 'optimiser\.lr' must be greater than 0, got -1"),
        (
            "[optimiser]\nname = 'sdg'",
            r"recipe key 'optimiser\.name' must be one of 'sgd', 'adam' or 'adamw', got 'sdg'",
        ),
        ("[engine]\nprecision = '16'", r"recipe key 'engine\.precision' must be one of 'auto', 'bf16-mixed'"),
        (
            "epochs = 5\n[schedule]\nmilestones = [3, 5]",
            r"schedule\.milestones must end before the last of",
        ),
        ("epochs =", r"must be TOML"),
    ],
)
def test_a_broken_rule_is_one_line_that_names_it(tmp_path, text, message):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(InvalidInput, match=message) as caught:
        Recipe.load(tmp_path / "recipe.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(epochs=0), "recipe key 'epochs' must be greater than or equal to 1, got 0."),
        (lambda: Recipe(epoch=3), "recipe key 'epoch' is unknown. Did you mean 'epochs'?"),
        (lambda: Recipe(optimiser={"lr": -1}), "recipe key 'optimiser.lr' must be greater than 0, got -1."),
        (lambda: OptimiserSection(lr=-1), "recipe key 'lr' must be greater than 0, got -1."),
        (
            lambda: Recipe(method={"options": {"epochs": 4}}),
            "method.options must hold settings of the method, got 'epochs'. The recipe has its own.",
        ),
        (lambda: Recipe(epochs="x"), "recipe key 'epochs' must be a valid integer, got 'x'."),
        (lambda: Recipe(epochs=1.5), "recipe key 'epochs' must be a valid integer, got 1.5."),
        (
            lambda: Recipe(method="nll"),
            "recipe key 'method' must be a table of settings, got 'nll'. In TOML: [method], its keys below it.",
        ),
    ],
)
def test_in_python_a_broken_rule_is_the_same_line(make, message):
    with pytest.raises(InvalidInput) as raised:
        make()
    assert str(raised.value) == message


def test_files_that_cannot_be_read_are_one_line(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        Recipe.load(tmp_path / "none.toml")
    with pytest.raises(InvalidInput, match="recipe"):
        Recipe.load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="recipe"):
        Recipe.load(tmp_path / "binary.toml")


def test_dotted_keys_change_a_copy():
    base = Recipe()
    assert base.changed({"optimiser.lr": 0.5, "method.options.gamma": 1}).optimiser.lr == 0.5
    assert base.optimiser.lr == 0.1
    assert base.method.options == {}
    with pytest.raises(InvalidInput, match="must name a section and a key"):
        base.changed({"optimizer.lr": 0.5})
    with pytest.raises(InvalidInput, match="unknown"):
        base.changed({"optimiser.learning_rate": 0.5})
    with pytest.raises(ValidationError, match="frozen"):
        base.seed = 3
    assert base.seed == 0
    assert {"seed", "optimiser.lr", "engine.mode"} <= set(recipe_keys())


def test_the_papers_steps():
    recipe = Recipe(epochs=160)
    rates = {epoch: recipe.learning_rate(epoch - 1) for epoch in (1, 80, 81, 120, 121, 160)}
    assert rates == pytest.approx({1: 0.1, 80: 0.1, 81: 0.01, 120: 0.01, 121: 0.001, 160: 0.001})


@pytest.mark.parametrize(
    ("kind", "progress", "expected"),
    [
        ("constant", 7.5, 0.1),
        ("cosine", 0, 0.1),
        ("cosine", 5, 0.05),
        ("cosine", 10, 0.0),
        ("cosine", 2.5, 0.05 * (1 + math.cos(math.pi / 4))),
        ("exponential", 3.9, 0.1 * 0.1**3),
    ],
)
def test_other_schedules(kind, progress, expected):
    recipe = Recipe().changed({"epochs": 10, "schedule.kind": kind})
    assert recipe.learning_rate(progress) == pytest.approx(expected, abs=1e-12)


def test_a_cosine_reaches_its_floor_before_the_averaged_epochs():
    recipe = Recipe().changed({"epochs": 10, "schedule.kind": "cosine", "schedule.floor": 0.2, "schedule.average": 0.4})
    assert recipe.averaged_epochs == 4
    expected = {0: 0.1, 3: 0.02 + 0.08 / 2, 6: 0.02, 8.5: 0.02}
    assert {at: recipe.learning_rate(at) for at in expected} == pytest.approx(expected)


def test_a_cosine_falls_from_the_end_of_the_warm_up():
    recipe = Recipe().changed({"epochs": 10, "schedule.kind": "cosine", "schedule.warmup": 2})
    expected = {2: 0.1, 4: 0.05 * (1 + math.cos(math.pi / 4)), 6: 0.05, 10: 0.0}
    assert {at: recipe.learning_rate(at) for at in expected} == pytest.approx(expected)


def test_milestones_below_one_are_shares_and_others_epochs():
    recipe = Recipe().changed({"epochs": 10, "schedule.milestones": (1, 0.5)})
    expected = {0.9: 0.1, 1: 0.01, 4.9: 0.01, 5: 0.001}
    assert {at: recipe.learning_rate(at) for at in expected} == pytest.approx(expected)
    assert Recipe().changed({"epochs": 1}).learning_rate(0.5) == pytest.approx(0.01)


def test_a_share_of_the_epochs_is_not_lost_to_rounding():
    assert 100 * 0.29 < 29  # the trap
    assert Recipe().changed({"epochs": 100, "schedule.average": 0.29}).averaged_epochs == 29


def test_what_is_just_allowed():
    late = Recipe().changed({"epochs": 5, "schedule.kind": "cosine", "schedule.milestones": (8,)})
    assert late.schedule.milestones == (8,)  # only steps read them


def test_what_would_have_no_effect_is_refused():
    with pytest.raises(InvalidInput, match=r"schedule.floor must be 0 unless schedule.kind is cosine \(it is step\)"):
        Recipe().changed({"schedule.floor": 0.5})
    with pytest.raises(InvalidInput, match=r"schedule.warmup must end before the last of the 2 epochs, got 100"):
        Recipe().changed({"epochs": 2, "schedule.warmup": 100})
    with pytest.raises(InvalidInput, match=r"schedule.warmup must end before"):
        Recipe().changed({"epochs": 2, "schedule.warmup": 2})


def test_averaging_needs_an_epoch():
    with pytest.raises(InvalidInput, match=r"schedule.average must cover at least one of the 5 epochs, got 0.1"):
        Recipe().changed({"epochs": 5, "schedule.average": 0.1})


@given(st.floats(0, 10), st.sampled_from(["step", "cosine", "constant", "exponential"]), st.floats(0.1, 5))
def test_a_warm_up_rises_to_the_rate_and_no_schedule_exceeds_it(progress, kind, warmup):
    recipe = Recipe().changed({"epochs": 10, "schedule.kind": kind, "schedule.warmup": warmup})
    rate = recipe.learning_rate(progress)
    assert 0 <= rate <= 0.1 * (1 + 1e-6)
    if progress < warmup:
        assert rate == pytest.approx(0.1 * progress / warmup, abs=1e-6)


@pytest.mark.parametrize(
    ("schedule", "epochs", "drop"),
    [
        ({}, 160, 80),
        ({"milestones": (0.7, 0.4)}, 100, 40),
        ({"milestones": (0.5,)}, 7, 4),  # in the middle of the fourth epoch
        ({"milestones": (3, 5)}, 8, 3),
        ({"milestones": (0.01,)}, 8, 1),
        ({"milestones": ()}, 8, None),
        ({"kind": "cosine"}, 8, None),
        ({"kind": "exponential"}, 8, None),
    ],
)
def test_the_first_drop_of_the_learning_rate(schedule, epochs, drop):
    recipe = Recipe(epochs=epochs, schedule=schedule)
    assert recipe.first_drop == drop
    if drop:
        rates = [recipe.learning_rate(epoch) for epoch in range(epochs + 1)]
        assert next(epoch for epoch, rate in enumerate(rates) if rate < rates[0]) == drop


def test_pruning_starts_at_the_drop_of_the_recipes_own_schedule():
    recipe = Recipe().changed({"data.name": "cifar10", "method.name": "flsd+h+p-ema", "epochs": 160})
    assert recipe.plan().settings["start"] == 80
    assert recipe.changed({"schedule.milestones": (60, 90)}).plan().settings["start"] == 60
    cosine = recipe.changed({"schedule.kind": "cosine"})
    assert cosine.plan().settings["start"] == 80
    with pytest.raises(InvalidInput, match="start must be an epoch if the learning rate has no drop"):
        cosine.changed({"method.options": {"start": "first-drop"}}).plan()
