"""Simulate every promise of the package in worlds that are made to break it: `make promises`.

    python scripts/promises.py [--sections rules intervals monitor] [--only NAME] [--processes 2] [--draws-times 1.0]
                               [--counts counts.json] [--out results/benchmarks/promises.txt]

The truth of each world is known. In every draw a team gets its own labelled cases and chooses a rule, a shortlist or an
interval, or watches a stream; a cell counts how often what it was promised is not true. Each cell has a nominal level
and a fixed number of draws, and each draw its own seed, so the numbers do not depend on the number of processes. The
last column is Holm's p-value over all cells that something is promised for. A cell below 5 % is reported as broken, and
the exit code is 1; nothing is drawn again. Cells in brackets are outside every promise and show what it protects from.

`--counts` keeps the counts of finished worlds, so that a run can be continued.

To add a promise, put it into `PROMISES` and name it in a world; a promise about other data than one row of scores per
case is a `Cell`, as in promise_worlds_monitor.py. New worlds go to the end of `all_worlds`, because the number of a
world is part of its seeds.
"""

import argparse
import json
import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from calibrant import Predictions, compare, evaluate
from calibrant.decisions import (
    BinaryRule,
    Policy,
    RoutingRule,
    Shortlist,
    check_promise,
    choose_binary_rule,
    choose_shortlist,
    choose_threshold,
    fit_policy,
    sample_by_weights,
)
from calibrant.decisions.ranking import rank
from calibrant.deployment import Stream, watch

sys.path.insert(0, str(Path(__file__).parent))
from promise_worlds_gaps import cells as gap_cells
from promise_worlds_inputs import cells as input_cells
from promise_worlds_monitor import cells as monitor_cells

Floats = NDArray[np.float64]
SEED = 20261118
LEVEL = 0.05  # of intervals, of the monitor and of Holm's test
JUST_BELOW = 1e-9
SEARCHES = ("rule", "rule, split search")


@dataclass
class World:
    """A stream of cases: kinds of cases that are all equally frequent in use.

    Attributes:
        name: For the table.
        section: "rules", "intervals" or "monitor".
        promises: Names in `PROMISES`; in brackets: outside what is promised.
        scores: What the model says, one row per kind, shape (N, K).
        truth: True probability of each class, shape (N, K).
        cases: How many labelled cases a team has.
        draws: How many teams there are.
        promise, confidence: What is promised, and how probably it must hold.
        kind: What the scores are.
        dtype: The type in which they are stored.
        group: Group of each kind.
        together: Most cases of one cluster. They are of one kind, and a share `alike` of clusters has one luck for all.
        alike: That share.
        unequal: Whether clusters have between 1 and `together` cases.
        rarer: How many times rarer each kind is among the labelled cases than in use.
        other: What a second model says, for differences.
        later: What the model says once the rule is in use, if that is something else.
    """

    name: str
    section: str
    promises: tuple[str, ...]
    scores: Floats
    truth: Floats
    cases: int
    draws: int = 500
    promise: float = 0.9
    confidence: float = 0.9
    kind: Any = "probabilities"
    dtype: Any = np.float64
    group: NDArray[np.int64] | None = None
    together: int = 1
    alike: float = 1.0
    unequal: bool = False
    rarer: Floats | None = None
    other: Floats | None = None
    later: Floats | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def draw(self, rng: np.random.Generator) -> Predictions:
        """The labelled cases of one team."""
        cluster = np.arange(self.cases)
        if self.together > 1:
            sizes = np.full(self.cases, self.together)
            if self.unequal:
                sizes = rng.integers(1, self.together + 1, size=self.cases)
            cluster = np.repeat(np.arange(self.cases), sizes)[: self.cases]
        weight = np.ones(len(self.scores))
        if self.rarer is not None:
            weight = self.rarer
        rows = rng.choice(len(weight), size=cluster.max() + 1, p=1 / weight / (1 / weight).sum())[cluster]
        luck = rng.random(self.cases)
        alike = (rng.random(cluster.max() + 1) < self.alike)[cluster]
        luck[alike] = luck[np.unique(cluster, return_index=True)[1]][cluster][alike]
        targets = (self._cumulative[rows] > luck[:, None]).argmax(axis=1)
        extras = {"cluster": cluster, "weight": weight[rows], "kind": rows}
        if self.group is not None:
            extras["group"] = self.group[rows]
        return self._predictions(self.scores[rows], targets, extras)

    def shaken(self, number: int) -> Floats:
        """Scores with the same predicted classes in another order of confidence."""
        order = np.random.default_rng([SEED, 9, number]).permutation(len(self.scores))
        top = self.scores.max(axis=1)[order]
        return with_top_at(top, self.scores.argmax(axis=1), self.scores.shape[1])

    def second(self, cases: Predictions) -> Predictions:
        """What the second model says about the same cases."""
        assert self.other is not None
        return self._predictions(self.other[cases.extras["kind"]], cases.targets, dict(cases.extras))

    def _predictions(self, scores: Floats, targets: Any, extras: dict[str, Any]) -> Predictions:
        make = {"logits": Predictions.from_logits, "probabilities": Predictions.from_probabilities}[self.kind]
        return make(scores.astype(self.dtype), targets, extras=extras)

    @cached_property
    def _cumulative(self) -> Floats:
        cumulative = self.truth.cumsum(axis=1)
        cumulative[:, -1] = 1.0
        return cumulative

    @cached_property
    def population(self) -> Predictions:
        """One case of every kind, as the model sees it in use; its targets mean nothing."""
        scores = self.scores
        if self.later is not None:
            scores = self.later
        extras = {}
        if self.group is not None:
            extras["group"] = self.group
        return self._predictions(scores, np.zeros(len(scores), dtype=np.int64), extras)

    def true_metrics(self, scores: Floats) -> dict[str, Any]:
        """Every metric over endlessly many cases: each kind comes with each class, weighted by its probability."""
        kinds, classes = np.nonzero(self.truth > 0)
        everything = self._predictions(scores[kinds], classes, {})
        return evaluate(everything, weights=self.truth[kinds, classes]).values()


# -- promises: whether what a team was promised is false ---------------------------------------------------------------

