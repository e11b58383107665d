"""Simulate how often the intervals of weighted and of clustered rows hold the truth.

    python scripts/coverage_of_weights.py [--draws 2000] [--rows 600] [--resamples 1000] [--seed 0] [--processes 1]

Two worlds. In one, rare classes are drawn less often than they come in use, and weights repair that. In the other,
pictures come in patients, some of whom are hard. The true values are those of a million cases. The plain intervals,
which know of neither weights nor clusters, stand beside them. Each draw has its own seed, so the numbers are the same
for any number of processes.
"""

import argparse
import platform
from functools import partial
from multiprocessing import Pool
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


WORLDS = {"weights": weighted, "clusters": clustered}


def held_in(world: str, arguments: argparse.Namespace, truth: dict[str, float], number: int) -> list[tuple[bool, ...]]:
    """Whether each interval of one draw holds the truth: ours, then those that know of neither."""
    cases, settings = WORLDS[world](arguments.rows, np.random.default_rng([arguments.seed, number]))
    found = []
    # Each row a cluster of its own: independent rows.
    for own in (settings, {"clusters": np.arange(arguments.rows)}):
        result = evaluate(cases, thresholds=(0.9,), n_resamples=arguments.resamples, seed=number, **own)
        ends = result.intervals or {}
        # A metric without an interval claims nothing, so it is not wrong; there are none in these worlds.
        found.append(tuple(name not in ends or ends[name][0] <= truth[name] <= ends[name][1] for name in METRICS))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print(
        f"{arguments.draws} draws of {arguments.rows} rows, {arguments.resamples} resamples, seed {arguments.seed}, "
        f"Python {platform.python_version()}\n"
    )
    print("| metric | weights | the same without weights | clusters | the same without clusters |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    shares = []
    with Pool(arguments.processes) as pool:
        for world, draw in WORLDS.items():
            in_use, _ = draw(1_000_000, np.random.default_rng(arguments.seed), in_use=True)
            truth = evaluate(in_use, thresholds=(0.9,)).values()
            held = pool.map(partial(held_in, world, arguments, truth), range(arguments.draws), chunksize=10)
            shares.append(100 * np.mean(held, axis=0))
    for at, name in enumerate(METRICS):
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for share in shares for value in share[:, at]) + " |")


if __name__ == "__main__":
    main()
