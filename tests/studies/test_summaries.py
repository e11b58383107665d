import numpy as np
import pytest
from scipy import stats

from calibrant import compare
from calibrant.studies import summaries
from calibrant.studies.measuring import scaled_by
from calibrant.studies.summaries import COMPARED, estimate, over_seeds, summarise
from calibrant.training import Run


def test_mean_and_sample_deviation_over_seeds():
    values = [0.031, 0.028, 0.035, 0.030]
    found = estimate(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.spread == pytest.approx(np.std(values, ddof=1))
    assert found.over == "seeds"


def test_one_seed_takes_its_spread_from_test_images_and_undefined_stays_undefined():
    assert estimate([0.03], [0.002]).over == "images"
    assert estimate([0.03], [0.002]).spread == 0.002
    assert estimate([0.03]).spread is None
    assert estimate([0.03, None]).mean is None
    assert estimate([]).mean is None


def test_paired_interval_equals_the_paired_t_test():
    generator = np.random.default_rng(0)
    theirs = generator.normal(0.05, 0.01, 5)
    ours = theirs - 0.01 + generator.normal(0, 0.001, 5)
    found = over_seeds("x", "ece", list(ours), list(theirs))
    reference = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.interval == pytest.approx((reference.low, reference.high))
    assert found.difference == pytest.approx(np.mean(ours - theirs))
    assert (found.pairs, found.verdict) == (5, "better")


@pytest.mark.parametrize(
    ("metric", "ours", "verdict"),
    [
        ("ece", (0.10, 0.11, 0.121), "worse"),
        ("auroc", (0.10, 0.11, 0.121), "better"),
        ("share@0.95", (0.10, 0.11, 0.121), "better"),
        ("test_error", (0.01, 0.08, 0.03), "cannot tell"),
        ("ece", (0.02, 0.03, 0.041), "cannot tell"),
    ],
)
def test_verdicts_know_which_way_is_better(metric, ours, verdict):
    assert over_seeds("x", metric, ours, (0.02, 0.03, 0.04)).verdict == verdict


def test_seeds_that_agree_exactly_say_nothing_about_chance():
    # 8 of 599 images more in either seed: no spread, and the first differs from the second by rounding alone.
    ours, theirs = [50 / 599, 45 / 599], [42 / 599, 37 / 599]
    found = over_seeds("x", "test_error", ours, theirs)
    assert found.difference == pytest.approx(8 / 599)
    assert (found.interval, found.over, found.verdict) == (None, None, "cannot tell")


@pytest.mark.parametrize(("least", "verdict"), [(0.010, "worse"), (0.014, "cannot tell")])
def test_an_interval_is_no_narrower_than_the_noise_of_the_images(least, verdict):
    found = over_seeds("x", "test_error", [50 / 599, 45 / 599], [42 / 599, 37 / 599], least=least)
    assert found.interval == pytest.approx((8 / 599 - least, 8 / 599 + least))
    assert (found.over, found.verdict) == ("seeds", verdict)
    wide = over_seeds("x", "test_error", [0.1, 0.2], [0.0, 0.0], least=least)
    assert wide.interval == pytest.approx(stats.ttest_1samp([0.1, 0.2], 0.0).confidence_interval())


def test_pairs_with_an_undefined_value_are_not_judged():
    found = over_seeds("x", "ece@0.95", [0.1, None], [0.2, 0.3])
    assert (found.difference, found.interval, found.verdict) == (None, None, "cannot tell")


def test_one_pair_has_a_difference_and_no_interval():
    found = over_seeds("x", "ece", [0.1], [0.3], least=0.01)
    assert (found.difference, found.interval, found.verdict) == (pytest.approx(-0.2), None, "cannot tell")


def test_a_row_holds_each_number_plain_and_scaled(make_record):
    record = make_record(sharpness=3.0)
    (row,) = summarise({"nll": [record]}, "nll").rows
    for scaled, metrics, ece in ((False, row.test, row.ece_15_bins), (True, row.scaled, row.scaled_ece_15_bins)):
        assert metrics["ece"].mean == record.value("ece", scaled=scaled)
        assert metrics["ece"].spread == record.deviation("ece", scaled=scaled)
        assert ece.mean == record.value("ece", n_bins=15, scaled=scaled) != metrics["ece"].mean


def test_only_common_seeds_are_paired(make_record):
    groups = {
        "nll": [make_record(seed=seed) for seed in (0, 1, 2)],
        "flsd": [make_record("flsd", seed=seed, sharpness=1.0) for seed in (1, 2, 3)],
    }
    results = summarise(groups, "nll")
    assert [row.seeds for row in results.rows] == [(0, 1, 2), (1, 2, 3)]
    (ece,) = [item for item in results.differences if item.metric == "ece" and not item.scaled]
    expected = np.mean([groups["flsd"][k].value("ece") - groups["nll"][k + 1].value("ece") for k in (0, 1)])
    assert (ece.pairs, ece.difference) == (2, pytest.approx(expected))
    # A temperature does not move predictions, so there is no such thing as a scaled test error.
    assert {item.metric for item in results.differences if item.scaled} == set(COMPARED) - {"test_error"}


def test_a_confident_set_of_a_few_images_gives_no_verdict(make_record):
    # The set holds 3, 13 and 7 of 400 images, all of them right: no seed shows how often such images are wrong.
    groups = {
        "nll": [make_record(seed=seed, sharpness=3.0) for seed in (0, 1, 2)],
        "flsd": [make_record("flsd", seed=seed, sharpness=0.7) for seed in (0, 1, 2)],
    }
    assert all(0 < record.value("share@0.95") * 400 < 30 for record in groups["flsd"])
    found = {item.metric: item for item in summarise(groups, "nll").differences if not item.scaled}
    low, high = found["ece@0.95"].interval
    assert low > 0 or high < 0, "the interval alone would have been a verdict"
    assert found["ece@0.95"].verdict == "cannot tell"
    assert found["share@0.95"].verdict == "worse"


def test_without_the_baseline_there_are_no_differences(make_record):
    assert summarise({"flsd": [make_record("flsd")], "nll": []}, "nll").differences == ()


def test_with_one_seed_the_differences_are_the_paired_bootstrap_over_images(finished_study):
    cells = [planned for planned in finished_study.runs if planned.recipe.seed == 0]
    records = {planned.label: [finished_study.record(planned)] for planned in cells}
    tests = {planned.label: Run.open(finished_study.folder(planned)).predictions("test") for planned in cells}
    cool = {name: scaled_by(each, 3.0) for name, each in tests.items()}
    found = summarise(
        records, "nll", predictions_of=lambda record, scaled: cool[record.method] if scaled else tests[record.method]
    )
    references = [
        compare(both["nll"], both["flsd+h+p-ema"], n_bins=10, n_resamples=summaries.N_RESAMPLES)
        for both in (tests, cool)
    ]
    assert found.differences[0].over == "images"
    for item in found.differences:
        row = references[item.scaled][item.metric]
        assert (item.difference, item.interval, item.verdict) == (row.difference, row.interval, row.verdict)
