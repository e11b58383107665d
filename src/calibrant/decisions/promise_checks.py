"""Whether the promises of a rule, a shortlist or a whole policy held on new labelled cases."""

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.bounds import cluster_interval, interval
from calibrant.decisions.policy import Policy
from calibrant.decisions.rule import RoutingRule
from calibrant.decisions.shortlist import ShortlistCheck, check_shortlist
from calibrant.decisions.weights import as_in_use
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.metrics.metric import check_clusters
from calibrant.metrics.subgroups import group_rows
from calibrant.predictions import Predictions, names_or_numbers
from calibrant.tables import Displayed, ShownFields, Table, plain_table


@dataclass(frozen=True)
class GroupCheck(ShownFields):
    """The check of all automated cases, of those with one predicted class, or of one group."""

    name: str  # "all", the class or the group
    automated: int
    errors: int  # automated cases that are wrong
    accuracy: float | None  # None if nothing was automated
    low: float  # ends of its interval
    high: float
    held: bool  # False if the whole interval lies below the promised accuracy


@dataclass(frozen=True, repr=False)
class PromiseCheck(Displayed):
    """What new cases say about a rule's promise, with a line for each class or group that it is made for.

    The promise is `held` if no line's interval lies wholly below the target, and `reached` if every observed accuracy
    is at least the target, which fails by chance, too. It is not `tested` if no case is automated.
    """

    cases: int
    target_accuracy: float
    confidence: float  # of all intervals together
    groups: tuple[GroupCheck, ...]
    tested: bool
    held: bool
    reached: bool

    def describe(self) -> str:
        """A table with a line for each group, and the verdict."""
        overview = self._overview()
        rows = [tuple(str(cell) for cell in row) for row in overview.rows]
        return f"{plain_table(tuple(overview.columns), rows)}\n{overview.title}"

    def _overview(self) -> Table:
        headings = (
            "group",
            "automated",
            "wrong",
            "accuracy %",
            f"{100 * self.confidence:g} % interval",
            "promise held",
        )
        rows = []
        for line in self.groups:
            accuracy = held = "-"
            if line.accuracy is not None:
                accuracy = f"{100 * line.accuracy:.2f}"
                held = "yes" if line.held else "NO"
            ends = f"{100 * line.low:.2f} to {100 * line.high:.2f}"
            rows.append((line.name, f"{line.automated:,}", f"{line.errors:,}", accuracy, ends, held))
        verdict = "holds on"
        if not self.held:
            verdict = "is contradicted by"
        elif not self.reached:
            verdict = "is missed, but by no more than chance, on"
        sentence = f"The promised accuracy of {100 * self.target_accuracy:.6g} % {verdict} {self.cases:,} cases."
        if not self.tested:
            sentence = f"No case is automated: {self.cases:,} cases say nothing about the promised accuracy."
        return Table(sentence, rows, headings)


def check_promise(rule: RoutingRule, predictions: Predictions, *, confidence: float = 0.95) -> PromiseCheck:
    """Compare a rule's promise with labelled cases that it was not chosen on.

    The promise counts as broken if the cases contradict it: if the interval of the accuracy (Clopper-Pearson, and for
    per-class rules at (1 - confidence) / K) lies wholly below the target. A promise that is kept is called broken with
    probability at most (1 - confidence) / 2. A rule that promises for groups is checked on all cases and, if the cases
    have its column, in each of these groups, all lines together at this level. Class names decide over the order of
    columns; a rule without names is checked only on predictions without names, or with classes called 0..K-1.

    If the rule was chosen on clusters, the cases must have its column, and the interval comes from bets on whole
    clusters (`bounds.cluster_interval`), as the promise did. If it was chosen on cases drawn by weights and the cases
    have that column, they are drawn by it, too.
    """
    if rule.target_accuracy is None:
        raise InvalidInput("There is no promise to check. Fit a rule first: calibrant route fit, or choose_threshold.")
    predictions = as_in_use(rule, rule.in_own_order(predictions))
    routed = rule.route(predictions)
    automate, correct = routed.automate, routed.predicted == predictions.targets
    lines = _lines(rule, predictions, routed.predicted)
    level = 1.0 - (1.0 - confidence) / len(lines)
    clusters, n_clusters, largest = None, 0, rule.largest_cluster or 1
    if rule.cluster_column is not None:
        clusters = check_clusters(predictions, rule.cluster_column)
        sizes = np.bincount(clusters)
        n_clusters, largest = len(sizes), max(largest, int(sizes.max()))
    checks = []
    for name, rows in lines.items():
        automated, right = int(automate[rows].sum()), int((automate & correct)[rows].sum())
        if clusters is None:
            low, high = interval(right, automated, confidence=level)
        else:
            own = clusters[rows][automate[rows]]
            errors = np.bincount(own[~correct[rows][automate[rows]]], minlength=n_clusters)
            low, high = cluster_interval(np.bincount(own, minlength=n_clusters), errors, largest, confidence=level)
        accuracy = None
        if automated:
            accuracy = right / automated  # not 1 - errors / automated: 93 of 100 would be a little less than 0.93
        held = bool(high >= rule.target_accuracy)
        checks.append(GroupCheck(name, automated, automated - right, accuracy, float(low), float(high), held))
    return PromiseCheck(
        cases=len(predictions),
        target_accuracy=rule.target_accuracy,
        confidence=confidence,
        groups=tuple(checks),
        tested=bool(automate.any()),
        held=all(line.held for line in checks),
        reached=all(line.accuracy is None or line.accuracy >= rule.target_accuracy for line in checks),
    )


