"""How often do the intervals of `evaluate` and `compare` hold the truth? Prints one row per metric.

Run: python benchmarks/interval_coverage.py [--draws 400] [--processes 16] [--out results/benchmarks/coverage.txt]
     --zero counts calibration errors of calibrated worlds only, and --first says with which draw to begin
     --shares counts shares and accuracies of groups only, which need no resampling: --draws 20000 take a minute
     --alone counts `evaluate` and groups only, in half the time; --worlds, --classes and --rows choose cases
     --local counts calibration errors in worlds whose error lies in a few confidences, and prints the mean width of
     each interval beside that of an oracle, which knows where the error lies

Worlds: logits are normal, and targets are drawn from their softmax (calibrated) or from that of 0.7 times the logits
(overconfident). The truth is the value of the same metric, with the same bins, over endlessly many rows: it is computed
from the true probabilities of 600,000 rows, so without the noise of targets. Equal-mass bins
are cut at the quantiles of these. In `compare`, model a is the one above; a rescaled model b has the
same logits times 0.7 (what is overconfident becomes about calibrated) or times 0.85, with noise added to each, so that
it predicts other classes now and then; a twin b has the logits of a with the noise alone. Differences of calibration
errors have a verdict and no interval; counted is how often that verdict is wrong.

In `groups`, the rows fall into three groups of unequal size, whose intervals shall hold the truth all at once; counted
are draws in which all three have one. A cell is blank where fewer than half of the draws have an interval.
Of 119 draws, the third smallest is the 2.5 % quantile: so few are enough here.
"""

import argparse
import multiprocessing
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant import Evaluation, Predictions, evaluate
from calibrant.metrics import evaluate_groups
from calibrant.metrics.binning import bin_edges
from calibrant.metrics.confidences import RowConfidences
from calibrant.metrics.functions import smooth_errors
from calibrant.metrics.intervals import Resampled, exact_interval, resample_models
from calibrant.metrics.inversion import _Groups, calibration_errors
from calibrant.metrics.model_comparison import differences

BINS, THRESHOLDS, ROWS, NOISE, LEVEL = 15, (0.8, 0.95), 600_000, 0.6, 0.95
GROUPS = (0.5, 0.3, 0.2)
MODELS = ("first", "rescaled", "twin")
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


def stated_by(model: str, world: str, logits: Floats, rng: np.random.Generator) -> Floats:
    """The logits of one of the models."""
    if model == "first":
        return logits
    scale = 1.0 if model == "twin" else 0.85 if world == "calibrated" else 0.7
    return scale * logits + NOISE * rng.normal(size=logits.shape)


def true_values(world: str, classes: int, model: str) -> dict[str, float]:
    """Every metric that has an interval or a verdict, of one of the models, over endlessly many rows.

    Of many rows, it is not drawn whether they are right: the probability of it is used.
    """
    # All models are counted on the same rows.
    rng, noise = np.random.default_rng(classes), np.random.default_rng([classes, 1])
    edges, step = bin_edges(BINS), 2_000_000 // classes
    tops, sums = [], np.zeros(2)
    for start in range(0, ROWS, step):
        logits, truth = draw(world, min(step, ROWS - start), classes, rng)
        stated = softmax(stated_by(model, world, logits, noise))
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
    # Each row twice, right with its probability and wrong with the rest, is the same world without noise.
    both, weights = np.tile(confidence, 2), np.concatenate([right, 1.0 - right])
    smooth = smooth_errors(RowConfidences(both, np.arange(len(both)) < len(right), BINS, "float64", weights))
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


Case = tuple[int, str, int]
"""Classes, world and rows."""
Key = tuple[str, str, Case]
"""A table, the metric, and the case."""
TABLES = {
    "evaluate": "percent of 95 % intervals that hold the truth",
    "groups": "percent of draws in which the intervals of all three groups hold the truth",
    "rescaled": "percent of 95 % intervals of `compare` that hold the true difference of a rescaled model",
    "twin": "the same, of a twin",
    "verdicts-rescaled": "percent of draws in which `compare` gives no wrong verdict on a rescaled model",
    "verdicts-twin": "the same, of a twin",
    "ranges-rescaled": "percent of ranges behind these verdicts that hold the true difference of a rescaled model",
    "ranges-twin": "the same, of a twin",
}


