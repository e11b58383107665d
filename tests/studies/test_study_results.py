import numpy as np
import pytest

from calibrant import compare
from calibrant.errors import InvalidInput
from calibrant.studies import referee
from calibrant.studies.records import without_scaled
from calibrant.studies.study_results import estimate, summarise
from calibrant.training import Run
from calibrant.training.final_weights import scaled_by


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


def test_a_row_holds_each_number_plain_and_scaled(make_record):
    record = make_record(sharpness=3.0)
    (row,) = summarise({"nll": [record]}, "nll").rows
    for prefix, evaluations in (("", record.test), ("scaled_", record.test_scaled)):
        low, high = evaluations["10"].intervals["ece"]
        assert row[f"{prefix}ece"].mean == evaluations["10"].ece
        assert row[f"{prefix}ece"].spread == pytest.approx((high - low) / 3.92)
        assert row[f"{prefix}ece_15_bins"].mean == evaluations["15"].ece != evaluations["10"].ece


def test_all_seeds_count_whether_the_baseline_has_them_or_not(make_record):
    groups = {
        "nll": [make_record(seed=seed) for seed in (0, 1, 2)],
        "flsd": [make_record("flsd", seed=seed, sharpness=1.0) for seed in (2, 3)],
    }
    results = summarise(groups, "nll")
    assert [row.seeds for row in results.rows] == [(0, 1, 2), (2, 3)]
    (ece,) = [item for item in results.differences if item.metric == "ece"]
    values = [[record.value("ece") for record in group] for group in groups.values()]
    assert (ece.seeds, ece.difference) == ((2, 3), pytest.approx(np.mean(values[1]) - np.mean(values[0])))
    # A temperature does not move predictions, so there is no such thing as a scaled test error.
    assert "test_error" in {item.metric for item in results.differences}
    assert "scaled_test_error" not in {item.metric for item in results.differences}


def test_the_metric_that_decides_is_named_and_corrected(make_record):
    groups = {
        name: [make_record(name, seed=seed, sharpness=1.0 + number) for seed in (0, 1, 2)]
        for number, name in enumerate(("nll", "flsd", "brier"))
    }
    results = summarise(groups, "nll", decides="test_error")
    assert [decision.difference.metric for decision in results.decisions] == ["test_error", "test_error"]
    with pytest.raises(InvalidInput, match=r"metric must be one of ece, .*Did you mean"):
        summarise(groups, "nll", decides="scaled_nl")


def test_a_confident_set_of_a_few_images_gives_no_verdict(make_record):
    # The set holds 3, 13 and 7 of 400 images, all of them right: no seed shows how often such images are wrong.
    groups = {
        "nll": [make_record(seed=seed, sharpness=3.0) for seed in (0, 1, 2)],
        "flsd": [make_record("flsd", seed=seed, sharpness=0.7) for seed in (0, 1, 2)],
    }
    assert all(0 < record.value("share@0.95") * 400 < 30 for record in groups["flsd"])
    found = {item.metric: item for item in summarise(groups, "nll").differences}
    low, high = found["ece@0.95"].interval
    assert low > 0 or high < 0, "the interval alone would have been a verdict"
    assert found["ece@0.95"].verdict == "cannot tell"
    assert found["share@0.95"].verdict == "worse"


def test_without_the_baseline_there_are_no_differences(make_record):
    assert summarise({"flsd": [make_record("flsd")], "nll": []}, "nll").differences == ()


def test_with_one_seed_the_differences_are_the_paired_bootstrap_over_images(finished_study):
    cells = [planned for planned in finished_study.runs if planned.recipe.seed == 0]
    records = {planned.label: [finished_study.record(planned)] for planned in cells}
    tests = {planned.label: Run(finished_study.folder(planned)).predictions("test") for planned in cells}
    cool = {name: scaled_by(each, 3.0) for name, each in tests.items()}
    found = summarise(
        records, "nll", predictions_of=lambda record, scaled: cool[record.method] if scaled else tests[record.method]
    )
    references = [
        compare(both["nll"], both["flsd+h+p-ema"], n_bins=10, n_resamples=referee.N_RESAMPLES) for both in (tests, cool)
    ]
    assert found.differences[0].over == "images"
    for item in found.differences:
        metric, scaled = without_scaled(item.metric)
        row = references[scaled][metric]
        assert (item.difference, item.interval, item.verdict) == (row.difference, row.interval, row.verdict)
