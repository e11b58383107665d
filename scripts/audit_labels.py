"""How many labels show that accuracy fell by one point: from an audit of automated cases, or from reviewed cases only.

    python scripts/audit_labels.py [--streams 20] [--audit 0.02] [--cases 400000]

A calibrated model of four classes decides cases under a rule that promises 98 %. From the first case on, labels of
automated cases are drawn anew so often that their accuracy is one point below the promise. Labels come either from
`--audit` of the automated cases and all reviewed ones, as the review page gives them, or from the reviewed ones alone.
"""

import argparse

import numpy as np

from calibrant import Predictions
from calibrant.decisions import Routed, RoutingRule, choose_threshold
from calibrant.deployment import Stream, headline, watch

TARGET = 0.98


def draw(n: int, seed: int) -> tuple[Predictions, np.random.Generator]:
    rng = np.random.default_rng(seed)
    logits = 6.0 * rng.normal(size=(n, 4))
    targets = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Predictions.from_logits(logits, targets), rng


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--audit", type=float, default=0.02)
    parser.add_argument("--cases", type=int, default=400_000)
    arguments = parser.parse_args()
    rule = choose_threshold(draw(5000, 0)[0], TARGET)
    needed: list[float] = []
    missed = 0
    for seed in range(1, arguments.streams + 1):
        cases, rng = draw(arguments.cases, seed)
        routed = rule.route(cases.probabilities)
        right = routed.predicted == cases.targets
        # Of the right automated cases, so many become wrong that their accuracy is a point below the promise.
        spoil = 1 - (TARGET - 0.01) / right[routed.automate].mean()
        spoilt = routed.automate & right & (rng.random(len(right)) < spoil)
        targets = np.where(spoilt, (cases.targets + 1) % 4, cases.targets)
        drawn = routed.automate & (rng.random(len(right)) < arguments.audit)
        labelled = np.where(drawn | ~routed.automate, targets, -1)
        watched = watch(_stream(rule, routed, labelled))
        (promise,) = [signal for signal in watched.signals if signal.about == "promise"]
        if promise.alarm is None:
            missed += 1
        else:
            needed.append(int(drawn[: promise.alarm].sum()))
        if seed == 1:
            alone = watch(_stream(rule, routed, np.where(routed.automate, -1, targets)))
            (blind,) = [signal for signal in alone.signals if signal.about == "promise"]
            print(f"reviewed cases only: {int((~routed.automate).sum()):,} labels, {blind.cases} of them are about the "
                  f"promise, evidence {blind.evidence:.2f}: {headline(alone)}")  # fmt: skip
    print(f"audit of {arguments.audit:.0%}, accuracy {TARGET - 0.01:.0%} instead of the promised {TARGET:.0%}: "
          f"{len(needed)} of {arguments.streams} streams of {arguments.cases:,} cases gave an alarm")  # fmt: skip
    if needed:
        quantiles = np.quantile(needed, [0.1, 0.5, 0.9]).astype(int)
        print(f"labels of automated cases until the alarm: median {quantiles[1]}, 10 to 90 %: "
              f"{quantiles[0]} to {quantiles[2]}")  # fmt: skip


def _stream(rule: RoutingRule, routed: Routed, targets: np.ndarray) -> Stream:
    order = np.where(targets >= 0, np.cumsum(targets >= 0), 0)
    return Stream.of_decisions(
        rule, routed.automate, routed.predicted, routed.confidence, targets=targets, label_order=order
    )


if __name__ == "__main__":
    main()