def off(confidence: Floats, low: float, high: float, gap: float) -> Floats:
    """Calibrated but for the confidences in (low, high], which are right less often by a gap."""
    return np.where((confidence > low) & (confidence <= high), confidence - gap, confidence)


def between(low: float) -> Callable[[np.random.Generator, int], Floats]:
    return lambda rng, rows: rng.uniform(low, 1.0, rows)


# Name to: how confidences are drawn, how often each is right, and numbers of rows. The first four are the audit's.
LOCAL: dict[str, tuple[Callable[[np.random.Generator, int], Floats], Callable[[Floats], Floats], tuple[int, ...]]] = {
    "above .99 half": (between(0.5), lambda c: np.where(c > 0.99, 0.5, c), (200, 2000, 20_000)),
    ".9 to .95 off by .4": (between(0.5), lambda c: off(c, 0.9, 0.95, 0.4), (200, 1000, 10_000)),
    "all sure, .995 right": (between(0.9999), lambda c: np.full_like(c, 0.995), (50, 200, 2000)),
    "all sure, .98 right": (between(0.9999), lambda c: np.full_like(c, 0.98), (50, 200, 2000)),
    "calibrated": (between(0.5), lambda c: c, (400, 2000, 20_000)),
    "off everywhere": (between(0.5), lambda c: 0.5 + 0.7 * (c - 0.5), (400, 2000, 20_000)),
    "two spots": (between(0.5), lambda c: off(off(c, 0.6, 0.62, -0.3), 0.97, 1.0, 0.1), (500, 5000)),
    "the least sure off": (
        lambda rng, rows: np.maximum(rng.beta(20, 1, rows), 0.5),
        lambda c: np.where(c < 0.9, c - 0.3, c),
        (300, 3000),
    ),
    "ties, one off": (
        lambda rng, rows: rng.choice([0.55, 0.7, 0.85, 0.95, 1.0], rows, p=[0.1, 0.1, 0.2, 0.3, 0.3]),
        lambda c: np.where(c == 0.85, 0.65, c),
        (100, 1000, 10_000),
    ),
}
ERRORS = ("ece", "ece_equal_mass", "smooth_ece", "ks", "ece@0.95", "ece_inside@0.95")


def count_local(draws: int, resamples: int) -> Iterator[str]:
    """One line per world and number of rows: percent that hold the truth, mean width, mean width of the oracle."""
    yield f"{'world':<22}{'rows':>7}" + "".join(f"{name:>24}" for name in ERRORS)
    for world, (confidences, accuracy, sizes) in LOCAL.items():
        many = np.sort(confidences(np.random.default_rng(7), ROWS))
        truth = top_values(many, accuracy(many), bin_edges(BINS))

        def true_shape(groups: _Groups, right: Callable[[Floats], Floats] = accuracy) -> tuple[Floats, Floats]:
            gap = groups.confidence - right(groups.confidence)
            return gap, gap

        for rows in sizes:
            found = defaultdict[str, list[tuple[bool, float, float]]](list)
            for seed in range(draws):
                rng = np.random.default_rng([seed, rows, len(world)])
                top = confidences(rng, rows)
                wrong = (rng.random(rows) >= accuracy(top)).astype(int)
                model = Predictions.from_probabilities(np.stack([top, 1.0 - top], axis=1), wrong)
                settings = {"n_resamples": resamples, "seed": seed, "level": LEVEL}
                ours = calibration_errors(model, BINS, [0.95], **settings)
                with mock.patch.object(_Groups, "shapes", true_shape):
                    oracle = calibration_errors(model, BINS, [0.95], **settings)
                for name, each in ours.items():
                    best = oracle[name].high - oracle[name].low
                    found[name].append((holds((each.low, each.high), truth[name]), each.high - each.low, best))
            line = f"{world:<22}{rows:7,}"
            for name in ERRORS:
                cell = "-"
                if 2 * len(found[name]) >= draws:
                    held, width, best = np.mean(found[name], axis=0)
                    cell = f"{100 * held:.0f} ({width:.4f}, {best:.4f})"
                line += f"{cell:>24}"
            yield line


