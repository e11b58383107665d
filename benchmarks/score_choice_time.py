"""Time of `fit_policy(..., score="auto")` beside the plain rule, in one run.

Run: python benchmarks/score_choice_time.py [--out results/benchmarks/score-choice-time.txt]
"""

import argparse
import time
from pathlib import Path

import numpy as np

from calibrant import Predictions
from calibrant.decisions import fit_policy


def cases(n: int, classes: int, *, scaled: bool) -> Predictions:
    """Logits of a model that is right in about 90 % of the cases; scaled at random, the p-norm ranks them better."""
    rng = np.random.default_rng(0)
    targets = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes))
    logits[np.arange(n), targets] += rng.normal(np.sqrt(2 * np.log(classes)) + 2.5, 2, size=n)
    if scaled:
        logits *= np.exp(rng.uniform(-2, 2, size=(n, 1)))
    return Predictions.from_logits(logits, targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = ["$ python benchmarks/score_choice_time.py", "Median seconds; plain and chosen take turns."]
    for classes in (10, 1000):
        for scaled in (False, True):
            some = cases(5000, classes, scaled=scaled)
            seconds: dict[str | None, list[float]] = {None: [], "pnorm4": [], "auto": []}
            for _ in range(arguments.repeats):
                for score, times in seconds.items():
                    start = time.perf_counter()
                    policy = fit_policy(some, 0.98, score=score)
                    times.append(time.perf_counter() - start)
            plain, named, auto = (float(np.median(times)) for times in seconds.values())
            chosen = policy.routing.score
            others = f"auto (it chose {chosen}) {auto / plain:.2f} times, pnorm4 {named / plain:.2f} times as long"
            lines.append(f"5,000 x {classes:,}: plain {plain:.4f} s, {others}")
            print(lines[-1], flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
