"""What the paper claims, and what our runs say about it: one comparison for each, and a verdict by one rule."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calibrant.metrics.metric import higher_is_better
from calibrant.studies import Record, Referee
from paper.numbers import paper_rows
from paper.runs import Groups, Place, in_words

Outcome = Literal["supports", "contradicts", "inconclusive"]
"""Of one comparison."""
Verdict = Literal["reproduced", "not reproduced", "undecided"]
"""Of a claim."""
OURS, WITHOUT = "flsd+h+p-ema", "flsd+h"
BASELINES = ("brier", "dca", "ls", "mmce", "flsd", "fl+mdca")
MARGIN = 0.005

RULE = (
    "**The rule.** A comparison takes two methods and one figure of the test set, and gives the 95 % interval of the "
    "difference.\n\n"
    "- A comparison **supports** a claim if the whole interval lies on the claim's side of zero. It **contradicts** it "
    "if the interval lies on the other side. Otherwise it is **inconclusive**.\n"
    f'- "Accuracy is kept" is supported if the interval ends below {100 * MARGIN:g} points more error.\n'
    "- A claim is **not reproduced** if one comparison contradicts it, **reproduced** if all support it, and otherwise "
    "**undecided**. Comparisons at recommended settings decide if there are any.\n"
    "- Intervals are over seeds. The variance over seeds of the two methods is moderated towards that of all methods "
    "on this data set and network, as in `calibrant compare` ([how](studies.md)). If no method has several seeds, the "
    "interval is over test images, which says nothing about another training.\n"
    "- Intervals are not corrected for the number of comparisons."
)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a comparison.

    Attributes:
        title: In a few words.
        statement: The claim in one sentence.
        says: What the paper says, and where.
        metric: Flat name of the figure.
        ours: The method that the claim is about.
        others: What it is compared with.
        kept: Whether the claim is that the figure gets no worse, instead of better.
        as_run: Whether the others have settings of their own. Then ours at recommended settings is compared with all.
        missing: Which runs would tell, if there are none.
        in_print: Whether the paper makes this claim. If not, it is a control that we added.
    """

    title: str
    statement: str
    says: str
    metric: str
    ours: str
    others: tuple[str, ...]
    kept: bool = False
    as_run: bool = False
    missing: str = ""
    in_print: bool = True


