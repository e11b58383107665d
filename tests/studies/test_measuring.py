import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import choose_threshold, fit_policy
from calibrant.studies import summarise
from calibrant.studies.records import automation
from calibrant.studies.result_tables import paper_tables
from calibrant.training.final_weights import fit_temperature


def drawn(rows, *, seed, sharpness=1.0):
    generator = np.random.default_rng(seed)
    base = 8 * generator.normal(size=(rows, 4))
    return Predictions.from_logits(sharpness * base, (base + generator.gumbel(size=base.shape)).argmax(axis=1))


def by_hand(rule, test, temperature):
    """Share and accuracy case by case."""
    automated = right = 0
    for logits, target in zip(test.logits.tolist(), test.targets.tolist(), strict=True):
        powers = [np.exp((value - max(logits)) / temperature) for value in logits]
        if max(powers) / sum(powers) >= rule.threshold:
            automated += 1
            right += powers.index(max(powers)) == target
    return automated / len(test), right / automated


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_what_a_rule_of_the_validation_set_automates_of_the_test_set(sharpness):
    validation, test = drawn(4000, seed=0, sharpness=sharpness), drawn(3000, seed=1, sharpness=sharpness)
    found = automation(validation, test)
    assert set(found) == {"0.98", "0.99"}
    first, second = validation.split(0.5, seed=0)
    temperature = TemperatureScaling(prior_scale=None).fit(first.logits, first.targets).temperature_
    for target, figures in found.items():
        plain = by_hand(choose_threshold(validation, float(target)), test, 1.0)
        assert (figures["share"], figures["accuracy"]) == pytest.approx(plain)
        cooled = Predictions.from_logits(second.logits / temperature, second.targets)
        rule = choose_threshold(cooled, float(target))
        scaled = by_hand(rule, test, temperature)
        assert (figures["scaled_share"], figures["scaled_accuracy"]) == pytest.approx(scaled)
    assert 0 < found["0.99"]["share"] < found["0.98"]["share"] < 1


def test_the_best_score_is_chosen_on_the_validation_set_alone():
    """Logits scaled at random: the p-norm, which no scale changes, ranks them better than the probability."""
    generator = np.random.default_rng(0)
    targets = generator.integers(10, size=8000)
    logits = generator.normal(size=(8000, 10))
    logits[np.arange(8000), targets] += generator.normal(5, 2, size=8000)
    scaled = Predictions.from_logits(logits * np.exp(generator.uniform(-2, 2, size=(8000, 1))), targets)
    validation, test = scaled.subset(np.arange(5000)), scaled.subset(np.arange(5000, 8000))
    figures = automation(validation, test)["0.98"]
    policy = fit_policy(validation, 0.98, score="auto")
    assert policy.routing.score == "pnorm4"
    chosen = policy.decide(test).automate
    assert figures["best_share"] == chosen.mean() > figures["scaled_share"]
    assert figures["best_accuracy"] == test.correct[chosen].mean()


def test_where_nothing_can_be_promised_nothing_is_taken_over():
    found = automation(drawn(40, seed=0), drawn(100, seed=1))
    nothing = {"share": 0.0, "accuracy": None}
    assert found["0.99"] == {f"{way}{name}": nothing[name] for way in ("", "scaled_", "best_") for name in nothing}
    assert automation(drawn(1, seed=0), drawn(100, seed=1)) == {}


@pytest.mark.parametrize("rows", [2, 3, 4, 20])
def test_a_half_of_one_class_undoes_no_run(rows):
    """One case of a rare class is in one half only."""
    for row in range(rows):
        rare = Predictions.from_logits(np.tile([2.0, 0.0], (rows, 1)), (np.arange(rows) == row).astype(int))
        found = automation(rare, rare)["0.98"]
        assert found["scaled_share"] == found["best_share"] == 0.0


def figures(share, accuracy):
    return {"share": share, "accuracy": accuracy, "scaled_share": share / 2, "scaled_accuracy": accuracy}


