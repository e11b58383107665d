"""Whether a rule keeps its promise on new labelled cases."""

from dataclasses import dataclass

import numpy as np

from calibrant.decisions.bounds import interval
from calibrant.decisions.rule import RoutingRule
from calibrant.errors import InvalidInput
from calibrant.metrics.subgroups import group_rows
from calibrant.predictions import Predictions, names_or_numbers
from calibrant.tables import Displayed, ShownFields, Table


@dataclass(frozen=True)
class GroupCheck(ShownFields):
    """The check of all automated cases, or of those with one predicted class.

    Attributes:
        name: "all", or the class.
        automated: Automated cases.
        errors: How many are wrong.
        accuracy: Share that is right; None where nothing was automated.
        low: Lower end of its interval.
        high: Upper end.
        held: False where the whole interval lies below the promised accuracy.
    """

    name: str
    automated: int
    errors: int
    accuracy: float | None
    low: float
    high: float
    held: bool


@dataclass(frozen=True, repr=False)
class PromiseCheck(Displayed):
    """What new cases say about a rule's promise.

    Attributes:
        cases: Labelled cases.
        target_accuracy: What was promised.
        confidence: Confidence level of all intervals together.
        groups: One line, or one for each class or group where the rule promises for each.
        tested: False where no case is automated: then the cases say nothing about the promise.
        held: Whether every line held: no line's interval lies wholly below the target.
        reached: Whether every observed accuracy is at least the target; stricter than `held`, and fails by chance.
    """

    cases: int
    target_accuracy: float
    confidence: float
    groups: tuple[GroupCheck, ...]
    tested: bool
    held: bool
    reached: bool

    def _overview(self) -> Table:
        from calibrant.decisions.describe import check_overview

        return check_overview(self)


def check_promise(rule: RoutingRule, predictions: Predictions, *, confidence: float = 0.95) -> PromiseCheck:
    """Compare a rule's promise with labelled cases that it was not chosen on.

    The promise counts as broken where the cases contradict it: where the interval of the accuracy (Clopper-Pearson, and
    for per-class rules at (1 - confidence) / K) lies wholly below the target. A promise that is kept is called broken
    with probability at most (1 - confidence) / 2. A rule that promises for groups is checked on all cases and, where
    the cases have its column, in each of these groups, all lines together at this level. Class names decide over the
    order of columns; a rule without names is checked only on predictions without names, or with classes called 0..K-1.
    """
    if rule.target_accuracy is None:
        raise InvalidInput("rule must promise an accuracy to be checked, got one without target_accuracy.")
    predictions = rule.in_own_order(predictions)
    routed = rule.route(predictions)
    automate, wrong = routed.automate, routed.automate & (routed.predicted != predictions.targets)
    if rule.class_thresholds is None:
        groups = {"all": automate}
        if rule.groups is not None and rule.groups in predictions.extras:
            own = {each.name for each in rule.group_evidence or () if each.promised}
            for name, rows in group_rows(predictions, rule.groups).items():
                if name in own:
                    groups[f"{rule.groups} {name}"] = automate & np.isin(np.arange(len(automate)), rows)
    else:
        names = names_or_numbers(rule.class_names, rule.n_classes)
        groups = {name: automate & (routed.predicted == k) for k, name in enumerate(names)}
    inner = 1.0 - (1.0 - confidence) / len(groups)
    lines = []
    for name, chosen in groups.items():
        automated, errors = int(chosen.sum()), int((wrong & chosen).sum())
        low, high = interval(automated - errors, automated, confidence=inner)
        # Not 1 - errors / automated: 93 of 100 would be a little less than 0.93.
        accuracy = (automated - errors) / automated if automated else None
        lines.append(
            GroupCheck(name, automated, errors, accuracy, float(low), float(high), bool(high >= rule.target_accuracy))
        )
    reached = all(line.accuracy is None or line.accuracy >= rule.target_accuracy for line in lines)
    return PromiseCheck(
        cases=len(predictions),
        target_accuracy=rule.target_accuracy,
        confidence=confidence,
        groups=tuple(lines),
        tested=bool(automate.any()),
        held=all(line.held for line in lines),
        reached=reached,
    )
