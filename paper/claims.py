"""What the paper claims, and what our runs say about it: one comparison for each, and a verdict by one rule."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calibrant.metrics.metric import higher_is_better
from calibrant.studies import Record, Referee
from paper.numbers import paper_rows
from paper.runs import Groups, Place

Verdict = Literal["holds", "fails", "cannot tell"]
OURS, WITHOUT = "flsd+h+p-ema", "flsd+h"
BASELINES = ("brier", "dca", "ls", "mmce", "flsd", "fl+mdca")
MARGIN = 0.005

RULE = (
    "**The rule.** A claim compares two methods in one figure of the test set. The 95 % interval of the difference is "
    "over seeds: the variance over seeds of the two is moderated towards that of all methods on this data set and "
    "network, as in `calibrant compare` ([how](studies.md)). Where no method has several seeds, it is over test images "
    "alone, which says nothing about another training. The claim *holds* if the interval lies wholly on its side of "
    "zero, *fails* if it lies wholly on the other side, and else we *cannot tell*. That accuracy is kept holds if the "
    f"interval ends below {100 * MARGIN:g} points more error. With several comparisons a claim fails if one of them "
    "fails, and holds if all of them hold; runs at recommended settings count if there are any. Intervals are not "
    "corrected for the number of comparisons."
)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a comparison.

    Attributes:
        title: In a few words.
        question: The same as a question that the verdict answers.
        says: What the paper says, and where.
        metric: Flat name of the figure.
        ours: The method that the claim is about.
        others: What it is compared with.
        kept: Whether the claim is that the figure gets no worse, instead of better.
        as_run: Whether the others have settings of their own, so that ours at recommended ones is put beside them all.
        missing: Which runs would tell, where there are none.
    """

    title: str
    question: str
    says: str
    metric: str
    ours: str
    others: tuple[str, ...]
    kept: bool = False
    as_run: bool = False
    missing: str = ""


_PLAN = ("fraction", "interval", "start", "ema", "within", "readmit", "scoring", "anneal", "minimum_per_class")
"""Settings of a plan: a method without one is the same whatever they are."""
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Calibrated",
        "Is its ECE lower than that of every other method?",
        'Results: the method "improves ECE score across all the datasets", against every other method of the table.',
        *("ece", OURS, BASELINES),
    ),
    Claim(
        "Best on ECE(S95)",
        "Is its ECE(S95) lower than that of every other method?",
        "Table 2 has its method best on ECE(S95) on each of the five data sets.",
        *("ece@0.95", OURS, BASELINES),
    ),
    Claim(
        "Confident",
        "Does pruning make more test samples confident (|S95|)?",
        "Abstract: pruning provides an increase in confident yet calibrated samples, so that with it more test samples "
        "lie above 0.95 than without.",
        *("share@0.95", OURS, ("flsd+h",)),
    ),
    Claim(
        "More confident than FLSD and MDCA",
        "Are more samples confident than with FLSD and with MDCA?",
        "Caption of table 2: |S95| is higher than that of FLSD and MDCA. The Huber term has its part in this.",
        *("share@0.95", OURS, ("flsd", "fl+mdca")),
    ),
    Claim(
        "Pruning calibrates",
        "Does pruning lower ECE?",
        "Contributions: pruning leads to calibrated predictions. So ECE should be lower with it than without.",
        *("ece", OURS, ("flsd+h",)),
    ),
    Claim(
        "Better than resting at random, in calibration",
        "Is pruning better calibrated than resting a random part?",
        "Not claimed in print, but what pruning by confidence must show: ECE lower than where a random part of the "
        "samples rests, at as many updates.",
        *("ece", OURS, ("flsd+h+random",)),
        as_run=True,
    ),
    Claim(
        "Better than resting at random, in error",
        "Is its error lower than that of resting a random part?",
        "The same of the error.",
        *("test_error", OURS, ("flsd+h+random",)),
        as_run=True,
    ),
    Claim(
        "Accuracy kept",
        "Is accuracy kept?",
        'Contributions: less training time "without compromising on accuracy".',
        *("test_error", OURS, ("flsd+h", "flsd", "nll")),
        kept=True,
    ),
    Claim(
        "EMA better than none, in calibration",
        "Does the moving average lower ECE?",
        "Ablation: an average of the confidences over epochs enhances calibration.",
        *("ece", OURS, ("flsd+h+p",)),
    ),
    Claim(
        "EMA better than none, in error",
        "Does the moving average keep the error?",
        "Not claimed in print; it belongs beside the line above.",
        *("test_error", OURS, ("flsd+h+p",)),
        kept=True,
    ),
    Claim(
        "The Huber term calibrates",
        "Does the Huber term lower ECE?",
        "Contributions: the term enforces calibration by reducing the difference between confidence and accuracy.",
        *("ece", "flsd+h", ("flsd",)),
    ),
    Claim(
        "Huber better than L1",
        "Is the Huber term better than L1 (DCA's)?",
        "Method: the absolute difference of DCA is not differentiable and sometimes fails; the Huber loss replaces it.",
        *("ece", "flsd+h", ("flsd+dca",)),
        as_run=True,
        missing="`flsd+dca` with `dca_weight` 0.125, the slope that the Huber term has away from zero on CIFAR-10 with "
        "ResNet-32",
    ),
)