def cases() -> Iterator[Case]:
    for classes in (2, 10, 100):
        for world in ("calibrated", "overconfident"):
            for rows in (400, 10_000):
                yield classes, world, rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=119)
    parser.add_argument("--processes", type=int, default=1, help="the numbers do not depend on it")
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 10, 100])
    parser.add_argument("--rows", type=int, nargs="+", default=[400, 10_000])
    parser.add_argument("--worlds", nargs="+", default=["calibrated", "overconfident"])
    parser.add_argument("--alone", action="store_true", help="leave out comparisons")
    parser.add_argument("--zero", action="store_true", help="calibration errors that are truly 0, five times as fast")
    parser.add_argument("--shares", action="store_true", help="shares and accuracies of groups alone")
    parser.add_argument("--local", action="store_true", help="calibration errors that lie in a few confidences")
    parser.add_argument("--first", type=int, default=1, help="number of the first draw")
    parser.add_argument("--every", type=int, default=20, help="write the tables so far after so many draws")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path, help="print the tables of this output in Markdown")
    options = parser.parse_args()
    if options.markdown is not None:
        print(markdown(options.markdown.read_text()))
        return
    if options.local:
        for line in count_local(options.draws, options.resamples):
            print(line, flush=True)
        return
    asked = options.classes, options.worlds, options.rows
    chosen = [case for case in cases() if all(own in each for own, each in zip(case, asked, strict=True))]
    if options.zero:
        chosen = [case for case in chosen if case[1] == "calibrated"]
    worlds = [(world, classes, model) for classes, world in dict.fromkeys(c[:2] for c in chosen) for model in MODELS]
    with multiprocessing.get_context("spawn").Pool(options.processes, torch.set_num_threads, (1,)) as pool:
        worlds = [] if options.zero else worlds
        truths = dict(zip(worlds, pool.starmap(true_values, worlds, chunksize=1), strict=True))
        counts = defaultdict[Key, list[int]](lambda: [0, 0, 0])
        if options.shares:
            for case in chosen:
                counts |= shares_of_groups(case, truths[case[1], case[0], "first"], options.draws)
            print(table("groups", options.draws, chosen, counts))
            return
        # All cases take turns, so that a table that is stopped early is as good for one as for the other.
        count = one_zero if options.zero else one_alone if options.alone else one_draw
        numbers = range(options.first, options.first + options.draws)
        tasks = ((case, number, options.resamples, truths) for number in numbers for case in chosen)
        for done, found in enumerate(pool.imap(count, tasks), 1):
            for key, held, own in found:
                counts[key] = [a + b for a, b in zip(counts[key], (1, held, own), strict=True)]
            number, left = divmod(done, len(chosen))
            if not left and (number % options.every == 0 or number == options.draws):
                text = f"Python {platform.python_version()}, NumPy {np.__version__}; {options.resamples} resamples\n"
                text += "".join(table(what, number, chosen, counts) for what in dict.fromkeys(key[0] for key in counts))
                print(text, flush=True)
                if options.out is not None:
                    options.out.write_text(text)


Truths = dict[tuple[str, int, str], dict[str, float]]


