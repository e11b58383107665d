"""The nine wrong guarantees that an audit found: its worlds and more like them, with the package then and now.

    git archive 01e6c30 src | tar -x -C /tmp/then
    PYTHONPATH=/tmp/then/src python scripts/audit_worlds.py count then.json
    python scripts/audit_worlds.py count now.json
    python scripts/audit_worlds.py table then.json now.json > results/benchmarks/audit-worlds.txt

Every world of a wrong guarantee counts draws in which it was broken. Names with a star are the audit's own. Seeds and
draws are fixed, and the same for both versions. `--only 3` counts one item.
"""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions, compare, evaluate

try:
    from calibrant.decisions import (
        Policy,
        RoutingRule,
        choose_binary_rule,
        choose_threshold,
        sample_by_weights,
    )
    from calibrant.decisions.rule import GroupEvidence
    from calibrant.decisions.weights import note_weights
    from calibrant.deployment import Stream, promise_capital, read_reference, watch
    from calibrant.deployment.betting import labels_to_notice

    THEN = False
except ModuleNotFoundError:  # the layout of 01e6c30
    from calibrant.monitoring import Stream, promise_capital, watch  # type: ignore[import-not-found,no-redef]
    from calibrant.routing import (  # type: ignore[import-not-found,no-redef]
        GroupEvidence,
        RoutingRule,
        choose_binary_rule,
        choose_threshold,
        note_weights,
        sample_by_weights,
    )

    THEN = True

Floats = NDArray[np.float64]
Rng = np.random.Generator
LEVEL = 0.05


@dataclass(frozen=True)
class World:
    """One world of an item of the audit.

    Attributes:
        item: Number of the wrong guarantee.
        name: With a star if it is the audit's.
        allowed: In how many percent of draws the guarantee may be broken; None if no level was promised.
        draws: How many.
        broken: Draws once and returns whether it was broken; None if there was nothing to break.
    """

    item: int
    name: str
    allowed: float | None
    draws: int
    broken: Callable[[Rng], bool | None]


# -- 1: specificity on saturated scores -------------------------------------------------------------------------------


def specificity(rng: Rng, cases: Callable[[Rng, int], Predictions]) -> bool:
    rule = choose_binary_rule(cases(rng, 2000), sensitivity=None, specificity=0.95)
    stream = cases(np.random.default_rng(1), 20_000)
    decisions = np.asarray(rule.decide(stream))
    return bool((decisions[stream.targets == 0] == "positive").mean() > 0.05 + 0.003)


def two_classes(rng: Rng, n: int, ill: tuple[float, float], well: tuple[float, float], rounded: int = 9) -> Predictions:
    is_ill = rng.random(n) < 0.3
    scores = np.where(is_ill, rng.normal(*ill, n), rng.normal(*well, n)).round(rounded)
    return Predictions.from_logits(np.stack([np.zeros(n), scores], axis=1), is_ill.astype(int))


def first_worlds() -> Iterator[World]:
    worlds = {
        "* most chances below 1e-16": partial(two_classes, ill=(-20, 25), well=(-60, 10)),
        "a wider gap": partial(two_classes, ill=(0, 30), well=(-70, 15)),
        "saturated and tied": partial(two_classes, ill=(-10, 20), well=(-70, 15), rounded=-1),
        "logits down to -900": partial(two_classes, ill=(-300, 400), well=(-600, 100)),
        "chances of exactly 0 and 1": partial(two_classes, ill=(300, 600), well=(-500, 600)),
    }
    for name, cases in worlds.items():
        yield World(1, name, 5, 100, partial(specificity, cases=cases))


# -- 2 and 3: groups without a promise, and clusters ------------------------------------------------------------------


def in_groups(
    rng: Rng, shares: list[float], right: list[float], target: float, promised: list[bool] | None, cases: int = 5000
) -> bool:
    """Groups with accuracies of their own, which the promise holds for together, or for those that it is made for."""
    site = rng.choice(len(shares), size=cases, p=shares)
    wrong = (rng.random(cases) >= np.array(right)[site]).astype(int)
    known: dict[str, Any] = {}
    named = {"groups": "site"}
    if promised is not None:
        evidence = [GroupEvidence(str(k), 500, 400, 1, made) for k, made in enumerate(promised)]
        known = {"groups": "site", "group_evidence": tuple(evidence)}
        named = {}
    rule = RoutingRule(0.9, 2, target_accuracy=target, confidence=0.95, **known)
    sure = np.full(cases, 0.95)
    extras = {"site": site.astype(str)}
    stream = Stream.of_decisions(rule, sure >= 0.9, np.zeros(cases, dtype=int), sure, targets=wrong, extras=extras)
    return bool(watch(stream, level=LEVEL, **named).alarms)


