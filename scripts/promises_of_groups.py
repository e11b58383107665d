"""Simulate how often promises for groups, by cluster and by weights are broken in worlds that are made to break them.

    python scripts/promises_of_groups.py [--draws 2000] [--seed 0] [--processes 1]

As scripts/promises.py: in each world the truth is known, many teams draw their own labelled cases there, and each
chooses a rule. A promise for groups counts as broken where any promised group is below it. Each draw has its own seed,
so the numbers are the same for any number of processes. The exit code is 1 where a share is larger than chance
explains.
"""

import argparse
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pool

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, choose_threshold, sample_by_weights

Floats = NDArray[np.float64]
PROMISE, CONFIDENCE = 0.9, 0.9
EDGE = PROMISE - 1e-9
CHANCE = 1e-5


@dataclass
class World:
    """Kinds of cases, all equally frequent.

    Attributes:
        top: Confidence of each kind.
        right: Its true probability of being right.
        group: Its group.
        cases: How many labelled cases a team has.
        together: Cases of one cluster, which are of one kind and all right or all wrong.
        share: Part of the clusters that are so; in the others the cases are independent.
        rarer: How many times rarer each kind is among the labelled cases than in use; None for as frequent.
    """

    top: Floats
    right: Floats
    group: NDArray[np.int64]
    cases: int
    together: int = 1
    share: float = 1.0
    rarer: Floats | None = None

    def draw(self, rng: np.random.Generator) -> Predictions:
        """The labelled cases of one team."""
        clusters = -(-self.cases // self.together)
        weight = np.ones(len(self.top)) if self.rarer is None else self.rarer
        kind = np.repeat(rng.choice(len(weight), size=clusters, p=1 / weight / (1 / weight).sum()), self.together)
        cluster = np.repeat(np.arange(clusters), self.together)
        alike = (rng.random(clusters) < self.share)[cluster]
        luck = np.where(alike, rng.random(clusters)[cluster], rng.random(len(kind)))
        right = luck < self.right[kind]
        scores = np.stack([self.top[kind], 1 - self.top[kind]], axis=1)
        extras = {"group": self.group[kind], "cluster": cluster, "weight": weight[kind]}
        return Predictions.from_probabilities(scores, np.where(right, 0, 1), extras=extras)

    def broken(self, rule: RoutingRule) -> bool:
        """Whether all cases together, or a promised group, are right less often than promised."""
        automate = self.top >= rule.thresholds[0]
        promised = [each.name for each in rule.group_evidence or () if each.promised]
        members = [automate, *(automate & (self.group.astype(str) == name) for name in promised)]
        return any(own.any() and self.right[own].mean() < PROMISE - 1e-10 for own in members)


def worlds(rng: np.random.Generator) -> Iterator[tuple[str, World]]:
    size = 3000
    top = 1.0 - 0.45 * rng.random(size) ** 3
    three, many = rng.integers(3, size=size), rng.integers(8, size=size)
    rare = (rng.random(size) < 0.03).astype(np.int64)
    edge = np.full(size, EDGE)
    yield "three groups just below the target", World(top, edge, three, 900)
    yield "one group just below, the others right", World(top, np.where(three == 0, EDGE, 0.99), three, 900)
    yield "one of eight groups just below", World(top, np.where(many == 0, EDGE, 0.995), many, 2400)
    yield "a rare group is bad", World(top, np.where(rare == 1, 0.6, 0.97), rare, 900)
    yield (
        "the surest cases of one group are bad",
        World(top, np.where((three == 0) & (top > 0.999), 0.7, 0.97), three, 1500),
    )
    yield "pictures of a patient alike, just below", World(top, edge, three, 900, together=10)
    yield "half of the patients alike, just below", World(top, edge, three, 900, together=5, share=0.5)
    yield "pairs, just below", World(top, edge, three, 600, together=2)
    yield "independent, just below", World(top, edge, three, 600)
    half = np.arange(size) % 2
    hard = np.where(half == 0, 0.82, 0.98) - 1e-9
    yield (
        "hard cases are a tenth of the sample, half in use",
        World(top, hard, half, 2400, rarer=1.0 + 8.0 * (1 - half)),
    )
    rarer = 1.0 + 5.0 * rng.random(size) ** 3
    slope = EDGE - 0.03 * (rarer - rarer.mean())
    yield "the rarer in the sample, the harder", World(top, slope, three, 2400, rarer=rarer)


KINDS = {
    "rule": {},
    "rule for groups": {"groups": "group"},
    "rule by cluster": {"clusters": "cluster"},
    "rule by weights": {},
}


def tests(kind: str, world: World) -> bool:
    """Whether a rule is tried in a world: each where what it promises is hard to keep."""
    if kind == "rule" or world.rarer is not None or kind == "rule by weights":
        return kind == "rule" or (kind == "rule by weights" and world.rarer is not None)
    clustered = world.together > 1 or world.cases == 600
    return clustered == ("clusters" in KINDS[kind])


def covered(kind: str, world: World) -> bool:
    """Whether a rule promises anything about this world."""
    return (world.together == 1 or "clusters" in KINDS[kind]) and (world.rarer is None or kind == "rule by weights")


@cache
def all_worlds(seed: int) -> list[tuple[str, World]]:
    return list(worlds(np.random.default_rng(seed)))


def broken_in(task: tuple[int, int, int, int]) -> Counter[str]:
    """How often each rule breaks its promise, over some of the draws of one world."""
    seed, number, begin, end = task
    _, world = all_worlds(seed)[number]
    counts: Counter[str] = Counter()
    for draw in range(begin, end):
        cases = world.draw(np.random.default_rng([seed, number, draw]))
        for kind, settings in KINDS.items():
            if tests(kind, world):
                own = sample_by_weights(cases, "weight", seed=draw) if kind == "rule by weights" else cases
                rule = choose_threshold(own, PROMISE, confidence=CONFIDENCE, **settings)
                counts[kind] += int(rule.automates and world.broken(rule))
    return counts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{arguments.draws} draws per cell, seed {arguments.seed}, Python {platform.python_version()}")
    print("Share of draws, in percent, whose rule breaks the promise for all cases or for a promised group.")
    print("In brackets: broken because rows are not independent, or not from the stream in use, which this rule does")
    print("not promise.\n")
    columns = ["world", "cases", "per cluster", "may break", *KINDS]
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    failed: list[str] = []
    with Pool(arguments.processes) as pool:
        for number, (name, world) in enumerate(all_worlds(arguments.seed)):
            begins = range(0, arguments.draws, 20)
            tasks = [(arguments.seed, number, at, min(at + 20, arguments.draws)) for at in begins]
            counts = sum(pool.imap_unordered(broken_in, tasks), Counter())
            cells = [name, f"{world.cases:,}", f"{world.together}", f"{100 * (1 - CONFIDENCE):.0f}"]
            for kind in KINDS:
                share = f"{100 * counts[kind] / arguments.draws:.1f}" if tests(kind, world) else "-"
                cells.append(share if covered(kind, world) or share == "-" else f"({share})")
                test = binomtest(counts[kind], arguments.draws, 1 - CONFIDENCE, alternative="greater")
                failed += [f"{kind}: {name}"] if covered(kind, world) and test.pvalue < CHANCE else []
            print("| " + " | ".join(cells) + " |", flush=True)
    print(f"\nBroken more often than chance explains: {', '.join(failed) or 'none'}.")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
