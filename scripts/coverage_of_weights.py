"""Simulate how often the intervals of weighted and of clustered rows, and of differences there, hold the truth.

    python scripts/coverage_of_weights.py [--draws 2000] [--rows 600] [--resamples 1000] [--seed 0] [--processes 1]

Two worlds. In one, rare classes are drawn less often than they come in use, and weights repair that. In the other,
pictures come in patients, some of whom are hard. The true values are those of a million cases. The plain intervals,
which know of neither weights nor clusters, stand beside them. The differences are those of two models on the same rows,
of which the second sees less noise. Each draw has its own seed, so the numbers are the same
for any number of processes.
"""

import argparse
import platform
from functools import partial
from multiprocessing import Pool
from typing import Any

import numpy as np

from calibrant import Predictions, compare, evaluate

METRICS = ("test_error", "nll", "brier", "auroc", "aurc", "share@0.9", "accuracy@0.9")
Drawn = tuple[Predictions, Predictions, dict[str, Any]]


def cases_of(
    y: np.ndarray, noise: np.ndarray, rng: np.random.Generator, settings: dict[str, Any]
) -> tuple[Predictions, Predictions, dict[str, Any]]:
    """Two classes and two models; the larger the noise of a case, the more often it is wrong."""
    shared, own = rng.normal(size=(2, len(y)))
    models = []
    for seen in (noise * shared, noise * (0.8 * shared + 0.4 * own)):
        z = np.where(y == 1, 2.0, -2.0) + seen
        models.append(Predictions.from_logits(np.stack([np.zeros_like(z), 1.5 * z], axis=1), y))
    return models[0], models[1], settings


def weighted(n: int, rng: np.random.Generator, *, in_use: bool = False) -> Drawn:
    """A tenth of the sample is class 0, half of the cases in use are; class 0 is harder."""
    y = (rng.random(n) < (0.5 if in_use else 0.9)).astype(int)
    return cases_of(y, np.where(y == 0, 2.0, 1.2), rng, {"weights": np.where(y == 0, 0.5 / 0.1, 0.5 / 0.9)})


def clustered(n: int, rng: np.random.Generator, *, in_use: bool = False) -> Drawn:
    """Ten pictures of each patient, with a noise of the patient's own."""
    patient = np.arange(n) if in_use else np.arange(n) // 10
    noise = rng.gamma(2.0, 0.8, size=patient.max() + 1)[patient]
    y = rng.integers(2, size=patient.max() + 1)[patient]
    return cases_of(y, noise, rng, {"clusters": patient})


WORLDS = {"weights": weighted, "clusters": clustered}


def held_in(world: str, arguments: argparse.Namespace, truth: list[dict[str, float]], number: int) -> np.ndarray:
    """Whether each interval of one draw holds the truth: ours, then those that know of neither, then differences."""
    first, second, settings = WORLDS[world](arguments.rows, np.random.default_rng([arguments.seed, number]))
    # Each row a cluster of its own: independent rows.
    plain = {"clusters": np.arange(arguments.rows)}
    found = []
    common = {"thresholds": (0.9,), "n_resamples": arguments.resamples, "seed": number}
    for own in (settings, plain):
        ends = evaluate(first, **common, **own).intervals or {}
        found.append([holds(ends.get(name), truth[0][name]) for name in METRICS])
    for own in (settings, plain):
        pair = compare(first, second, **common, **own)
        found.append([holds(pair[name].interval, truth[1][name] - truth[0][name]) for name in METRICS])
    return np.array(found)


def holds(ends: tuple[float, float] | None, truth: float) -> bool:
    """A metric without an interval claims nothing, so it is not wrong; there are hardly any in these worlds."""
    return ends is None or ends[0] <= truth <= ends[1]


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
    shares = []
    with Pool(arguments.processes) as pool:
        for world, draw in WORLDS.items():
            models = draw(1_000_000, np.random.default_rng(arguments.seed), in_use=True)[:2]
            truth = [evaluate(each, thresholds=(0.9,)).values() for each in models]
            held = pool.map(partial(held_in, world, arguments, truth), range(arguments.draws), chunksize=10)
            shares.append(100 * np.mean(held, axis=0))
    for what, rows in (("metric", slice(0, 2)), ("difference", slice(2, 4))):
        print(f"| {what} | weights | the same without weights | clusters | the same without clusters |")
        print("| --- | --- | --- | --- | --- |")
        for at, name in enumerate(METRICS):
            print(f"| {name} | " + " | ".join(f"{value:.1f}" for share in shares for value in share[rows, at]) + " |")
        print()


if __name__ == "__main__":
    main()