def _lines(rule: RoutingRule, predictions: Predictions, predicted: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """The rows of everything that the rule promises its accuracy for."""
    if rule.class_thresholds is not None:
        names = names_or_numbers(rule.class_names, rule.n_classes)
        return {name: np.flatnonzero(predicted == k) for k, name in enumerate(names)}
    lines = {"all": np.arange(len(predictions))}
    if rule.groups is not None and rule.groups in predictions.extras:
        promised = {group.name for group in rule.group_evidence or () if group.promised}
        for name, rows in group_rows(predictions, rule.groups).items():
            if name in promised:
                lines[f"{rule.groups} {name}"] = rows
        if promised and len(lines) == 1:
            there = ", ".join(sorted(promised)[:5])
            text = f"No case is in a group that the rule promises for ({rule.groups}: {there})."
            warnings.warn(f"{text} Only all cases are checked.", CalibrantWarning, stacklevel=3)
    return lines


@dataclass(frozen=True)
class Verdict(ShownFields):
    """What new cases say about the promises of a rule and of its shortlist."""

    cases: int
    promise: PromiseCheck | None  # None for a rule that promises nothing
    listed: ShortlistCheck | None  # None without a shortlist

    @property
    def broken(self) -> list[str]:
        """One sentence for each promise that was not kept."""
        sentences = []
        if self.promise is not None:
            target = self.promise.target_accuracy
            missed = [
                f"{line.name} {_seen(line.accuracy, line.low, line.high)}"
                for line in self.promise.groups
                if not line.held
            ]
            if missed:
                sentences.append(f"the promised accuracy of {100 * target:.6g} % was not kept: {', '.join(missed)}")
        if self.listed is not None and not self.listed.held:
            seen = _seen(self.listed.covered, self.listed.low, self.listed.high)
            promised = f"{100 * self.listed.coverage:.6g} % on the shortlist"
            sentences.append(f"the promised share of {promised} was not kept: {seen}")
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        content: dict[str, Any] = {"cases": self.cases}
        if self.promise is not None:
            content = asdict(self.promise)
        if self.listed is not None:
            content["shortlist"] = asdict(self.listed)
        return {**content, "passed": not self.broken}

    def describe(self) -> str:
        """The same for a person."""
        return "\n".join(part.describe() for part in (self.promise, self.listed) if part is not None)


def check_policy(policy: Policy, predictions: Predictions, *, confidence: float = 0.95) -> Verdict:
    """Check what a policy promises on new labelled cases; warn if a part of it was fitted on these cases.

    Args:
        policy: Its rule and, if it has one, its shortlist are checked. A rule without a promise is checked only through
            its shortlist.
        predictions: Labelled cases with raw scores.
        confidence: Of the intervals. A promise counts as broken if its whole interval lies below it.
    """
    policy.warn_if_seen(predictions)
    calibrated = policy.calibrate(predictions)
    rule, shortlist = policy.routing, policy.shortlist
    promise = listed = None
    if rule.target_accuracy is not None or shortlist is None:
        promise = check_promise(rule, calibrated, confidence=confidence)
    if shortlist is not None:
        listed = check_shortlist(shortlist, calibrated, rule=rule, confidence=confidence)
    return Verdict(len(predictions), promise, listed)


def _seen(share: float | None, low: float, high: float) -> str:
    return f"{100 * (share or 0.0):.2f} % [{100 * low:.2f}, {100 * high:.2f}]"
