"""How much each ranking score automates for the same promise, alone, chosen with a guard, and paid for as candidates.

Run: python benchmarks/ranking_scores.py [--splits 30] [--targets 0.95 0.98 0.99] [--out results/benchmarks/ranking.txt]

For each shipped sample, validation and test cases are put together and split again: 5,000 cases fit a policy, the
others show what it automates. `auto` chooses a score on the cases that fit the temperature and keeps the default unless
another is better beyond chance; `candidates` divides the level among the scores on all cases that carry the promise.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import norm

from calibrant import Predictions, samples
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, choose_threshold, fit_policy
from calibrant.decisions.ranking import CANDIDATES

FIT = 5000


def joined(name: str) -> Predictions:
    parts = [samples.load(name, split) for split in ("val", "test")]
    scores = np.concatenate([part.scores for part in parts])
    return Predictions.from_logits(scores, np.concatenate([part.targets for part in parts]))


def candidates_policy(cases: Predictions, target: float, seed: int) -> Policy:
    """The score that automates most, each tested with its part of the level."""
    some, rest = cases.split(0.1, seed=seed)
    policy = Policy(cases.n_classes, TemperatureScaling().fit(some))
    level = 1 - 0.05 / len(CANDIDATES)
    settings = {"confidence": level, "fitting": policy.calibrate(some)}
    rules = [choose_threshold(policy.calibrate(rest), target, score=score, **settings) for score in CANDIDATES]
    return policy.with_rule(max(rules, key=lambda rule: rule.automation_rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.95, 0.98, 0.99])
    parser.add_argument("--samples", nargs="+", choices=samples.names(), default=samples.names())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ways = [*CANDIDATES, "auto", "candidates"]
    lines = ["| sample | promise | " + " | ".join(ways) + " | switched |", "|" + " --- |" * (len(ways) + 3)]
    broken = dict.fromkeys(ways, 0)
    tries = 0
    for name in arguments.samples:
        everything = joined(name)
        for target in arguments.targets:
            shares: dict[str, list[float]] = {way: [] for way in ways}
            switched = 0
            for split in range(arguments.splits):
                rows = np.random.default_rng([split, 77]).permutation(len(everything))
                cases, new = everything.subset(np.sort(rows[:FIT])), everything.subset(np.sort(rows[FIT:]))
                tries += 1
                for way in ways:
                    if way == "candidates":
                        policy = candidates_policy(cases, target, split)
                    else:
                        # None: the default with its fixed thresholds.
                        policy = fit_policy(cases, target, score={"probability": None}.get(way, way), seed=split)
                        switched += way == "auto" and policy.routing.score != "probability"
                    routed = policy.decide(new)
                    shares[way].append(float(routed.automate.mean()))
                    right = routed.predicted[routed.automate] == new.targets[routed.automate]
                    broken[way] += len(right) > 0 and right.mean() < target
            cells = []
            for way in ways:
                gain = np.asarray(shares[way]) - np.asarray(shares["probability"])
                error = norm.ppf(0.975) * gain.std(ddof=1) / len(gain) ** 0.5
                text = f"{100 * np.mean(shares[way]):.1f}"
                if way != "probability":
                    text += f" ({100 * gain.mean():+.1f} ± {100 * error:.1f})"
                cells.append(text)
            lines.append(f"| {name} | {target:g} | " + " | ".join(cells) + f" | {switched} of {arguments.splits} |")
            print(lines[-1], flush=True)
    seen = ", ".join(f"{way} {100 * count / tries:.1f}" for way, count in broken.items())
    lines.append(f"\nObserved accuracy of new cases below the promise, % of {tries} policies: {seen}.")
    text = f"$ python benchmarks/ranking_scores.py --splits {arguments.splits}\n" + "\n".join(lines)
    print(f"\n{text}")
    if arguments.out is not None:
        arguments.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
