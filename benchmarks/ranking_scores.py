"""How much each ranking score automates for the same promise, alone, chosen with a guard, and paid for as candidates.

Run: python benchmarks/ranking_scores.py [FILE or RUN ...] [--splits 100] [--ways thresholds auto]
                                           [--counts FILE] [--out FILE]

Each set of predictions is split again and again: 5,000 cases (or half of a smaller set) fit a policy, the others show
what it automates. The sets are the shipped samples, files of predictions (benchmarks/ranking_sets.py writes some) and
run folders, whose validation and test cases are put together.

Ways beside the scores: `auto` chooses a score on the tenth of the cases that fits the temperature, and keeps the
default unless the gain in AURC is beyond chance. `thresholds` is its control: the default score with thresholds from
the same tenth. `candidates` tests the default and pnorm4 on all other cases, each with half of the level. The guard of
`auto` was tuned on the shipped samples only.

An interval says how far the mean over splits is known for this set of predictions, not for other models on this data.
`--counts` keeps what was counted of finished sets, so that a run can be continued.
"""

import argparse
import json
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from calibrant import Predictions, samples
from calibrant.calibration import TemperatureScaling
from calibrant.calibration.temperature import temperature_share
from calibrant.decisions import Policy, choose_threshold, fit_policy
from calibrant.decisions.ranking import CANDIDATES, rank
from calibrant.metrics import aurc

SCORES = ("probability", "margin", "entropy", "pnorm2", "pnorm4")
TARGETS = (0.95, 0.98, 0.99)
OPTIONS: dict[str, dict[str, Any]] = {"probability": {}, "thresholds": {"score": "probability", "search": "split"}}
MANY, FEWER = 5000, (500, 1000, 2000)
LARGEST_LOSS = 0.2  # points that a set may lose by `auto`


