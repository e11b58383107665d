"""One question that a stream is asked after every case, and its answer: what was expected, what seen, since when."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.deployment.betting import error_bounds, likeliest_start, log_ratios, promise_capital, rank_capital
from calibrant.deployment.ranks import conformal_ranks
from calibrant.tables import ShownFields

About = Literal[
    "promise", "shortlist", "sensitivity", "specificity", "share automated", "confidence", "predicted classes"
]
# What is promised, in words: the accuracy of what is automated, the true class on a list, cases not taken for others.
PROMISED = {
    "promise": "accuracy",
    "shortlist": "coverage of the shortlist",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}
# Probability that an interval of a group without a promise ever fails.
_DESCRIBED = 0.05
# Points of a curve on the page.
_POINTS = 400


@dataclass(frozen=True)
class Curve(ShownFields):
    """What was seen over time, at some cases.

    Attributes:
        case: Number of the case in the stream, from 1 on.
        seen: Mean of what is watched over all cases so far.
        recent: The same over the last cases.
        low: Lower end of the confidence sequence for the mean so far; empty where there is none.
        high: Upper end.
        evidence: Logarithm to base 10 of the capital of the bets.
    """

    case: tuple[int, ...]
    seen: tuple[float, ...]
    recent: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    evidence: tuple[float, ...]


@dataclass(frozen=True)
class Signal(ShownFields):
    """One test.

    Attributes:
        about: What is tested.
        group: "all", or whose cases; for the promise of one class or group.
        level: Probability that this test ever gives a false alarm.
        cases: Cases that it has seen.
        expected: What was promised, or what the calibration cases had.
        seen: The same of the cases seen; None without any.
        low: Lower end of the confidence sequence for the accuracy so far; None for other tests.
        high: Upper end.
        evidence: Logarithm to base 10 of the largest capital so far; an alarm is at -log10(level).
        alarm: Number of the case, from 1 on, at which the alarm was raised; None where there is none.
        since: Estimated number of the case from which on it drifts; None without an alarm.
        since_seen: `seen` of the cases from there on.
        detail: What changed most, in words; may be empty.
        curve: What was seen over time.
    """

    about: About
    group: str
    level: float
    cases: int
    expected: float
    seen: float | None
    low: float | None
    high: float | None
    evidence: float
    alarm: int | None
    since: int | None
    since_seen: float | None
    detail: str
    curve: Curve

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Plain JSON values, with the curve on request."""
        content = asdict(self)
        if not curves:
            del content["curve"]
        return content


@dataclass(frozen=True)
class GroupShare(ShownFields):
    """What was seen in a group that nothing was promised for: a description, not a test.

    Attributes:
        about: Which promise the share belongs to; it was made for all cases together.
        group: Whose cases.
        cases: Labelled cases.
        seen: Share of them that is right.
        low: Lower end of its 95 % confidence sequence; it holds at every look, for this group by itself.
        high: Upper end.
    """

    about: About
    group: str
    cases: int
    seen: float
    low: float
    high: float


@dataclass(frozen=True)
class Clusters:
    """Which cases depend on each other.

    Attributes:
        numbers: Number of the cluster of each case, shape (n,); cases of one cluster stand together.
        largest: Most cases that a cluster can have.
    """

    numbers: NDArray[np.int64]
    largest: int

    def among(self, chosen: NDArray[np.bool_]) -> "Clusters":
        """The clusters of some cases."""
        return Clusters(self.numbers[chosen], self.largest)

    @classmethod
    def of_one(cls, cases: int) -> "Clusters":
        """Every case by itself."""
        return cls(np.arange(cases), 1)

    @property
    def first(self) -> NDArray[np.int64]:
        """Place of the first case of each cluster."""
        return np.flatnonzero(np.diff(self.numbers, prepend=-1) != 0)

    @property
    def last(self) -> NDArray[np.int64]:
        """Place of the last case of each cluster."""
        return np.append(self.first, len(self.numbers))[1:] - 1


def group_share(right: NDArray[np.bool_], *, group: str, about: About, clusters: Clusters | None = None) -> GroupShare:
    """Describe a group that nothing was promised for.

    Args:
        right: Whether each labelled case is right; at least one.
        group: Whose cases they are.
        about: Which promise the share belongs to.
        clusters: Which cases depend on each other; None for none.
    """
    members = clusters or Clusters.of_one(len(right))
    cases, draws = np.array([len(right)]), np.array([len(members.first)])
    low, high = error_bounds(cases - right.sum(), cases, _DESCRIBED, clusters=draws, largest=members.largest)
    return GroupShare(about, group, len(right), float(right.mean()), float(1.0 - high[0]), float(1.0 - low[0]))


