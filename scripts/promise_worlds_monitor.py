"""Worlds in which the monitor is tested: nothing has changed and every promise holds, so every alarm is a false one.

    python scripts/promise_worlds_monitor.py [--draws 200] [--only weights] [--power]

Each cell has a name, a level and a function that draws one stream with its own generator and returns whether the
monitor was wrong. `cells()` lists them for `scripts/promises.py`. With `--power`, something has changed instead, and
the table shows in how many streams, and after how many cases, the predicted classes or the labels give it away.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule, choose_binary_rule, choose_threshold, sample_by_weights
from calibrant.decisions.rule import GroupEvidence
from calibrant.decisions.weights import note_weights
from calibrant.deployment import Stream, promise_capital, read_reference, watch
from calibrant.deployment.betting import labels_to_notice
from calibrant.deployment.signals import compare_labelled, sameness_signal

Rng = np.random.Generator
LEVEL = 0.05


@dataclass(frozen=True)
class Cell:
    """One promise in one world.

    Attributes:
        name: What is promised, and the world.
        level: Largest probability with which a draw may break the promise.
        broken: Draws a stream and returns whether the promise was broken.
        promise: The line of the summary that the cell counts in.
    """

    name: str
    level: float
    broken: Callable[[Rng], bool]
    promise: str = "monitor"


# -- rules that were chosen on cases drawn by weights -----------------------------------------------------------------


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
        policy = Policy(classes, rule=note_weights(rule, "weight", seed, drawn, cases))
        stream, reference = Stream.of_predictions(policy, new), read_reference(path, policy)
        return bool(watch(stream, reference=reference, level=LEVEL).alarms)


def weight_cells() -> Iterator[Cell]:
    yield Cell("weights: few hard cases in the file", LEVEL, lambda rng: weighted(rng, 0.1))
    yield Cell("weights: three quarters are hard in the file", LEVEL, lambda rng: weighted(rng, 0.75))
    yield Cell("weights: sensitivity and specificity", LEVEL, lambda rng: weighted(rng, 0.2, classes=2, binary=True))
    yield Cell("weights: 30 classes", LEVEL, lambda rng: weighted(rng, 0.2, 3.0, classes=30))


# -- groups that nothing was promised for -----------------------------------------------------------------------------


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


def group_cells() -> Iterator[Cell]:
    worlds: dict[str, tuple[list[float], list[float], int, list[bool] | None]] = {
        "one of two is worse": ([0.9, 0.1], [0.96, 0.86], 3000, None),
        "one of twenty is nearly always wrong": ([0.05] * 20, [1.0] * 19 + [0.02], 2000, None),
        "half is perfect, half is at 90 %": ([0.5, 0.5], [1.0, 0.9], 3000, None),
        "a group with too few cases has no promise": (
            [0.5, 0.4, 0.1],
            [0.955, 0.955, 0.905],
            3000,
            [True, True, False],
        ),
        "a new group": ([0.6, 0.2, 0.2], [0.97, 0.95, 0.9], 3000, [True, True]),
    }
    for name, (shares, right, cases, promised) in worlds.items():
        world = partial(in_groups, shares=shares, right=right, target=0.95, promised=promised, cases=cases)
        yield Cell(f"groups: {name}", LEVEL, world)


# -- clusters ---------------------------------------------------------------------------------------------------------


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
    known: dict[str, Any] = {"clusters": number, "cluster_column": "patient", "largest_cluster": 40}
    rule = RoutingRule(0.9, 2, target_accuracy=0.98, confidence=0.95, **known)
    sure = np.full(len(patient), 0.95)
    targets = (place < np.repeat(wrong, size)).astype(int)
    settings: dict[str, Any] = {"targets": targets, "extras": {"patient": patient}}
    stream = Stream.of_decisions(rule, sure >= 0.9, np.zeros(len(patient), dtype=int), sure, **settings)
    return bool(watch(stream, level=LEVEL).alarms)


def cluster_cells() -> Iterator[Cell]:
    worlds: dict[str, dict[str, Any]] = {
        "ten together at the promise": {"sizes": ten, "error": 0.02},
        "ten together, 99.5 % right": {"sizes": ten, "error": 0.005},
        "one to forty": {"sizes": one_to_forty, "error": 0.02, "together": 0.5},
        "one or forty": {"sizes": one_or_forty, "error": 0.02},
        # 18.4 % of the cases are in clusters of one.
        "only the small ones are wrong": {
            "sizes": one_or_forty,
            "error": lambda size: np.where(size == 1, 0.1089, 0.0),
        },
    }
    for name, world in worlds.items():
        yield Cell(f"clusters: {name}", LEVEL, partial(in_clusters, **world))


# -- labels that come late --------------------------------------------------------------------------------------------


def late_labels(rng: Rng, order: Callable[[Rng, int], NDArray[np.int64]]) -> bool:
    """1,000 cases of a decisions file, at the promise, with a look every 50 labels."""
    cases = 1000
    rule = RoutingRule(0.9, 2, target_accuracy=0.95, confidence=0.95)
    wrong = (rng.random(cases) < 0.05).astype(int)
    place = np.empty(cases, dtype=np.int64)
    place[order(rng, cases)] = np.arange(1, cases + 1)
    sure = np.full(cases, 0.95)
    for count in range(50, cases + 1, 50):
        labels = np.where(place <= count, wrong, -1)
        order_of_labels = np.where(place <= count, place, 0)
        settings: dict[str, Any] = {"targets": labels, "label_order": order_of_labels}
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


def order_cells() -> Iterator[Cell]:
    for name in ("newest first", "random order", *list(ORDERS)[2:]):
        yield Cell(f"order of labels: {name.removesuffix(' order')}", LEVEL, partial(late_labels, order=ORDERS[name]))


# -- labels that are enough -------------------------------------------------------------------------------------------


def not_noticed(rng: Rng, target: float, late: int, good: float = 0.7, size: int = 1) -> bool:
    """Errors of clusters of a size become twice as frequent, and nothing is said after as many labels as stated."""
    promised = 1 - target
    before = late * labels_to_notice(promised, LEVEL, largest=size)
    enough = labels_to_notice(promised, LEVEL, after=before, largest=size)
    rates = np.repeat([good * promised, 2 * promised], [before // size, enough // size])
    wrong = rng.random(len(rates)) < rates
    clusters: dict[str, Any] = {}
    if size > 1:
        clusters = {"cases": np.full(len(rates), size), "largest": size}
    return not (promise_capital(wrong * size, promised, **clusters) >= -np.log(LEVEL)).any()


def notice_cells() -> Iterator[Cell]:
    for target in (0.7, 0.9, 0.95, 0.99):
        for late in (0, 1, 5):
            name = f"noticed in time: {100 * target:g} % promised, after {late} times as many good labels"
            yield Cell(name, 0.1, partial(not_noticed, target=target, late=late))
    yield Cell("noticed in time: perfect before", 0.1, partial(not_noticed, target=0.95, late=3, good=0.0))
    yield Cell("noticed in time: just kept before", 0.1, partial(not_noticed, target=0.95, late=3, good=0.95))
    yield Cell("noticed in time: clusters of eight", 0.1, partial(not_noticed, target=0.9, late=1, size=8))


# -- predicted classes ------------------------------------------------------------------------------------------------


def class_alarm(
    rng: Rng, before: NDArray[np.float64], after: NDArray[np.float64], reference: int, cases: int
) -> int | None:
    """Case of the alarm of the test of predicted classes."""
    classes = len(before)
    old, new = rng.choice(classes, size=reference, p=before), rng.choice(classes, size=cases, p=after)
    names = tuple(str(k) for k in range(classes))
    return sameness_signal("predicted classes", old, new, level=LEVEL, rows=np.arange(cases), names=names).alarm


def class_cells() -> Iterator[Cell]:
    for classes, reference in ((2, 100), (10, 1000), (100, 500), (100, 2000), (1000, 2000)):
        for name, shares in (("equal", np.ones(classes)), ("Zipf", 1 / np.arange(1, classes + 1))):
            even = shares / shares.sum()

            def wrong(rng: Rng, even: NDArray[np.float64] = even, reference: int = reference) -> bool:
                return class_alarm(rng, even, even, reference, 3000) is not None

            yield Cell(f"predicted classes: {classes} {name}, {reference} calibration cases", LEVEL, wrong)


# -- labels that are a fair draw --------------------------------------------------------------------------------------


def called_unfair(rng: Rng, sure: Callable[[Rng, int], Any], chance: Callable[[int], Any], looks: int = 10) -> bool:
    """Labels that do not depend on confidence, with several looks."""
    cases = 2000
    confidence = sure(rng, cases)
    labelled = np.flatnonzero(rng.random(cases) < chance(cases))
    order = np.zeros(cases, dtype=np.int64)
    order[labelled] = np.argsort(np.argsort(labelled + rng.exponential(200, size=len(labelled)))) + 1
    for look in range(1, looks + 1):
        decided, come = cases * look // looks, len(labelled) * look // looks
        found = compare_labelled(confidence[:decided], np.where(order <= come, order, 0)[:decided])
        if found is not None and not found.fair:
            return True
    return False


def fairness_cells() -> Iterator[Cell]:
    def even(rng: Rng, n: int) -> Any:
        return rng.uniform(0.9, 1, size=n)

    def tied(rng: Rng, n: int) -> Any:
        return rng.choice([0.95, 1.0], size=n)

    def drifting(rng: Rng, n: int) -> Any:
        return 0.99 - np.linspace(0, 0.09, n) * rng.random(n)

    def in_runs(rng: Rng, n: int) -> Any:
        return np.repeat(rng.uniform(0.9, 1, size=n // 8), 8) + rng.uniform(0, 1e-3, size=n)

    worlds = {"a tenth": (even, lambda _: 0.1), "two confidences": (tied, lambda _: 0.3)}
    worlds["a drift, later ones more often"] = (drifting, lambda n: np.linspace(0.02, 0.4, n))
    worlds["runs of like cases"] = (in_runs, lambda _: 0.2)
    for name, (sure, chance) in worlds.items():
        yield Cell(f"fair labels: {name}", 0.01, partial(called_unfair, sure=sure, chance=chance))


def cells() -> Iterator[Cell]:
    """All cells."""
    for some in (weight_cells, group_cells, cluster_cells, order_cells, notice_cells, class_cells, fairness_cells):
        yield from some()


# -- what has changed is noticed --------------------------------------------------------------------------------------


def power(draws: int, seed: int) -> None:
    """Print how soon changes of predicted classes are noticed."""
    blocks = {
        "40 vanish and 20 triple": [0.0, 0.0, 3.0, 1.0, 1.0],
        "neighbours trade places": [0.2, 1.8, 1.0, 0.2, 1.8],
        "one in five remains": [5.0, 0.0, 0.0, 0.0, 0.0],
        "all change by half": [1.5, 0.5, 1.5, 0.5, 1.0],
    }
    print("| 100 classes | streams | noticed in 20,000 cases | median case |\n| --- | --- | --- | --- |")
    for name, block in blocks.items():
        after = np.tile(block, 20) / 100
        seeds = np.random.SeedSequence(seed).spawn(draws)
        found = [class_alarm(np.random.default_rng(each), np.full(100, 0.01), after, 2000, 20_000) for each in seeds]
        noticed = [alarm for alarm in found if alarm is not None]
        median = f"{np.median([alarm or np.inf for alarm in found]):g}"
        print(f"| {name} | {draws} | {len(noticed)} | {median} |", flush=True)


def labelling_power(draws: int, seed: int) -> None:
    """Print after how many labels the monitor says that they are not a fair draw."""
    worlds: dict[str, Callable[[Any], Any]] = {
        "the surer half, five times as often": lambda sure: np.where(sure > 0.95, 0.15, 0.03),
        "the surer half, twice as often": lambda sure: np.where(sure > 0.95, 0.1, 0.05),
        "the surest tenth alone": lambda sure: np.where(sure > 0.99, 0.2, 0.0),
        "the less sure half, five times as often": lambda sure: np.where(sure > 0.95, 0.03, 0.15),
    }
    print(
        "\n| labelled are | streams | said within 20,000 cases | median number of labels |\n| --- | --- | --- | --- |"
    )
    for name, chance in worlds.items():
        needed = []
        for each in np.random.SeedSequence(seed).spawn(draws):
            rng = np.random.default_rng(each)
            sure = rng.uniform(0.9, 1.0, size=20_000)
            order = np.where(rng.random(20_000) < chance(sure), np.arange(1, 20_001), 0)
            looks = range(200, 20_001, 200)
            labels = [np.count_nonzero(order[:n]) for n in looks if _unfair(sure[:n], order[:n])]
            needed.append(labels[0] if labels else np.inf)
        print(f"| {name} | {draws} | {np.isfinite(needed).sum()} | {np.median(needed):g} |", flush=True)


def _unfair(confidence: NDArray[np.float64], order: NDArray[np.int64]) -> bool:
    found = compare_labelled(confidence, order)
    return found is not None and not found.fair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--power", action="store_true", help="how soon changes are noticed, instead of false alarms")
    arguments = parser.parse_args()
    if arguments.power:
        power(arguments.draws, arguments.seed)
        labelling_power(arguments.draws, arguments.seed)
        return
    print("| cell | draws | broken | allowed, % |\n| --- | --- | --- | --- |")
    for number, cell in enumerate(cells()):
        if arguments.only not in cell.name:
            continue
        seeds = np.random.SeedSequence([arguments.seed, number]).spawn(arguments.draws)
        broken = sum(cell.broken(np.random.default_rng(seed)) for seed in seeds)
        print(f"| {cell.name} | {arguments.draws} | {broken} | {100 * cell.level:g} |", flush=True)


if __name__ == "__main__":
    main()