def joined(parts: list[Predictions]) -> Predictions:
    scores = np.concatenate([part.scores for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    if parts[0].kind == "logits":
        return Predictions.from_logits(scores, targets)
    return Predictions.from_probabilities(scores, targets)


def sets_of(paths: list[Path]) -> dict[str, Predictions]:
    sets = {name: joined([samples.load(name, split) for split in ("val", "test")]) for name in samples.names()}
    for path in paths:
        if path.is_dir():
            files = [path / "predictions" / f"{split}.npz" for split in ("val", "test")]
            sets[path.name] = joined([Predictions.load(file) for file in files])
        else:
            sets[path.stem] = joined([Predictions.load(path)])
    return sets


def split_of(everything: Predictions, size: int, split: int) -> tuple[Predictions, Predictions]:
    rows = np.random.default_rng([split, size, 77]).permutation(len(everything))
    return everything.subset(np.sort(rows[:size])), everything.subset(np.sort(rows[size:]))


def candidates_policy(cases: Predictions, target: float, seed: int) -> Policy:
    """The score that automates most, each tested with its part of the level."""
    some, rest = cases.split(temperature_share(len(cases)), seed=seed)
    policy = Policy(cases.n_classes, TemperatureScaling().fit(some))
    level = 1 - 0.05 / len(CANDIDATES)
    fitting, rest = policy.calibrate(some), policy.calibrate(rest)
    rules = [
        choose_threshold(rest, target, confidence=level, score=score, fitting=fitting, search="split")
        for score in CANDIDATES
    ]
    return policy.with_rule(max(rules, key=lambda rule: rule.automation_rate))


def area(cases: Predictions, score: str) -> float:
    """AURC of another ranking: that of a class and a score."""
    ranks = rank(score, cases.probabilities)
    return float(aurc(Predictions.from_confidence(cases.predicted, ranks, cases.targets, kind="score")))


def gain_of(values: list[float], plain: list[float], factor: float) -> tuple[float, float]:
    """The mean difference over splits, and half the width of its 95 % interval."""
    gains = factor * (np.asarray(values) - np.asarray(plain))
    return float(gains.mean()), float(norm.ppf(0.975) * gains.std(ddof=1) / len(gains) ** 0.5)


def shown(values: list[float], plain: list[float], factor: float) -> str:
    gain, error = gain_of(values, plain, factor)
    return f"{factor * np.mean(values):.1f} ({gain:+.1f} ± {error:.1f})"


class Counts:
    """What each way automates of one set, in every split; `kept` is what an earlier run counted."""

    def __init__(
        self, name: str, everything: Predictions, ways: list[str], splits: int, kept: dict[str, Any] | None
    ) -> None:
        self.name, self.everything, self.ways = name, everything, ways
        if everything.n_classes == 2:  # all named scores rank alike, and a p-norm is refused
            self.ways = [way for way in ways if way not in ("pnorm2", "pnorm4", "candidates")]
        self.size = min(MANY, len(everything) // 2)
        self.sizes = [*(n for n in FEWER if n < self.size), self.size]
        self.lists: dict[str, list[float]] = defaultdict(list)
        if kept is not None:
            self.lists.update(kept)
            return
        for split in range(splits):
            for size in self.sizes:
                self.count(size, split)

    def count(self, size: int, split: int) -> None:
        """Fit policies on one split. With fewer cases only the default and `auto` are counted."""
        cases, new = split_of(self.everything, size, split)
        ways = self.ways
        if size < self.size:
            ways = [way for way in ways if way in ("probability", "auto")]
        for target in TARGETS:
            for way in ways:
                if way == "candidates":
                    policy = candidates_policy(cases, target, split)
                else:
                    policy = fit_policy(cases, target, seed=split, **OPTIONS.get(way, {"score": way}))
                routed = policy.decide(new)
                self.lists[f"share {size} {target} {way}"].append(float(routed.automate.mean()))
                right = routed.predicted[routed.automate] == new.targets[routed.automate]
                self.lists[f"broken {way}"].append(float(len(right) > 0 and right.mean() < target))
                if way == "auto" and target == TARGETS[0]:  # the choice is the same for every promise
                    self.lists[f"left {size}"].append(float(policy.routing.score != "probability"))
        if size == self.size:
            calibrated = policy.calibrate(new)
            for score in SCORES:
                if score in self.ways:
                    self.lists[f"area {score}"].append(area(calibrated, score))

    def shares(self, size: int, target: float, way: str) -> list[float]:
        """The share that a way automates, in every split."""
        return self.lists[f"share {size} {target} {way}"]

    def gain(self, size: int, target: float, way: str) -> tuple[float, float]:
        """In points over the default, with half the width of the interval."""
        return gain_of(self.shares(size, target, way), self.shares(size, target, "probability"), 100)

    def share_cell(self, size: int, target: float, way: str) -> str:
        """The share that is automated, and the gain over the default."""
        if way not in self.ways:
            return "-"
        return shown(self.shares(size, target, way), self.shares(size, target, "probability"), 100)

    def area_cell(self, score: str) -> str:
        """AURC, and what it differs from that of the default."""
        if score not in self.ways:
            return "-"
        return shown(self.lists[f"area {score}"], self.lists["area probability"], 1e4)

    def area_row(self) -> list[str]:
        """Facts about the set, and its AURC by each score."""
        plain = self.lists["area probability"]
        right = f"{100 * self.everything.correct.mean():.1f}"
        cells = [self.name, f"{self.everything.n_classes}", right, f"{self.size:,}", f"{1e4 * np.mean(plain):.1f}"]
        cells += [self.area_cell(score) for score in SCORES[1:]]
        return cells

    def share_rows(self, ways: list[str]) -> list[list[str]]:
        """What each way automates for each promise."""
        rows = []
        for target in TARGETS:
            plain = f"{100 * np.mean(self.shares(self.size, target, 'probability')):.1f}"
            cells = [self.share_cell(self.size, target, way) for way in ways[1:]]
            rows.append([self.name, f"{target:g}", plain, *cells])
        return rows

    def size_rows(self) -> list[list[str]]:
        """How often `auto` leaves the default with so many labelled cases, and what it automates."""
        rows = []
        for size in self.sizes:
            cells = [self.share_cell(size, target, "auto") for target in TARGETS]
            rows.append([self.name, f"{size:,}", f"{100 * np.mean(self.lists[f'left {size}']):.0f}", *cells])
        return rows


def mean_gains(sets: list[Counts], ways: list[str]) -> str:
    """The mean gain of each way over the sets that have it."""
    texts = []
    for way in ways[1:]:
        having = [counts for counts in sets if way in counts.ways]
        if having:
            gains = [np.mean([counts.gain(counts.size, target, way)[0] for counts in having]) for target in TARGETS]
            texts.append(f"{way} {' '.join(f'{gain:+.2f}' for gain in gains)}")
    return ", ".join(texts)


def losses(sets: list[Counts]) -> str:
    """The largest loss by `auto`, and every cell that loses more than the allowed points."""
    cells = []
    for counts in sets:
        for size in counts.sizes:
            names = [(f"{counts.name} with {size:,} cases at {target:g}", target) for target in TARGETS]
            cells += [(*counts.gain(size, target, "auto"), name) for name, target in names]
    gain, error, name = min(cells)
    beyond = [f"{name} {gain:+.2f} ± {error:.2f}" for gain, error, name in sorted(cells) if gain < -LARGEST_LOSS]
    return (
        f"Of {len(cells)} cells of auto the largest loss has {name}: {gain:+.2f} ± {error:.2f}. "
        f"Cells that lose more than {LARGEST_LOSS} points: {'; '.join(beyond) or 'none'}."
    )


def summary(sets: list[Counts], ways: list[str]) -> list[str]:
    """Means over sets, losses, and how often a promise was broken."""
    targets = ", ".join(f"{target:g}" for target in TARGETS)
    lines = [f"Mean gain at {targets} over the {len(sets)} sets (without those of two classes for p-norms): "]
    lines[0] += f"{mean_gains(sets, ways)}."
    judges = [counts for counts in sets if counts.name not in samples.names()]
    if judges:
        lines.append(f"Over the {len(judges)} sets that nothing was tuned on: {mean_gains(judges, ways)}.")
    if "auto" in ways:
        lines.append(losses(sets))
    shares = []
    for way in ways:
        broken = np.concatenate([counts.lists[f"broken {way}"] for counts in sets if way in counts.ways])
        shares.append(f"{way} {100 * broken.mean():.1f}")
    lines.append(
        f"Observed accuracy of new cases below the promise, % of policies (splits overlap): {', '.join(shares)}."
    )
    return lines


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--ways", nargs="*", default=[*SCORES[1:], "thresholds", "auto", "candidates"])
    parser.add_argument("--counts", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ways = ["probability", *arguments.ways]
    kept: dict[str, Any] = {}
    if arguments.counts is not None and arguments.counts.is_file():
        kept = json.loads(arguments.counts.read_text())
    sets = []
    for name, everything in sets_of(arguments.paths).items():
        sets.append(Counts(name, everything, ways, arguments.splits, kept.get(name)))
        kept[name] = sets[-1].lists
        if arguments.counts is not None:
            arguments.counts.write_text(json.dumps(kept))
        print(name, *sets[-1].share_rows(ways), sep="\n", flush=True)
    words = ["python benchmarks/ranking_scores.py", *(path.name for path in arguments.paths)]
    words.append(f"--splits {arguments.splits}")
    if arguments.ways != parser.get_default("ways"):
        words.append(f"--ways {' '.join(arguments.ways)}")
    lines = [f"$ {' '.join(words)}", ""]
    lines.append("AURC x 10,000 of new cases, and the difference from that of the largest probability:")
    rows = [counts.area_row() for counts in sets]
    lines += table(["set", "classes", "right %", "cases", *SCORES], rows)
    lines += ["", "Share automated in %, and the difference from the default with its 95 % interval:"]
    rows = [row for counts in sets for row in counts.share_rows(ways)]
    lines += table(["set", "promise", *ways], rows)
    if "auto" in ways:
        lines += [
            "",
            "How often `auto` leaves the default, in % of the splits, and what it automates, by labelled cases:",
        ]
        rows = [row for counts in sets for row in counts.size_rows()]
        lines += table(["set", "cases", "left", *(f"{target:g}" for target in TARGETS)], rows)
    lines += ["", *summary(sets, ways)]
    text = "\n".join(lines)
    print(f"\n{text}")
    if arguments.out is not None:
        arguments.out.write_text(f"{text}\n")


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return lines


if __name__ == "__main__":
    main()
