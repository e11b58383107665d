"""Tests which thresholds keep a promise, strictest first, so that all tests together err with a given probability."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import positive
from calibrant.decisions.bounds import check_numbers, cluster_p_value, error_p_value
from calibrant.errors import invalid
from calibrant.tables import ShownFields

Starts = Sequence[float] | Mapping[float, float]
_PValue = Callable[[int], float]  # of "the accuracy is below the target" at the threshold of this number


def default_thresholds() -> NDArray[np.float64]:
    """The thresholds that are tested: 1 - t in equal ratios from 1e-7 to 1/2, then even steps down to 0.

    They are fixed before any data are seen, which the guarantee rests on. A threshold of 0 automates every case.
    """
    strict = 1.0 - np.geomspace(1e-7, 0.5, 240)
    return np.concatenate([strict, np.linspace(0.5, 0.0, 51)[1:]])


def default_starts(target_accuracy: float) -> dict[float, float]:
    """Thresholds at which the tests may begin, and the part of the error probability that each of them gets.

    They too are fixed in advance. For a calibrated model the threshold t = target is always safe, so half of the error
    probability is spent there. The rest is for models that are overconfident (stricter starts) or never very sure
    (looser starts).
    """
    a = 1.0 - target_accuracy
    stricter = [1 - a / 1000, 1 - a / 100, 1 - a / 10, 1 - a / 3]
    looser = {max(1 - 3 * a, 0.0), max(1 - 10 * a, 0.0), 0.5} - {target_accuracy}
    others = [*stricter, *sorted(looser, reverse=True)]
    return {target_accuracy: 0.5, **dict.fromkeys(others, 0.5 / len(others))}


@dataclass(frozen=True)
class Certificate(ShownFields):
    """The test of every threshold; arrays have the shape (m,)."""

    thresholds: NDArray[np.float64]  # strictest first
    cases: NDArray[np.int64]  # how many cases have at least this confidence
    errors: NDArray[np.int64]  # how many of these are wrong
    levels: NDArray[np.float64]  # error probability that was left for each test
    kept: NDArray[np.bool_]  # whether the accuracy at this threshold is shown to be at least the target
    largest_part: float  # the largest part of the error probability that a start gets


def certify(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    *,
    target_accuracy: float,
    level: float,
    thresholds: Sequence[float] | NDArray[Any] | None = None,
    starts: Starts | None = None,
    groups: Sequence[NDArray[np.int64]] = (),
    clusters: NDArray[np.int64] | None = None,
    largest_cluster: int | None = None,
    bounded: bool = True,
) -> Certificate:
    """Test "accuracy at confidence >= t is at least the target" for each t, strictest first (fallback procedure).

    Each start adds its part of `level` to what may be spent; a threshold that passes hands all it had to the next, one
    that fails loses it (Wiens 2003). With a single start this is fixed-sequence testing. The probability that any
    threshold is kept whose true accuracy is below the target is at most `level`: the first one wrongly kept spends at
    most the parts of the starts after the previous bad threshold; over all bad thresholds these add up to `level`. The
    cases must be independent draws. Nothing is assumed about how accuracy depends on confidence.

    Args:
        confidence: Top probabilities, shape (n,).
        correct: Whether each prediction is right, shape (n,).
        target_accuracy: The accuracy to show.
        level: Error probability of all tests together.
        thresholds: Fixed in advance, not read off these cases; None for `default_thresholds`.
        starts: Fixed in advance: thresholds with equal parts, or a mapping from threshold to part, which together make
            at most 1; None for `default_starts`.
        groups: Rows of each group that the target is to be shown for as well. A threshold passes if all cases and
            every group pass by themselves. That needs no correction for the number of groups: while any of them is
            below the target, its own test passes with probability at most its level (intersection-union test).
        clusters: Number of the cluster of each case if cases of one cluster depend on each other: then clusters are
            the independent draws.
        largest_cluster: Most cases that a cluster can have; None for the largest of these. If these are some cases of
            each cluster, such as those with one predicted class, a later cluster may have more of them than any here.
        bounded: Whether thresholds must lie in 0..1; False for a score without a scale.
    """
    if thresholds is None:
        thresholds = default_thresholds()
    grid = _strictest_first("thresholds", thresholds, bounded=bounded)
    parts = parts_of(starts, target_accuracy, bounded=bounded)
    # A start between two thresholds belongs to the next looser one; one below them all to the last.
    place = np.searchsorted(-grid, [-start for start in parts], side="left").clip(max=len(grid) - 1)
    gain = level * np.bincount(place, weights=list(parts.values()), minlength=len(grid))
    rows = [np.arange(len(confidence)), *groups]
    tests: list[_PValue] = []
    if clusters is not None and largest_cluster is None:
        largest_cluster = int(np.unique(clusters, return_counts=True)[1].max(initial=1))
    for own in rows:
        if clusters is None or largest_cluster is None:
            wrong = at_least(confidence[own][~correct[own]], grid)
            p_values: list[float] = error_p_value(
                wrong, at_least(confidence[own], grid), 1.0 - target_accuracy
            ).tolist()
            tests.append(p_values.__getitem__)
        else:
            each = confidence[own], correct[own], clusters[own]
            tests.append(_clustered_test(*each, grid, 1.0 - target_accuracy, largest_cluster))
    levels, kept, budget = [], [], 0.0
    # Plain numbers: a loop over an array makes an object for each of its entries, which takes most of the time.
    for at, part in enumerate(gain.tolist()):
        budget += part
        passed = budget > 0 and all(p_value(at) <= budget for p_value in tests)
        levels.append(budget)
        kept.append(passed)
        if not passed:
            budget = 0.0
    errors = at_least(confidence[~correct], grid)
    return Certificate(grid, at_least(confidence, grid), errors, np.array(levels), np.array(kept), float(gain.max()))


def _clustered_test(
    confidence: NDArray[np.float64],
    correct: NDArray[np.bool_],
    clusters: NDArray[np.int64],
    grid: NDArray[np.float64],
    largest_error: float,
    largest_cluster: int,
) -> _PValue:
    """Tests of cases in clusters, computed for the thresholds that are reached, which are few."""
    order = np.argsort(-confidence, kind="stable")
    numbers = np.unique(clusters, return_inverse=True)[1]
    ranked, wrong = numbers[order], ~correct[order]
    reached = at_least(confidence, grid)

    def p_value(at: int) -> float:
        some = ranked[: reached[at]]
        size = int(some.max(initial=0)) + 1
        errors = np.bincount(some[wrong[: reached[at]]], minlength=size)
        return cluster_p_value(np.bincount(some, minlength=size), errors, largest_error, largest_cluster)

    return p_value


def at_least(values: NDArray[np.float64], grid: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many values reach each threshold."""
    return np.asarray(len(values) - np.searchsorted(np.sort(values), grid, side="left"), dtype=np.int64)


def _strictest_first(name: str, values: Starts | NDArray[Any], *, bounded: bool) -> NDArray[np.float64]:
    if not bounded:
        return np.unique(np.asarray(list(values), dtype=np.float64))[::-1]
    return np.unique(check_numbers(name, values, "be numbers in 0..1, at least one"))[::-1]


def parts_of(starts: Starts | None, target_accuracy: float, *, bounded: bool = True) -> dict[float, float]:
    """The part of the error probability that each start gets, strictest first."""
    if starts is None:
        starts = default_starts(target_accuracy)
    places = _strictest_first("starts", starts, bounded=bounded)
    parts = [1.0 / len(places)] * len(places)
    if isinstance(starts, Mapping):
        parts = [positive("starts", starts[place]) for place in places]
    if sum(parts) > 1 + 1e-9:
        raise invalid("starts", "have parts that make at most 1 together", starts)
    return dict(zip(places.tolist(), parts, strict=True))
