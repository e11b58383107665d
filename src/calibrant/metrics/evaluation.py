"""`evaluate`: every metric of one set of predictions in one typed result."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, whole
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.display import Overview
from calibrant.errors import InvalidInput, invalid
from calibrant.files import typed
from calibrant.metrics.binning import bin_edges, check_bins, sum_bins
from calibrant.metrics.confident import ConfidentSet, check_threshold, confident_of
from calibrant.metrics.errors import balanced_error, debiased_error
from calibrant.metrics.names import METRICS, SET_METRICS, set_metric
from calibrant.metrics.noise import noise_of
from calibrant.metrics.ranking import Ranking
from calibrant.metrics.result import Result
from calibrant.metrics.smooth import smooth_of
from calibrant.metrics.tops import SortedTops, Weights
from calibrant.metrics.totals import read_totals
from calibrant.predictions import Predictions, require_predictions

Interval = tuple[float, float]
FEWEST_RESAMPLES = 20
"""With fewer, not even the range of all draws would be a 90 % interval."""
MOST_ROWS_BY_DEFAULT = 100_000
"""Beyond these, intervals are computed only where somebody asks for them."""
NO_INTERVALS = (
    f"No intervals: above {MOST_ROWS_BY_DEFAULT:,} rows they are left out unless you ask for them (--n-resamples 200)."
)


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """All metrics, as fractions; docs/metrics.md defines each.

    Attributes:
        n: Rows.
        n_classes: Classes; "classes" in JSON.
        n_bins: Bins of the binned metrics.
        test_error: Share of wrong predictions.
        nll: Mean negative log likelihood; infinite where a target has probability 0 (null in JSON).
        brier: Brier score, summed over classes.
        ece: Expected calibration error, equal-width bins.
        ece_equal_mass: The same over bins of equal mass.
        mce: Largest gap of an equal-width bin.
        classwise_ece: Mean over classes of the class's ECE.
        smooth_ece: Smooth ECE.
        debiased_ece: Debiased L2 calibration error.
        ks: Kolmogorov-Smirnov calibration error.
        auroc: Of confidence for correctness; None where all rows are right or all are wrong.
        aurc: Area under the risk-coverage curve.
        noise_floor: Mean ECE of a perfectly calibrated model with these confidences.
        noise_floor_95: Its 95 % quantile.
        thresholds: The high-confidence sets.
        intervals: Metric name (for a set: "share@0.95") to its interval; None unless asked for.
            MCE, class-wise ECE and debiased ECE never have one.
        level: Level of the intervals; None without them.
        balanced_error: Mean over classes of the class's error; None in evaluations of older versions. See
            `evaluate_classes` for each class.
        rounding: Largest errors of metrics that were computed from rounded confidences, by name; None where all are
            exact, which is everywhere but in `evaluate_parts` of very many rows.
    """

    n: int
    n_classes: int
    n_bins: int
    test_error: float
    nll: float
    brier: float
    ece: float
    ece_equal_mass: float
    mce: float
    classwise_ece: float
    smooth_ece: float
    debiased_ece: float
    ks: float
    auroc: float | None
    aurc: float
    noise_floor: float
    noise_floor_95: float
    thresholds: tuple[ConfidentSet, ...]
    intervals: Mapping[str, Interval] | None = None
    level: float | None = None
    balanced_error: float | None = None
    rounding: Mapping[str, float] | None = None

    def values(self) -> dict[str, float | None]:
        """Every metric under one flat name, those of the high-confidence sets as "share@0.95"; None: not defined."""
        flat: dict[str, float | None] = {name: getattr(self, name) for name in METRICS}
        for row in self.thresholds:
            for name in SET_METRICS:
                flat[set_metric(name, row.threshold)] = getattr(row, name)
        return flat

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no infinity: an infinite NLL, or end of its interval, becomes None."""
        content = {_KEYS.get(name, name): value for name, value in asdict(self).items()}
        content["thresholds"] = [
            {_KEYS.get(name, name): value for name, value in asdict(row).items()} for row in self.thresholds
        ]
        content["nll"] = _finite(self.nll)
        for name in ("balanced_error", "rounding"):
            if content[name] is None:
                del content[name]
        if self.intervals is None:
            del content["intervals"], content["level"]
        else:
            content["intervals"] = {name: [_finite(end) for end in ends] for name, ends in self.intervals.items()}
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Build an evaluation from what `to_dict` gave."""
        try:
            own = {_NAMES.get(key, key): value for key, value in content.items()}
            own["thresholds"] = [
                {_NAMES.get(key, key): value for key, value in row.items()} for row in own["thresholds"]
            ]
            own["nll"] = _number(own["nll"])
            if "intervals" in own:
                pairs = own["intervals"].items()
                own["intervals"] = {name: (_number(low), _number(high)) for name, (low, high) in pairs}
            return typed(cls, own, what="evaluation", where="content")
        except InvalidInput:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise invalid("content", "be what Evaluation.to_dict gave", f"something else ({error})") from error

    def _overview(self) -> Overview:
        from calibrant.metrics.tables import evaluation_overview

        return evaluation_overview(self)

    def _summary(self) -> Overview:
        from calibrant.metrics.tables import evaluation_overview, is_main

        return evaluation_overview(self, is_main)


# Keys of JSON files that are older than the Python names.
_KEYS = {"n_classes": "classes", "threshold": "delta"}
_NAMES = {key: name for name, key in _KEYS.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def evaluate(
    predictions: Predictions,
    n_bins: int = DEFAULT_N_BINS,
    *,
    thresholds: Sequence[float] = (0.95, 0.99),
    n_resamples: int = 0,
    seed: int = 0,
    level: float = 0.95,
    weights: Weights | None = None,
    clusters: Weights | None = None,
) -> Evaluation:
    """Compute every metric.

    Args:
        predictions: What the model said.
        n_bins: Bins of every binned metric.
        thresholds: Least confidences of the high-confidence sets.
        n_resamples: Number of draws behind each interval, at least 20; 0 for no intervals, 1000 for a report.
        seed: Seed of the noise floor's simulation and of the bootstrap.
        level: Level of the intervals.
        weights: Name of an extra column, or one number per row: importance weights for another class mix or region.
            Only their ratios matter.
        clusters: Name of an extra column, or one value per row: rows that belong together (pictures of one patient).
            Intervals then go by clusters. With weights or clusters calibration errors have no interval.

    >>> predictions = Predictions.from_probabilities([[0.98, 0.02], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1])
    >>> round(evaluate(predictions).ece, 4)
    0.3067
    """
    require_predictions(predictions)
    check_bins(n_bins)
    limits = check_thresholds(thresholds)
    check_resamples(n_resamples, level, seed)
    from calibrant.metrics.intervals import resample_models
    from calibrant.metrics.weighted_evaluation import evaluate_weighted, weighted_intervals

    draws: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed, "level": level}
    if weights is None and clusters is None:
        found = _point(predictions, n_bins, limits, seed)
        if n_resamples:
            (resampled,) = resample_models([predictions], [found], **draws, paired=False)
            found = replace(found, intervals=resampled.intervals(), level=level)
        return found
    counts, own = check_members(predictions, weights, clusters)
    if weights is None:
        found = _point(predictions, n_bins, limits, seed)
    else:
        found = evaluate_weighted(predictions, counts, n_bins, limits, seed=seed)
    if n_resamples:
        found = replace(found, intervals=weighted_intervals(predictions, counts, own, found, **draws), level=level)
    return found


def check_members(
    predictions: Predictions, weights: Weights | None, clusters: Weights | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The weight of each row, with a mean of 1, and the number of its cluster: without clusters each row its own."""
    from calibrant.metrics.groups import column_of
    from calibrant.metrics.weighted import check_weights

    counts = np.ones(len(predictions)) if weights is None else check_weights(predictions, weights)
    if clusters is None:
        return counts, np.arange(len(predictions))
    names = [str(value) for value in column_of(predictions, clusters, "clusters").tolist()]
    return counts, np.unique(names, return_inverse=True)[1]


