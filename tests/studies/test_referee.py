"""Verdicts over seeds and images: against textbook tests, slow references and simulations."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from calibrant.metrics import evaluate
from calibrant.metrics.intervals import resample_models
from calibrant.predictions import Predictions
from calibrant.studies import referee, summarise
from calibrant.studies.referee import Difference, Referee, SeedPool, Spread, decide, fieller, spread_of

ROWS = 599


def predictions(wrong):
    """Two classes; these images are wrong."""
    targets = np.zeros(ROWS, dtype=int)
    logits = np.tile([1.0, 0.0], (ROWS, 1))
    logits[wrong] = [0.0, 1.0]
    return Predictions.from_logits(logits, targets)


def test_the_noise_is_that_of_resampled_images(make_record):
    """Against the exact standard error of the mean difference: its value image by image has a known variance."""
    wrong = {"nll0": range(40), "flsd0": range(20, 68), "nll1": range(100, 140), "flsd1": range(130, 178)}
    groups = {name: [make_record(name, seed=seed) for seed in (0, 1)] for name in ("nll", "flsd")}
    noise = Referee({}, lambda record, scaled: predictions(wrong[f"{record.method}{record.seed}"]))
    found = noise.image_variance("test_error", groups["flsd"], groups["nll"])
    errors = {name: np.isin(np.arange(ROWS), which).astype(float) for name, which in wrong.items()}
    image = (errors["flsd0"] - errors["nll0"] + errors["flsd1"] - errors["nll1"]) / 2
    assert np.sqrt(found) == pytest.approx(image.std() / np.sqrt(ROWS), rel=0.15)


def test_eight_images_in_either_seed_are_not_a_verdict(make_record):
    wrong = {"nll0": range(40), "flsd0": range(20, 68), "nll1": range(40), "flsd1": range(20, 68)}
    groups = {name: [make_record(name, seed=seed) for seed in (0, 1)] for name in ("nll", "flsd")}
    shared = groups["nll"][0].test
    for name, group in groups.items():
        for record in group:
            rate = len(wrong[f"{name}{record.seed}"]) / ROWS
            record.test["10"] = replace(shared["10"], metrics={**shared["10"].metrics, "test_error": rate}, n=ROWS)
    made = summarise(groups, "nll", predictions_of=lambda r, scaled: predictions(wrong[f"{r.method}{r.seed}"]))
    (found,) = [item for item in made.differences if item.metric == "test_error"]
    assert found.difference == pytest.approx(8 / ROWS)
    assert found.interval is not None
    assert found.interval[0] < 0 < found.interval[1]
    assert (found.over, found.verdict) == ("seeds", "cannot tell")


def test_the_noise_of_errors_and_sets_is_the_mean_over_pairs_of_what_compare_finds_plausible(make_record):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, size=500)
    logits = {name: rng.normal(size=(500, 3)) + 3 * np.eye(3)[targets] for name in ("nll0", "flsd0", "nll1", "flsd1")}
    models = {
        name: Predictions.from_logits((1 + int("nll" in name)) * value, targets) for name, value in logits.items()
    }
    groups = {name: [make_record(name, seed=seed) for seed in (0, 1)] for name in ("nll", "flsd")}
    noise = Referee({}, lambda record, scaled: models[f"{record.method}{record.seed}"])
    evaluations = {name: evaluate(model, n_bins=10, thresholds=(0.95,)) for name, model in models.items()}
    for metric in ("ece", "share@0.95"):
        farthest = []
        for seed in "01":
            names = f"nll{seed}", f"flsd{seed}"
            a, b = resample_models(
                [models[name] for name in names],
                [evaluations[name] for name in names],
                n_resamples=referee.N_RESAMPLES,
            )
            low, high = b.difference(a, metric)
            difference = b.evaluation.values()[metric] - a.evaluation.values()[metric]
            farthest.append(max(difference - low, high - difference))
        found = noise.image_variance(metric, groups["flsd"], groups["nll"])
        assert 1.96 * np.sqrt(found) == pytest.approx(np.mean(farthest))


def record(value, *, n=600):
    """A run with one value in every metric."""
    values = dict.fromkeys(("test_error", "auroc", "ece", "share@0.95", "accuracy@0.95"), value)
    evaluation = SimpleNamespace(values=lambda: values, n=n)
    return SimpleNamespace(value=lambda metric: value, evaluation=lambda scaled: evaluation)


def compared(metric, ours, theirs, *others):
    groups = {str(number): [record(value) for value in values] for number, values in enumerate((ours, theirs, *others))}
    return Referee(groups).compare("x", metric, groups["0"], groups["1"])


@pytest.mark.parametrize("ours", [(0.05, 0.06, 0.08), (0.01, 0.02, 0.02, 0.05)])
def test_two_methods_that_vary_alike_are_students_test_of_two_samples(ours):
    theirs = [value + 0.02 for value in reversed(ours)]
    found = compared("test_error", list(ours), theirs)
    reference = stats.ttest_ind(ours, theirs)
    assert found.p == pytest.approx(reference.pvalue)
    assert found.interval == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert (found.seeds, found.over) == ((len(ours), len(ours)), "seeds")


def test_other_methods_count_the_less_the_more_their_variance_differs():
    ours, theirs, other = [1.0, 2.0, 4.0], [3.0, 5.0], [10.0, 10.0, 10.0, 16.0]
    groups = [ours, theirs, other]
    parts = []
    for values in (ours, theirs):
        others = [group for group in groups if group is not values]
        rest = sum(np.var(group) * len(group) for group in others) / sum(len(group) - 1 for group in others)
        degrees = len(values) - 1
        below = stats.f.cdf(np.var(values, ddof=1) / rest, degrees, sum(len(group) - 1 for group in others))
        weight = 2 * min(below, 1 - below)
        moderated = (degrees * np.var(values, ddof=1) + weight * rest) / (degrees + weight)
        parts.append((moderated / len(values), degrees + weight))
    variance = parts[0][0] + parts[1][0]
    together = variance**2 / (parts[0][0] ** 2 / parts[0][1] + parts[1][0] ** 2 / parts[1][1])
    assert SeedPool(groups).variance_of(ours, theirs) == pytest.approx((variance, together))


def test_a_method_that_was_run_once_varies_like_the_others():
    other = [1.0, 2.0, 4.0]
    assert SeedPool([[7.0], [8.0], other]).variance_of([7.0], [8.0]) == pytest.approx((2 * np.var(other, ddof=1), 2))
    assert SeedPool([[7.0], [8.0]]).variance_of([7.0], [8.0]) is None


def test_the_noise_of_images_adds_up_and_brings_degrees_of_freedom():
    ours, theirs = [1.0, 2.0, 3.0], [2.0, 4.0, 3.0]
    pool = SeedPool([ours, theirs])
    variance, degrees = pool.variance_of(ours, theirs)
    spread = spread_of(pool, ours, theirs, 0.5)
    assert spread.error == pytest.approx(np.sqrt(variance + 0.5))
    # Satterthwaite, with infinitely many degrees of freedom for the images.
    assert spread.degrees == pytest.approx((variance + 0.5) ** 2 / (variance**2 / degrees), rel=1e-4)


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
    assert compared(metric, ours, (0.02, 0.03, 0.04)).verdict == verdict


def test_seeds_that_agree_exactly_say_nothing_about_chance():
    found = compared("test_error", [50 / 599, 50 / 599], [42 / 599, 42 / 599])
    assert found.difference == pytest.approx(8 / 599)
    assert (found.interval, found.over, found.verdict) == (None, None, "cannot tell")


def test_an_undefined_value_is_not_judged():
    found = compared("ece", [0.1, None], [0.2, 0.3])
    assert (found.difference, found.interval, found.p, found.verdict) == (None, None, None, "cannot tell")


def slow_holm(values):
    """Reject the smallest p at level / k, the next at level / (k - 1), and so on, until one is not rejected."""
    rejected = set()
    for place, (p, label) in enumerate(sorted((p, label) for label, p in values.items())):
        if p >= 0.05 / (len(values) - place):
            break
        rejected.add(label)
    return rejected


def test_holm_rejects_what_the_stepwise_procedure_rejects():
    generator = np.random.default_rng(1)
    spread = Spread(1.0, 8.0)
    for _ in range(100):
        items = [
            Difference(str(k), "nll", (3, 3), shift, (0.0, 0.0), spread, "seeds", "worse")
            for k, shift in enumerate(generator.normal(2.2, 1.0, 5))
        ]
        rejected = slow_holm({item.label: item.p for item in items})
        assert {found.difference.label for found in decide(items) if found.verdict == "worse"} == rejected


def rejections(generator, studies, deviations, *, shift=0.0, seeds=3):
    """How often a difference of `shift` between the first two methods is found."""
    found = 0
    for _ in range(studies):
        values = [list(generator.normal(0, deviation, seeds)) for deviation in deviations]
        values[0] = [value + shift for value in values[0]]
        spread = spread_of(SeedPool(values), values[0], values[1], 0.0)
        found += spread.p(np.mean(values[0]) - np.mean(values[1])) < 0.05
    return found / studies


def test_error_rate_and_power_in_simulated_studies():
    """Three seeds, five methods; benchmarks/verdicts.py has more worlds and more draws."""
    generator = np.random.default_rng(0)
    assert rejections(generator, 2000, [1.0] * 5) < 0.06
    # Deviations that differ at random, as in our records.
    unequal = [rejections(generator, 100, np.sqrt(4 / generator.chisquare(4, size=5))) for _ in range(20)]
    assert np.mean(unequal) < 0.07
    # One or both of the two compared vary three times as much as all others.
    assert rejections(generator, 1000, [3.0, 3.0, 1.0, 1.0, 1.0]) < 0.06
    assert rejections(generator, 2000, [3.0, 1.0, 1.0, 1.0, 1.0]) < 0.08
    # Three standard errors: paired Student's t finds 39 % of these.
    assert rejections(generator, 1000, [1.0] * 5, shift=3 * np.sqrt(2 / 3)) > 0.55


def test_a_detectable_difference_is_found_in_four_of_five_studies():
    generator = np.random.default_rng(3)
    studies = [[list(generator.normal(0, 1, 3)) for _ in range(5)] for _ in range(300)]
    degrees = [spread_of(SeedPool(values), values[0], values[1], 0.0).degrees for values in studies]
    spread = Spread(np.sqrt(2 / 3), np.median(degrees))
    assert rejections(generator, 1500, [1.0] * 5, shift=spread.detectable()) == pytest.approx(0.8, abs=0.04)
    assert spread.detectable(4) > spread.detectable()


def test_fiellers_interval_holds_the_ratio_in_95_percent_of_draws():
    generator = np.random.default_rng(5)
    held = []
    for _ in range(2000):
        plan, control, whole = (generator.normal(mean, 1.0, 3) for mean in (6.0, 10.0, 0.0))
        variance = np.mean([values.var(ddof=1) for values in (plan, control, whole)]) / 3
        found = fieller(
            (control.mean() - plan.mean(), control.mean() - whole.mean()),
            (2 * variance, 2 * variance, variance),
            stats.t.ppf(0.975, 6),
        )
        held.append(found[0] < 0.4 < found[1])
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)
    assert fieller((1.0, 0.1), (1.0, 1.0, 0.5), 2.0) is None, "a denominator that may be 0"