def one_draw(task: tuple[Case, int, int, Truths]) -> list[tuple[Key, bool, bool]]:
    """Of every interval and verdict of one draw: whether it is right, and whether an interval holds its own value."""
    case, seed, resamples, truths = task
    classes, world, rows = case
    rng = np.random.default_rng([seed, classes, rows, len(world)])
    logits, truth = draw(world, rows, classes, rng)
    targets = targets_of(truth, rng)
    models = [Predictions.from_logits(stated_by(model, world, logits, rng), targets) for model in MODELS]
    evaluations = [evaluate(model, n_bins=BINS, thresholds=THRESHOLDS) for model in models]
    resampled = resample_models(models, evaluations, n_resamples=resamples, seed=seed, level=LEVEL)
    first = truths[world, classes, "first"]
    found = alone(replace(evaluations[0], intervals=resampled[0].intervals()), first, case)
    for model, other in zip(MODELS[1:], resampled[1:], strict=True):
        true = truths[world, classes, model]
        found += compared(resampled[0], other, {name: true[name] - first[name] for name in first}, model, case)
    groups = rng.choice(len(GROUPS), size=rows, p=GROUPS)
    return found + grouped(models[0], groups, first, resamples, case)


def drawn_alone(case: Case, seed: int) -> tuple[Predictions, NDArray[np.int64]]:
    """One draw of the first model, and the group of each row."""
    classes, world, rows = case
    rng = np.random.default_rng([seed, classes, rows, len(world)])
    logits, truth = draw(world, rows, classes, rng)
    model = Predictions.from_logits(logits, targets_of(truth, rng))
    return model, rng.choice(len(GROUPS), size=rows, p=GROUPS)


def one_alone(task: tuple[Case, int, int, Truths]) -> list[tuple[Key, bool, bool]]:
    """The same of the first model, and of its groups, without comparisons."""
    case, seed, resamples, truths = task
    classes, world, _ = case
    model, groups = drawn_alone(case, seed)
    return grouped(model, groups, truths[world, classes, "first"], resamples, case, overall=True)


def one_zero(task: tuple[Case, int, int, Truths]) -> list[tuple[Key, bool, bool]]:
    """Whether the intervals of errors that are truly 0 begin at 0.

    The simulations of perfect calibration alone decide that: one more world is enough to tell that it was left out.
    """
    case, seed, resamples, _ = task
    model, groups = drawn_alone(case, seed)
    parts = [(model, LEVEL)]
    parts += [(model.subset(np.flatnonzero(groups == k)), 1 - (1 - LEVEL) / len(GROUPS)) for k in range(len(GROUPS))]
    with mock.patch("calibrant.metrics.inversion._WORLDS", (0.0, 1.0)):
        ranges = [
            calibration_errors(part, BINS, list(THRESHOLDS), n_resamples=resamples, seed=seed, level=level)
            for part, level in parts
        ]
    found = [(("evaluate", name, case), each.low <= 1e-12, True) for name, each in ranges[0].items()]
    names = [name for name in ranges[1] if all(name in each for each in ranges[1:])]
    return found + [
        (("groups", name, case), all(each[name].low <= 1e-12 for each in ranges[1:]), True) for name in names
    ]


def shares_of_groups(case: Case, truth: dict[str, float], draws: int) -> dict[Key, list[int]]:
    """How often the intervals of all three groups hold a share: counts of cases are drawn, not the cases."""
    rng, level, found = np.random.default_rng(case[::2]), 1 - (1 - LEVEL) / len(GROUPS), {}
    groups = rng.multinomial(case[2], GROUPS, size=draws)
    shares = [("test_error", groups, truth["test_error"])]
    for threshold in THRESHOLDS:
        share = truth[f"share@{threshold}"]
        shares.append((f"share@{threshold}", groups, share))
        shares.append((f"accuracy@{threshold}", rng.binomial(groups, share), truth[f"accuracy@{threshold}"]))
    for name, trials, share in shares:
        pairs = np.stack([rng.binomial(trials, share), trials], axis=-1)
        different, place = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
        held = np.array([n > 0 and holds(exact_interval(int(k), int(n), level=level), share) for k, n in different])
        complete = (trials > 0).all(axis=1)
        right = held[place.ravel()].reshape(trials.shape)[complete].all(axis=1)
        found["groups", name, case] = [int(complete.sum()), int(right.sum()), int(complete.sum())]
    return found