Outcome = dict[str, tuple[bool, float]]  # name of the cell to (broken, share automated or mean length or width)


def accuracy_broken(world: World, rule: RoutingRule, calibrated: Predictions | None = None) -> tuple[bool, float]:
    """Whether the automated cases, or those of a class or group that a promise is made for, are too often wrong."""
    routed = rule.route(calibrated or world.population)
    right = world.truth[np.arange(len(world.truth)), routed.predicted]
    lines = [routed.automate]
    if rule.class_thresholds is not None:
        lines = [routed.automate & (routed.predicted == k) for k in range(rule.n_classes)]
    for group in rule.group_evidence or ():
        if group.promised and world.group is not None:
            lines.append(routed.automate & (world.group.astype(str) == group.name))
    # Sums of thousands of equal numbers are rounded; worlds lie 1e-9 below the target.
    below = [line.any() and right[line].mean() < world.promise - JUST_BELOW / 10 for line in lines]
    return any(below), float(routed.automate.mean())


def a_rule(world: World, cases: Predictions, _: int, **options: Any) -> tuple[bool, float]:
    rule = choose_threshold(cases, world.promise, confidence=world.confidence, **options)
    return accuracy_broken(world, rule)


def candidates(world: World, cases: Predictions, _: int) -> tuple[bool, float]:
    """The best of eight rankings; the first is the model's, the others are noise that moves every confidence."""
    seen = [cases]
    for number in range(1, 8):
        noisy = world.shaken(number)[cases.extras["kind"]]
        seen.append(Predictions.from_probabilities(noisy, cases.targets))
    rule = choose_threshold(cases, world.promise, confidence=world.confidence, candidates=seen[1:])
    population = world.population
    if rule.candidate:
        population = Predictions.from_probabilities(world.shaken(rule.candidate), population.targets)
    return accuracy_broken(world, rule, population)


def supported(world: World, cases: Predictions, _: int) -> tuple[bool, float]:
    """The accuracy that is promised with a reserved part of the level if the target, set to 99.9 %, cannot be."""
    rule = choose_threshold(cases, 0.999, confidence=world.confidence, reserve=0.5)
    if rule.supported is None:
        return False, 0.0
    fallback = RoutingRule(rule.supported.threshold, rule.n_classes)
    routed = fallback.route(world.population)
    right = world.truth[np.arange(len(world.truth)), routed.predicted][routed.automate]
    too_high = len(right) > 0 and right.mean() < rule.supported.accuracy - JUST_BELOW / 10
    return bool(too_high), rule.supported.automated


def in_the_first_group(world: World, cases: Predictions, _: int) -> tuple[bool, float]:
    """A threshold per group, of which each promises by itself: only the first is looked at."""
    settings: dict[str, Any] = {"per_group": "group", "group_confidence": "each"}
    rule = choose_threshold(cases, world.promise, confidence=world.confidence, **settings)
    routed = rule.route(world.population)
    first = routed.automate & (world.group == 0)
    right = world.truth[np.arange(len(world.truth)), routed.predicted]
    broken = first.any() and right[first].mean() < world.promise - JUST_BELOW / 10
    return bool(broken), float(routed.automate.mean())


def a_rule_by_weights(world: World, cases: Predictions, seed: int) -> tuple[bool, float]:
    return a_rule(world, sample_by_weights(cases, "weight", seed=seed), seed)


def a_policy(world: World, cases: Predictions, seed: int, **options: Any) -> tuple[bool, float]:
    """A temperature on a share of the cases and a threshold on the others."""
    policy = fit_policy(cases, world.promise, confidence=world.confidence, seed=seed, **options)
    return accuracy_broken(world, policy.routing, policy.calibrate(world.population))


def a_shortlist(world: World, cases: Predictions, _: int, threshold: float | None = None) -> tuple[bool, float]:
    rule = RoutingRule(threshold, world.scores.shape[1])
    chosen = choose_shortlist(cases, world.promise, confidence=world.confidence, rule=rule)
    reviewed = ~rule.route(world.population).automate
    listed = chosen.listed(world.population)[reviewed]
    covered = (world.truth[reviewed] * listed).sum(axis=1)
    if not len(covered):
        return False, 0.0
    return bool(covered.mean() < world.promise - JUST_BELOW / 10), float(listed.mean())


def two_classes(world: World, cases: Predictions, _: int, **options: Any) -> tuple[bool, float]:
    """Sensitivity, specificity or both. The share is that of cases that are decided."""
    rule = choose_binary_rule(cases, confidence=world.confidence, **options)
    decisions = np.asarray(rule.decide(world.population))
    ill, well = world.truth[:, 1], world.truth[:, 0]
    missed = (ill * (decisions == "negative")).sum() / ill.sum()
    flagged = (well * (decisions == "positive")).sum() / well.sum()
    broken = rule.sensitivity is not None and missed > 1 - rule.sensitivity + JUST_BELOW / 10
    broken |= rule.specificity is not None and flagged > 1 - rule.specificity + JUST_BELOW / 10
    return bool(broken), float((decisions != "review").mean())


def a_check(world: World, cases: Predictions, _: int) -> tuple[bool, float]:
    """A kept promise that `check_promise` calls broken."""
    rule = RoutingRule(0.7, world.scores.shape[1], world.promise, world.confidence)
    if world.together > 1:
        sizes = {"clusters": 1, "cluster_column": "cluster", "largest_cluster": world.together}
        rule = RoutingRule(0.7, rule.n_classes, world.promise, world.confidence, **sizes)
    check = check_promise(rule, cases)
    return not check.held, check.groups[0].automated / check.cases


def intervals(world: World, cases: Predictions, seed: int) -> Outcome:
    """Every interval of `evaluate` and, with a second model, of `compare`. The number is the width."""
    settings: dict[str, Any] = {"n_resamples": 200, "seed": seed, **world.options}
    found: Outcome = {}
    ends = evaluate(cases, **settings).intervals or {}
    for name, value in true_values(world, "scores").items():
        if ends.get(name) is not None and value is not None:
            low, high = ends[name]
            found[f"interval of {name}"] = (not low <= value <= high, high - low)
    if world.other is None:
        return found
    compared = compare(cases, world.second(cases), **settings)
    first, second = true_values(world, "scores"), true_values(world, "other")
    for row in compared.rows:
        if row.interval is not None and first.get(row.name) is not None and second.get(row.name) is not None:
            low, high = row.interval
            outside = not low <= second[row.name] - first[row.name] <= high
            found[f"difference of {row.name}"] = (outside, high - low)
    return found


