"""How often do the intervals of `evaluate` and `compare` hold the truth? Prints one row per metric.

Run: python benchmarks/coverage.py [--draws 200] [--resamples 200] [--only compare]

Worlds: logits are normal, and targets are drawn from their softmax (calibrated) or from that of 0.7 times the logits
(overconfident). The truth is the value of the same metric, with the same bins, over endlessly many rows: it is computed
from the true probabilities of 600,000 rows, so without the noise of targets. Equal-mass bins
are cut at the quantiles of these. In `compare`, model a is the one above and model b the same logits times 0.7 (what is
overconfident becomes calibrated) or times 0.85.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions, compare, evaluate
from calibrant.metrics.binning import bin_edges, bin_index
from calibrant.metrics.inversion import _ENDLESS, _Groups
from calibrant.metrics.tops import SortedTops, Tops

BINS, THRESHOLDS, ROWS = 15, (0.8, 0.95), 600_000
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


def true_values(world: str, classes: int, scale: float = 1.0) -> dict[str, float]:
    """Every metric of a model that states `scale` times the logits, over endlessly many rows.

    Of many rows, it is not drawn whether they are right: the probability of it is used.
    """
    rng, edges, step = np.random.default_rng(classes), bin_edges(BINS), 2_000_000 // classes
    tops, gaps, sums = [], np.zeros(classes * BINS), np.zeros(2)
    for start in range(0, ROWS, step):
        logits, truth = draw(world, min(step, ROWS - start), classes, rng)
        stated, rows = softmax(scale * logits), np.arange(len(logits))
        predicted = stated.argmax(axis=1)
        tops.append(np.stack([stated[rows, predicted], truth[rows, predicted]]))
        cell = np.arange(classes) * BINS + bin_index(stated.ravel(), edges).reshape(stated.shape)
        gaps += np.bincount(cell.ravel(), (stated - truth).ravel(), minlength=len(gaps))
        brier = (stated**2).sum() - 2 * (stated * truth).sum() + len(rows)
        sums += np.asarray([-(truth * np.log(stated)).sum(), brier])
    confidence, right = np.concatenate(tops, axis=1)
    order = np.argsort(confidence)
    values = top_values(confidence[order], right[order], edges)
    values |= {"nll": sums[0] / ROWS, "brier": sums[1] / ROWS, "classwise_ece": np.abs(gaps).sum() / ROWS / classes}
    return {name: float(value) for name, value in values.items()}


def top_values(confidence: Floats, right: Floats, edges: Floats) -> dict[str, float]:
    """What depends on ascending confidences and on the probability that each is right."""
    mass = np.quantile(confidence, np.arange(1, BINS) / BINS)
    groups = _Groups.of(SortedTops(Tops(confidence, right > 2.0, "float64")), 0, [edges, edges])
    sums = np.add.reduceat(right, np.cumsum(groups.size) - groups.size)
    smooth = groups.all_errors(groups.size[None] * _ENDLESS, sums[None] * _ENDLESS)["smooth_ece"]
    values = {
        "test_error": 1.0 - right.mean(),
        "ece": binned(confidence, right, edges[1:-1]),
        "ece_equal_mass": binned(confidence, right, mass),
        "debiased_ece": binned(confidence, right, mass, root=True),
        "ks": np.abs(np.cumsum(confidence - right)).max() / len(right),
        "smooth_ece": smooth[0],
    } | ranks(right)
    for threshold in THRESHOLDS:
        chosen = confidence >= threshold
        inside = bin_edges(BINS, low=threshold)[1:-1]
        values |= {
            f"share@{threshold}": chosen.mean(),
            f"accuracy@{threshold}": right[chosen].mean(),
            f"ece@{threshold}": binned(confidence[chosen], right[chosen], edges[1:-1]),
            f"ece_inside@{threshold}": binned(confidence[chosen], right[chosen], inside),
        }
    return values


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


def cases() -> Iterator["Case"]:
    for classes in (2, 10, 100):
        for world in ("calibrated", "overconfident"):
            for rows in (400, 10_000):
                yield classes, world, rows


Case = tuple[int, str, int]
Counts = dict[tuple[str, Case], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="print the table so far after so many draws")
    parser.add_argument("--only", choices=("evaluate", "compare"), default="evaluate")
    options = parser.parse_args()
    columns, counts = list(cases()), defaultdict[tuple[str, Case], list[int]](lambda: [0, 0, 0])
    truths: dict[Case, dict[str, float]] = {}
    for case in columns:
        same = truths.get((*case[:2], columns[0][2]))
        truths[case] = same or truth_of(case, options.only)
    # All cases take turns, so that a table that is stopped early is as good for one as for the other.
    for number in range(1, options.draws + 1):
        for case in columns:
            for name, low, value, high in intervals(case, options.only, number, options.resamples):
                found = counts[name, case]
                found[0] += 1
                found[1] += low - 1e-12 <= truths[case][name] <= high + 1e-12
                found[2] += low <= value <= high
        if number % options.every == 0 or number == options.draws:
            show(options.only, number, counts, columns)


def factor(world: str) -> float:
    """What the logits of model b are multiplied by in `compare`."""
    return 0.85 if world == "calibrated" else 0.7


def truth_of(case: Case, what: str) -> dict[str, float]:
    classes, world, _ = case
    values = true_values(world, classes)
    if what == "evaluate":
        return values
    second = true_values(world, classes, factor(world))
    return {name: second[name] - values[name] for name in values}


def intervals(case: Case, what: str, seed: int, resamples: int) -> Iterator[tuple[str, float, float, float]]:
    """Name, lower end, printed value and upper end of every interval of one draw."""
    classes, world, rows = case
    rng = np.random.default_rng([seed, *case[::2], len(world)])
    logits, truth = draw(world, rows, classes, rng)
    targets = targets_of(truth, rng)
    first = Predictions.from_logits(logits, targets)
    options = {"thresholds": THRESHOLDS, "n_resamples": resamples, "seed": seed}
    if what == "evaluate":
        result = evaluate(first, BINS, **options)
        values = result.values()
        yield from ((name, ends[0], values[name], ends[1]) for name, ends in result.intervals.items())
    else:
        second = Predictions.from_logits(factor(world) * logits, targets)
        for row in compare(first, second, n_bins=BINS, **options).rows:
            if row.interval is not None:
                yield row.name, row.interval[0], row.difference, row.interval[1]


def show(what: str, draws: int, counts: Counts, columns: list[Case]) -> None:
    print(f"\n{what}: percent of 95 % intervals that hold the truth, {draws} draws per column")
    for head in (["K", *(str(k) for k, _, _ in columns)], ["world", *(w[:10] for _, w, _ in columns)]):
        print(f"{head[0]:>16}" + "".join(f"{each:>11}" for each in head[1:]))
    print(f"{'n':>16}" + "".join(f"{n:11,}" for _, _, n in columns) + "   holds its value")
    for name in dict.fromkeys(name for name, _ in counts):
        found = [counts[name, case] for case in columns]
        shares = "".join(f"{100 * held / there:11.1f}" if there else f"{'-':>11}" for there, held, _ in found)
        print(f"{name:>16}{shares}{100 * sum(own for *_, own in found) / sum(there for there, *_ in found):18.1f}")
    print(flush=True)


if __name__ == "__main__":
    main()
