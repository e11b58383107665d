import numpy as np
import pytest

from calibrant.metrics import evaluate
from calibrant.metrics.intervals import resample_models
from calibrant.predictions import Predictions
from calibrant.studies import summaries
from calibrant.studies.summaries import ImageNoise, summarise

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
    noise = ImageNoise(lambda record, scaled: predictions(wrong[f"{record.method}{record.seed}"]))
    found = noise.half_width("test_error", groups["flsd"], groups["nll"], scaled=False)
    errors = {name: np.isin(np.arange(ROWS), which).astype(float) for name, which in wrong.items()}
    image = (errors["flsd0"] - errors["nll0"] + errors["flsd1"] - errors["nll1"]) / 2
    assert found == pytest.approx(1.96 * image.std() / np.sqrt(ROWS), rel=0.15)


def test_eight_images_in_either_seed_are_not_a_verdict(make_record):
    wrong = {"nll0": range(40), "flsd0": range(20, 68), "nll1": range(40), "flsd1": range(20, 68)}
    groups = {name: [make_record(name, seed=seed) for seed in (0, 1)] for name in ("nll", "flsd")}
    shared = groups["nll"][0].test
    for name, group in groups.items():
        for record in group:
            rate = len(wrong[f"{name}{record.seed}"]) / ROWS
            record.test["10"] = {**shared["10"], "test_error": rate, "n": ROWS}
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
    noise = ImageNoise(lambda record, scaled: models[f"{record.method}{record.seed}"])
    evaluations = {name: evaluate(model, 10, thresholds=(0.95,)) for name, model in models.items()}
    for metric in ("ece", "share@0.95"):
        farthest = []
        for seed in "01":
            names = f"nll{seed}", f"flsd{seed}"
            a, b = resample_models(
                [models[name] for name in names],
                [evaluations[name] for name in names],
                n_resamples=summaries.N_RESAMPLES,
            )
            low, high = b.difference(a, metric)
            difference = b.evaluation.values()[metric] - a.evaluation.values()[metric]
            farthest.append(max(difference - low, high - difference))
        found = noise.half_width(metric, groups["flsd"], groups["nll"], scaled=False)
        assert found == pytest.approx(np.mean(farthest))