@cache
def _true_values(index: int, which: str) -> dict[str, Any]:
    world = all_worlds()[index]
    return world.true_metrics(getattr(world, which))


def true_values(world: World, which: str) -> dict[str, Any]:
    names = [known.name for known in all_worlds()]
    return _true_values(names.index(world.name), which)


def an_alarm(
    world: World, cases: Predictions, seed: int, *, reference: bool = False, late: bool = False
) -> tuple[bool, float]:
    """An alarm of the monitor while the promise is kept, however often one looks."""
    policy = Policy(world.scores.shape[1], rule=world.options["rule"], shortlist=world.options.get("shortlist"))
    stream = Stream.of_predictions(policy, cases)
    if late:
        rng = np.random.default_rng([seed, 1])
        targets = np.where(rng.random(len(stream)) < 0.5, stream.targets, -1)
        stream = replace(stream, targets=targets, label_order=rng.permutation(len(stream)))
    before = None
    if reference:
        before = world.draw(np.random.default_rng([seed, 2]))
    watched = watch(stream, reference=before, level=LEVEL, seed=seed)
    return bool(watched.alarms), float(stream.automate.mean())


PROMISES: dict[str, Callable[..., Any]] = {
    "rule": a_rule,
    "rule per class": lambda *of: a_rule(*of, per_class=True),
    "rule with costs": lambda *of: a_rule(*of, cost_error=12.0, cost_review=1.0),
    "rule, split search": lambda *of: a_rule(*of, search="split", seed=of[2]),
    "rule, best of 8 candidates": candidates,
    "supported accuracy": supported,
    "rule for groups": lambda *of: a_rule(*of, groups="group"),
    "rule per group": lambda *of: a_rule(*of, per_group="group"),
    "rule per group by cluster": lambda *of: a_rule(*of, per_group="group", clusters="cluster"),
    "rule per group, each by itself": in_the_first_group,
    "rule by cluster": lambda *of: a_rule(*of, clusters="cluster"),
    "rule for groups by cluster": lambda *of: a_rule(*of, groups="group", clusters="cluster"),
    "rule by weights": a_rule_by_weights,
    "temperature and rule": a_policy,
    "temperature and rule by cluster": lambda *of: a_policy(*of, clusters="cluster"),
    "rule by the best score": lambda *of: a_policy(*of, score="auto"),
    "rule by the best score by cluster": lambda *of: a_policy(*of, score="auto", clusters="cluster"),
    "rule by margin": lambda *of: a_policy(*of, score="margin"),
    "rule by entropy": lambda *of: a_policy(*of, score="entropy"),
    "rule by pnorm4": lambda *of: a_policy(*of, score="pnorm4"),
    "shortlist": a_shortlist,
    "shortlist behind a rule": lambda *of: a_shortlist(*of, threshold=0.8),
    "sensitivity": lambda *of: two_classes(*of, sensitivity=0.95),
    "specificity": lambda *of: two_classes(*of, sensitivity=None, specificity=0.95),
    "sensitivity and specificity": lambda *of: two_classes(*of, sensitivity=0.9, specificity=0.9),
    "check": a_check,
    "intervals": intervals,
    "monitor": an_alarm,
    "monitor with reference": lambda *of: an_alarm(*of, reference=True),
    "monitor, half of the labels in random order": lambda *of: an_alarm(*of, late=True),
}


def nominal(world: World, cell: str) -> float:
    """How often a cell may be broken."""
    if "cell" in world.options:
        return float(world.options["cell"].level)
    if cell == "check":
        return LEVEL / 2
    if cell.startswith(("interval", "difference", "monitor")):
        return LEVEL
    return 1 - world.confidence


# -- worlds ------------------------------------------------------------------------------------------------------------


def with_top(confidence: Floats, n_classes: int, rng: np.random.Generator) -> Floats:
    """Scores with this top probability at a random class; the others share the rest unevenly."""
    rest = rng.dirichlet(np.full(n_classes - 1, 2.0), size=len(confidence)) * (1 - confidence)[:, None]
    even = ((1 - confidence) / (n_classes - 1))[:, None]
    rest = np.where((rest.max(axis=1) >= confidence)[:, None], even, rest)  # no other class may reach the top
    predicted = rng.integers(n_classes, size=len(confidence))
    scores = np.empty((len(confidence), n_classes))
    scores[np.arange(n_classes) != predicted[:, None]] = rest.ravel()
    scores[np.arange(len(scores)), predicted] = confidence
    return scores


def with_top_at(confidence: Floats, predicted: NDArray[np.int64], n_classes: int) -> Floats:
    """Scores with this top probability at this class; the others share the rest evenly."""
    scores = np.repeat(((1 - confidence) / (n_classes - 1))[:, None], n_classes, axis=1)
    scores[np.arange(len(scores)), predicted] = confidence
    return scores


def with_accuracy(scores: Floats, right: Floats | float) -> Floats:
    """True probabilities: `right` for the predicted class, the rest for the others as the model sees them."""
    rows, predicted = np.arange(len(scores)), scores.argmax(axis=1)
    truth = np.maximum(scores, 1e-12)
    truth[rows, predicted] = 0.0
    truth *= ((1 - right) / truth.sum(axis=1))[:, None]
    truth[rows, predicted] = right
    return truth


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def binary_truth(logit: Floats) -> Floats:
    """Two classes; the chance of the second has this logit."""
    chance = 1 / (1 + np.exp(-np.clip(logit, -700, 700)))
    return np.stack([1 - chance, chance], axis=1)


