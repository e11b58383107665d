"""Worlds for `scripts/promises.py`: a class and a score (ties, groups, candidates), several labels, and a cascade.

Each world is a table of cases that serves as the whole population, so the truth is known exactly. A draw takes labelled
cases from it, with replacement, and chooses a rule; the promise is broken if the rule is below it in the population.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from promise_worlds_monitor import Cell, Rng

from calibrant import Predictions
from calibrant.decisions import cases_by_label, choose_label_rules, choose_shortlist, choose_threshold
from calibrant.errors import InvalidInput

SEED = 20261118
SIZE = 20_000
JUST_BELOW = 0.0005


def exactly(right: NDArray[np.float64], rng: Rng) -> NDArray[np.bool_]:
    """Which of some cases are right, so that the share over all of them is a little below their mean."""
    some = rng.permutation(len(right))
    count = int(np.floor(len(right) * (right.mean() - JUST_BELOW)))
    correct = np.zeros(len(right), dtype=np.bool_)
    correct[some[:count]] = True
    return correct


# -- a class and a score ----------------------------------------------------------------------------------------------


@cache
def answers(values: tuple[float, ...], shares: tuple[float, ...], promise: float) -> Predictions:
    """Answers with few confidences, right a little too rarely at each of them and in each of three groups."""
    rng = np.random.default_rng([SEED, 41, len(values)])
    place = rng.choice(len(values), size=SIZE, p=shares)
    group = rng.integers(3, size=SIZE)
    correct = np.zeros(SIZE, dtype=np.int64)
    for value in range(len(values)):
        for own in range(3):
            rows = np.flatnonzero((place == value) & (group == own))
            correct[rows] = exactly(np.full(len(rows), promise), rng)
    extras = {"group": group}
    return Predictions.from_confidence(np.ones(SIZE, np.int64), np.array(values)[place], correct, extras=extras)


def below(rule: Any, cases: Predictions, correct: NDArray[np.bool_], promise: float, groups: Any = None) -> bool:
    """Whether what a rule automates is right too rarely, over all cases or in any of their groups."""
    automated = rule.decide_all(cases.as_right_or_wrong()).automate
    parts = [automated]
    if groups is not None:
        parts = [automated & (groups == name) for name in np.unique(groups)]
    return any(part.any() and correct[part].mean() < promise for part in parts)


def tied(
    rng: Rng, *, values: Any, shares: Any, cases: int, promise: float = 0.9, kind: str = "", **options: Any
) -> bool:
    """Choose a rule on answers with ties."""
    population = answers(values, shares, promise)
    if kind == "score":
        population = Predictions.from_confidence(
            population.predicted, 7 * population.confidence - 90, population.targets, kind="score"
        )
    labelled = population.subset(rng.integers(SIZE, size=cases))
    rule = choose_threshold(labelled, promise, **options)
    groups = None
    if "per_group" in options:
        groups = population.extras["group"]
    return below(rule, population, population.correct, promise, groups)


# -- further candidates ------------------------------------------------------------------------------------------------


@cache
def named(digits: int) -> Predictions:
    """Answers with two further candidates, some of them empty; one case in twenty has a class that none names."""
    rng = np.random.default_rng([SEED, 44, digits])
    order = rng.permuted(np.tile(np.arange(6), (SIZE, 1)), axis=1)
    sure = np.sort(rng.dirichlet([0.5] * 6, SIZE), axis=1)[:, ::-1]
    true = order[np.arange(SIZE), (rng.random((SIZE, 1)) > np.cumsum(sure, axis=1)).sum(axis=1).clip(max=5)]
    true[rng.random(SIZE) < 0.05] = 6
    extras: dict[str, Any] = {}
    for place in (1, 2):
        empty = rng.random(SIZE) < 0.1
        extras[f"predicted_{place + 1}"] = np.where(empty, "", order[:, place].astype(str))
        extras[f"confidence_{place + 1}"] = sure[:, place].round(digits)
    return Predictions.from_confidence(order[:, 0], sure[:, 0].round(digits), true, extras=extras)


def candidates(rng: Rng, *, digits: int, cases: int, coverage: float) -> bool:
    """Choose a shortlist for what a rule sends to a person; refusing to promise breaks nothing."""
    population = named(digits)
    rule = choose_threshold(population.subset(rng.integers(SIZE, size=600)), 0.7)
    try:
        shortlist = choose_shortlist(population.subset(rng.integers(SIZE, size=cases)), coverage, rule=rule)
    except InvalidInput:
        return False
    reviewed = ~rule.decide_all(population.as_right_or_wrong()).automate
    return bool(shortlist.holds_true(population)[reviewed].mean() < coverage)


# -- a cascade --------------------------------------------------------------------------------------------------------


@cache
def two_systems(promise: float) -> tuple[NDArray[Any], ...]:
    """Confidences and errors of two systems, each right a little too rarely wherever it is asked."""
    rng = np.random.default_rng([SEED, 42])
    confidence = rng.beta(4, 1, size=(2, SIZE)).round(2)
    correct = np.stack([exactly(np.full(SIZE, promise), rng) for _ in range(2)])
    return confidence[0], confidence[1], correct[0], correct[1]


def cascade(rng: Rng, *, cases: int, promise: float = 0.9) -> bool:
    """Fix a path of both thresholds on a quarter of the cases, and certify the score along it on the others."""
    first, second, first_right, second_right = two_systems(promise)

    def along(rows: NDArray[np.int64], least: float) -> Predictions:
        taken = first[rows] >= least
        correct = np.where(taken, first_right[rows], second_right[rows]).astype(np.int64)
        score = np.where(taken, 1.0 + first[rows], second[rows])
        return Predictions.from_confidence(np.ones(len(rows), np.int64), score, correct, kind="score")

    rows = rng.integers(SIZE, size=cases)
    fitting, rest = rows[: cases // 4], rows[cases // 4 :]

    def shown(least: float) -> float:  # the path that looks best on the fitting share
        path = along(fitting, least)
        return float(path.correct[path.confidence >= np.quantile(path.confidence, 0.3)].mean())

    least = max(np.linspace(0.5, 1.0, 11).tolist(), key=shown)
    rule = choose_threshold(along(rest, least), promise, fitting=along(fitting, least))
    population = along(np.arange(SIZE), least)
    return below(rule, population, population.correct, promise)


# -- several labels ---------------------------------------------------------------------------------------------------


@cache
def labelled(count: int, digits: int, *, alike: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities and targets of labels of very different frequency, one of them scored backwards."""
    rng = np.random.default_rng([SEED, 43, count, digits])
    shared = rng.normal(size=(SIZE, 1)) * (3.0 if alike else 0.0)
    frequency = np.geomspace(0.5, 0.01, count)
    logits = shared + 1.5 * rng.normal(size=(SIZE, count)) + np.log(frequency / (1 - frequency))
    luck = rng.random((SIZE, 1)) if alike else rng.random((SIZE, count))
    truth = 1 / (1 + np.exp(-logits))
    targets = (luck < truth).astype(np.int64)
    probabilities = truth.copy()
    probabilities[:, 1] = 1 - truth[:, 1]
    return probabilities.round(digits), targets