def test_the_table_of_what_may_be_left_to_the_model(make_record):
    both = [{"0.98": figures(share, 0.99), "0.99": figures(share - 0.2, 0.995)} for share in (0.8, 0.6)]
    groups = {
        "nll": [make_record(seed=seed, automation=told) for seed, told in enumerate(both)],
        "flsd": [make_record("flsd", automation={**both[0], "0.99": figures(0.0, None)})],
        "dca": [make_record("dca")],
    }
    results = summarise(groups, "nll")
    (grid,) = [grid for grid in paper_tables(results) if grid.title.endswith("what may be left to the model")]
    columns = ("at 98 %", "at 98 % +TS", "at 99 %", "at 99 % +TS", "at 99 %, best score")
    assert grid.columns == ("method", "seeds", *columns, "right")
    assert grid.rows[0] == (
        "nll",
        "2",
        "70.00 ± 14.14",
        "35.00 ± 7.07",
        "50.00 ± 14.14",
        "25.00 ± 7.07",
        "-",
        "99.50 ± 0.00",
    )
    # One seed: the binomial standard error over its 400 test images.
    assert grid.rows[1] == ("flsd", "1", "80.00 ± 2.00", "40.00 ± 2.45", "0.00 ± 0.00", "0.00 ± 0.00", "-", "-")
    assert grid.rows[2] == ("dca", "1", "-", "-", "-", "-", "-", "-")
    assert grid.best[2] == {1}
    share = results.rows[0]["automated_share@0.98"]
    assert share.mean == pytest.approx(0.7)
    assert results.to_dict()["rows"][1]["figures"]["automated_share@0.98"]["mean"] == pytest.approx(0.8)


def test_an_accuracys_error_counts_the_cases_that_were_automated(make_record):
    groups = {"nll": [make_record(automation={"0.99": figures(0.25, 0.9)})]}
    row = summarise(groups, "nll").rows[0]
    assert row["automated_accuracy@0.99"].spread == pytest.approx(np.sqrt(0.9 * 0.1 / 100))
    assert row["automated_scaled_accuracy@0.99"].spread == pytest.approx(np.sqrt(0.9 * 0.1 / 50))


def test_accuracy_of_cases_that_are_all_right_has_no_spread(make_record):
    groups = {"nll": [make_record(automation={"0.99": figures(0.01, 1.0)})]}
    row = summarise(groups, "nll").rows[0]
    assert row["automated_accuracy@0.99"].mean == 1.0
    assert row["automated_accuracy@0.99"].spread is None


def test_nobody_is_best_where_nothing_can_be_promised(make_record):
    told = {"0.98": figures(0.0, None), "0.99": figures(0.0, None)}
    groups = {name: [make_record(name, automation=told)] for name in ("nll", "flsd")}
    grid = next(grid for grid in paper_tables(summarise(groups, "nll")) if grid.title.endswith("left to the model"))
    assert not any(grid.best)


def test_records_without_it_have_no_such_table(make_record):
    assert all(
        "left to the model" not in grid.title for grid in paper_tables(summarise({"nll": [make_record()]}, "nll"))
    )


def test_a_validation_set_without_mistakes_is_noted_not_fatal():
    logits = np.eye(3)[[0, 1, 2, 0]] * 5
    temperature, notes = fit_temperature(Predictions.from_logits(logits, [0, 1, 2, 0]))
    assert temperature == 1.0
    assert "every case is classified correctly" in notes[0]


@pytest.mark.parametrize(
    ("logits", "targets", "reason"),
    [
        ([[1.0, 0.0], [0.0, 2.0]], [1, 1], "targets must hold at least two classes"),
        ([[1.0, 0.0], [1.0, 0.0]], [0, 1], "the same prediction"),
    ],
)
def test_what_cannot_be_fitted_is_noted_not_fatal(logits, targets, reason):
    temperature, notes = fit_temperature(Predictions.from_logits(logits, targets))
    assert temperature == 1.0
    assert notes[0].startswith("not fitted, the temperature stays 1: ")
    assert reason in notes[0]