@cache
def all_worlds() -> tuple[World, ...]:
    worlds = [*rule_worlds(), *member_worlds(), *binary_worlds(), *interval_worlds(), *monitor_worlds()]
    nothing = np.zeros((1, 1))
    worlds += [
        World(cell.name, "monitor", (), nothing, nothing, 0, 200, options={"cell": cell}) for cell in monitor_cells()
    ]
    worlds += score_worlds()
    worlds += [
        World(cell.name, "rules", (), nothing, nothing, 0, 1000, options={"cell": cell}) for cell in input_cells()
    ]
    worlds += chosen_score_worlds()
    worlds += [World(cell.name, "rules", (), nothing, nothing, 0, 300, options={"cell": cell}) for cell in gap_cells()]
    assert len({world.name for world in worlds}) == len(worlds)
    return tuple(worlds)


def rule_worlds() -> Iterator[World]:
    """Rules and shortlists. Just below the target at every threshold is hardest: whatever is automated is too bad."""
    rng = np.random.default_rng([SEED, 1])
    rules = (
        *SEARCHES,
        "rule per class",
        "rule with costs",
        "supported accuracy",
        "shortlist",
        "shortlist behind a rule",
    )
    plain = (*SEARCHES, "temperature and rule", "shortlist")
    size, edge = 3000, 0.9 - JUST_BELOW

    def world(
        name: str, scores: Floats, right: Floats | float, cases: int, promises: Any = plain, **more: Any
    ) -> World:
        return World(name, "rules", promises, scores, with_accuracy(scores, right), cases, **more)

    smooth = 1.0 - 0.45 * rng.random(size) ** 3
    two, four, ten = with_top(smooth, 2, rng), with_top(smooth, 4, rng), with_top(smooth, 10, rng)
    top = four.max(axis=1)
    yield world("just below the target", four, edge, 250, (*rules, "rule, best of 8 candidates"))
    yield world("just below the target, 50 cases", four, edge, 50, rules)
    yield world("just below the target, 5,000 cases", four, edge, 5000, rules, draws=500)
    yield world("just below the target, 20,000 cases", ten, edge, 20_000, draws=300)
    yield world("3 cases, half promised", four, 0.5 - JUST_BELOW, 3, ("rule", "shortlist"), promise=0.5, confidence=0.6)
    yield world("99 % promised, just below", four, 0.99 - JUST_BELOW, 2000, plain, promise=0.99, confidence=0.95)
    yield world(
        "99.9 % promised, just below",
        ten,
        0.999 - JUST_BELOW,
        20_000,
        ("rule",),
        promise=0.999,
        confidence=0.95,
        draws=300,
    )
    yield world("three confidences", with_top(rng.choice([0.6, 0.9, 0.99], size=size), 4, rng), edge, 250, rules)
    yield world("one confidence", with_top(np.full(size, 0.95), 2, rng), edge, 250, rules)
    said = np.where(rng.random(size) < 0.9, 0.95, rng.choice([0.7, 0.8, 0.85, 0.9, 0.99, 1.0], size=size))
    yield world("nine of ten answers say 95 %", with_top(said, 3, rng), np.where(said >= 0.99, 0.85, edge), 300, rules)
    yield world("20 kinds of cases, many copies", with_top(rng.uniform(0.6, 1, 20), 4, rng), edge, 400, rules)
    yield world("every case right", four, 1.0, 250, rules)
    yield world("every case wrong", four, 0.0, 250, rules)
    worst = np.where(top > 0.999, 0.8, np.where(top > 0.85, 0.98, 0.75))
    yield world("the surest cases are the worst", four, worst, 250, rules)
    saw = np.where((-np.log(1 - np.minimum(top, 1 - 1e-9)) * 4).astype(int) % 2 == 0, 0.84, 0.95)
    yield world("accuracy goes up and down", four, saw, 1000, rules)
    lies = np.where(two.argmax(axis=1) == 0, np.minimum(smooth + 0.02, 1.0), smooth**2)
    yield world("one class lies", two, lies, 250, rules)
    yield world("overconfident", four, top**2, 250, rules)
    yield world("underconfident", four, np.sqrt(top), 250, rules)
    yield world("overconfident, 2,000 cases at 99 %", four, top**3, 2000, SEARCHES, promise=0.99, confidence=0.95)
    sharp = 1 - (1 - top) ** 3
    yield world("underconfident, 2,000 cases at 99 %", four, sharp, 2000, SEARCHES, promise=0.99, confidence=0.95)
    blunt = with_top(0.3 + 0.65 * (1 - rng.random(size) ** 3), 4, rng)
    well = 1 - 0.5 * (1 - blunt.max(axis=1)) ** 2
    yield world("never above .95, 2,000 cases at 99 %", blunt, well, 2000, SEARCHES, promise=0.99, confidence=0.95)
    yield world("wrong between .9 and .95 only", four, np.where((top > 0.9) & (top < 0.95), top - 0.4, top), 1000)
    yield world("half wrong above .99", four, np.where(top > 0.99, 0.5, top), 1000)
    capped = with_top(0.55 + 0.3 * rng.random(size), 5, rng)
    yield world("never surer than .85", capped, edge, 500)
    fifty = with_top(1.0 - 0.8 * rng.random(1000) ** 3, 50, rng)
    yield world(
        "50 classes, half of them lie", fifty, np.where(fifty.argmax(axis=1) % 2, fifty.max(axis=1), edge), 2000, rules
    )
    hundred = with_top(1.0 - 0.8 * rng.random(1500) ** 3, 100, rng)
    yield world("100 classes", hundred, np.minimum(hundred.max(axis=1), edge), 3000, draws=500)
    thousand = with_top(1.0 - 0.9 * rng.random(500) ** 3, 1000, rng)
    yield world("1,000 classes", thousand, edge, 2000, ("rule", "shortlist"), draws=300)
    z = 3.0 * rng.normal(size=(size, 4))
    drifting = softmax(z * np.linspace(0.5, 3.0, size)[:, None])
    yield World("confidence differs over the stream", "rules", rules, drifting, softmax(z), 250)
    crowded = np.zeros((size, 3))
    crowded[:, 0] = rng.uniform(30, 60, size=size)  # the top probability is 1 in float64 from 37 on
    yield world("saturated logits", crowded, edge, 500, rules, kind="logits")
    huge = np.zeros((size, 3))
    huge[np.arange(size), rng.integers(3, size=size)] = rng.uniform(0, 900, size=size)
    saturated = np.where(huge.max(axis=1) > 300, 0.87, 0.95)
    yield world("logits up to 900, the largest lie", huge, saturated, 500, rules, kind="logits")
    single = np.minimum(1 - 10.0 ** -rng.uniform(0.3, 12, size), 1.0)
    yield world("float32 that rounds to 1", with_top(single, 2, rng), edge, 500, rules, dtype=np.float32)
    yield world("float16", with_top(rng.uniform(0.5, 1, size), 2, rng), edge, 500, plain, dtype=np.float16)
    yield World(
        "surer after the choice",
        "rules",
        ("(rule)", "(shortlist)"),
        softmax(z),
        softmax(z),
        250,
        later=softmax(3.0 * z),
    )


