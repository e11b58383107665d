import warnings

import numpy as np
import pytest

from calibrant.calibration import METHODS, TemperatureScaling, make_calibrator, select_calibrator
from calibrant.calibration.method_choice import cross_validated_nll
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.predictions import Predictions

QUICK = ("none", "temperature", "histogram", "isotonic-top")


def test_overconfident_model_gets_temperature(draw):
    logits, targets = draw(2000, 5, temperature=3.0)
    found = select_calibrator(logits, targets, methods=QUICK)
    assert found.name == "temperature"
    assert isinstance(found.calibrator, TemperatureScaling)
    assert found.calibrator.temperature_ == TemperatureScaling().fit(logits, targets).temperature_
    assert [line.nll for line in found.candidates] == sorted(line.nll for line in found.candidates)
    assert found.candidates[0].behind == 0.0
    assert found.reason.startswith("temperature has the lowest NLL")


@pytest.mark.parametrize("seed", range(8))
def test_the_simplest_method_within_a_standard_error_is_chosen(draw, seed):
    found = select_calibrator(*draw(400, 3, temperature=1.2, seed=seed), methods=("isotonic", "temperature", "none"))
    close = {each.name for each in found.candidates if each.behind <= each.standard_error}
    assert found.name == next(name for name in ("none", "temperature", "isotonic") if name in close)
    assert ("is simpler" in found.reason) == (found.name != found.candidates[0].name)


@pytest.mark.parametrize("seed", range(4))
def test_of_one_score_platt_scaling_is_simpler_than_beta(seed):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=400)
    right = rng.random(400) < 1 / (1 + np.exp(-2.0 * scores - 1.5))
    cases = Predictions.from_confidence(np.ones(400, int), scores, right.astype(int), kind="score")
    found = select_calibrator(cases)
    close = {each.name for each in found.candidates if each.behind <= each.standard_error}
    order = ("none", "temperature", "platt", "beta", "histogram", "isotonic")
    assert {each.name for each in found.candidates} == set(order)
    assert found.name == next(name for name in order if name in close)


@pytest.mark.parametrize("seed", range(4))
def test_few_cases_choose_between_none_and_temperature_by_the_lowest(draw, seed):
    found = select_calibrator(*draw(299, 3, temperature=1.2, seed=seed))
    assert {each.name for each in found.candidates} == {"none", "temperature"}
    assert found.name == found.candidates[0].name


def test_no_calibration_says_that_it_changes_nothing(draw):
    assert make_calibrator("none").fit(*draw(60)).identity_


def test_held_out_nll_by_hand(draw):
    logits, targets = draw(90, 3)
    fits = folds_of(logits, targets, folds=3, seed=2)
    found = cross_validated_nll(TemperatureScaling, logits, targets, folds=3, seed=2)
    for inside in fits:
        p = TemperatureScaling().fit(logits[inside], targets[inside]).transform(logits[~inside])
        np.testing.assert_allclose(found[~inside], -np.log(p[np.arange(len(p)), targets[~inside]]), rtol=1e-10)


def test_differences_are_paired(draw):
    logits, targets = draw(300, 3)
    found = select_calibrator(logits, targets, methods=("none", "temperature"))
    losses = [cross_validated_nll(METHODS[line.name], logits, targets) for line in found.candidates]
    gap = losses[1] - losses[0]
    assert found.candidates[1].behind == pytest.approx(gap.mean())
    assert found.candidates[1].standard_error == pytest.approx(gap.std(ddof=1) / np.sqrt(300))


def test_every_method_has_a_distinct_maker():
    assert len({repr(make_calibrator(name)) for name in METHODS}) == len(METHODS)


def folds_of(logits, targets, **options):
    """Which cases each fold of a cross-validation is fitted on, as a calibrator sees them."""
    seen = []

    class Spy(TemperatureScaling):
        def fit(self, rows, labels=None):
            seen.append(np.isin(logits[:, 0], rows[:, 0]))
            return super().fit(rows, labels)

    cross_validated_nll(Spy, logits, targets, **options)
    return seen


def test_folds_are_even_in_size_and_in_classes(draw):
    targets = np.repeat([0, 1, 2], [50, 31, 22])
    logits, _ = draw(103, 3)
    fits = folds_of(logits, targets, folds=5, seed=0)
    held_out = ~np.array(fits)
    assert (held_out.sum(axis=0) == 1).all()
    assert np.ptp(held_out.sum(axis=1)) <= 1
    for k in range(3):
        assert np.ptp(held_out[:, targets == k].sum(axis=1)) <= 1
    np.testing.assert_array_equal(fits, folds_of(logits, targets, folds=5, seed=0))
    assert (np.array(fits) != folds_of(logits, targets, folds=5, seed=1)).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"methods": ("none", "temprature")},
            "method must be a known one, got 'temprature'. Did you mean 'temperature'",
        ),
        ({"methods": (7,)}, "method must be a known one, got 7. Known: none, temperature"),
        ({"methods": "temperature"}, "methods must be a list of at least one method, got 'temperature'"),
        ({"methods": ()}, "methods must be a list"),
        ({"folds": 1}, "folds must"),
        ({"seed": -1}, "seed must"),
    ],
)
def test_bad_arguments(draw, arguments, message):
    with pytest.raises(InvalidInput) as caught:
        select_calibrator(*draw(60), **{"methods": ("none",), **arguments})
    assert str(caught.value).startswith(message)
    assert str(caught.value).count("histogram-top") <= 1


def test_too_few_cases_for_the_folds_inside_of_folds(draw):
    logits, _ = draw(6, 2, seed=3)
    with pytest.raises(InvalidInput, match=r"for 5 folds, got 5 cases\. .*temperature"):
        select_calibrator(logits, [0, 0, 0, 1, 1, 0], methods=("temperature", "vector"))


def test_matrices_with_more_numbers_than_cases_are_left_out(draw):
    logits, targets = draw(300, 20)
    tried = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        select_calibrator(logits, targets, progress=lambda name, *_: tried.append(name))
    assert set(METHODS) - set(tried) == {"dirichlet", "matrix"}


def test_progress_is_reported_before_each_method(draw):
    told = []
    select_calibrator(*draw(100), methods=QUICK[:2], progress=lambda *line: told.append(line))
    assert told == [(name, place, 2) for place, name in enumerate(QUICK[:2])]


def test_a_notebook_shows_what_was_compared(draw, notebook_rows):
    found = select_calibrator(*draw(600, 3, temperature=2.0), methods=("none", "temperature"))
    headings, *rows = notebook_rows(found)
    assert headings == ["held-out", "NLL", "behind the best"]
    assert [row[:2] for row in rows] == [[each.name, f"{each.nll:.4f}"] for each in found.candidates]
    assert repr(found).startswith(f"Selection: {found.name}. {found.reason}")