def alone(model: Evaluation, truth: dict[str, float], case: Case) -> list[tuple[Key, bool, bool]]:
    values, intervals = model.values(), model.intervals or {}
    return [
        (("evaluate", name, case), holds(ends, truth[name]), holds(ends, values[name]))
        for name, ends in intervals.items()
    ]


def compared(
    a: Resampled, b: Resampled, truth: dict[str, float], model: str, case: Case
) -> list[tuple[Key, bool, bool]]:
    found: list[tuple[Key, bool, bool]] = []
    for row in differences(a, b):
        if row.interval is not None:
            key = model, row.name, case
            found.append((key, holds(row.interval, truth[row.name]), holds(row.interval, row.difference)))
        elif row.name in a.plausible:
            said = {"better": -1.0, "worse": 1.0, "cannot tell": 0.0}[row.verdict]  # of an error, less is better
            found.append(((f"verdicts-{model}", row.name, case), said == 0.0 or said * truth[row.name] > 1e-9, True))
            ends = b.difference(a, row.name)
            if ends is not None:
                key = f"ranges-{model}", row.name, case
                found.append((key, holds(ends, truth[row.name]), holds(ends, row.difference)))
    return found


def grouped(
    model: Predictions,
    groups: NDArray[np.int64],
    truth: dict[str, float],
    resamples: int,
    case: Case,
    *,
    overall: bool = False,
) -> list[tuple[Key, bool, bool]]:
    made = evaluate_groups(model, groups, n_bins=BINS, thresholds=THRESHOLDS, n_resamples=resamples, level=LEVEL)
    held = defaultdict[str, list[tuple[bool, bool]]](list)
    for each in made.groups.values():
        for name, ends in (each.intervals or {}).items():
            held[name].append((holds(ends, truth[name]), holds(ends, each.values()[name])))
    found = alone(made.overall, truth, case) if overall else []
    complete = ((name, each) for name, each in held.items() if len(each) == len(GROUPS))
    return found + [(("groups", name, case), *map(all, zip(*each, strict=True))) for name, each in complete]


def holds(ends: tuple[float, float], value: float | None) -> bool:
    return value is not None and ends[0] - 1e-12 <= value <= ends[1] + 1e-12


def table(what: str, draws: int, columns: list[Case], counts: dict[Key, list[int]]) -> str:
    lines = [f"\n{what}: {TABLES[what]}, {draws} draws per column"]
    heads = (["K", *(str(k) for k, _, _ in columns)], ["world", *(w[:10] for _, w, _ in columns)])
    lines += [f"{head[0]:>16}" + "".join(f"{each:>11}" for each in head[1:]) for head in heads]
    lines.append(f"{'n':>16}" + "".join(f"{n:11,}" for _, _, n in columns) + "   holds its value")
    for name in dict.fromkeys(name for kind, name, _ in counts if kind == what):
        found = [counts.get((what, name, case), [0, 0, 0]) for case in columns]
        shares = "".join(f"{100 * held / n:11.1f}" if 2 * n >= draws else f"{'-':>11}" for n, held, _ in found)
        own = 100 * sum(each[2] for each in found) / sum(each[0] for each in found)
        lines.append(f"{name:>16}{shares}{own:18.1f}")
    return "\n".join(lines) + "\n"


def markdown(text: str) -> str:
    """The tables with one head line each, in whole percent."""
    heads = [f"K={k} {world[:3]} {n:,}".replace(",000", "k").replace("ove", "over") for k, world, n in cases()]
    lines = []
    for line in text.splitlines():
        words = line.split()
        if words and words[0].removesuffix(":") in TABLES:
            lines += ["", line, "", "| metric | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        elif len(words) == len(heads) + 2 and words[0] != "n":
            cells = [word if word == "-" else f"{float(word):.0f}" for word in words[1:-1]]
            lines.append(f"| `{words[0]}` | " + " | ".join(cells) + " |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main()