def family(
    rng: Rng,
    *,
    labels: int,
    cases: int,
    sensitivity: float | None = 0.9,
    specificity: float | None = None,
    digits: int = 15,
    alike: bool = False,
) -> bool:
    """Choose a rule per label, and see whether any label is below its promise."""
    probabilities, targets = labelled(labels, digits, alike=alike)
    names = [f"label {k}" for k in range(labels)]
    rows = rng.integers(SIZE, size=cases)
    own = cases_by_label(probabilities[rows], targets[rows], names)
    rules = choose_label_rules(own, sensitivity=sensitivity, specificity=specificity, confidence=0.9)
    for place, (_, rule) in enumerate(rules.rules):
        chance, ill = probabilities[:, place], targets[:, place] == 1
        if rule.sensitivity is not None and (chance[ill] < rule.low).mean() > 1 - rule.sensitivity:
            return True
        if rule.specificity is not None and (chance[~ill] >= rule.upper).mean() > 1 - rule.specificity:
            return True
    return False


def cells() -> Iterator[Cell]:
    """All cells."""
    three, shares = (0.6, 0.8, 0.95), (0.05, 0.05, 0.9)
    worlds: dict[str, tuple[str, float, Callable[[Rng], bool]]] = {
        "a class and a score, nine in ten at .95, 300 cases": (
            "rule, a class and a score",
            0.05,
            partial(tied, values=three, shares=shares, cases=300),
        ),
        "a class and a score, one confidence, 500 cases": (
            "rule, a class and a score",
            0.05,
            partial(tied, values=(0.97,), shares=(1.0,), cases=500),
        ),
        "a class and a plain score, nine in ten alike, 600 cases": (
            "rule, a class and a plain score",
            0.05,
            partial(tied, values=three, shares=shares, cases=600, kind="score"),
        ),
        "threshold per group, nine in ten at .95, 900 cases": (
            "rule per group, a class and a score",
            0.05,
            partial(tied, values=three, shares=shares, cases=900, per_group="group"),
        ),
        "cascade of two systems just below, 600 cases": ("cascade", 0.05, partial(cascade, cases=600)),
        "cascade of two systems just below, 4,000 cases": ("cascade", 0.05, partial(cascade, cases=4000)),
    }
    for name, options in {
        "4 labels, 300 cases": {"labels": 4, "cases": 300},
        "30 labels, 2,000 cases": {"labels": 30, "cases": 2000},
        "30 labels that depend on each other, 2,000 cases": {"labels": 30, "cases": 2000, "alike": True},
        "10 labels with ties, both promised, 1,000 cases": {
            "labels": 10,
            "cases": 1000,
            "digits": 1,
            "specificity": 0.9,
        },
        "10 labels, specificity, 200 cases": {"labels": 10, "cases": 200, "sensitivity": None, "specificity": 0.95},
    }.items():
        worlds[name] = ("family of labels", 0.1, partial(family, **options))
    for name, known in {
        "further candidates, 400 cases": {"digits": 15, "cases": 400, "coverage": 0.7},
        "further candidates with ties, 1,500 cases": {"digits": 1, "cases": 1500, "coverage": 0.75},
    }.items():
        worlds[name] = ("shortlist of candidates", 0.05, partial(candidates, **known))
    for name, (promise, level, broken) in worlds.items():
        yield Cell(name, level, broken, promise)