def second_worlds() -> Iterator[World]:
    worlds: dict[str, tuple[list[float], list[float], float, list[bool] | None]] = {
        "* two sites, 99.8 and 95 %, 99 % promised for both together": ([0.9, 0.1], [0.998, 0.95], 0.99, None),
        "* a group of a rule without a promise of its own": ([0.9, 0.1], [0.998, 0.95], 0.99, [True, False]),
        "half perfect, half at 90 %, 95 % promised": ([0.5, 0.5], [1.0, 0.9], 0.95, None),
        "one of twenty nearly always wrong, 95 % promised": ([0.05] * 20, [1.0] * 19 + [0.02], 0.95, None),
        "a small bad site, 99 % promised": ([0.98, 0.02], [0.994, 0.9], 0.99, None),
    }
    for name, (shares, right, target, promised) in worlds.items():
        yield World(2, name, 5, 32, partial(in_groups, shares=shares, right=right, target=target, promised=promised))


def ten(_: Rng, number: int) -> Any:
    return np.full(number, 10)


def one_to_forty(rng: Rng, number: int) -> Any:
    return rng.integers(1, 41, size=number)


def one_or_forty(rng: Rng, number: int) -> Any:
    return np.where(rng.random(number) < 0.9, 1, 40)


def in_clusters(
    rng: Rng, sizes: Callable[[Rng, int], Any], error: float | Callable[[Any], Any], together: float = 1.0
) -> bool:
    """Clusters whose cases are wrong together with some probability, at the promise of 98 % or above."""
    number = 300
    size = sizes(rng, number)
    rate = error(size) if callable(error) else np.full(number, error)
    joint = rng.random(number) < together
    wrong = np.where(joint, size * (rng.random(number) < rate), rng.binomial(size, rate))
    patient = np.repeat(np.arange(number), size)
    place = np.arange(len(patient)) - np.repeat(np.cumsum(size) - size, size)
    known: dict[str, Any] = {"clusters": number}
    if not THEN:
        known |= {"cluster_column": "patient", "largest_cluster": 40}
    rule = RoutingRule(0.9, 2, target_accuracy=0.98, confidence=0.95, **known)
    sure = np.full(len(patient), 0.95)
    targets = (place < np.repeat(wrong, size)).astype(int)
    settings: dict[str, Any] = {"targets": targets, "extras": {"patient": patient}}
    stream = Stream.of_decisions(rule, sure >= 0.9, np.zeros(len(patient), dtype=int), sure, **settings)
    return bool(watch(stream, level=LEVEL).alarms)


def third_worlds() -> Iterator[World]:
    worlds: dict[str, dict[str, Any]] = {
        "* ten pictures together, 98 % right": {"sizes": ten, "error": 0.02},
        "* ten pictures together, 99 % right": {"sizes": ten, "error": 0.01},
        "* ten pictures together, 99.5 % right": {"sizes": ten, "error": 0.005},
        "1 to 40 pictures, half together": {"sizes": one_to_forty, "error": 0.02, "together": 0.5},
        "1 or 40 pictures together": {"sizes": one_or_forty, "error": 0.02},
        "1 to 40 pictures together, 99 % right": {"sizes": one_to_forty, "error": 0.01},
    }
    for name, world in worlds.items():
        yield World(3, name, 5, 60, partial(in_clusters, **world))


# -- 4 and 5: intervals of calibration errors -------------------------------------------------------------------------


def cases_with(rng: Rng, n: int, sure: Callable[[Rng, int], Floats], right: Callable[[Floats], Any]) -> Predictions:
    top = sure(rng, n)
    wrong = (rng.random(n) >= right(top)).astype(int)
    return Predictions.from_probabilities(np.stack([top, 1 - top], axis=1), wrong)


def outside(rng: Rng, metric: str, truth: float, cases: Callable[[Rng], Predictions]) -> bool | None:
    """Whether the interval of a metric misses its true value; None if there is no interval."""
    seed = int(rng.integers(10_000))
    ends = (evaluate(cases(rng), n_resamples=119, seed=seed).intervals or {}).get(metric)
    if ends is None:
        return None
    return not ends[0] - 1e-12 <= truth <= ends[1] + 1e-12


