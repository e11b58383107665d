"""How often `calibrant compare` gives a verdict on two methods that are equally good, and what its intervals hold.

    python benchmarks/verdicts.py [--studies 150] [--seeds 3] [--rows 600]

First: studies of two methods whose runs are drawn alike, so that every verdict is a false one. A run has a quality and
a temperature of its own, which is the spread over seeds; all runs of a study share the test cases and their difficulty.
Second: intervals as numbers alone. A mean difference varies by seeds and by test images; how often does an interval
hold the difference that other seeds and other images would have? At a ratio of 1 both vary it equally.
"""

import argparse
from collections import Counter
from types import SimpleNamespace

import numpy as np
from scipy import stats

from calibrant import Predictions, evaluate
from calibrant.studies.summaries import COMPARED, ImageNoise, over_seeds

CLASSES = 5


def run(generator: np.random.Generator, targets: np.ndarray, difficulty: np.ndarray) -> SimpleNamespace:
    """The predictions of one training, in the shape of what a study records of it."""
    quality, temperature = np.exp(generator.normal(size=2) * (0.015, 0.09))
    noise = generator.normal(size=difficulty.shape)
    logits = (quality * (2.2 * np.eye(CLASSES)[targets] + difficulty) + noise) * temperature
    predictions = Predictions.from_logits(logits, targets)
    values = evaluate(predictions, 10, thresholds=(0.95,)).values()
    return SimpleNamespace(predictions=predictions, values=values, predictions_sha256={"test": str(generator.random())})


def false_verdicts(studies: int, seeds: int, rows: int) -> None:
    """Count the verdicts, with the noise of the images as `compare` has it, and by Student's t alone."""
    generator = np.random.default_rng(0)
    counts: dict[str, Counter[str]] = {"compare": Counter(), "t alone": Counter()}
    for _ in range(studies):
        targets, difficulty = generator.integers(0, CLASSES, rows), generator.normal(size=(rows, CLASSES))
        first, second = ([run(generator, targets, difficulty) for _ in range(seeds)] for _ in range(2))
        noise = ImageNoise(lambda record, _: record.predictions)
        for metric in COMPARED:
            pair = [[each.values[metric] for each in method] for method in (second, first)]
            least = noise.half_width(metric, second, first, scaled=False)
            for name, width in (("compare", least), ("t alone", 0.0)):
                counts[name][metric] += over_seeds("second", metric, *pair, least=width).verdict != "cannot tell"
    print(f"false verdicts in {studies} studies of two equal methods, {seeds} seeds, {rows} test cases")
    for metric in COMPARED:
        print(f"{metric:12}" + "".join(f"  {name}: {found[metric]:3}" for name, found in counts.items()))


def coverage(draws: int = 200_000) -> None:
    """How often the larger of the two half-widths holds the truth."""
    generator = np.random.default_rng(0)
    ratios = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
    print("\nintervals that hold the difference of other seeds and other images; ratio of the two deviations")
    print("seeds " + "".join(f"{ratio:8}" for ratio in ratios))
    for seeds in (2, 3, 5, 10, 20):
        factor, held = stats.t.ppf(0.975, seeds - 1) / np.sqrt(seeds), []
        for ratio in ratios:
            by_seed = generator.normal(size=(draws, seeds)) * ratio * np.sqrt(seeds)
            pairs = by_seed + generator.normal(size=(draws, 1))
            half = np.maximum(factor * pairs.std(axis=1, ddof=1), 1.96)
            held.append(np.mean(np.abs(pairs.mean(axis=1)) < half))
        print(f"{seeds:5} " + "".join(f"{100 * share:7.1f}%" for share in held))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=600)
    given = parser.parse_args()
    false_verdicts(given.studies, given.seeds, given.rows)
    coverage()