def member_worlds() -> Iterator[World]:
    """Groups, clusters and weights."""
    rng = np.random.default_rng([SEED, 2])
    size, edge = 3000, 0.9 - JUST_BELOW
    scores = with_top(1.0 - 0.45 * rng.random(size) ** 3, 2, rng)
    top = scores.max(axis=1)
    three, eight = rng.integers(3, size=size), rng.integers(8, size=size)
    rare = (rng.random(size) < 0.03).astype(np.int64)

    def world(name: str, right: Floats | float, cases: int, promises: tuple[str, ...], **more: Any) -> World:
        return World(name, "rules", promises, scores, with_accuracy(scores, right), cases, **more)

    groups = ("rule for groups", "rule per group", "rule per group, each by itself")
    yield world("three groups just below the target", edge, 900, groups, group=three)
    yield world("one group just below, the others right", np.where(three == 0, edge, 0.99), 900, groups, group=three)
    yield world("one of eight groups just below", np.where(eight == 0, edge, 0.995), 2400, groups, group=eight)
    yield world("a rare group is bad", np.where(rare == 1, 0.6, 0.97), 900, groups, group=rare)
    sure = np.where((three == 0) & (top > 0.999), 0.7, 0.97)
    yield world("the surest cases of one group are bad", sure, 1500, groups, group=three)
    clusters = ("rule by cluster", "(rule)", "check")
    yield world("ten pictures of a patient alike", edge + JUST_BELOW, 900, ("check",), together=10)
    yield world("ten pictures of a patient alike, just below", edge, 900, clusters[:2], together=10)
    yield world("half of the patients alike, just below", edge, 900, clusters[:2], together=5, alike=0.5)
    yield world("each case twice, just below", edge, 600, clusters[:2], together=2)
    yield world("patients with 1 to 20 pictures, just below", edge, 1500, clusters[:2], together=20, unequal=True)
    yield world(
        "patients and groups, just below",
        edge,
        1500,
        ("rule for groups by cluster", "rule per group by cluster", "temperature and rule by cluster"),
        group=three,
        together=5,
    )
    half = np.arange(size) % 2
    weights = ("rule by weights", "(rule)")
    hard = np.where(half == 0, 0.82, 0.98) - JUST_BELOW
    yield world("hard cases are a tenth of the sample, half in use", hard, 2400, weights, rarer=1.0 + 8.0 * (1 - half))
    rarer = 1.0 + 5.0 * rng.random(size) ** 3
    slope = edge - 0.03 * (rarer - rarer.mean())
    yield world("the rarer in the sample, the harder", slope, 2400, weights, rarer=rarer)
    scarce = np.where(rng.random(size) < 0.02, 40.0, 1.0)
    few = np.where(scarce > 1, 0.5, 0.9 + 0.4 * (scarce > 1).mean() / (scarce == 1).mean()) - JUST_BELOW
    yield world("one kind in fifty is 40 times rarer, and bad", few, 6000, weights, rarer=scarce)


def score_worlds() -> Iterator[World]:
    """Cases are ranked by a score that is chosen among several on a part of the labelled cases."""
    rng = np.random.default_rng([SEED, 6])
    size, edge = 3000, 0.9 - JUST_BELOW
    promises = ("rule by the best score", "rule by margin", "rule by entropy")

    def world(name: str, scores: Floats, right: Floats | float, cases: int, **more: Any) -> World:
        settings = {"promises": promises, **more}
        return World(
            f"scores: {name}", "rules", scores=scores, truth=with_accuracy(scores, right), cases=cases, **settings
        )

    four = with_top(1.0 - 0.45 * rng.random(size) ** 3, 4, rng)
    fifty = with_top(1.0 - 0.8 * rng.random(1000) ** 3, 50, rng)
    yield world("just below the target", four, edge, 500)
    yield world("just below the target, 50 classes", fifty, edge, 1000)
    yield world("three confidences", with_top(rng.choice([0.6, 0.9, 0.99], size=size), 4, rng), edge, 500)
    second = np.sort(four, axis=1)[:, -2]
    margin = four.max(axis=1) - second
    yield world("only the margin tells", four, np.where(margin > np.quantile(margin, 0.7), 0.97, 0.88), 1000)
    spread = -(fifty * np.log(fifty)).sum(axis=1)
    yield world("only the entropy tells", fifty, np.where(spread < np.quantile(spread, 0.3), 0.97, 0.88), 1000)
    huge = np.zeros((size, 3))
    huge[np.arange(size), rng.integers(3, size=size)] = rng.uniform(0, 900, size=size)
    lies = np.where(huge.max(axis=1) > 300, 0.87, 0.95)
    yield world("logits up to 900, the largest lie", huge, lies, 500, kind="logits")
    yield world(
        "ten pictures of a patient alike, just below",
        four,
        edge,
        2000,
        promises=("rule by the best score by cluster",),
        together=10,
    )


