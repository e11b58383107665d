"""How often do the intervals of `evaluate` and `compare` hold the truth? Prints one row per metric.

Run: python benchmarks/coverage.py [--draws 200] [--resamples 200] [--only evaluate|compare]

Worlds: logits are normal, and targets are drawn from their softmax (calibrated) or from that of 0.7 times the logits
(overconfident). The truth is the value of the same metric, with the same bins, over endlessly many rows: it is computed
from the true probabilities of 200,000 rows (40,000 of 100 classes), so without the noise of targets. Equal-mass bins
are cut at the quantiles of these. In `compare`, model a is the one above and model b the same logits times 0.7 (what is
overconfident becomes calibrated) or times 0.85.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions, compare, evaluate
from calibrant.metrics.binning import bin_edges
from calibrant.metrics.inversion import _ENDLESS, _Groups
from calibrant.metrics.tops import SortedTops, Tops

BINS, THRESHOLDS = 15, (0.8, 0.95)
SCALE = {2: 2.5, 10: 2.5, 100: 3.0}
Floats = NDArray[np.float64]


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def draw(world: str, rows: int, classes: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Logits that a model states, and the probabilities that targets have."""
    logits = rng.normal(size=(rows, classes)) * SCALE[classes]
    return logits, softmax(logits if world == "calibrated" else 0.7 * logits)


def targets_of(truth: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (truth.cumsum(axis=1) < rng.random(len(truth))[:, None]).sum(axis=1)
    return np.minimum(found, truth.shape[1] - 1)


def true_values(stated: Floats, truth: Floats) -> dict[str, float]:
    """Every metric of endlessly many rows, from the probability that each of many rows is right."""
    rows = np.arange(len(stated))
    predicted = stated.argmax(axis=1)
    confidence, right = stated[rows, predicted], truth[rows, predicted]
    order = np.argsort(confidence)
    confidence, right = confidence[order], right[order]
    edges = bin_edges(BINS)
    values = {
        "test_error": 1.0 - right.mean(),
        "nll": -(truth * np.log(stated)).sum(axis=1).mean(),
        "brier": ((stated**2).sum(axis=1) - 2 * (stated * truth).sum(axis=1) + 1.0).mean(),
        "ece": binned(confidence, right, edges[1:-1]),
        "ece_equal_mass": binned(confidence, right, np.quantile(confidence, np.arange(1, BINS) / BINS)),
        "debiased_ece": binned(confidence, right, np.quantile(confidence, np.arange(1, BINS) / BINS), root=True),
        "ks": np.abs(np.cumsum(confidence - right)).max() / len(rows),
        "classwise_ece": np.mean([binned(stated[:, k], truth[:, k], edges[1:-1]) for k in range(stated.shape[1])]),
    } | ranks(right)
    grid = Tops(confidence, np.zeros(len(rows), dtype=np.bool_), "float64")
    groups = _Groups.of(SortedTops(grid), 0, [edges, edges])
    cuts = np.append(0, np.cumsum(groups.size))
    sums = np.add.reduceat(right, cuts[:-1])
    values["smooth_ece"] = float(
        groups.all_errors(groups.size[None] * _ENDLESS, sums[None] * _ENDLESS)["smooth_ece"][0]
    )
    for threshold in THRESHOLDS:
        chosen = confidence >= threshold
        values |= {
            f"share@{threshold}": chosen.mean(),
            f"accuracy@{threshold}": right[chosen].mean(),
            f"ece@{threshold}": binned(confidence[chosen], right[chosen], edges[1:-1]),
            f"ece_inside@{threshold}": binned(confidence[chosen], right[chosen], bin_edges(BINS, low=threshold)[1:-1]),
        }
    return {name: float(value) for name, value in values.items()}


def binned(confidence: Floats, right: Floats, inner: Floats, *, root: bool = False) -> float:
    index = np.searchsorted(inner, confidence, side="left")
    gap, count = np.bincount(index, confidence - right), np.maximum(np.bincount(index), 1)
    return float(np.sqrt((gap**2 / count).sum() / len(index)) if root else np.abs(gap).sum() / len(index))


def ranks(right: Floats) -> dict[str, float]:
    """AUROC and AURC where the row at each place is right with some probability."""
    wrong = 1.0 - right
    below = np.cumsum(wrong) - wrong / 2
    descending = wrong[::-1]
    risk = np.cumsum(descending) / np.arange(1, len(right) + 1)
    return {"auroc": (right * below).sum() / (right.sum() * wrong.sum()), "aurc": risk.mean()}


def cases() -> Iterator[tuple[int, str, int]]:
    for classes in (2, 10, 100):
        for world in ("calibrated", "overconfident"):
            for rows in (400, 10_000):
                yield classes, world, rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--only", choices=("evaluate", "compare"))
    options = parser.parse_args()
    columns = list(cases())
    for what in ("evaluate", "compare"):
        if options.only in (None, what):
            table: dict[str, dict[tuple[int, str, int], tuple[int, int, int]]] = defaultdict(dict)
            for number, case in enumerate(columns):
                start = time.perf_counter()
                for name, counts in measure(what, *case, options.draws, options.resamples, number).items():
                    table[name][case] = counts
                print(f"# {what} {case}: {time.perf_counter() - start:.0f} s", flush=True)
            show(what, table, columns)


def measure(
    what: str, classes: int, world: str, rows: int, draws: int, resamples: int, seed: int
) -> dict[str, tuple[int, int, int]]:
    """Name to the number of intervals, of those that hold the truth, and of those that hold the value beside them."""
    rng = np.random.default_rng([7, seed])
    logits, truth = draw(world, 200_000 if classes < 100 else 40_000, classes, rng)
    factor = 0.85 if world == "calibrated" else 0.7
    expected = true_values(softmax(logits), truth)
    if what == "compare":
        second = true_values(softmax(factor * logits), truth)
        expected = {name: second[name] - expected[name] for name in expected}
    counts = dict.fromkeys(expected, (0, 0, 0))
    for number in range(draws):
        logits, truth = draw(world, rows, classes, rng)
        targets = targets_of(truth, rng)
        first = Predictions.from_logits(logits, targets)
        options = {"thresholds": THRESHOLDS, "n_resamples": resamples, "seed": number}
        if what == "evaluate":
            result = evaluate(first, BINS, **options)
            found = [(name, ends, result.values()[name]) for name, ends in (result.intervals or {}).items()]
        else:
            differences = compare(first, Predictions.from_logits(factor * logits, targets), n_bins=BINS, **options)
            found = [(row.name, row.interval, row.difference) for row in differences.rows if row.interval]
        for name, (low, high), value in found:
            holds, inside = low - 1e-12 <= expected[name] <= high + 1e-12, value is not None and low <= value <= high
            there, held, self_held = counts[name]
            counts[name] = there + 1, held + holds, self_held + inside
    return counts


def show(
    what: str, table: dict[str, dict[tuple[int, str, int], tuple[int, int, int]]], columns: list[tuple[int, str, int]]
) -> None:
    print(f"\n{what}: percent of 95 % intervals that hold the truth")
    print(f"{'':18}" + "".join(f"{f'K={k} {world[:4]} n={n}':>17}" for k, world, n in columns) + "   value inside")
    for name, row in table.items():
        shares = [100 * held / there if there else np.nan for there, held, _ in (row[case] for case in columns)]
        there, own = sum(row[case][0] for case in columns), sum(row[case][2] for case in columns)
        print(f"{name:18}" + "".join(f"{share:17.1f}" for share in shares) + f"{100 * own / max(there, 1):15.1f}")


if __name__ == "__main__":
    main()
