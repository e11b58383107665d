"""Worlds for `scripts/promises.py`, each of which once broke a promise: gaps between a proof and what the code assumed.

In each draw a team gets labelled cases of a population that is known, as in promise_worlds_inputs.py.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from promise_worlds_monitor import Cell, Rng

from calibrant import Predictions, compare, evaluate
from calibrant.decisions import (
    RoutingRule,
    Shortlist,
    check_promise,
    check_shortlist,
    choose_shortlist,
    choose_threshold,
    sample_by_weights,
)
from calibrant.errors import InvalidInput

SEED = 20261119


# -- clusters of which a class or a group rarely gets many cases -------------------------------------------------------


def bursts(rng: Rng, clusters: int, share: float) -> Predictions:
    """Clusters of 20 cases, one of which is predicted as class 1 and right.

    In a small share of clusters all 20 are predicted as class 1, and wrong.
    """
    predicted = np.zeros((clusters, 20), dtype=np.int64)
    predicted[:, 0] = 1
    burst = rng.random(clusters) < share
    predicted[burst] = 1
    chance = np.where(predicted == 1, 0.97, 0.03)
    extras = {"cluster": np.repeat(np.arange(clusters), 20), "group": predicted.ravel()}
    targets = np.where(burst[:, None], 1 - predicted, predicted).ravel()
    return Predictions.from_binary(chance.ravel(), targets, kind="probabilities", extras=extras)


def automates_bursts(rng: Rng, *, clusters: int, share: float, **options: Any) -> bool:
    """Whether a rule automates class 1, of which 20 * share in 1 + 19 * share cases are wrong."""
    rule = choose_threshold(bursts(rng, clusters, share), 0.9, confidence=0.9, clusters="cluster", **options)
    surest = Predictions.from_binary([0.97], [1], kind="probabilities", extras={"group": np.array([1])})
    return bool(rule.route(surest).automate[0])


def rarely_giant(rng: Rng, *, clusters: int) -> bool:
    """One cluster in 50 has 100 cases, three quarters right, the others two, so that 87 % are right in use."""
    giant = rng.random(clusters) < 0.02
    cluster = np.repeat(np.arange(clusters), np.where(giant, 100, 2))
    right = rng.random(clusters)[cluster] < np.where(giant, 0.75, 0.99)[cluster]
    chance = np.full(len(cluster), 0.97)
    extras = {"cluster": cluster}
    cases = Predictions.from_binary(chance, right.astype(int), kind="probabilities", extras=extras)
    rule = choose_threshold(cases, 0.9, confidence=0.9, clusters="cluster", largest_cluster=100)
    return rule.automates


# -- shortlists of clusters --------------------------------------------------------------------------------------------

BY_PATIENT = RoutingRule(0.9, 5, 0.9, 0.9, clusters=60, cluster_column="patient", largest_cluster=10)


def patients(rng: Rng, count: int, pictures: int = 10) -> Predictions:
    """Five classes; the pictures of a patient are the same."""
    logits = np.repeat(2 * rng.normal(size=(count, 5)), pictures, axis=0)
    noise = np.repeat(rng.gumbel(size=(count, 5)), pictures, axis=0)
    extras = {"patient": np.repeat(np.arange(count), pictures)}
    return Predictions.from_logits(logits, (logits + noise).argmax(axis=1), extras=extras)


@cache
def many_patients() -> Predictions:
    cases = patients(np.random.default_rng([SEED, 2]), 40_000, 1)
    return cases.subset(~BY_PATIENT.route(cases).automate)


def lists_too_few(rng: Rng, *, count: int) -> bool:
    shortlist = choose_shortlist(patients(rng, count), 0.9, confidence=0.9, rule=BY_PATIENT)
    return bool(shortlist.holds_true(many_patients()).mean() < 0.9 - 0.002)


def calls_a_kept_shortlist_broken(rng: Rng, *, count: int) -> bool:
    shortlist = Shortlist(0.1, 5, 0.5, 0.9, threshold=0.9)
    shortlist = replace(shortlist, coverage=float(shortlist.holds_true(many_patients()).mean()))
    return not check_shortlist(shortlist, patients(rng, count), rule=BY_PATIENT).held


# -- groups that another score ranks better ----------------------------------------------------------------------------


def two_scales(rng: Rng, cases: int) -> Predictions:
    """Five classes and two groups; the logits of the second have a scale that says nothing."""
    group = rng.integers(2, size=cases)
    logits = 3 * rng.normal(size=(cases, 5))
    targets = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    scale = np.where(group == 1, np.exp(1.2 * rng.normal(size=cases)), 1.0)
    return Predictions.from_logits(logits * scale[:, None], targets, extras={"group": group})


@cache
def many_of_two_scales() -> Predictions:
    return two_scales(np.random.default_rng([SEED, 1]), 100_000)


def of_two_scales(rng: Rng, *, score: str) -> bool:
    labelled = two_scales(rng, 3000)
    rule = choose_threshold(labelled, 0.9, confidence=0.9, per_group="group", score=score, seed=int(rng.integers(1000)))
    population = many_of_two_scales()
    automated = rule.route(population).automate
    inside = [automated & (population.extras["group"] == group) for group in (0, 1)]
    # The population is a sample, too: its accuracy in a group has a standard error of 0.2 points.
    return any(rows.any() and population.correct[rows].mean() < 0.9 - 0.004 for rows in inside)


# -- weights whose largest is rare -------------------------------------------------------------------------------------


def rare_and_heavy(rng: Rng, *, largest: float) -> bool:
    """One case in 500 has the weight 100 and is wrong, so that 17 % are wrong in use; any automation breaks 90 %."""
    heavy = rng.random(500) < 0.002
    extras = {"weight": np.where(heavy, 100.0, 1.0)}
    cases = Predictions.from_binary(np.full(500, 0.97), (~heavy).astype(int), kind="probabilities", extras=extras)
    try:
        drawn = sample_by_weights(cases, "weight", largest=largest, seed=int(rng.integers(1000)))
    except InvalidInput:
        return False  # no case is left
    return choose_threshold(drawn, 0.9, confidence=0.9).threshold is not None


def calls_a_kept_promise_broken(rng: Rng) -> bool:
    """Half of the labelled cases are hard (70 % right), one in 20 in use, so that 97.6 % are right there."""
    hard = rng.random(1000) < 0.5
    right = rng.random(1000) < np.where(hard, 0.7, 0.99)
    extras = {"weight": np.where(hard, 1.0, 19.0)}
    cases = Predictions.from_binary(np.full(1000, 0.97), right.astype(int), kind="probabilities", extras=extras)
    seed = int(rng.integers(1000))
    rule = RoutingRule(0.9, 2, 0.9755, 0.95, weight_column="weight", weight_seed=seed)
    return not check_promise(rule, cases).held


# -- two models that hardly differ -------------------------------------------------------------------------------------


def nearly_the_same(rng: Rng, cases: int, share: float) -> tuple[Predictions, Predictions]:
    """Two models on the same cases; a small share of them are wrong by the first and right by the second."""
    confidence = rng.uniform(0.6, 0.99, cases)
    repaired = rng.random(cases) < share
    right = (rng.random(cases) < confidence) & ~repaired
    first = np.stack([confidence, 1 - confidence], axis=1)
    second = np.where(repaired[:, None], first[:, ::-1], first)
    targets = np.where(right, 0, 1)
    return Predictions.from_probabilities(first, targets), Predictions.from_probabilities(second, targets)


@cache
def true_difference(name: str, share: float) -> float:
    values = [evaluate(model).values()[name] for model in nearly_the_same(np.random.default_rng(SEED), 100_000, share)]
    return float(np.subtract(values[1], values[0]))


def misses_the_difference(rng: Rng, *, name: str, cases: int, share: float) -> bool:
    """Whether the interval of a difference misses it beyond the noise of the population; False if there is none."""
    models = nearly_the_same(rng, cases, share)
    ends = compare(*models, n_resamples=100, seed=int(rng.integers(1000)))[name].interval
    truth = -share if name == "test_error" else true_difference(name, share)
    slack = 0.03 * abs(truth)
    return ends is not None and not ends[0] - slack <= truth <= ends[1] + slack


def cells() -> Iterator[Cell]:
    """All worlds of this file."""
    for name, options in {
        "per class": {"per_class": True},
        "for groups": {"groups": "group"},
        "per group": {"per_group": "group"},
    }.items():
        broken = partial(automates_bursts, clusters=100, share=0.01, **options)
        yield Cell(f"one cluster in 100 is all of one class, {name}", 0.1, broken, f"rule {name} by cluster")
    for clusters in (40, 400):
        broken = partial(rarely_giant, clusters=clusters)
        yield Cell(f"{clusters} clusters, one in 50 giant", 0.1, broken, "rule by cluster")
    for count in (60, 400):
        broken = partial(lists_too_few, count=count)
        yield Cell(f"{count} patients with ten pictures alike", 0.1, broken, "shortlist by cluster")
    broken = partial(calls_a_kept_shortlist_broken, count=60)
    yield Cell("60 patients with ten pictures alike, check", 0.025, broken, "check of a shortlist by cluster")
    for score in ("auto", "probability"):
        broken = partial(of_two_scales, score=score)
        yield Cell(f"two groups of other scales, {score}", 0.1, broken, "rule per group by the best score")
    broken = partial(rare_and_heavy, largest=100.0)
    yield Cell("the heaviest kind is one case in 500", 0.1, broken, "rule by weights")
    yield Cell("half of the labelled are hard, check", 0.025, calls_a_kept_promise_broken, "check by weights")
    for name, share in {"test_error": 0.005, "nll": 0.005, "auroc": 0.05}.items():
        broken = partial(misses_the_difference, name=name, cases=200, share=share)
        yield Cell(f"models differ in {share:.1%} of 200 cases, {name}", 0.05, broken, f"difference of {name}")