def chosen_score_worlds() -> Iterator[World]:
    """The p-norm tells right from wrong and the probability does not, so that `auto` mostly leaves the default."""
    rng = np.random.default_rng([SEED, 8])
    size, edge = 3000, 0.9 - JUST_BELOW
    promises = ("rule by the best score", "rule by pnorm4")
    logits = rng.normal(size=(size, 5)) * np.exp(rng.uniform(-2, 2, size=(size, 1)))
    share_below = np.empty(size)
    share_below[np.argsort(rank("pnorm4", softmax(logits)))] = np.linspace(0, 1, size)
    for words, right in (
        ("the p-norm tells, at best just below the target", np.minimum(0.5 + share_below, edge)),
        ("the p-norm tells", np.minimum(0.7 + 0.5 * share_below, 0.97)),
    ):
        truth = with_accuracy(softmax(logits), right)
        yield World(f"scores: {words}", "rules", promises, logits, truth, 3000, kind="logits")


def binary_worlds() -> Iterator[World]:
    """Two classes: sensitivity and specificity."""
    rng = np.random.default_rng([SEED, 3])
    promises = ("sensitivity", "specificity", "sensitivity and specificity")
    size = 40_000

    def world(name: str, ill: NDArray[np.bool_], logit: Floats, cases: int, **more: Any) -> World:
        truth = np.stack([~ill, ill], axis=1).astype(np.float64)
        scores = np.stack([np.zeros(len(logit)), logit], axis=1)
        if more.get("kind", "logits") == "probabilities":
            scores = binary_truth(logit)
        settings = {"kind": "logits", "confidence": 0.95, "draws": 500, **more}
        return World(name, "rules", promises, scores, truth, cases, **settings)

    ill = rng.random(size) < 0.3
    audit = np.where(ill, rng.normal(-20, 25, size), rng.normal(-60, 10, size))
    yield world("two classes, saturated scores", ill, audit, 2000)
    yield world("two classes, logits beyond 745", ill, np.where(ill, 1, -1) * rng.exponential(400, size), 1000)
    yield world("two classes, float32", ill, 20 * rng.normal(size=size) + 30 * ill, 1000, dtype=np.float32)
    yield world(
        "two classes, float32 probabilities",
        ill,
        20 * rng.normal(size=size) + 30 * ill,
        1000,
        dtype=np.float32,
        kind="probabilities",
    )
    yield world("two classes, five values", ill, np.round(rng.normal(size=size) + 1.5 * ill), 800)
    yield world("two classes, one value", ill, np.zeros(size), 400)
    yield world("two classes, 50 cases", ill, 2 * rng.normal(size=size) + 3 * ill, 50)
    rare = rng.random(size) < 0.02
    yield world("two classes, 2 % positive", rare, 2 * rng.normal(size=size) + 3 * rare, 5000)
    yield world("two classes, the score is backwards", ill, rng.normal(size=size) - 2 * ill, 800)


def interval_worlds() -> Iterator[World]:
    """Intervals of every metric that `evaluate` prints."""
    rng = np.random.default_rng([SEED, 4])
    size = 4000

    def world(name: str, scores: Floats, right: Floats | float, cases: int, **more: Any) -> World:
        settings = {"draws": 500, **more}
        return World(name, "intervals", ("intervals",), scores, with_accuracy(scores, right), cases, **settings)

    uniform = with_top(rng.uniform(0.5, 1.0, size), 2, rng)
    top = uniform.max(axis=1)
    yield world("calibrated, 100 cases", uniform, top, 100)
    yield world("calibrated, 2,000 cases", uniform, top, 2000)
    yield world("half wrong above .99, 2,000 cases", uniform, np.where(top > 0.99, 0.5, top), 2000)
    local = np.where((top > 0.9) & (top < 0.95), top - 0.4, top)
    yield world("off by .4 between .9 and .95, 1,000 cases", uniform, local, 1000)
    sure = with_top(1 - 1e-4 * rng.random(size), 3, rng)
    yield world("all above .9999, 98.5 % right, 200 cases", sure, 0.985, 200)
    tied = with_top(rng.choice([0.6, 0.8, 0.95], size=size), 4, rng)
    yield world("three confidences, 500 cases", tied, tied.max(axis=1) - 0.05, 500)
    z = 2.5 * rng.normal(size=(size, 10))
    noisy = softmax(0.85 * z + 0.6 * rng.normal(size=z.shape))
    pair = {"other": noisy, "draws": 500}
    yield World("overconfident, 10 classes", "intervals", ("intervals",), softmax(z), softmax(0.7 * z), 500, **pair)
    two = 3.0 * rng.normal(size=size)
    first, second = binary_truth(1.5 * two), binary_truth(two + 0.5 * rng.normal(size=size))
    truth = binary_truth(two)
    in_tens = {"together": 10, "alike": 0.5, "options": {"clusters": "cluster"}, "other": second, "draws": 500}
    yield World("ten pictures per patient, 600 cases", "intervals", ("intervals",), first, truth, 600, **in_tens)
    rarer = np.where(two < 0, 5.0, 1.0)
    by_weight = {"rarer": rarer, "options": {"weights": "weight"}, "other": second, "draws": 500}
    yield World("half in use is a sixth of the sample", "intervals", ("intervals",), first, truth, 600, **by_weight)


