"""The sequential tests of a monitor and their results: expected, seen, evidence, alarm, since when."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.deployment.betting import (
    conformal_ranks,
    error_bounds,
    final_rank_capital,
    likeliest_start,
    log_ratios,
    promise_capital,
    rank_capital,
)
from calibrant.tables import ShownFields

Places = NDArray[np.int64]
About = Literal[
    "promise", "shortlist", "sensitivity", "specificity", "share automated", "confidence", "predicted classes"
]
# What is promised, in words. Tests of other things compare the stream with the calibration cases.
PROMISED = {
    "promise": "accuracy",
    "shortlist": "coverage of the shortlist",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}
# Consecutive cases among which labels are compared, the level of that comparison, and the least share of cases without
# a label: if nearly all are labelled, nothing is left that the labels might not stand for.
_STRETCH = 20
_UNFAIR_LEVEL = 0.01
_UNLABELLED = 0.1
# Probability that an interval of a group without a promise ever fails.
_DESCRIBED = 0.05
# Points of a curve on the page.
_POINTS = 400


@dataclass(frozen=True)
class Curve(ShownFields):
    """What was seen over time, at some cases.

    Attributes:
        case: Number of the case in the stream, from 1 on.
        seen: Mean of what is tested over all cases so far.
        recent: The same over the last cases.
        low: Lower end of the confidence sequence for the mean so far; empty if there is none.
        high: Upper end.
        evidence: Logarithm to base 10 of the capital of the bets.
    """

    case: tuple[int, ...] = ()
    seen: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    evidence: tuple[float, ...] = ()


@dataclass(frozen=True)
class Signal(ShownFields):
    """A sequential test and its result.

    Attributes:
        about: What is tested.
        group: "all", or the class or group whose cases are tested.
        level: Probability that this test ever gives a false alarm.
        cases: Number of cases it has seen.
        expected: What was promised, or what the calibration cases had.
        seen: The same of the cases seen; None without any.
        low: Lower end of the confidence sequence for the share of right cases so far; None for other tests.
        high: Upper end.
        evidence: Logarithm to base 10 of the largest capital so far. An alarm is raised at -log10(level).
        alarm: Number of the case, from 1 on, at which the alarm was raised; None without an alarm.
        since: Estimated number of the case at which the drift began; None without an alarm.
        since_seen: `seen` of the cases from `since` on.
        detail: What changed most, in words; may be empty.
        curve: What was seen over time.
    """

    about: About
    group: str
    level: float
    cases: int
    expected: float
    seen: float | None = None
    low: float | None = None
    high: float | None = None
    evidence: float = 0.0
    alarm: int | None = None
    since: int | None = None
    since_seen: float | None = None
    detail: str = ""
    curve: Curve = Curve()

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Plain JSON values, with the curve on request."""
        content = asdict(self)
        if not curves:
            del content["curve"]
        return content


@dataclass(frozen=True)
class GroupShare(ShownFields):
    """What was seen in a group without a promise of its own: a description, not a test.

    Attributes:
        about: The promise that the share belongs to. It was made for all cases together.
        group: Name of the group.
        cases: Number of labelled cases.
        seen: Share of them that is right.
        low: Lower end of its 95 % confidence sequence, which holds at every look for this group by itself.
        high: Upper end.
    """

    about: About
    group: str
    cases: int
    seen: float
    low: float
    high: float


@dataclass(frozen=True)
class Labelling(ShownFields):
    """Whether the labelled cases look like the unlabelled ones in confidence.

    Attributes:
        labelled: Number of labelled cases that were compared.
        unlabelled: Number of cases without a label that they were compared with.
        labelled_confidence: Mean confidence of the labelled cases.
        unlabelled_confidence: Mean confidence of the cases without a label.
        evidence: Logarithm to base 10 of the capital of a bet that labels depend on confidence.
        fair: False if they do: then labels say little about the other cases. Falsely so with a probability of at most
            0.01, however often one looks.
    """

    labelled: int
    unlabelled: int
    labelled_confidence: float
    unlabelled_confidence: float
    evidence: float
    fair: bool


