"""Whether the promises of a policy held on new labelled cases."""

from dataclasses import asdict, dataclass
from typing import Any

from calibrant.decisions.check import PromiseCheck, check_promise
from calibrant.decisions.describe import describe_check, describe_shortlist_check
from calibrant.decisions.policy import Policy
from calibrant.decisions.shortlist import Shortlist, ShortlistCheck, check_shortlist
from calibrant.predictions import Predictions
from calibrant.tables import ShownFields


@dataclass(frozen=True)
class Verdict(ShownFields):
    """What new cases say about the promises of a rule and of its shortlist.

    Attributes:
        cases: Labelled cases.
        promise: About the rule; None for a rule of costs alone, which promises nothing.
        listed: About the shortlist; None without one.
        shortlist: The shortlist, where there is one.
        strict: Whether an observed accuracy below the promised one counts as broken, although that can be chance.
    """

    cases: int
    promise: PromiseCheck | None
    listed: ShortlistCheck | None
    shortlist: Shortlist | None
    strict: bool

    @property
    def broken(self) -> list[str]:
        """One sentence for each promise that was not kept."""
        return [*self._broken_accuracy(), *self._broken_shortlist()]

    def _broken_accuracy(self) -> list[str]:
        result = self.promise
        if result is None or (result.reached if self.strict else result.held):
            return []
        missed = [
            line
            for line in result.groups
            if line.accuracy is not None and (not line.held or (self.strict and line.accuracy < result.target_accuracy))
        ]
        what = ", ".join(f"{line.name} {_seen(line.accuracy, line.low, line.high)}" for line in missed)
        return [f"the promised accuracy of {100 * result.target_accuracy:.6g} % was not kept: {what}"]

    def _broken_shortlist(self) -> list[str]:
        if self.shortlist is None or self.listed is None or self.listed.held:
            return []
        seen = _seen(self.listed.covered, self.listed.low, self.listed.high)
        return [f"the promised share of {100 * self.shortlist.coverage:.6g} % on the shortlist was not kept: {seen}"]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        content: dict[str, Any] = {"cases": self.cases} if self.promise is None else asdict(self.promise)
        if self.shortlist is not None and self.listed is not None:
            content["shortlist"] = {"coverage": self.shortlist.coverage, **asdict(self.listed)}
        return {**content, "strict": self.strict, "passed": not self.broken}

    def describe(self) -> str:
        """The same for a person."""
        lines = [] if self.promise is None else [describe_check(self.promise)]
        if self.shortlist is not None and self.listed is not None:
            lines.append(describe_shortlist_check(self.shortlist, self.listed))
        return "\n".join(lines)


def check_policy(
    policy: Policy, predictions: Predictions, *, confidence: float = 0.95, strict: bool = False
) -> Verdict:
    """Check what a policy promises on new labelled cases; warn if a part of it was fitted on these cases.

    Args:
        policy: Its rule and, if it has one, its shortlist are checked. A rule of costs alone promises nothing and is
            checked only through its shortlist.
        predictions: Labelled cases with raw scores.
        confidence: Of the intervals. A promise counts as broken if its whole interval lies below it.
        strict: Count the accuracy as broken already if the observed one is below it; that can be chance.
    """
    policy.warn_if_seen(predictions)
    calibrated = policy.calibrate(predictions)
    rule, shortlist = policy.routing, policy.shortlist
    alone = shortlist is not None and rule.target_accuracy is None
    promise = None if alone else check_promise(rule, calibrated, confidence=confidence)
    listed = None
    if shortlist is not None:
        listed = check_shortlist(shortlist, calibrated, rule=rule, confidence=confidence)
    return Verdict(len(predictions), promise, listed, shortlist, strict)


def _seen(share: float | None, low: float, high: float) -> str:
    return f"{100 * (share or 0.0):.2f} % [{100 * low:.2f}, {100 * high:.2f}]"
