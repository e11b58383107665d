"""Simulate how often the promises of rules and shortlists are broken, in worlds that are made to break them.

    python scripts/promises.py [--draws 2000] [--seed 0]

In each world the truth is known. Many teams draw their own labelled cases there, and each chooses a rule or a
shortlist. The table shows the share of teams whose choice breaks its promise, beside the share that may. The exit code
is 1 where a share is larger than chance explains.
"""

import argparse
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from calibrant import Predictions
from calibrant.decisions import RoutingRule, choose_shortlist, choose_threshold

Floats = NDArray[np.float64]
# So small a probability that chance gives so many broken promises: then it was not chance. There are some 70 cells.
CHANCE = 1e-5


@dataclass
class World:
    """A stream of cases.

    Attributes:
        scores: What the model says, one row per kind of case, all equally frequent, shape (N, K).
        truth: The true probability of each class in these rows, shape (N, K).
        cases: How many labelled cases a team has.
        promise: The accuracy or coverage that is promised, with `confidence`.
        confidence: Probability with which it must hold.
        later: What the model says once the rule is in use, where that is something else (no promise covers it).
    """

    scores: Floats
    truth: Floats
    cases: int = 250
    promise: float = 0.9
    confidence: float = 0.9
    later: Floats | None = None

    def draw(self, rng: np.random.Generator) -> Predictions:
        """The labelled cases of one team."""
        rows = rng.integers(len(self.scores), size=self.cases)
        reached = self._cumulative[rows] > rng.random(self.cases)[:, None]
        return Predictions.from_probabilities(self.scores[rows], reached.argmax(axis=1))

    @cached_property
    def _cumulative(self) -> Floats:
        cumulative = self.truth.cumsum(axis=1)
        cumulative[:, -1] = 1.0
        return cumulative

    @cached_property
    def tops(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Predicted class, confidence and true probability of being right, in use."""
        scores = self.scores if self.later is None else self.later
        predicted, rows = scores.argmax(axis=1), np.arange(len(scores))
        return predicted, scores[rows, predicted], self.truth[rows, predicted]


def with_top(confidence: Floats, n_classes: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Scores with this top probability at a random class; the others share the rest unevenly."""
    rest = rng.dirichlet(np.full(n_classes - 1, 2.0), size=len(confidence)) * (1 - confidence)[:, None]
    # No other class may reach the top.
    even = ((1 - confidence) / (n_classes - 1))[:, None]
    rest = np.where((rest.max(axis=1) >= confidence)[:, None], even, rest)
    predicted = rng.integers(n_classes, size=len(confidence))
    scores = np.empty((len(confidence), n_classes))
    scores[np.arange(n_classes) != predicted[:, None]] = rest.ravel()
    scores[np.arange(len(scores)), predicted] = confidence
    return scores, predicted


def with_accuracy(scores: Floats, right: Floats) -> Floats:
    """True probabilities: `right` for the predicted class, the rest for the others as the model sees them."""
    rows, predicted = np.arange(len(scores)), scores.argmax(axis=1)
    truth = scores.copy()
    truth[rows, predicted] = 0.0
    truth *= ((1 - right) / truth.sum(axis=1))[:, None]
    truth[rows, predicted] = right
    return truth


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def worlds(rng: np.random.Generator) -> Iterator[tuple[str, World]]:
    """Names and worlds. Just below the target at every threshold is the hardest: whatever is automated is too bad."""
    size, edge = 3000, 0.9 - 1e-9
    smooth = 1.0 - 0.45 * rng.random(size) ** 3
    two, predicted = with_top(smooth, 2, rng)
    four, _ = with_top(smooth, 4, rng)
    at_edge = with_accuracy(four, np.full(size, edge))
    yield "just below the target", World(four, at_edge)
    yield "just below the target, many cases", World(four, at_edge, cases=5000)
    yield "30 cases", World(four, at_edge, cases=30)
    yield "3 cases", World(four, with_accuracy(four, np.full(size, 0.5 - 1e-9)), cases=3, promise=0.5, confidence=0.6)
    tied, _ = with_top(rng.choice([0.6, 0.9, 0.99], size=size), 4, rng)
    yield "three confidences", World(tied, with_accuracy(tied, np.full(size, edge)))
    same, _ = with_top(np.full(size, 0.95), 2, rng)
    yield "one confidence", World(same, with_accuracy(same, np.full(size, edge)))
    yield "every case right", World(four, with_accuracy(four, np.ones(size)))
    yield "every case wrong", World(four, with_accuracy(four, np.zeros(size)))
    top = four.max(axis=1)
    worst = np.where(top > 0.999, 0.8, np.where(top > 0.85, 0.98, 0.75))
    yield "the surest cases are the worst", World(four, with_accuracy(four, worst))
    lies = np.where(predicted == 0, np.minimum(smooth + 0.02, 1.0), smooth**2)
    yield "one class lies", World(two, with_accuracy(two, lies))
    yield "overconfident", World(four, with_accuracy(four, top**2))
    yield "underconfident", World(four, with_accuracy(four, np.sqrt(top)))
    many, _ = with_top(1.0 - 0.8 * rng.random(1000) ** 3, 50, rng)
    half = np.where(many.argmax(axis=1) % 2 == 0, edge, many.max(axis=1))
    yield "50 classes", World(many, with_accuracy(many, half), cases=2000)
    z = 3.0 * rng.normal(size=(size, 4))
    drifting = softmax(z * np.linspace(0.5, 3.0, size)[:, None])
    yield "confidence drifts, cases from the whole stream", World(drifting, softmax(z))
    yield OUTSIDE, World(softmax(z), softmax(z), later=softmax(3.0 * z))


OUTSIDE = "confidence drifts after the choice (no promise)"


def broken_rule(world: World, predictions: Predictions, **options: object) -> bool:
    """Whether the rule that these cases give breaks its promise."""
    rule = choose_threshold(predictions, world.promise, confidence=world.confidence, **options)
    predicted, confidence, right = world.tops
    automate = confidence >= rule.thresholds[predicted]
    # Without thresholds per class the promise is for all automated cases together.
    group = predicted[automate] if rule.class_thresholds is not None else np.zeros(automate.sum(), dtype=np.int64)
    accuracy = np.bincount(group, weights=right[automate]) / np.maximum(np.bincount(group), 1)
    # Sums of thousands of equal numbers are rounded; the worlds lie 1e-9 below the target.
    return bool((accuracy[np.bincount(group) > 0] < world.promise - 1e-10).any())


def broken_shortlist(world: World, predictions: Predictions, rule: RoutingRule | None = None) -> bool:
    """Whether the shortlist that these cases give breaks its promise."""
    shortlist = choose_shortlist(predictions, world.promise, confidence=world.confidence, rule=rule)
    scores = world.scores if world.later is None else world.later
    reviewed = np.ones(len(scores), dtype=bool) if rule is None else ~rule.decide(scores).automate
    covered = (world.truth[reviewed] * shortlist.within(scores[reviewed])).sum(axis=1)
    return bool(len(covered) and covered.mean() < world.promise - 1e-10)


KINDS: dict[str, Callable[[World, Predictions], bool]] = {
    "rule": broken_rule,
    "rule per class": lambda world, cases: broken_rule(world, cases, per_class=True),
    "rule with costs": lambda world, cases: broken_rule(world, cases, cost_error=12.0, cost_review=1.0),
    "shortlist": broken_shortlist,
    "shortlist behind a rule": lambda world, cases: broken_shortlist(
        world, cases, RoutingRule(0.8, world.scores.shape[1])
    ),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{arguments.draws} draws per cell, seed {arguments.seed}, Python {platform.python_version()}")
    print("Share of draws, in percent, whose choice breaks its promise.\n")
    columns = ["world", "cases", "classes", "promise", "may break", *KINDS]
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    failed = []
    for number, (name, world) in enumerate(worlds(np.random.default_rng(arguments.seed))):
        rng = np.random.default_rng([arguments.seed, number])
        counts = dict.fromkeys(KINDS, 0)
        for _ in range(arguments.draws):
            cases = world.draw(rng)
            for kind, broken in KINDS.items():
                counts[kind] += broken(world, cases)
        allowed = 1 - world.confidence
        cells = [name, f"{world.cases:,}", f"{world.scores.shape[1]}", f"{world.promise:g}", f"{100 * allowed:.0f}"]
        print(
            "| " + " | ".join([*cells, *(f"{100 * n / arguments.draws:.1f}" for n in counts.values())]) + " |",
            flush=True,
        )
        failed += [
            f"{kind}: {name}"
            for kind, count in counts.items()
            if name != OUTSIDE and binomtest(count, arguments.draws, allowed, alternative="greater").pvalue < CHANCE
        ]
    print(f"\nBroken more often than chance explains: {', '.join(failed) or 'none'}.")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