def compare_labelled(confidence: NDArray[np.float64], order: NDArray[np.int64], *, seed: int = 0) -> Labelling | None:
    """Test whether labels come for cases of any confidence; None if no stretch has a label and a case without one.

    Cases are compared within stretches of 20 consecutive ones, so that a drift of the confidence does not matter. If
    every case of a stretch is equally likely to be labelled next, the rank of its confidence among those that were not
    labelled before is uniform and independent of all other such ranks. The capital does not depend on the order of the
    ranks, so a later look adds to what an earlier one saw. `order` is that in which labels came, from 1 on, and 0 for a
    case without one.
    """
    whole = len(confidence) // _STRETCH * _STRETCH
    values, came = confidence[:whole].reshape(-1, _STRETCH), order[:whole].reshape(-1, _STRETCH)
    labelled = came > 0
    came = np.where(labelled, came, np.iinfo(np.int64).max)
    draws = np.random.default_rng(seed).random(values.shape)
    ranks = []
    for place in range(_STRETCH):
        left = came >= came[:, place, None]
        below = (left & (values < values[:, place, None])).sum(axis=1)
        equal = (left & (values == values[:, place, None])).sum(axis=1)
        counts = labelled[:, place] & (left.sum(axis=1) > 1)
        ranks.append(((below + draws[:, place] * equal) / left.sum(axis=1))[counts])
    others = ~labelled & labelled.any(axis=1, keepdims=True)
    if not others.any():
        return None
    capital = final_rank_capital(np.concatenate(ranks))
    left_out = others.sum() / (labelled.sum() + others.sum())
    fair = capital < -np.log(_UNFAIR_LEVEL) or left_out < _UNLABELLED
    means = float(values[labelled].mean()), float(values[others].mean())
    return Labelling(int(labelled.sum()), int(others.sum()), *means, float(capital / np.log(10.0)), bool(fair))


@dataclass(frozen=True)
class Clusters:
    """The number of each case's cluster and the most cases that one can have. Cases of a cluster are consecutive."""

    numbers: NDArray[np.int64]
    largest: int

    def among(self, chosen: NDArray[np.bool_]) -> "Clusters":
        """The clusters of some cases."""
        return Clusters(self.numbers[chosen], self.largest)

    @property
    def first(self) -> NDArray[np.int64]:
        """Place of the first case of each cluster."""
        return np.flatnonzero(np.diff(self.numbers, prepend=-1) != 0)

    @property
    def last(self) -> NDArray[np.int64]:
        """Place of the last case of each cluster."""
        return np.append(self.first, len(self.numbers))[1:] - 1


def group_share(right: NDArray[np.bool_], clusters: Clusters, *, group: str, about: About) -> GroupShare:
    """Describe a group without a promise of its own, from whether each of its labelled cases is right."""
    cases, draws = np.array([len(right)]), np.array([len(clusters.first)])
    low, high = error_bounds(cases - right.sum(), cases, _DESCRIBED, clusters=draws, largest=clusters.largest)
    return GroupShare(about, group, len(right), float(right.mean()), float(1.0 - high[0]), float(1.0 - low[0]))


def promise_signal(
    rows: Places, right: NDArray[np.bool_], clusters: Clusters, *, group: str, target: float, level: float, about: About
) -> Signal:
    """Test whether the share of right cases is below the promised one, `target`.

    `rows` are the places of the labelled cases in the stream, in the order in which their labels came, and `right` says
    whether each is right. Each cluster is one bet.
    """
    if len(rows) == 0:
        return Signal(about, group, level, 0, target)
    first, last = clusters.first, clusters.last
    errors, sizes = np.add.reduceat((~right).astype(np.int64), first), last - first + 1
    capital = promise_capital(errors, 1.0 - target, cases=sizes, largest=clusters.largest)
    change = None
    over = _first_over(capital, level)
    if over is not None:
        ratios = log_ratios(errors, 1.0 - target, cases=sizes, largest=clusters.largest)
        change = int(first[_likeliest_change(ratios, over)])
    shown = _shown(len(first))
    total = np.cumsum(errors)[shown]
    low, high = error_bounds(total, last[shown] + 1, level, clusters=shown + 1, largest=clusters.largest)
    signal = _signal(about, level, target, rows, right, capital, last, over, change)
    curve = replace(signal.curve, low=tuple((1.0 - high).tolist()), high=tuple((1.0 - low).tolist()))
    evidence = max(signal.evidence, 0.0)
    return replace(signal, group=group, low=curve.low[-1], high=curve.high[-1], evidence=evidence, curve=curve)