def verdict_on_equal_models(rng: Rng, cases: Callable[[Rng], Predictions]) -> bool:
    """Whether two equally good models get a verdict on their debiased ECE."""
    first = cases(rng)
    confidences = first.probabilities[rng.permutation(len(first))]
    second = Predictions.from_probabilities(confidences, first.targets)
    compared = compare(first, second, n_resamples=119, seed=int(rng.integers(10_000)))
    return compared["debiased_ece"].verdict != "cannot tell"


def between(low: float) -> Callable[[Rng, int], Floats]:
    return lambda rng, n: rng.uniform(low, 1.0, n)


def fourth_worlds() -> Iterator[World]:
    for star, n, right in (("* ", 200, 0.995), ("* ", 200, 0.985), ("", 50, 0.9), ("", 2000, 0.999), ("", 500, 0.99)):
        share = partial(cases_with, n=n, sure=between(0.9999), right=lambda top, right=right: np.full(len(top), right))
        name = f"{star}{n:,} cases above 99.99 %, {100 * right:g} % right"
        yield World(4, name, 5, 100, partial(outside, metric="debiased_ece", truth=0.99995 - right, cases=share))
    equal = partial(cases_with, n=200, sure=between(0.9999), right=lambda top: np.full(len(top), 0.985))
    yield World(4, "* verdict on two equal models", 5, 60, partial(verdict_on_equal_models, cases=equal))


def off(low: float, high: float, gap: float) -> Callable[[Floats], Floats]:
    return lambda top: np.where((top > low) & (top <= high), top - gap, top)


def fifth_worlds() -> Iterator[World]:
    half_wrong: Callable[[Floats], Floats] = lambda top: np.where(top > 0.99, 0.5, top)  # noqa: E731
    worlds: list[tuple[str, int, Callable[[Floats], Floats], tuple[str, ...]]] = [
        ("* half wrong above .99", 2000, half_wrong, ("ece", "ece_equal_mass", "smooth_ece")),
        ("* half wrong above .99", 20_000, half_wrong, ("ece", "ece_equal_mass")),
        ("* off by .4 between .9 and .95", 1000, off(0.9, 0.95, 0.4), ("ece", "ece_equal_mass")),
        ("off by .3 between .6 and .62", 5000, off(0.6, 0.62, 0.3), ("ece", "ece_equal_mass")),
        ("off by .2 above .98", 5000, off(0.98, 1.0, 0.2), ("ece", "ece_equal_mass")),
        ("off by .5 between .7 and .71", 10_000, off(0.7, 0.71, 0.5), ("ece", "ece_equal_mass")),
    ]
    many = np.sort(np.random.default_rng(7).uniform(0.5, 1.0, 600_000))
    for name, n, right, metrics in worlds:
        everyone = np.concatenate([np.stack([many, 1 - many], axis=1)] * 2)
        weights = np.concatenate([right(many), 1 - right(many)])
        targets = np.repeat([0, 1], len(many))
        truth = evaluate(Predictions.from_probabilities(everyone, targets), weights=weights).values()
        for metric in metrics:
            cases = partial(cases_with, n=n, sure=between(0.5), right=right)
            yield World(
                5,
                f"{name}, {n:,} cases: {metric}",
                5,
                60,
                partial(outside, metric=metric, truth=truth[metric], cases=cases),
            )


# -- 6, 7 and 8: late labels, weights, and labels that are enough -----------------------------------------------------


def late_labels(rng: Rng, order: Callable[[Rng, int], NDArray[np.int64]]) -> bool:
    """1,000 cases of a decisions file, at the promise, with a look every 50 labels."""
    cases = 1000
    rule = RoutingRule(0.9, 2, target_accuracy=0.95, confidence=0.95)
    wrong = (rng.random(cases) < 0.05).astype(int)
    place = np.empty(cases, dtype=np.int64)
    place[order(rng, cases)] = np.arange(1, cases + 1)
    sure = np.full(cases, 0.95)
    for count in range(50, cases + 1, 50):
        settings: dict[str, Any] = {"targets": np.where(place <= count, wrong, -1)}
        if not THEN:  # the column labelled_at; before, a file had no order of labels
            settings["label_order"] = np.where(place <= count, place, 0)
        stream = Stream.of_decisions(rule, sure >= 0.9, np.zeros(cases, dtype=int), sure, **settings)
        if watch(stream, level=LEVEL).alarms:
            return True
    return False


