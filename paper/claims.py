"""What the paper claims, and what our runs say about it: one comparison for each, and a verdict by one rule."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t

from calibrant.metrics.metric import higher_is_better
from calibrant.studies import Record
from paper.numbers import paper_rows

Verdict = Literal["holds", "fails", "cannot tell"]
Groups = Mapping[tuple[str, str], Mapping[str, Sequence[Record]]]
OURS, WITHOUT = "flsd+h+p-ema", "flsd+h"
BASELINES = ("brier", "dca", "ls", "mmce", "flsd", "fl+mdca")
MARGIN = 0.005

RULE = (
    "**The rule.** A claim compares two methods in one figure of the test set. With several seeds in common the "
    "differences are paired by seed and have Student's 95 % interval. With one seed in common the interval is 1.96 s, "
    "where s joins what one run of each varies by: the standard error over test images, or the spread over seeds of "
    "either method where that is known and larger. The claim *holds* if the interval lies wholly on its side of zero, "
    "*fails* if it lies wholly on the other side, and else we *cannot tell*. That accuracy is kept holds if the "
    f"interval ends below {100 * MARGIN:g} points more error. With several comparisons a claim fails if one of them "
    "fails, and holds if all of them hold; runs at recommended settings count where there are any. Intervals are not "
    "corrected for the number of comparisons."
)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as a comparison.

    Attributes:
        title: In a few words.
        says: What the paper says, and where.
        metric: Flat name of the figure.
        ours: The method that the claim is about.
        others: What it is compared with.
        kept: Whether the claim is that the figure gets no worse, instead of better.
        as_run: Whether the others have settings of their own, so that ours at recommended ones is put beside them all.
        missing: Which runs would tell, where there are none.
    """

    title: str
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
        'Results: the method "improves ECE score across all the datasets", against every other method of the table.',
        *("ece", OURS, BASELINES),
    ),
    Claim(
        "Best on ECE(S95)",
        "Table 2 has its method best on ECE(S95) on each of the five data sets.",
        *("ece@0.95", OURS, BASELINES),
    ),
    Claim(
        "Confident",
        "Abstract: pruning provides an increase in confident yet calibrated samples, so that with it more test samples "
        "lie above 0.95 than without.",
        *("share@0.95", OURS, ("flsd+h",)),
    ),
    Claim(
        "More confident than FLSD and MDCA",
        "Caption of table 2: |S95| is higher than that of FLSD and MDCA. The Huber term has its part in this.",
        *("share@0.95", OURS, ("flsd", "fl+mdca")),
    ),
    Claim(
        "Pruning calibrates",
        "Contributions: pruning leads to calibrated predictions. So ECE should be lower with it than without.",
        *("ece", OURS, ("flsd+h",)),
    ),
    Claim(
        "Better than resting at random, in calibration",
        "Not claimed in print, but what pruning by confidence must show: ECE lower than where a random part of the "
        "samples rests, at as many updates.",
        *("ece", OURS, ("flsd+h+random",)),
        as_run=True,
    ),
    Claim(
        "Better than resting at random, in error",
        "The same of the error.",
        *("test_error", OURS, ("flsd+h+random",)),
        as_run=True,
    ),
    Claim(
        "Accuracy kept",
        'Contributions: less training time "without compromising on accuracy".',
        *("test_error", OURS, ("flsd+h", "flsd", "nll")),
        kept=True,
    ),
    Claim(
        "EMA better than none, in calibration",
        "Ablation: an average of the confidences over epochs enhances calibration.",
        *("ece", OURS, ("flsd+h+p",)),
    ),
    Claim(
        "EMA better than none, in error",
        "Not claimed in print; it belongs beside the line above.",
        *("test_error", OURS, ("flsd+h+p",)),
        kept=True,
    ),
    Claim(
        "The Huber term calibrates",
        "Contributions: the term enforces calibration by reducing the difference between confidence and accuracy.",
        *("ece", "flsd+h", ("flsd",)),
    ),
    Claim(
        "Huber better than L1",
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
        ours: Mean of the method over the seeds in common.
        theirs: Mean of the other.
        seeds: Number of seeds in common.
        difference: Method minus other.
        half: Half of the 95 % interval; None where none is known.
        verdict: By the rule.
    """

    place: tuple[str, str]
    variant: str
    other: str
    ours: float
    theirs: float
    seeds: int
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
            found += [each for pair in pairs if (each := _compare(claim, place, *pair))]
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
    sign = 1 if higher_is_better(claim.metric) else -1
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


def runs_of(groups: Groups, data: str, model: str) -> Mapping[str, Sequence[Record]]:
    """Our runs that stand beside the paper's on a data set, by method.

    Its X-rays went through torchvision's network; ours of that name is made for small images.
    """
    return groups.get((data, model)) or groups.get((data, f"torchvision:{model}"), {})


def _by_variant(records: Sequence[Record], method: str) -> dict[str, Sequence[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.method == method:
            found.setdefault(record.variant, []).append(record)
    return {**found}


def _beside(other: str, ours: Sequence[Record], theirs: Mapping[str, Sequence[Record]]) -> Sequence[Record]:
    """Runs of `other` with the settings of ours, or those without the plan whose settings these are."""
    return theirs.get(ours[0].variant) or (theirs.get("", ()) if _only_the_plan(other, ours[0]) else ())


def _only_the_plan(other: str, ours: Record) -> bool:
    """Whether `other` is the method without its plan, and nothing but settings of the plan was changed."""
    changed = {key.removeprefix("method.options.") for key in ours.changes}
    return ours.method.startswith(f"{other}+") and changed <= set(_PLAN)


def _compare(
    claim: Claim, place: tuple[str, str], other: str, ours: Sequence[Record], theirs: Sequence[Record]
) -> Comparison | None:
    by_seed = [{record.seed: record for record in group} for group in (ours, theirs)]
    common = sorted(by_seed[0].keys() & by_seed[1].keys())
    pairs = [(by_seed[0][seed].value(claim.metric), by_seed[1][seed].value(claim.metric)) for seed in common]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known or len(known) != len(pairs):
        return None
    differences = [a - b for a, b in known]
    mean = statistics.fmean(differences)
    half = half_width(differences) if len(differences) > 1 else one_seed(claim.metric, ours, theirs)
    return Comparison(
        *(place, ours[0].variant, other, statistics.fmean(a for a, _ in known), statistics.fmean(b for _, b in known)),
        *(len(known), mean, half, _verdict(claim, mean, half)),
    )


def half_width(differences: Sequence[float]) -> float:
    """Half of Student's 95 % interval of a mean over seeds."""
    student = float(t.ppf(0.975, len(differences) - 1))
    return student * statistics.stdev(differences) / math.sqrt(len(differences))


def one_seed(metric: str, *groups: Sequence[Record], scaled: bool = False) -> float | None:
    """Half of the interval of one run against one; None where nothing is known about what a run varies by."""
    spreads = []
    for records in groups:
        values = [value for record in records if (value := record.value(metric, scaled=scaled)) is not None]
        spreads.append(statistics.stdev(values) if len(values) > 1 else 0.0)
    images = [error for records in groups if (error := records[0].deviation(metric, scaled=scaled)) is not None]
    if len(images) != len(groups):
        return None
    # A method that was run once is taken to vary over seeds as the other one does.
    return 1.96 * math.hypot(*(max(error, *spreads) for error in images))


def _verdict(claim: Claim, difference: float, half: float | None) -> Verdict:
    if half is None:
        return "cannot tell"
    # As a gain: positive is what the claim says.
    gain = difference if higher_is_better(claim.metric) else -difference
    if claim.kept:
        if gain - half > -MARGIN:
            return "holds"
        return "fails" if gain + half < 0 else "cannot tell"
    if abs(gain) <= half:
        return "cannot tell"
    return "holds" if gain > 0 else "fails"