def check_thresholds(thresholds: Any) -> list[float]:
    """The limits of high-confidence sets, each in range."""
    if not isinstance(thresholds, Iterable):
        raise invalid("thresholds", "be a sequence of numbers", repr(thresholds), "One is written (0.95,).")
    return [check_threshold(each) for each in thresholds]


def check_resamples(n_resamples: int, level: float, seed: int = 0) -> None:
    """Refuse too few resamples for an interval (0 is none), a level outside 0..1 and a negative seed."""
    whole("seed", seed, 0)
    if 0 < whole("n_resamples", n_resamples, 0) < FEWEST_RESAMPLES:
        way_out = "An interval from a few draws says nothing; 1000 are usual."
        raise invalid("n_resamples", f"be 0 for none, or at least {FEWEST_RESAMPLES}", n_resamples, way_out)
    fraction("level", level)


def default_resamples(predictions: Predictions) -> int:
    """Draws behind intervals that nobody asked for: 200 where they take about two seconds at most, else none.

    Args:
        predictions: What will be evaluated. 100,000 rows take 2.3 s of computing, whatever the number of classes.

    >>> default_resamples(Predictions.from_probabilities([[0.98, 0.02]], [0]))
    200
    """
    return 200 if len(predictions) <= MOST_ROWS_BY_DEFAULT else 0


def without_intervals(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Names of those that have no intervals."""
    return [name for name, each in evaluations.items() if each.intervals is None]


def _point(predictions: Predictions, n_bins: int, limits: Sequence[float], seed: int) -> Evaluation:
    totals = read_totals(predictions, n_bins)
    tops = totals.tops
    bins = sum_bins(tops.confidence, tops.correct, bin_edges(n_bins, tops.precision))
    floor = noise_of(tops, n_bins, seed=seed)
    wrong = int(np.count_nonzero(~tops.correct))
    rows = SortedTops(tops)
    ranking, equal_mass = Ranking.of(rows, wrong), rows.equal_mass_bins(n_bins)
    return Evaluation(
        n=len(predictions),
        n_classes=predictions.n_classes,
        n_bins=n_bins,
        test_error=wrong / len(predictions),
        nll=totals.nll,
        brier=totals.brier,
        ece=bins.expected_error,
        ece_equal_mass=equal_mass.expected_error,
        mce=bins.maximum_error,
        classwise_ece=totals.classwise_error,
        smooth_ece=smooth_of(tops),
        debiased_ece=debiased_error(equal_mass),
        ks=ranking.ks,
        auroc=ranking.auroc,
        aurc=ranking.aurc,
        noise_floor=floor.mean,
        noise_floor_95=floor.upper,
        thresholds=tuple(confident_of(tops, limit, n_bins) for limit in limits),
        balanced_error=balanced_error(predictions.targets, ~tops.correct),
    )
