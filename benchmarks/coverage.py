"""How often do the intervals of `evaluate` and `compare` hold the truth? Prints one row per metric.

Run: python benchmarks/coverage.py [--draws 400] [--resamples 119] [--out results/benchmarks/coverage.txt]

Worlds: logits are normal, and targets are drawn from their softmax (calibrated) or from that of 0.7 times the logits
(overconfident). The truth is the value of the same metric, with the same bins, over endlessly many rows: it is computed
from the true probabilities of 600,000 rows, so without the noise of targets. Equal-mass bins
are cut at the quantiles of these. In `compare`, model a is the one above; model b has the
same logits times 0.7 (what is overconfident becomes about calibrated) or times 0.85, with noise added to each, so that
it predicts other classes now and then. Of 119 draws, the third smallest is the 2.5 % quantile: so few are enough here.
"""

import argparse
import platform
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant import Predictions, evaluate
from calibrant.metrics import differences, resample_models
from calibrant.metrics.binning import bin_edges
from calibrant.metrics.inversion import _ENDLESS, _Groups
from calibrant.metrics.tops import SortedTops, Tops

BINS, THRESHOLDS, ROWS, NOISE = 15, (0.8, 0.95), 600_000, 0.6
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


def second_model(world: str, logits: Floats, rng: np.random.Generator) -> Floats:
    """What model b says in `compare`."""
    return (0.85 if world == "calibrated" else 0.7) * logits + NOISE * rng.normal(size=logits.shape)


def true_values(world: str, classes: int, *, second: bool) -> dict[str, float]:
    """Every metric that has an interval, of the first or the second model, over endlessly many rows.

    Of many rows, it is not drawn whether they are right: the probability of it is used.
    """
    # Both models are counted on the same rows.
    rng, noise = np.random.default_rng(classes), np.random.default_rng([classes, 1])
    edges, step = bin_edges(BINS), 2_000_000 // classes
    tops, sums = [], np.zeros(2)
    for start in range(0, ROWS, step):
        logits, truth = draw(world, min(step, ROWS - start), classes, rng)
        stated = softmax(second_model(world, logits, noise) if second else logits)
        rows = np.arange(len(logits))
        predicted = stated.argmax(axis=1)
        tops.append(np.stack([stated[rows, predicted], truth[rows, predicted]]))
        brier = (stated**2).sum() - 2 * (stated * truth).sum() + len(rows)
        sums += np.asarray([-(truth * np.log(stated)).sum(), brier])
    confidence, right = np.concatenate(tops, axis=1)
    order = np.argsort(confidence)
    values = top_values(confidence[order], right[order], edges)
    values |= {"nll": sums[0] / ROWS, "brier": sums[1] / ROWS}
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
Key = tuple[str, str, Case]
"""`evaluate` or `compare`, the metric, and the case."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=119)
    parser.add_argument("--every", type=int, default=20, help="write the tables so far after so many draws")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path, help="print the tables of this output as docs/metrics.md shows them")
    options = parser.parse_args()
    if options.markdown is not None:
        print(markdown(options.markdown.read_text()))
        return
    counts = defaultdict[Key, list[int]](lambda: [0, 0, 0])
    truths = {(what, case): value for case in cases() for what, value in truths_of(*case[:2]).items()}
    # All cases take turns, so that a table that is stopped early is as good for one as for the other.
    for number in range(1, options.draws + 1):
        for case in cases():
            for what, name, low, value, high in intervals(case, number, options.resamples):
                found = counts[what, name, case]
                found[0] += 1
                found[1] += low - 1e-12 <= truths[what, case][name] <= high + 1e-12
                found[2] += low <= value <= high
        if number % options.every == 0 or number == options.draws:
            head = f"Python {platform.python_version()}, NumPy {np.__version__}; {options.resamples} resamples\n"
            text = head + "".join(table(what, number, counts) for what in ("evaluate", "compare"))
            print(text, flush=True)
            if options.out is not None:
                options.out.write_text(text)


@cache
def truths_of(classes: int, world: str) -> dict[str, dict[str, float]]:
    first, second = (true_values(world, classes, second=which) for which in (False, True))
    return {"evaluate": first, "compare": {name: second[name] - first[name] for name in first}}


def intervals(case: Case, seed: int, resamples: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Lower end, printed value and upper end of every interval of one draw, as `evaluate` and `compare` print them."""
    classes, world, rows = case
    rng = np.random.default_rng([seed, classes, rows, len(world)])
    logits, truth = draw(world, rows, classes, rng)
    targets = targets_of(truth, rng)
    models = [Predictions.from_logits(each, targets) for each in (logits, second_model(world, logits, rng))]
    evaluations = [evaluate(model, BINS, thresholds=THRESHOLDS) for model in models]
    first, second = resample_models(models, evaluations, n_resamples=resamples, seed=seed)
    for name, (low, high) in first.intervals().items():
        value = evaluations[0].values()[name]
        assert value is not None
        yield "evaluate", name, low, value, high
    for row in differences(first, second):
        if row.interval is not None and row.difference is not None:
            yield "compare", row.name, row.interval[0], row.difference, row.interval[1]


def table(what: str, draws: int, counts: dict[Key, list[int]]) -> str:
    columns = list(cases())
    lines = [f"\n{what}: percent of 95 % intervals that hold the truth, {draws} draws per column"]
    heads = (["K", *(str(k) for k, _, _ in columns)], ["world", *(w[:10] for _, w, _ in columns)])
    lines += [f"{head[0]:>16}" + "".join(f"{each:>11}" for each in head[1:]) for head in heads]
    lines.append(f"{'n':>16}" + "".join(f"{n:11,}" for _, _, n in columns) + "   holds its value")
    for name in dict.fromkeys(name for kind, name, _ in counts if kind == what):
        found = [counts.get((what, name, case), [0, 0, 0]) for case in columns]
        shares = "".join(f"{100 * held / there:11.1f}" if there else f"{'-':>11}" for there, held, _ in found)
        own = 100 * sum(each[2] for each in found) / sum(each[0] for each in found)
        lines.append(f"{name:>16}{shares}{own:18.1f}")
    return "\n".join(lines) + "\n"


def markdown(text: str) -> str:
    """The tables with one head line each, in whole percent."""
    heads = [f"K={k} {world[:3]} {n:,}".replace(",000", "k").replace("ove", "over") for k, world, n in cases()]
    lines = []
    for line in text.splitlines():
        words = line.split()
        if line.startswith(("evaluate:", "compare:")):
            lines += ["", line, "", "| metric | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        elif len(words) == len(heads) + 2 and words[0] != "n":
            cells = [word if word == "-" else f"{float(word):.0f}" for word in words[1:-1]]
            lines.append(f"| `{words[0]}` | " + " | ".join(cells) + " |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main()