_PLAN = ("fraction", "interval", "start", "ema", "within", "readmit", "scoring", "anneal", "minimum_per_class")
"""Settings of a plan: a method without one is the same whatever they are."""
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Calibrated",
        "The method has the lowest ECE.",
        'Results: the method "improves ECE score across all the datasets", compared with every other method of the '
        "table.",
        *("ece", OURS, BASELINES),
    ),
    Claim(
        "Best on ECE(S95)",
        "The method has the lowest ECE(S95).",
        "Table 2: the method has the best ECE(S95) on each of the five data sets.",
        *("ece@0.95", OURS, BASELINES),
    ),
    Claim(
        "Confident",
        "Pruning makes more samples confident.",
        "Abstract: pruning provides an increase in confident yet calibrated samples. So with pruning more test samples "
        "should have a confidence above 0.95.",
        *("share@0.95", OURS, ("flsd+h",)),
    ),
    Claim(
        "More confident than FLSD and MDCA",
        "The method has more confident samples than FLSD and MDCA.",
        "Caption of table 2: |S95| is higher than that of FLSD and MDCA. Part of this may come from the Huber term.",
        *("share@0.95", OURS, ("flsd", "fl+mdca")),
    ),
    Claim(
        "Pruning calibrates",
        "Pruning lowers ECE.",
        "Contributions: pruning leads to calibrated predictions. So ECE should be lower with pruning than without.",
        *("ece", OURS, ("flsd+h",)),
    ),
    Claim(
        "Accuracy kept",
        "The method keeps the accuracy.",
        'Contributions: less training time "without compromising on accuracy".',
        *("test_error", OURS, ("flsd+h", "flsd", "nll")),
        kept=True,
    ),
    Claim(
        "EMA better than none, in calibration",
        "The moving average lowers ECE.",
        "Ablation: averaging the confidences over epochs improves calibration.",
        *("ece", OURS, ("flsd+h+p",)),
    ),
    Claim(
        "The Huber term calibrates",
        "The Huber term lowers ECE.",
        "Contributions: the term enforces calibration by reducing the difference between confidence and accuracy.",
        *("ece", "flsd+h", ("flsd",)),
    ),
    Claim(
        "Huber better than L1",
        "The Huber term lowers ECE more than the L1 term of DCA.",
        "Method: the absolute difference of DCA is not differentiable and sometimes fails; the Huber loss replaces it.",
        *("ece", "flsd+h", ("flsd+dca",)),
        as_run=True,
        missing="`flsd+dca` with `dca_weight` 0.125, the slope that the Huber term has away from zero on CIFAR-10 with "
        "ResNet-32",
    ),
    Claim(
        "Better than leaving out random samples, in calibration",
        "Pruning gives a lower ECE than leaving out random samples.",
        "The paper does not claim this. If choosing samples by confidence helps, ECE must be lower than with random "
        "samples left out, for as many updates.",
        *("ece", OURS, ("flsd+h+random",)),
        as_run=True,
        in_print=False,
    ),
    Claim(
        "Better than leaving out random samples, in error",
        "Pruning gives a lower error than leaving out random samples.",
        "The same for the error.",
        *("test_error", OURS, ("flsd+h+random",)),
        as_run=True,
        in_print=False,
    ),
    Claim(
        "EMA better than none, in error",
        "The moving average keeps the error.",
        "The paper does not claim this. A lower ECE is worth little if the error rises.",
        *("test_error", OURS, ("flsd+h+p",)),
        kept=True,
        in_print=False,
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
        half: Half of the 95 % interval; None if none is known.
        outcome: By the rule.
    """

    place: tuple[str, str]
    variant: str
    other: str
    ours: float
    theirs: float
    seeds: tuple[int, int]
    difference: float
    half: float | None
    outcome: Outcome


def comparisons(claim: Claim, groups: Groups) -> list[Comparison]:
    """Return all comparisons for a claim: at recommended settings, and at others that both methods share."""
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
    """Return the verdict on a claim."""
    outcomes = {comparison.outcome for comparison in deciding(found)}
    if "contradicts" in outcomes:
        return "not reproduced"
    if outcomes == {"supports"}:
        return "reproduced"
    return "undecided"


def deciding(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons that decide: those at recommended settings, or all if there are none."""
    return [comparison for comparison in found if not comparison.variant] or list(found)


def exceptions(claim: Claim) -> list[str] | None:
    """Return the tables of the paper whose numbers contradict the claim; None if no table has both methods."""
    tables: dict[str, dict[str, float]] = {}
    for row in paper_rows():
        tables.setdefault(in_words((row.data, row.model)), {})[row.method] = row.value(claim.metric)
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
    outcome = _outcome(claim, found.difference, half)
    return Comparison(place, ours[0].variant, other, means[0], means[1], found.seeds, found.difference, half, outcome)


def one_run_each(metric: str, *groups: Sequence[Record]) -> float | None:
    """Return half of the interval over test images of one run against one, as if they did not share them.

    None if nothing is known about what a run varies by.
    """
    errors = [records[0].deviation(metric) for records in groups]
    known = [error for error in errors if error is not None]
    if len(known) != len(groups):
        return None
    return 1.96 * math.hypot(*known)


def _outcome(claim: Claim, difference: float, half: float | None) -> Outcome:
    if half is None:
        return "inconclusive"
    # As a gain: positive is what the claim says.
    gain = -difference
    if higher_is_better(claim.metric):
        gain = difference
    allowed_loss = 0.0
    if claim.kept:
        allowed_loss = MARGIN
    if gain - half > -allowed_loss:
        return "supports"
    if gain + half < 0:
        return "contradicts"
    return "inconclusive"