def monitor_worlds() -> Iterator[World]:
    """Streams that keep their promise, exactly at its boundary."""
    rng = np.random.default_rng([SEED, 5])
    size = 3000
    scores = with_top(1.0 - 0.45 * rng.random(size) ** 3, 4, rng)
    three = rng.integers(3, size=size)
    promises = ("monitor", "monitor with reference", "monitor, half of the labels in random order")

    def world(name: str, rule: Any, right: Floats | float, promises: tuple[str, ...] = promises, **more: Any) -> World:
        settings = {"cases": 800, "draws": 300, **more}
        options = {"rule": rule, "shortlist": settings.pop("shortlist", None)}
        truth = settings.pop("truth", None)
        if truth is None:
            truth = with_accuracy(settings.get("scores", scores), right)
        return World(name, "monitor", promises, settings.pop("scores", scores), truth, options=options, **settings)

    plain = RoutingRule(0.7, 4, 0.9, 0.95)
    yield world("at the promise", plain, 0.9)
    yield world("at the promise, 99 %", RoutingRule(0.7, 4, 0.99, 0.95), 0.99, cases=2000)
    yield world("at the promise, class by class", RoutingRule(None, 4, 0.9, 0.95, (0.7, 0.8, None, 0.6)), 0.9)
    tied = with_top(rng.choice([0.6, 0.8, 0.95], size=size), 4, rng)
    yield world("at the promise, three confidences", plain, 0.9, scores=tied)
    saturated = np.zeros((size, 4))
    saturated[np.arange(size), rng.integers(4, size=size)] = rng.uniform(30, 900, size=size)
    yield world("at the promise, saturated logits", plain, 0.9, scores=saturated, kind="logits")
    evidence = [{"name": f"{k}", "cases": 300, "automated": 200, "errors": 9, "promised": k < 2} for k in range(3)]
    grouped = RoutingRule.from_dict({**plain.to_dict(), "groups": "group", "group_evidence": evidence})
    yield world(
        "two groups promised, the third bad", grouped, np.where(three == 2, 0.82, 0.9 + 0.1 * (three == 1)), group=three
    )
    patients = RoutingRule(0.7, 4, 0.9, 0.95, clusters=90, cluster_column="cluster", largest_cluster=10)
    yield world("ten pictures of a patient alike, watched", patients, 0.9, promises[:2], together=10, cases=1000)
    few = RoutingRule(0.7, 4, 0.9, 0.95, clusters=90, cluster_column="cluster", largest_cluster=6)
    yield world("1 to 6 pictures, watched", few, 0.9, promises[:2], together=6, unequal=True, cases=1000)
    listed = Shortlist(0.04, 4, 0.9, 0.95, threshold=0.7)
    mask = listed.listed(Predictions.from_probabilities(scores, np.zeros(size, dtype=np.int64)))
    kept = np.where(mask, 0.9 / mask.sum(axis=1)[:, None], 0.1 / np.maximum((~mask).sum(axis=1), 1)[:, None])
    kept /= kept.sum(axis=1)[:, None]
    right = with_accuracy(scores, 0.9)
    reviewed = scores.max(axis=1) < 0.7
    yield world(
        "a shortlist at its promise",
        plain,
        0.9,
        promises[:1],
        shortlist=listed,
        truth=np.where(reviewed[:, None], kept, right),
    )
    ill = rng.random(size) < 0.3
    logit = 2 * rng.normal(size=size) + 3 * ill
    chance = binary_truth(logit)[:, 1]
    low, high = np.quantile(chance[ill], 0.05), np.quantile(chance[~ill], 0.95)
    both = BinaryRule(float(min(low, high)), float(max(low, high)), 1, 0.95, 0.95, 0.95)
    sides = np.stack([~ill, ill], axis=1).astype(np.float64)
    yield world("two classes at their promises", both, 0.9, promises[:2], scores=binary_truth(logit), truth=sides)


# -- counting ----------------------------------------------------------------------------------------------------------


def count(task: tuple[int, int, int]) -> dict[str, list[float]]:
    """Draws, broken promises and the sum of the other number of every cell, over some draws of one world."""
    index, begin, end = task
    warnings.simplefilter("ignore")  # a temperature may have no optimum
    world = all_worlds()[index]
    cells: dict[str, list[float]] = {}
    for number in range(begin, end):
        for cell, (broken, value) in outcomes(world, index, number).items():
            add(cells, cell, [1, int(broken), float(value)])
    return cells


def add(cells: dict[str, list[float]], cell: str, numbers: list[float]) -> None:
    """Add draws, broken promises and the sum of the other number."""
    so_far = cells.setdefault(cell, [0] * len(numbers))
    cells[cell] = [a + b for a, b in zip(so_far, numbers, strict=True)]


def outcomes(world: World, index: int, number: int) -> Outcome:
    """What one draw says about every promise of a world."""
    rng = np.random.default_rng([SEED, index, number])
    if "cell" in world.options:
        cell = world.options["cell"]
        return {cell.promise: (cell.broken(rng), 0.0)}
    cases = world.draw(rng)
    found: Outcome = {}
    for name in world.promises:
        outcome = PROMISES[name.strip("()")](world, cases, number)
        if isinstance(outcome, tuple):
            outcome = {name: outcome}
        found |= outcome
    return found