def promise_signal(
    rows: NDArray[np.int64],
    right: NDArray[np.bool_],
    *,
    group: str,
    target_accuracy: float,
    level: float,
    about: About = "promise",
    clusters: Clusters | None = None,
) -> Signal:
    """Whether the accuracy of automated cases, or another share of right ones, is below what was promised.

    Args:
        rows: Places of the labelled cases of the promise in the stream, in the order in which their labels came.
        right: Whether each is right.
        group: Whose cases they are.
        target_accuracy: What was promised.
        level: Probability of a false alarm, ever.
        about: Which promise.
        clusters: Which cases depend on each other: then each cluster is one bet. None for none.
    """
    members = clusters or Clusters.of_one(len(rows))
    first, last = members.first, members.last
    wrong = np.add.reduceat((~right).astype(np.int64), first) if len(rows) else np.zeros(0, dtype=np.int64)
    bets = _Bets(wrong, last - first + 1, 1.0 - target_accuracy, members.largest)
    capital = bets.capital() if len(rows) else np.zeros(0)
    alarm, since = _first_over(capital, level), None
    if alarm is not None:
        since = int(first[bets.likeliest_change(alarm)])
    shown = _shown(len(first))
    errors = np.cumsum(wrong)
    low, high = error_bounds(errors[shown], last[shown] + 1, level, clusters=shown + 1, largest=members.largest)
    return Signal(
        about=about,
        group=group,
        level=level,
        cases=len(rows),
        expected=target_accuracy,
        seen=float(right.mean()) if len(rows) else None,
        low=float(1.0 - high[-1]) if len(rows) else None,
        high=float(1.0 - low[-1]) if len(rows) else None,
        evidence=_log10(capital.max(initial=0.0)),
        alarm=None if alarm is None else int(rows[last[alarm]]) + 1,
        since=None if since is None else int(rows[since]) + 1,
        since_seen=None if since is None else float(right[since:].mean()),
        detail="",
        curve=_curve(rows, right.astype(np.float64), capital[shown], last[shown], 1.0 - high, 1.0 - low),
    )


@dataclass(frozen=True)
class _Bets:
    """Bets on the errors of clusters, or of single cases."""

    errors: NDArray[np.int64]
    cases: NDArray[np.int64]
    largest_error: float
    largest: int

    def capital(self) -> NDArray[np.float64]:
        return promise_capital(self.errors, self.largest_error, cases=self.cases, largest=self.largest)

    def likeliest_change(self, alarm: int) -> int:
        """The bet up to the alarm from which on the errors so far are best explained by a larger error rate."""
        best, place = -np.inf, 0
        for ratios in log_ratios(self.errors, self.largest_error, cases=self.cases, largest=self.largest):
            total = np.cumsum(ratios)
            gain = total[-1] - (total - ratios)[: alarm + 1]
            at = int(np.argmax(gain))
            best, place = (float(gain[at]), at) if gain[at] > best else (best, place)
        return place


def sameness_signal(
    about: About,
    reference: NDArray[Any],
    new: NDArray[Any],
    *,
    level: float,
    rows: NDArray[np.int64],
    names: tuple[str, ...] | None = None,
    seed: int = 0,
) -> Signal:
    """Whether new values still come as the reference did.

    Args:
        about: What the values are.
        reference: Those of the calibration cases, shape (m,).
        new: Those of the new cases in order, shape (n,).
        level: Probability of a false alarm, ever.
        rows: Places of the new cases in the stream, shape (n,).
        names: For values that are class numbers: their names.
        seed: Of the random choice between equal values.
    """
    ranks = conformal_ranks(reference, new, seed=seed)
    capital = rank_capital(ranks)
    alarm = _first_over(capital, level)
    since = None if alarm is None else likeliest_start(ranks[: alarm + 1])
    common = None if names is None else int(np.bincount(reference).argmax())
    measure = np.asarray(new if common is None else new == common, dtype=np.float64)
    before = np.asarray(reference if common is None else reference == common, dtype=np.float64)
    detail = ""
    if names is not None and since is not None:
        detail = _changed_most(reference, new[since:], names)
    shown, none = _shown(len(new)), np.empty(0)
    return Signal(
        about=about,
        group="all",
        level=level,
        cases=len(new),
        expected=float(before.mean()),
        seen=float(measure.mean()),
        low=None,
        high=None,
        evidence=_log10(capital.max()),
        alarm=None if alarm is None else int(rows[alarm]) + 1,
        since=None if since is None else int(rows[since]) + 1,
        since_seen=None if since is None else float(measure[since:].mean()),
        detail=detail,
        curve=_curve(rows, measure, capital[shown], shown, none, none),
    )


def _changed_most(reference: NDArray[Any], new: NDArray[Any], names: tuple[str, ...]) -> str:
    before = np.bincount(reference, minlength=len(names)) / len(reference)
    after = np.bincount(new, minlength=len(names)) / len(new)
    most = int(np.abs(after - before).argmax())
    return f"{names[most]}: {100 * before[most]:.1f} % of the calibration cases, {100 * after[most]:.1f} % since then"


def _first_over(capital: NDArray[np.float64], level: float) -> int | None:
    over = capital >= -np.log(level)
    return int(over.argmax()) if over.any() else None


def _shown(cases: int) -> NDArray[np.int64]:
    """Places of the cases that a curve shows: all, or evenly spread ones with the last."""
    return np.unique(np.linspace(0, cases - 1, min(cases, _POINTS)).round().astype(np.int64))


def _curve(
    rows: NDArray[np.int64],
    values: NDArray[np.float64],
    capital: NDArray[np.float64],
    shown: NDArray[np.int64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> Curve:
    total = np.concatenate([[0.0], np.cumsum(values)])
    # A twentieth of the stream, and enough of it to see a rate of errors at all.
    window = max(50, len(values) // 20)
    first = np.maximum(shown + 1 - window, 0)
    recent = (total[shown + 1] - total[first]) / (shown + 1 - first)
    evidence = [_log10(value) for value in capital]
    seen = total[shown + 1] / (shown + 1)
    return Curve(
        case=tuple((rows[shown] + 1).tolist()),
        seen=tuple(seen.tolist()),
        recent=tuple(recent.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        evidence=tuple(evidence),
    )


def _log10(capital: float) -> float:
    return float(capital / np.log(10.0))
