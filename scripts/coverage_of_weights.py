"""Simulate how often the intervals of weighted and of clustered rows hold the truth.

    python scripts/coverage_of_weights.py [--draws 2000] [--seed 0]

Two worlds. In one, rare classes are drawn less often than they come in use, and weights repair that. In the other,
pictures come in patients, some of whom are hard. The true values are those of a million cases. The plain intervals,
which know of neither weights nor clusters, stand beside them.
"""

import argparse
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant import Predictions, evaluate

METRICS = ("test_error", "nll", "brier", "auroc", "aurc", "share@0.9", "accuracy@0.9")
Drawn = tuple[Predictions, dict[str, Any]]


def cases_of(y: np.ndarray, noise: np.ndarray, rng: np.random.Generator) -> Predictions:
    """Two classes; the larger the noise of a case, the more often it is wrong."""
    z = np.where(y == 1, 2.0, -2.0) + noise * rng.normal(size=len(y))
    return Predictions.from_logits(np.stack([np.zeros_like(z), 1.5 * z], axis=1), y)


def weighted(n: int, rng: np.random.Generator, *, in_use: bool = False) -> Drawn:
    """A tenth of the sample is class 0, half of the cases in use are; class 0 is harder."""
    y = (rng.random(n) < (0.5 if in_use else 0.9)).astype(int)
    cases = cases_of(y, np.where(y == 0, 2.0, 1.2), rng)
    return cases, {"weights": np.where(y == 0, 0.5 / 0.1, 0.5 / 0.9)}


def clustered(n: int, rng: np.random.Generator, *, in_use: bool = False) -> Drawn:
    """Ten pictures of each patient, with a noise of the patient's own."""
    patient = np.arange(n) if in_use else np.arange(n) // 10
    noise = rng.gamma(2.0, 0.8, size=patient.max() + 1)[patient]
    y = rng.integers(2, size=patient.max() + 1)[patient]
    return cases_of(y, noise, rng), {"clusters": patient}


def coverage(draw: Callable[..., Drawn], n: int, draws: int, seed: int) -> dict[str, tuple[float, float]]:
    truth = evaluate(draw(1_000_000, np.random.default_rng(seed), in_use=True)[0], thresholds=(0.9,)).values()
    held = {name: [0, 0] for name in METRICS}
    for number in range(draws):
        cases, settings = draw(n, np.random.default_rng([seed, number]))
        # Each row a cluster of its own: independent rows.
        for which, own in enumerate((settings, {"clusters": np.arange(n)})):
            found = evaluate(cases, thresholds=(0.9,), n_resamples=200, seed=number, **own).intervals or {}
            for name in METRICS:
                low, high = found[name]
                held[name][which] += low <= (truth[name] or 0.0) <= high
    return {name: (100 * ours / draws, 100 * plain / draws) for name, (ours, plain) in held.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.draws} draws, seed {arguments.seed}, Python {platform.python_version()}\n")
    print("| metric | weights | the same without weights | clusters | the same without clusters |")
    print("| --- | --- | --- | --- | --- |")
    columns = [coverage(draw, 600, arguments.draws, arguments.seed) for draw in (weighted, clustered)]
    for name in METRICS:
        cells = [f"{value:.1f}" for column in columns for value in column[name]]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