def count_world(index: int, draws: int, pool: Any) -> dict[str, list[float]]:
    """The same over all draws of a world."""
    step = max(1, min(20, draws // 8))
    tasks = [(index, begin, min(begin + step, draws)) for begin in range(0, draws, step)]
    cells: dict[str, list[float]] = {}
    for part in pool.imap(count, tasks):
        for cell, numbers in part.items():
            add(cells, cell, numbers)
    return cells


def holm(p_values: list[float]) -> list[float]:
    """Holm's adjusted p-values.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, at in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[at]))
        adjusted[at] = largest
    return adjusted


@dataclass(frozen=True)
class Row:
    """One cell of the table; `value` is a mean share or width, and `oracle` the width of an interval by an oracle."""

    world: World
    cell: str
    draws: int
    broken: int
    value: float
    oracle: float | None


def oracle_widths(world: World) -> dict[str, float]:
    """Widths of the intervals of someone who knows how much estimates scatter: 2 x 1.96 standard deviations."""
    if world.section != "intervals":
        return {}
    settings = {"weights": world.options.get("weights")}
    found: dict[str, list[float]] = {}
    for number in range(world.draws):
        cases = world.draw(np.random.default_rng([SEED, 10, number]))
        values = evaluate(cases, **settings).values()
        others: dict[str, Any] = {}
        if world.other is not None:
            others = evaluate(world.second(cases), **settings).values()
        for name, value in values.items():
            if value is not None:
                found.setdefault(f"interval of {name}", []).append(value)
            if value is not None and others.get(name) is not None:
                found.setdefault(f"difference of {name}", []).append(others[name] - value)
    return {cell: 2 * 1.96 * float(np.std(estimates, ddof=1)) for cell, estimates in found.items()}


def table(counts: dict[str, dict[str, list[float]]]) -> tuple[str, list[str]]:
    """The table as text, and the cells that are broken more often than allowed."""
    rows = []
    for world in all_worlds():
        if world.name not in counts:
            continue
        known = oracle_widths(world)
        for cell, (draws, broken, value) in counts[world.name].items():
            # An interval that few draws have cannot be judged.
            if draws >= 30:
                rows.append(Row(world, cell, int(draws), int(broken), value / draws, known.get(cell)))
    promised = [row for row in rows if not row.cell.startswith("(")]
    p_values = [
        float(binomtest(row.broken, row.draws, nominal(row.world, row.cell), alternative="greater").pvalue)
        for row in promised
    ]
    adjusted = dict(zip([(row.world.name, row.cell) for row in promised], holm(p_values), strict=True))
    headings = [
        "world",
        "cases",
        "classes",
        "promise",
        "may %",
        "broken %",
        "draws",
        "Holm p",
        "share or width",
        "oracle",
    ]
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    failed = []
    for row in rows:
        world, cell = row.world, row.cell
        p_value = adjusted.get((world.name, cell))
        allowed, shown = f"{100 * nominal(world, cell):.1f}", f"{100 * row.broken / row.draws:.1f}"
        verdict = "-"
        if p_value is None:
            allowed = "-"
        else:
            verdict = f"{p_value:.2g}"
            if p_value < LEVEL:
                failed.append(f"{cell}: {world.name}")
                verdict += " BROKEN"
        oracle = "-"
        if row.oracle is not None:
            oracle = f"{row.oracle:.4f}"
        sizes = (f"{world.cases:,}", f"{world.scores.shape[1]:,}")
        texts = (world.name, *sizes, cell, allowed, shown, f"{row.draws:,}", verdict, f"{row.value:.4f}", oracle)
        lines.append("| " + " | ".join(texts) + " |")
    lines += ["", *summary(promised), "", *searches(promised), "", *coverage(promised)]
    worlds = len({row.world.name for row in rows})
    lines.append(f"\n{len(promised)} promised cells in {worlds} worlds.")
    lines.append(
        f"Broken more often than allowed (Holm, {100 * LEVEL:g} % over all cells): {'; '.join(failed) or 'none'}."
    )
    return "\n".join(lines), failed


def summary(rows: list[Row]) -> list[str]:
    """One line per promise: in how many worlds it was tried, and how often it was broken there."""
    lines = ["| promise | worlds | draws | may % | broken % | largest % | share or width |", "|" + " --- |" * 7]
    for cell in dict.fromkeys(row.cell for row in rows):
        own = [row for row in rows if row.cell == cell]
        allowed = sorted({f"{100 * nominal(row.world, cell):.3g}" for row in own}, key=float)
        draws, broken = sum(row.draws for row in own), sum(row.broken for row in own)
        largest = max(row.broken / row.draws for row in own)
        value = np.mean([row.value for row in own])
        cells = (cell, f"{len(own)}", f"{draws:,}", " to ".join(dict.fromkeys([allowed[0], allowed[-1]])))
        shown = (f"{100 * broken / draws:.1f}", f"{100 * largest:.1f}", f"{value:.3f}")
        lines.append("| " + " | ".join([*cells, *shown]) + " |")
    return lines


def searches(rows: list[Row]) -> list[str]:
    """What the ways to search for a threshold automate on average over the worlds in which all of them were tried."""
    shares = {way: {row.world.name: row.value for row in rows if row.cell == way} for way in SEARCHES}
    common = [name for name in shares[SEARCHES[0]] if all(name in own for own in shares.values())]
    if not common:
        return []
    lines = [f"| search, mean over {len(common)} worlds | automated % | most of the three in |", "| --- | --- | --- |"]
    for way, own in shares.items():
        most = sum(own[name] > 0 and own[name] == max(other[name] for other in shares.values()) for name in common)
        lines.append(f"| {way} | {100 * np.mean([own[name] for name in common]):.2f} | {most} worlds |")
    return lines


def coverage(rows: list[Row]) -> list[str]:
    """How many cells of intervals hold the truth often enough, and how wide they are against an oracle's."""
    own = [row for row in rows if row.cell.startswith(("interval", "difference"))]
    if not own:
        return []
    held = np.array([100 * (1 - row.broken / row.draws) for row in own])
    worst = own[int(held.argmin())]
    enough = 100 * np.mean(held >= 93 - 1e-9)
    lines = [
        f"{len(own)} cells of 95 % intervals: {enough:.1f} % of them hold the truth in at least 93 % of draws; "
        f"the lowest is {held.min():.1f} % ({worst.cell}: {worst.world.name})."
    ]
    ratios = [row.value / row.oracle for row in own if row.oracle]
    if ratios:
        middle, high = np.quantile(ratios, [0.5, 0.95])
        lines.append(f"Mean width divided by that of the oracle: median {middle:.2f}, 95 % of cells below {high:.2f}.")
    return lines


def main() -> None:
    """Count what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("rules", "intervals", "monitor")
    parser.add_argument("--sections", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--only", default="", help="only worlds whose name contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--draws-times", type=float, default=1.0, help="times as many draws as fixed, for a quick look")
    parser.add_argument("--counts", type=Path, help="keep the counts of finished worlds here")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    counts: dict[str, dict[str, list[float]]] = {}
    if arguments.counts is not None and arguments.counts.is_file():
        counts = json.loads(arguments.counts.read_text())
    with Pool(arguments.processes) as pool:
        for index, world in enumerate(all_worlds()):
            if world.section not in arguments.sections or world.name in counts or arguments.only not in world.name:
                continue
            counts[world.name] = count_world(index, max(1, round(world.draws * arguments.draws_times)), pool)
            summary = Counter({cell: int(numbers[1]) for cell, numbers in counts[world.name].items()})
            print(world.name, dict(summary), file=sys.stderr, flush=True)
            if arguments.counts is not None:
                arguments.counts.write_text(json.dumps(counts))
    text, failed = table(counts)
    command = "python scripts/promises.py"
    if arguments.only:
        command += f' --only "{arguments.only}"'
    if arguments.draws_times != 1:
        command += f" --draws-times {arguments.draws_times:g}"
    head = f"$ {command}\nSeed {SEED}, Python {platform.python_version()}.\n"
    print(f"{head}\n{text}")
    if arguments.out is not None:
        arguments.out.write_text(f"{head}\n{text}\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
