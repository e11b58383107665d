"""How much each ranking score automates for the same promise, alone, chosen with a guard, and paid for as candidates.

Run: python benchmarks/ranking_scores.py [FILE or RUN ...] [--splits 30] [--ways found auto] [--out FILE]

Each set of predictions is split again and again: 5,000 cases (or half of a smaller set) fit a policy, the others show
what it automates. The sets are the shipped samples, files of predictions (benchmarks/ranking_sets.py writes some) and
run folders, whose validation and test cases are put together. `auto` chooses on the tenth of the cases that fits the
temperature and keeps the default unless the gain in AURC is beyond chance; `candidates` tests the default and pnorm4 on
all other cases, each with half of the level. `found` is the control: the default score with thresholds from the same
tenth. The guard of `auto` was tuned on the shipped samples only.
"""

import argparse
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
# The default with its fixed thresholds, and with found ones.
OPTIONS: dict[str, dict[str, Any]] = {"probability": {}, "found": {"score": "probability", "search": "split"}}
SIZES = (500, 1000, 2000, 5000)


def joined(parts: list[Predictions]) -> Predictions:
    scores = np.concatenate([part.scores for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    if parts[0].kind == "logits":
        return Predictions.from_logits(scores, targets)
    return Predictions.from_probabilities(scores, targets)


def sets_of(paths: list[Path]) -> dict[str, Predictions]:
    found = {name: joined([samples.load(name, split) for split in ("val", "test")]) for name in samples.names()}
    for path in paths:
        if path.is_dir():
            files = [path / "predictions" / f"{split}.npz" for split in ("val", "test")]
            found[path.name] = joined([Predictions.load(file) for file in files])
        else:
            found[path.stem] = joined([Predictions.load(path)])
    return found


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


def shown(values: list[float], plain: list[float], factor: float) -> str:
    gain = factor * (np.asarray(values) - np.asarray(plain))
    error = norm.ppf(0.975) * gain.std(ddof=1) / len(gain) ** 0.5
    return f"{factor * np.mean(values):.1f} ({gain.mean():+.1f} ± {error:.1f})"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--ways", nargs="*", default=[*SCORES[1:], "found", "auto", "candidates"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    areas, shares, switches = [], [], []
    broken: dict[str, list[bool]] = defaultdict(list)
    for name, everything in sets_of(arguments.paths).items():
        if everything.n_classes == 2:
            print(f"{name} has two classes: all scores rank alike, and auto keeps the default.")
            continue
        ways = ["probability", *arguments.ways]
        size = min(5000, len(everything) // 2)
        area_of: dict[str, list[float]] = defaultdict(list)
        share_of: dict[tuple[float, str], list[float]] = defaultdict(list)
        for split in range(arguments.splits):
            cases, new = split_of(everything, size, split)
            for target in TARGETS:
                for way in ways:
                    if way == "candidates":
                        policy = candidates_policy(cases, target, split)
                    else:
                        policy = fit_policy(cases, target, seed=split, **OPTIONS.get(way, {"score": way}))
                    routed = policy.decide(new)
                    share_of[target, way].append(float(routed.automate.mean()))
                    right = routed.predicted[routed.automate] == new.targets[routed.automate]
                    broken[way].append(len(right) > 0 and right.mean() < target)
            calibrated = policy.calibrate(new)
            for score in SCORES:
                area_of[score].append(area(calibrated, score))
        facts = (
            f"{name} ({everything.n_classes} classes, {100 * everything.correct.mean():.1f} % right, {size:,} cases)"
        )
        cells = [f"{1e4 * np.mean(area_of['probability']):.1f}"]
        cells += [shown(area_of[score], area_of["probability"], 1e4) for score in SCORES[1:]]
        areas.append([facts, *cells])
        for target in TARGETS:
            plain = share_of[target, "probability"]
            cells = [shown(share_of[target, way], plain, 100) for way in ways[1:]]
            shares.append([name, f"{target:g}", f"{100 * np.mean(plain):.1f}", *cells])
        cells = []
        for n in SIZES:
            if n > 0.8 * len(everything):
                continue
            chosen = [
                fit_policy(split_of(everything, n, split)[0], 0.95, score="auto", seed=split).routing.score
                for split in range(arguments.splits)
            ]
            cells.append(f"{100 * np.mean([score != 'probability' for score in chosen]):.0f}")
        switches.append([name, *cells])
        print(areas[-1], *shares[-len(TARGETS) :], switches[-1], sep="\n", flush=True)
    lines = [
        f"$ python benchmarks/ranking_scores.py ... --splits {arguments.splits} --ways {' '.join(arguments.ways)}",
        "",
        "AURC x 10,000 of new cases:",
    ]
    lines += table(["set", *SCORES], areas)
    lines += ["", "Share automated in %, and the difference from the default with its 95 % interval:"]
    lines += table(["set", "promise", "probability", *arguments.ways], shares)
    lines += ["", "How often `auto` leaves the default, in % of the splits, by the number of labelled cases:"]
    lines += table(["set", *(f"{n:,}" for n in SIZES)], switches)
    counts = ", ".join(f"{way} {100 * np.mean(kept):.1f}" for way, kept in broken.items())
    lines += ["", f"Observed accuracy of new cases below the promise, % of policies (splits overlap): {counts}."]
    text = "\n".join(lines)
    print(f"\n{text}")
    if arguments.out is not None:
        arguments.out.write_text(f"{text}\n")


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    for row in rows:
        cells = [*row, *["-"] * (len(header) - len(row))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
