"""Worlds in which the monitor is tested: nothing has changed and every promise holds, so every alarm is a false one.

    python scripts/promise_worlds_monitor.py [--draws 200] [--only WEIGHTS]

Each cell has a name, a level and a function that draws one stream with its own generator and returns whether the
monitor was wrong. `cells()` lists them for `scripts/promises.py`.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions
from calibrant.decisions import Policy, choose_binary_rule, choose_threshold, sample_by_weights
from calibrant.decisions.case_columns import note_weights
from calibrant.deployment import Stream, read_reference, watch

LEVEL = 0.05
Rng = np.random.Generator


@dataclass(frozen=True)
class Cell:
    """One promise in one world.

    Attributes:
        name: What is promised, and the world.
        level: Largest probability with which a draw may break the promise.
        broken: Draws a stream and returns whether the promise was broken.
    """

    name: str
    level: float
    broken: Callable[[Rng], bool]


def calibrated(rng: Rng, n: int, classes: int = 4, sharpness: float | NDArray[np.float64] = 5.0) -> Predictions:
    """Cases of a calibrated model."""
    scores = np.asarray(sharpness).reshape(-1, 1) * rng.normal(size=(n, classes))
    return Predictions.from_logits(scores, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1))


# -- rules that were chosen on cases drawn by weights -----------------------------------------------------------------


def mixed(rng: Rng, n: int, share: float, hard: float, classes: int) -> Predictions:
    """Easy cases and a share of hard ones, marked by a column of weights for a stream in which half are hard."""
    is_hard = rng.random(n) < share
    cases = calibrated(rng, n, classes, np.where(is_hard, hard, 6.0))
    weights = np.where(is_hard, 0.5 / share, 0.5 / (1 - share))
    return Predictions.from_logits(cases.scores, cases.targets, extras={"weight": weights})


def weighted(rng: Rng, share: float = 0.1, hard: float = 1.5, *, classes: int = 4, binary: bool = False) -> bool:
    """Choose a rule on a file with few hard cases for a stream with many, and watch that stream with the file."""
    seed = int(rng.integers(1000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "val.npz"
        mixed(rng, 3000, share, hard, classes).save(path)
        cases = Predictions.load(path)
        drawn = sample_by_weights(cases, "weight", seed=seed)
        choice: Any = choose_binary_rule(drawn, sensitivity=0.9, specificity=0.9) if binary else None
        rule = note_weights(choice or choose_threshold(drawn, 0.9), "weight", seed, drawn, cases)
        policy = Policy(classes, rule=rule)
        stream = Stream.of_predictions(policy, mixed(rng, 1500, 0.5, hard, classes))
        return bool(watch(stream, reference=read_reference(path, policy), level=LEVEL).alarms)


def weight_cells() -> Iterator[Cell]:
    yield Cell("weights: few hard cases in the file", LEVEL, weighted)
    yield Cell("weights: three quarters are hard in the file", LEVEL, lambda rng: weighted(rng, 0.75))
    yield Cell("weights: sensitivity and specificity", LEVEL, lambda rng: weighted(rng, 0.2, classes=2, binary=True))
    yield Cell("weights: 30 classes", LEVEL, lambda rng: weighted(rng, 0.2, 3.0, classes=30))


def cells() -> Iterator[Cell]:
    """All cells."""
    yield from weight_cells()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    arguments = parser.parse_args()
    print("| cell | draws | broken | allowed, % |\n| --- | --- | --- | --- |")
    for number, cell in enumerate(cells()):
        if arguments.only not in cell.name:
            continue
        seeds = np.random.SeedSequence([arguments.seed, number]).spawn(arguments.draws)
        broken = sum(cell.broken(np.random.default_rng(seed)) for seed in seeds)
        print(f"| {cell.name} | {arguments.draws} | {broken} | {100 * cell.level:g} |", flush=True)


if __name__ == "__main__":
    main()