def _likeliest_change(log_ratios_by_rate: list[NDArray[np.float64]], alarm: int) -> int:
    """The bet, up to the alarm, that had to be the first one to win most by the last one, at the best error rate."""
    best, place = -np.inf, 0
    for ratios in log_ratios_by_rate:
        total = np.cumsum(ratios)
        gain = total[-1] - (total - ratios)[: alarm + 1]
        likeliest = int(np.argmax(gain))
        if gain[likeliest] > best:
            best, place = float(gain[likeliest]), likeliest
    return place


def sameness_signal(
    about: About,
    reference: NDArray[Any],
    new: NDArray[Any],
    *,
    level: float,
    rows: Places,
    names: tuple[str, ...] | None = None,
    seed: int = 0,
) -> Signal:
    """Test whether new values, in order, are still distributed like those of the reference, the calibration cases.

    `rows` are the places of the new cases in the stream; `names` those of the classes, if values are their numbers.
    """
    ranks = conformal_ranks(reference, new, seed=seed)
    classes = None
    before, after = reference, new
    if names is not None:
        classes = len(names)
        # One number to show: the share of the class that is the most frequent in the reference.
        commonest = np.bincount(reference).argmax()
        before, after = reference == commonest, new == commonest
    capital = rank_capital(ranks, classes=classes)
    change, detail = None, ""
    over = _first_over(capital, level)
    if over is not None:
        change = likeliest_start(ranks[: over + 1], classes=classes)
        if names is not None:
            shares = [np.bincount(some, minlength=len(names)) / len(some) for some in (reference, new[change:])]
            most = int(np.abs(shares[1] - shares[0]).argmax())
            was, now = 100 * shares[0][most], 100 * shares[1][most]
            detail = f"{names[most]}: {was:.1f} % of the calibration cases, {now:.1f} % since then"
    expected = float(np.asarray(before, dtype=np.float64).mean())
    signal = _signal(about, level, expected, rows, after, capital, np.arange(len(new)), over, change)
    return replace(signal, detail=detail)


def _signal(
    about: About,
    level: float,
    expected: float,
    rows: Places,
    values: NDArray[Any],
    capital: NDArray[np.float64],
    last: Places,
    over: int | None,
    change: int | None,
) -> Signal:
    """The result of a test without bounds.

    `values` are those of the cases at `rows` of the stream. `capital` is that after each bet, whose last case is
    `last`. The bet `over` raised the alarm, and the drift began at the case `change`.
    """
    measure = np.asarray(values, dtype=np.float64)
    alarm = since = since_seen = None
    if over is not None and change is not None:
        alarm, since, since_seen = int(rows[last[over]]) + 1, int(rows[change]) + 1, float(measure[change:].mean())
    shown = _shown(len(capital))
    cases = last[shown] + 1
    total = np.concatenate([[0.0], np.cumsum(measure)])
    # A twentieth of the stream, but at least enough to show a rate.
    first = np.maximum(cases - max(50, len(measure) // 20), 0)
    curve = Curve(
        case=tuple((rows[last[shown]] + 1).tolist()),
        seen=tuple((total[cases] / cases).tolist()),
        recent=tuple(((total[cases] - total[first]) / (cases - first)).tolist()),
        evidence=tuple((capital[shown] / np.log(10.0)).tolist()),
    )
    return Signal(
        about=about,
        group="all",
        level=level,
        cases=len(rows),
        expected=expected,
        seen=float(measure.mean()),
        evidence=float(capital.max() / np.log(10.0)),
        alarm=alarm,
        since=since,
        since_seen=since_seen,
        curve=curve,
    )


def _first_over(capital: NDArray[np.float64], level: float) -> int | None:
    over = np.flatnonzero(capital >= -np.log(level))
    return int(over[0]) if len(over) else None


def _shown(bets: int) -> Places:
    """Places of the bets that a curve shows: all, or evenly spaced ones and the last."""
    return np.unique(np.linspace(0, bets - 1, min(bets, _POINTS)).round().astype(np.int64))
