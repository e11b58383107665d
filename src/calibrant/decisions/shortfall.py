"""If no threshold can be promised: what the cases support, what must be reviewed, and how many more would do."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.bounds import (
    MOST_CASES,
    cases_at_rate,
    cases_without_error,
    cluster_upper_bound,
    clusters_needed,
    lower_bound,
)
from calibrant.decisions.certify import Certificate
from calibrant.decisions.rule import RoutingRule, Supported

# With fewer cases than this at a threshold nothing is said about its error rate.
_JUDGED = 10
# Thresholds of the band of supported accuracies. They depend on neither the target nor the cases.
_BAND = np.concatenate([1.0 - np.geomspace(1e-4, 0.5, 16), [0.4, 0.3, 0.2, 0.0]])


def supported_accuracy(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    clusters: NDArray[np.int64] | None,
    *,
    largest_cluster: int | None,
    target: float,
    level: float,
    reserved: bool,
) -> Supported | None:
    """The highest accuracy that the cases show at some threshold of a fixed grid; None if they show none above 0.

    The lower bounds of all thresholds hold together with probability at least 1 - level (exact bounds with equal parts
    of the level, as in Learn then Test, Angelopoulos et al. 2021), so the highest of them may be taken afterwards. The
    share that must be reviewed: with an error rate m of the model and at most a of the automated cases wrong, a share r
    of reviewed cases must satisfy m <= r + (1 - r) a, whatever decides which cases are automated.
    """

    def least_share(hits: NDArray[np.bool_], among: NDArray[np.bool_], tail: float) -> float:
        """Lower bound at this level of the share of hits among some of the cases."""
        if not (hits & among).any():
            return 0.0
        if clusters is None or largest_cluster is None:
            return float(lower_bound((hits & among).sum(), among.sum(), 1.0 - tail))
        sizes = np.bincount(clusters)
        cases = np.bincount(clusters[among], minlength=len(sizes))
        others = np.bincount(clusters[among & ~hits], minlength=len(sizes))
        return 1.0 - cluster_upper_bound(cases, others, largest_cluster, tail)

    accuracy = best = 0.0
    for threshold in _BAND.tolist():
        bound = least_share(correct, confidence >= threshold, level / len(_BAND))
        if bound >= accuracy:
            accuracy, best = bound, threshold
    if accuracy == 0.0:
        return None
    allowed = 1.0 - target
    wrong = least_share(~correct, np.ones(len(correct), dtype=np.bool_), level)
    automated = float((confidence >= best).mean())
    return Supported(accuracy, best, automated, reserved, max(0.0, (wrong - allowed) / (1.0 - allowed)))


def note_supported(supported: Supported) -> str:
    """What the cases support, in two or three sentences."""
    kind = "an exploratory figure, because no part of the level was reserved for it"
    if supported.reserved:
        kind = "promised, because part of the level was reserved for it"
    sentences = [
        f"At a threshold of {supported.threshold:.4g}, which automates {100 * supported.automated:.1f} %, these cases "
        f"support an accuracy of {100 * supported.accuracy:.2f} % ({kind})."
    ]
    if supported.least_review > 0:
        share = f"{100 * supported.least_review:.1f} %"
        sentences.append(f"At the target at least {share} of the cases must be reviewed, whatever the score.")
    return " ".join(sentences)


class Needed(NamedTuple):
    """How many labelled cases would do: with the error rates seen, or only with the lowest that are still possible."""

    cases: int | None  # None if the cases exclude the target
    as_seen: bool


def _starts(table: Certificate, groups: list[Certificate], cases: int) -> Iterator[tuple[float, list[tuple[int, int]]]]:
    """The level of each start, and cases and errors of all cases and of each group there."""
    # A handful of cases without an error says nothing about a rate; they count only if there is nothing else.
    judged = max(_JUDGED, cases // 50)
    usable = (table.levels > 0) & (table.cases > 0)
    if (usable & (table.cases >= judged)).any():
        usable &= table.cases >= judged
    for place in np.flatnonzero(usable).tolist():
        counts = [(int(line.cases[place]), int(line.errors[place])) for line in (table, *groups)]
        yield float(table.levels[place]), [line for line in counts if line[0]]


def cases_needed(
    tables: list[Certificate], groups: list[Certificate], target: float, confidence: float, cases: int
) -> Needed:
    """Total cases at which some start would pass if the shares of automated cases stayed as seen.

    A start passes if all cases and each of the groups pass there. First with the error rates as seen. If some of these
    are above what the target allows at every start, with the lowest rates that are compatible with what was seen
    (one-sided exact bound at `confidence`; 0 if too few cases were seen to judge). Only if these too are above it at
    every threshold do the cases exclude the target.
    """
    starts = [start for table in tables for start in _starts(table, groups, cases)]

    def total(rate: Callable[[int, int], float]) -> int | None:
        totals = []
        for level, lines in starts:
            needed = [cases + 1]
            for count, errors in lines:
                automated = cases_at_rate(rate(errors, count), target, level)
                if automated is None:
                    break
                needed.append(-(-automated * cases // count))
            else:
                totals.append(max(needed))
        if not totals:
            return None
        return min(*totals, MOST_CASES)

    def lowest(errors: int, count: int) -> float:
        if count < _JUDGED:
            return 0.0
        return float(lower_bound(errors, count, confidence))

    as_seen = total(lambda errors, count: errors / count)
    if as_seen is not None:
        return Needed(as_seen, True)
    return Needed(total(lowest), False)


def needed_in_clusters(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    clusters: NDArray[np.int64],
    table: Certificate,
    target: float,
    largest_cluster: int,
) -> Needed:
    """The same for cases in clusters: cases at which some threshold would pass if all clusters came again and again."""
    sizes = np.bincount(clusters)
    times = np.inf
    for threshold, level in zip(table.thresholds[table.levels > 0], table.levels[table.levels > 0], strict=True):
        reached = confidence >= threshold
        cases = np.bincount(clusters[reached], minlength=len(sizes))
        errors = np.bincount(clusters[reached & ~correct], minlength=len(sizes))
        times = min(times, clusters_needed(cases, errors, 1.0 - target, largest_cluster, float(level)))
    if not np.isfinite(times):
        return Needed(None, False)
    return Needed(int(min(max(np.ceil(times * len(correct)), len(correct) + 1), MOST_CASES)), True)


def _promise(rule: RoutingRule) -> str:
    target, confidence = 100 * (rule.target_accuracy or 0.0), 100 * (rule.confidence or 0.0)
    return f"an accuracy of at least {target:.6g} % with {confidence:.6g} % confidence"


def note_kept(rule: RoutingRule) -> str:
    """The promise as a sentence."""
    if not rule.automates:
        return "Reviewing every case costs less than automating at any threshold that keeps the promise."
    if rule.class_thresholds is not None and rule.n_classes > 1:
        return f"What is automated has {_promise(rule)} in every class."
    return f"What is automated has {_promise(rule)}."


def note_nothing(rule: RoutingRule, largest_part: float, cases: int, needed: Needed) -> str:
    """Why nothing is promised, and what would help."""
    start = f"No threshold can be promised: {cases} cases do not show {_promise(rule)} at any threshold."
    if needed.cases is None:
        return (
            f"{start} Errors are too frequent at every threshold that is tested: more cases will not help. Calibrate "
            "the scores on other cases first (route fit --calibrate does both), or use a better model."
        )
    about = "About"
    if needed.cases >= MOST_CASES:
        about = "More than"
    errors = "if errors stay as rare"
    if not needed.as_seen:
        errors = "if errors are as rare as these few cases still allow, more if not"
    fewest = cases_without_error(rule.target_accuracy or 0.0, largest_part)
    return (
        f"{start} {about} {needed.cases:,} cases would be needed {errors} "
        f"(at the very least {fewest:,} automated ones without any error)."
    )


def note_on_groups(rule: RoutingRule, fewest: int, failing: list[str]) -> str:
    """For which groups the promise is made; not for groups with fewer than `fewest` cases.

    `failing` groups do not show the target at any threshold.
    """
    groups = rule.group_evidence or ()
    inside = [group.name for group in groups if group.promised]
    outside = [group.name for group in groups if not group.promised]
    sentences = []
    if inside and rule.automates:
        sentences.append(f"It is promised for all cases and for each of {len(inside)} groups ({_listed(inside)}).")
    elif failing:
        sentences.append(f"Groups that do not show it by themselves at any threshold: {_listed(failing)}.")
    elif inside:
        sentences.append(f"No threshold passes in all of {len(inside)} groups ({_listed(inside)}).")
    if outside:
        sentences.append(
            f"Nothing is promised for {_listed(outside)} alone: fewer than {fewest:,} cases cannot show it; "
            "the promise covers their cases only as part of all."
        )
    return " ".join(sentences)


def note_per_group(rule: RoutingRule, shared: float, *, together: bool) -> str:
    """In which groups something is promised, and which share one threshold for all groups would automate."""
    groups, evidence = rule.group_evidence or (), rule.evidence
    promised = [group.name for group in groups if group.promised]
    if not promised or evidence is None:
        return f"No threshold can be promised in any of the {len(groups)} groups of {rule.groups!r}."
    accuracy, confidence = _promise(rule).split(" with ")
    way = "in each group by itself"
    if together:
        way = "in all of these groups together"
    return (
        f"What is automated has {accuracy} in {len(promised)} of {len(groups)} groups of {rule.groups!r} "
        f"({_listed(promised)}), {way} with {confidence}; the other groups go to a person. "
        f"{100 * evidence.automated / evidence.cases:.1f} % are automated; one threshold for all groups, promised for "
        f"each, would automate {100 * shared:.1f} %."
    )


def note_needed(small: list[str], fewest: int, missing: Mapping[str, int | None]) -> str:
    """About how many cases each `missing` group needs (None: more will not help); `small` ones have too few at all."""
    text = ""
    counts = [f"{name} {cases:,}" for name, cases in missing.items() if cases is not None]
    if counts:
        text = f" About this many cases would be needed in each if errors stay as rare: {_listed(counts)}."
    hopeless = [name for name, cases in missing.items() if cases is None]
    if hopeless:
        text += f" In {_listed(hopeless)} errors are too frequent: more cases will not help, a better model will."
    if small:
        text += f" Fewer than {fewest:,} cases ({_listed(small)}) cannot show it."
    return text


def _listed(names: list[str]) -> str:
    if len(names) > 8:
        return f"{', '.join(names[:8])} ..."
    return ", ".join(names)
