"""Simulate how often the intervals of weighted and of clustered rows, and of differences there, hold the truth.

    python scripts/coverage_of_weights.py [--draws 2000] [--rows 600] [--resamples 1000] [--seed 0] [--processes 1]
                                          [--worlds weights clusters both]

Three worlds. In one, rare classes are drawn less often than they come in use, and weights repair that. In another,
pictures come in patients, some of whom are hard. The third has both. The true values are those of a million cases. The
plain intervals, which know of neither weights nor clusters, stand beside them. The differences are those of two models
on the same rows, of which the second sees less noise. Each draw has its own seed, so the numbers are the same for any
number of processes. Tables of the draws so far go to the standard error.
"""

import argparse
import platform
import sys
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


def both(n: int, rng: np.random.Generator, *, in_use: bool = False) -> Drawn:
    """Ten pictures of each patient; a quarter of the patients in the sample are of class 0, half of those in use."""
    patient = np.arange(n) if in_use else np.arange(n) // 10
    y = (rng.random(patient.max() + 1) < (0.5 if in_use else 0.75)).astype(int)[patient]
    noise = rng.gamma(2.0, 0.8, size=patient.max() + 1)[patient] * np.where(y == 0, 1.5, 1.0)
    return cases_of(y, noise, rng, {"clusters": patient, "weights": np.where(y == 0, 0.5 / 0.25, 0.5 / 0.75)})


WORLDS = {"weights": weighted, "clusters": clustered, "both": both}


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


def table(world: str, held: list[np.ndarray]) -> str:
    """Percent of the draws in which each interval held the truth, in the order of `held_in`."""
    share = 100 * np.mean(held, axis=0)
    without = "" if world == "both" else f" {world}"
    lines = [
        f"{world}, {len(held)} draws",
        f"| metric | {world} | without{without} | difference, {world} | difference, without{without} |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {name} | " + " | ".join(f"{x:.1f}" for x in share[:, at]) + " |" for at, name in enumerate(METRICS)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print a table for each world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    arguments = parser.parse_args()
    print(
        f"{arguments.draws} draws of {arguments.rows} rows, {arguments.resamples} resamples, seed {arguments.seed}, "
        f"Python {platform.python_version()}: how often, in %, a 95 % interval held the truth\n",
        flush=True,
    )
    with Pool(arguments.processes) as pool:
        for world in arguments.worlds:
            models = WORLDS[world](1_000_000, np.random.default_rng(arguments.seed), in_use=True)[:2]
            truth = [evaluate(each, thresholds=(0.9,)).values() for each in models]
            held: list[np.ndarray] = []
            for own in pool.imap(partial(held_in, world, arguments, truth), range(arguments.draws), chunksize=10):
                held.append(own)
                if len(held) % 200 == 0:
                    print(table(world, held), file=sys.stderr, flush=True)
            print(table(world, held), flush=True)


if __name__ == "__main__":
    main()