@dataclass(frozen=True)
class Comparison:
    """One test of a claim.

    Attributes:
        place: Data set and network.
        variant: Settings that both differ in from the recommended ones; empty for those.
        other: What is compared with.
        ours: Mean of the method over its seeds.
        theirs: Mean of the other.
        seeds: Number of seeds of both.
        difference: Method minus other.
        half: Half of the 95 % interval; None where none is known.
        verdict: By the rule.
    """

    place: tuple[str, str]
    variant: str
    other: str
    ours: float
    theirs: float
    seeds: tuple[int, int]
    difference: float
    half: float | None
    verdict: Verdict


def comparisons(claim: Claim, groups: Groups) -> list[Comparison]:
    """All tests of a claim that the records allow: at recommended settings, and at others that both methods share."""
    found = []
    for place, by_label in groups.items():
        records = [record for group in by_label.values() for record in group]
        mine = _by_variant(records, claim.ours)
        for other in claim.others:
            theirs = _by_variant(records, other)
            if claim.as_run:
                recommended = mine.get("", [])
                pairs = [(f"{other} ({settings})", recommended, group) for settings, group in theirs.items()]
            else:
                pairs = [(other, ours, _beside(other, ours, theirs)) for ours in mine.values()]
            found += [test for pair in pairs if (test := _compare(claim, place, by_label, *pair))]
    return found


def verdict(found: Sequence[Comparison]) -> Verdict:
    """Of a claim: by the comparisons at recommended settings where there are any, else by the others."""
    counted = [each for each in found if not each.variant] or list(found)
    if any(each.verdict == "fails" for each in counted):
        return "fails"
    return "holds" if counted and all(each.verdict == "holds" for each in counted) else "cannot tell"


def exceptions(claim: Claim) -> list[str] | None:
    """Tables of the paper whose own numbers contradict the claim; None where its tables do not hold both methods."""
    tables: dict[str, dict[str, float]] = {}
    for row in paper_rows():
        tables.setdefault(f"{row.data}, {row.model}", {})[row.method] = row.value(claim.metric)
    if not {claim.ours, *claim.others} <= set().union(*tables.values()) or claim.kept:
        return None
    sign = -1
    if higher_is_better(claim.metric):
        sign = 1
    return [
        f"{place} ({other} {100 * values[other]:g} against {100 * values[claim.ours]:g})"
        for place, values in tables.items()
        for other in claim.others
        if sign * (values[claim.ours] - values[other]) <= 0
    ]


def covered(groups: Groups) -> tuple[list[str], list[str]]:
    """Data sets of the paper on which its method was run at recommended settings, and those on which it was not."""
    wanted = list(dict.fromkeys(row.data for row in paper_rows()))
    there = {data for (data, _), by_label in groups.items() if by_label.get(OURS)}
    return [data for data in wanted if data in there], [data for data in wanted if data not in there]


def _by_variant(records: Sequence[Record], method: str) -> dict[str, Sequence[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.method == method:
            found.setdefault(record.variant, []).append(record)
    return {**found}


def _beside(other: str, ours: Sequence[Record], theirs: Mapping[str, Sequence[Record]]) -> Sequence[Record]:
    """Runs of `other` with the settings of ours, or those without the plan whose settings these are."""
    same = theirs.get(ours[0].variant, ())
    if not same and _only_the_plan(other, ours[0]):
        return theirs.get("", ())
    return same


def _only_the_plan(other: str, ours: Record) -> bool:
    """Whether `other` is the method without its plan, and nothing but settings of the plan was changed."""
    changed = {key.removeprefix("method.options.") for key in ours.changes}
    return ours.method.startswith(f"{other}+") and changed <= set(_PLAN)


def _compare(
    claim: Claim,
    place: Place,
    by_label: Mapping[str, Sequence[Record]],
    other: str,
    ours: Sequence[Record],
    theirs: Sequence[Record],
) -> Comparison | None:
    if not ours or not theirs:
        return None
    found = Referee(by_label).compare(claim.ours, claim.metric, ours, theirs)
    if found.difference is None:
        return None
    half = one_run_each(claim.metric, ours, theirs)
    if found.spread is not None:
        half = found.spread.half_width()
    means = [statistics.fmean(record.value(claim.metric) or 0.0 for record in group) for group in (ours, theirs)]
    verdict = _verdict(claim, found.difference, half)
    return Comparison(place, ours[0].variant, other, means[0], means[1], found.seeds, found.difference, half, verdict)


def one_run_each(metric: str, *groups: Sequence[Record]) -> float | None:
    """Return half of the interval over test images of one run against one, as if they did not share them.

    None if nothing is known about what a run varies by.
    """
    errors = [records[0].deviation(metric) for records in groups]
    known = [error for error in errors if error is not None]
    if len(known) != len(groups):
        return None
    return 1.96 * math.hypot(*known)


def _verdict(claim: Claim, difference: float, half: float | None) -> Verdict:
    if half is None:
        return "cannot tell"
    # As a gain: positive is what the claim says.
    gain = -difference
    if higher_is_better(claim.metric):
        gain = difference
    if claim.kept:
        if gain - half > -MARGIN:
            return "holds"
        return "fails" if gain + half < 0 else "cannot tell"
    if abs(gain) <= half:
        return "cannot tell"
    return "holds" if gain > 0 else "fails"