ORDERS: dict[str, Callable[[Rng, int], NDArray[np.int64]]] = {
    "random order": lambda rng, n: rng.permutation(n),
    "newest first": lambda _, n: np.arange(n)[::-1],
    "the second half first": lambda _, n: np.roll(np.arange(n), n // 2),
    "every tenth, then the others": lambda _, n: np.argsort(np.arange(n) % 10 != 0, kind="stable"),
    "with delays": lambda rng, n: np.argsort(np.arange(n) + rng.exponential(100, size=n)),
}


def sixth_worlds() -> Iterator[World]:
    for name, order in ORDERS.items():
        star = "* " if name in ("random order", "newest first") else ""
        yield World(6, f"{star}{name}", 5, 40, partial(late_labels, order=order))


def mixed(rng: Rng, n: int, share: float, hard: float, classes: int) -> Predictions:
    """Easy cases and a share of hard ones, marked by a column of weights for a stream in which half are hard."""
    is_hard = rng.random(n) < share
    scores = np.where(is_hard, hard, 6.0)[:, None] * rng.normal(size=(n, classes))
    targets = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    weights = np.where(is_hard, 0.5 / share, 0.5 / (1 - share))
    return Predictions.from_logits(scores, targets, extras={"weight": weights})


def weighted(rng: Rng, share: float, hard: float = 1.5, classes: int = 4, *, binary: bool = False) -> bool:
    """A rule from a file with few hard cases, for a stream in which half are hard, which is watched with the file."""
    seed = int(rng.integers(1000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "val.npz"
        mixed(rng, 3000, share, hard, classes).save(path)
        cases = Predictions.load(path)
        drawn = sample_by_weights(cases, "weight", seed=seed)
        rule: Any
        if binary:
            rule = choose_binary_rule(drawn, sensitivity=0.9, specificity=0.9)
        else:
            rule = choose_threshold(drawn, 0.9)
        new = mixed(rng, 1500, 0.5, hard, classes)
        if THEN:
            stream, reference = Stream.of_predictions(note_weights(rule, "weight", drawn, cases), new), cases
        else:
            policy = Policy(classes, rule=note_weights(rule, "weight", seed, drawn, cases))
            stream, reference = Stream.of_predictions(policy, new), read_reference(path, policy)
        return bool(watch(stream, reference=reference, level=LEVEL).alarms)


def seventh_worlds() -> Iterator[World]:
    yield World(7, "* a tenth of the file is hard, half in use", 5, 30, partial(weighted, share=0.1))
    yield World(7, "three quarters of the file are hard", 5, 30, partial(weighted, share=0.75))
    yield World(7, "a quarter, somewhat hard", 5, 30, partial(weighted, share=0.25, hard=3.0))
    yield World(7, "a fifth, 30 classes", 5, 30, partial(weighted, share=0.2, hard=3.0, classes=30))


def not_noticed(rng: Rng, target: float, late: int, good: float = 0.7, size: int = 1) -> bool:
    """Errors of clusters of a size become twice as frequent, and nothing is said after as many labels as stated."""
    promised = 1 - target
    if THEN:
        rule = RoutingRule(0.9, 2, target_accuracy=target, confidence=0.95)
        stream = Stream.of_decisions(rule, np.array([True]), np.array([0]), np.array([0.95]), targets=np.array([0]))
        before = late * watch(stream, level=LEVEL).labels_to_notice
        enough = watch(stream, level=LEVEL).labels_to_notice
    else:
        before = late * labels_to_notice(promised, LEVEL, largest=size)
        enough = labels_to_notice(promised, LEVEL, after=before, largest=size)
    rates = np.repeat([good * promised, 2 * promised], [before // size, enough // size])
    wrong = rng.random(len(rates)) < rates
    clusters: dict[str, Any] = {}
    if size > 1:
        clusters = {"cases": np.full(len(rates), size), "largest": size}
    return not (promise_capital(wrong * size, promised, **clusters) >= -np.log(LEVEL)).any()


def eighth_worlds() -> Iterator[World]:
    for target, star in ((0.95, "* "), (0.99, "* "), (0.9, ""), (0.7, "")):
        for late in (0, 5):
            name = f"{star}{100 * target:g} % promised, after {late} times as many good labels"
            yield World(8, name, 10, 100, partial(not_noticed, target=target, late=late))
    yield World(8, "95 % promised, perfect before", 10, 100, partial(not_noticed, target=0.95, late=3, good=0.0))


# -- 9: predicted classes ---------------------------------------------------------------------------------------------


def overlooked(rng: Rng, block: list[float]) -> bool:
    """100 classes change their frequency within blocks of five, and 20,000 cases do not show it."""
    after = np.tile(block, 20) / 100
    rule = RoutingRule(0.5, 100, target_accuracy=0.9, confidence=0.95)

    def cases(n: int, shares: Floats) -> Predictions:
        predicted = rng.choice(100, size=n, p=shares)
        scores = np.full((n, 100), 0.4 / 99)
        scores[np.arange(n), predicted] = 0.6
        return Predictions.from_probabilities(scores, predicted)

    reference, new = cases(2000, np.full(100, 0.01)), cases(20_000, after)
    stream = Stream.of_predictions(rule if THEN else Policy(100, rule=rule), new)
    return "predicted classes" not in {signal.about for signal in watch(stream, reference=reference).alarms}


def ninth_worlds() -> Iterator[World]:
    blocks = {
        "* 40 of 100 vanish and 20 triple: not noticed": [0.0, 0.0, 3.0, 1.0, 1.0],
        "neighbours trade places: not noticed": [0.2, 1.8, 1.0, 0.2, 1.8],
        "one in five remains: not noticed": [5.0, 0.0, 0.0, 0.0, 0.0],
        "all change by half: not noticed": [1.5, 0.5, 1.5, 0.5, 1.0],
    }
    for name, block in blocks.items():
        yield World(9, name, None, 10, partial(overlooked, block=block))


# -- what must not be lost --------------------------------------------------------------------------------------------


def calibrated(rng: Rng, n: int, classes: int = 4, sharpness: float = 5.0, said: float = 1.0) -> Predictions:
    scores = sharpness * rng.normal(size=(n, classes))
    return Predictions.from_logits(said * scores, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1))


def automated(rng: Rng, n: int, target: float, **world: Any) -> float:
    """Share of a stream that a rule automates."""
    rule = choose_threshold(calibrated(rng, n, **world), target)
    return float(rule.route(calibrated(np.random.default_rng(1), 5000, **world)).automate.mean())


def decided(rng: Rng, **asked: float) -> float:
    """Share of a stream of two classes that is not reviewed."""
    rule = choose_binary_rule(calibrated(rng, 1000, 2, 3.0), **asked)
    return float((np.asarray(rule.decide(calibrated(np.random.default_rng(1), 5000, 2, 3.0))) != "review").mean())


def noticed_after(rng: Rng, good: int) -> float:
    """Labels until an alarm if errors become twice as frequent as promised; 3,000 at most."""
    promised = 0.05
    wrong = rng.random(good + 3000) < np.repeat([0.7 * promised, 2 * promised], [good, 3000])
    over = np.flatnonzero(promise_capital(wrong, promised)[good:] >= -np.log(LEVEL))
    return float(over[0] + 1) if len(over) else 3000.0


def drift_after(rng: Rng, about: str) -> float:
    """Cases until a change without labels is noticed; 3,000 at most."""
    reference, new = calibrated(rng, 2000), calibrated(rng, 3000)
    rule = RoutingRule(0.9, 4, target_accuracy=0.9, confidence=0.95)
    scores = np.array(new.scores, dtype=np.float64)
    if about == "confidence":
        scores *= 0.6
    else:
        scores[:, 0] += 2.0
    stream = Stream.of_predictions(rule if THEN else Policy(4, rule=rule), Predictions.from_logits(scores, new.targets))
    alarms = [each.alarm for each in watch(stream, reference=reference).alarms if each.about == about]
    return float(min(alarms, default=3000))


VALUES: dict[str, Callable[[Rng], float]] = {
    "automated share, 95 % promised, 1,000 cases": partial(automated, n=1000, target=0.95),
    "automated share, 99 % promised, 5,000 cases": partial(automated, n=5000, target=0.99),
    "automated share, overconfident, 95 % promised": partial(automated, n=2000, target=0.95, said=2.0),
    "automated share, 50 classes, 95 % promised": partial(automated, n=2000, target=0.95, classes=50),
    "share decided, sensitivity 95 %": partial(decided, sensitivity=0.95),
    "share decided, sensitivity and specificity 95 %": partial(decided, sensitivity=0.95, specificity=0.95),
    "labels until a doubling of errors is noticed": partial(noticed_after, good=0),
    "the same after 1,000 good labels": partial(noticed_after, good=1000),
    "cases until less confidence is noticed": partial(drift_after, about="confidence"),
    "cases until a class more frequent is noticed": partial(drift_after, about="predicted classes"),
}
VALUE_DRAWS = 60

ITEMS = {
    1: (first_worlds, "specificity broken"),
    2: (second_worlds, "alarms about groups that nothing was promised for"),
    3: (third_worlds, "false alarms with clusters, 98 % promised"),
    4: (fourth_worlds, "interval of the debiased ECE misses the truth"),
    5: (fifth_worlds, "interval of a local calibration error misses the truth"),
    6: (sixth_worlds, "false alarms with late labels, a look every 50 labels (the audit: every 10)"),
    7: (seventh_worlds, "false alarms with a reference of another mix"),
    8: (eighth_worlds, "a doubling of errors not noticed after the stated number of labels"),
    9: (ninth_worlds, "a change of predicted classes not noticed"),
}


def count(path: Path, only: list[int]) -> None:
    """Count all worlds, and keep what is already counted."""
    warnings.simplefilter("ignore")
    counts = json.loads(path.read_text()) if path.is_file() else {}
    for item in only:
        for number, world in enumerate(ITEMS[item][0]()):
            key = f"{item} {world.name}"
            if key in counts:
                continue
            seeds = np.random.SeedSequence([item, number]).spawn(world.draws)
            found = [world.broken(np.random.default_rng(seed)) for seed in seeds]
            known = [each for each in found if each is not None]
            counts[key] = {"draws": len(known), "broken": sum(known), "asked": world.draws, "allowed": world.allowed}
            print(key, counts[key], flush=True)
            path.write_text(json.dumps(counts, indent=1))


def measure(path: Path) -> None:
    """Mean of each value that must not get worse."""
    warnings.simplefilter("ignore")
    counts = json.loads(path.read_text()) if path.is_file() else {}
    for number, (name, value) in enumerate(VALUES.items()):
        key = f"0 {name}"
        if key not in counts:
            seeds = np.random.SeedSequence([0, number]).spawn(VALUE_DRAWS)
            counts[key] = float(np.mean([value(np.random.default_rng(seed)) for seed in seeds]))
            print(key, counts[key], flush=True)
            path.write_text(json.dumps(counts, indent=1))


def shown(cell: dict[str, int] | None) -> str:
    if cell is None:
        return "not counted"
    if 2 * cell["draws"] < cell["asked"]:
        return "no interval"
    return f"{cell['broken']} of {cell['draws']}"


def table(then: Path, now: Path) -> None:
    before, after = json.loads(then.read_text()), json.loads(now.read_text())
    print("$ python scripts/audit_worlds.py table then.json now.json")
    print("Broken guarantees in the worlds of the audit (*) and in others like them, at commit 01e6c30 and now.")
    for item, (_, title) in ITEMS.items():
        print(f"\n{item}. {title}\n\n| world | then | now | allowed % |\n| --- | --- | --- | --- |")
        for key, cell in after.items():
            number, name = key.split(" ", 1)
            if int(number) == item:
                allowed = cell["allowed"] or "-"
                print(f"| {name} | {shown(before.get(key))} | {shown(cell)} | {allowed} |")
    print(f"\nWhat must not be lost, mean of {VALUE_DRAWS} draws\n\n| | then | now |\n| --- | --- | --- |")
    for name in VALUES:
        print(f"| {name} | {before[f'0 {name}']:.4g} | {after[f'0 {name}']:.4g} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    counting = commands.add_parser("count")
    counting.add_argument("path", type=Path)
    counting.add_argument("--only", type=int, nargs="+", choices=list(ITEMS), default=list(ITEMS))
    showing = commands.add_parser("table")
    showing.add_argument("then", type=Path)
    showing.add_argument("now", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "count":
        count(arguments.path, arguments.only)
        measure(arguments.path)
    else:
        table(arguments.then, arguments.now)


if __name__ == "__main__":
    main()
