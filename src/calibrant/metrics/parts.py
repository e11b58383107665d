"""`evaluate_parts`: all metrics of a folder of files that no machine has to hold, from sums over its parts.

What `evaluate` computes from all rows is here computed from states that add up. Counts and sums are exact, up to the
rounding of float64 additions in another order. What depends on the order of all confidences (AUROC, AURC, KS, bins of
equal mass) needs them together: four or eight bytes per row while that is possible, counts of float32 values above.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.binning import Bins, bin_edges, check_bins, expected_error, rounded, sum_bins
from calibrant.metrics.confident import ConfidentSet
from calibrant.metrics.counted import KeyCounts, count_keys
from calibrant.metrics.errors import debiased_error
from calibrant.metrics.evaluation import Evaluation, check_thresholds
from calibrant.metrics.noise import NoiseBin, noise_bins, noise_of_bins
from calibrant.metrics.ranking import Ranking
from calibrant.metrics.smooth import smooth_of_spread, spread_residuals
from calibrant.metrics.tops import SortedTops, sort_keys
from calibrant.metrics.totals import Totals, read_totals
from calibrant.predictions import SUM_TOLERANCE, Kind, Predictions, Scan, refuse_scores, scan
from calibrant.scale import Executor, fold

EXACT_ROWS = 2**27
"""Up to so many rows all confidences are sorted together: at most a gigabyte."""


@dataclass
class PartialSums:
    """What some rows add to an evaluation.

    Attributes:
        sums: Counts and sums by name, each an array.
        noise: Bins of the noise floor.
        keys: Confidence and correctness of the rows, as `sort_keys` or `count_keys` gives them; empty in a total.
        counts: How many rows each key stands for; empty where it is one.
    """

    sums: dict[str, NDArray[Any]] = field(default_factory=dict)
    noise: list[NoiseBin] = field(default_factory=list)
    keys: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint32))
    counts: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint32))

    def add(self, other: "PartialSums") -> None:
        """Add the rows that follow; their keys are left to whoever has room for all of them."""
        self.sums = {**self.sums, **{name: self.sums.get(name, 0) + value for name, value in other.sums.items()}}
        for here, there in zip(self.noise, other.noise, strict=False):
            here.merge(there)
        self.noise = self.noise or other.noise


def evaluate_parts(
    source: str | Path,
    n_bins: int = DEFAULT_N_BINS,
    *,
    thresholds: Sequence[float] = (0.95, 0.99),
    seed: int = 0,
    kind: Kind | None = None,
    columns: dict[str, str] | None = None,
    executor: Executor | None = None,
    exact_rows: int = EXACT_ROWS,
) -> Evaluation:
    """Compute every metric of a folder of Parquet files, part by part; without intervals.

    Args:
        source: What `calibrant.predictions.scan` reads; each file of a folder is a part.
        n_bins: Bins of every binned metric.
        thresholds: Least confidences of the high-confidence sets.
        seed: Seed of the noise floor's simulation.
        kind: What the scores are, for files that do not say.
        columns: Where the target has another name.
        executor: Where parts are read; None for this process, one after the other.
        exact_rows: Up to so many rows the confidences of all of them are sorted. Above, float32 confidences are counted
            by value, which is exact too; those of float64 are rounded to float32, and `rounding` of the result states
            the largest errors that this can cause.
    """
    check_bins(n_bins)
    limits = check_thresholds(thresholds)
    opened = scan(Path(source).absolute(), kind=kind, columns=columns)
    if not opened.has_targets:
        raise invalid(opened.where, "have targets", "none", "Name their column: --columns target=COLUMN.")
    parts, rows = opened.parts(), opened.n_rows or 0
    if executor is not None:
        executor.check_shared(*(Path(part.where) for part in (parts[0], parts[-1])))
    counts = KeyCounts(opened.n_classes, rows) if rows > exact_rows else None
    work = partial(read_part, n_bins=n_bins, limits=limits, counted=counts is not None)
    read = fold(work, parts, _AllParts(counts), executor=executor)
    if not read.total.sums:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    if counts is None:
        return _evaluation(read.total, SortedTops(np.concatenate(read.keys)), n_bins, limits, seed)
    tops = counts.tops()
    made = _evaluation(read.total, tops, n_bins, limits, seed)
    return made if _is_narrow(opened) else replace(made, rounding=tops.rounding(n_bins))


@dataclass
class _AllParts:
    """The sums of all parts, and their confidences: counted if `counts` is given, listed in `keys` otherwise."""

    counts: KeyCounts | None
    total: PartialSums = field(default_factory=PartialSums)
    keys: list[NDArray[Any]] = field(default_factory=list)

    def merge(self, part: PartialSums) -> None:
        """Add the next part."""
        self.total.add(part)
        if self.counts is None:
            self.keys.append(part.keys)
        else:
            self.counts.add(part.keys, part.counts)


def read_part(part: Scan, *, n_bins: int, limits: Sequence[float], counted: bool) -> PartialSums:
    """What the rows of a part add, read block by block.

    Args:
        part: The part.
        n_bins: Bins of every binned metric.
        limits: Least confidences of the high-confidence sets.
        counted: Whether confidences are rounded to float32 and counted.
    """
    total, confidences, corrects = PartialSums(), list[NDArray[Any]](), list[NDArray[np.bool_]]()
    for predictions in _checked(part):
        totals = read_totals(predictions, n_bins)
        total.add(_block_sums(predictions, totals, n_bins, limits))
        confidences.append(totals.tops.confidence.astype(np.float32 if _is_narrow(part) else np.float64, copy=False))
        corrects.append(totals.tops.correct)
    if confidences:
        rows = np.concatenate(confidences), np.concatenate(corrects)
        if counted:
            total.keys, total.counts = count_keys(*rows)
        else:
            total.keys = sort_keys(*rows)
    return total


def _is_narrow(opened: Scan) -> bool:
    """Whether confidences are float32 numbers: those of logits come from a softmax in float64."""
    return opened.kind == "probabilities" and opened.precision == "float32"


def _checked(part: Scan) -> Iterator[Predictions]:
    make = Predictions.from_logits if part.kind == "logits" else Predictions.from_probabilities
    for block in part.blocks(ids=False, extras=()):
        assert block.targets is not None
        try:
            yield make(block.scores, block.targets)
        except InvalidInput as error:
            # Named by its row in the file instead of in the block.
            tolerance = None if part.kind == "logits" else SUM_TOLERANCE[part.precision]
            try:
                refuse_scores(part.kind, block.scores, block.start, tolerance)
            except InvalidInput as known:
                raise InvalidInput(f"{part.where}: {known}") from error
            raise


def _block_sums(predictions: Predictions, totals: Totals, n_bins: int, limits: Sequence[float]) -> PartialSums:
    rows, classes, tops = len(predictions), predictions.n_classes, totals.tops
    sets = np.zeros((len(limits), 2, 3, n_bins))
    for number, limit in enumerate(limits):
        chosen = tops.confidence >= rounded(np.asarray([limit]), tops.precision)
        inside = tops.confidence[chosen], tops.correct[chosen]
        for place, low in enumerate((0.0, limit)):
            sets[number, place] = _stacked(sum_bins(*inside, bin_edges(n_bins, tops.precision, low=low)))
    sums = {
        "rows": np.asarray(rows),
        "nll": np.asarray(totals.nll * rows),
        "brier": np.asarray(totals.brier * rows),
        "gap": totals.gap_sum,
        "class_rows": np.bincount(predictions.targets, minlength=classes),
        "class_wrong": np.bincount(predictions.targets[~tops.correct], minlength=classes),
        "bins": _stacked(sum_bins(tops.confidence, tops.correct, bin_edges(n_bins, tops.precision))),
        "sets": sets,
        "spread": spread_residuals((c, c - correct) for c, correct in tops.blocks()),
    }
    return PartialSums(sums, noise_bins(tops, n_bins))


def _stacked(bins: Bins) -> NDArray[np.float64]:
    """The three sums as float64, in which counts are exact up to 2**53."""
    return np.stack([bins.count, bins.confidence_sum, bins.correct_sum]).astype(np.float64)


def _bins(stacked: NDArray[np.float64]) -> Bins:
    count, confidence, correct = stacked
    return Bins(np.empty(0), count.astype(np.int64), confidence, correct.astype(np.int64))


def _evaluation(total: PartialSums, tops: SortedTops, n_bins: int, limits: Sequence[float], seed: int) -> Evaluation:
    sums, bins = total.sums, _bins(total.sums["bins"])
    rows, wrong = int(sums["rows"]), int(sums["class_wrong"].sum())
    ranking, equal_mass = Ranking.of(tops, wrong), tops.equal_mass_bins(n_bins)
    floor = noise_of_bins(total.noise, seed=seed)
    there = sums["class_rows"] > 0
    return Evaluation(
        n=rows,
        n_classes=len(there),
        n_bins=n_bins,
        test_error=wrong / rows,
        nll=float(sums["nll"]) / rows,
        brier=float(sums["brier"]) / rows,
        ece=bins.expected_error,
        ece_equal_mass=equal_mass.expected_error,
        mce=bins.maximum_error,
        classwise_ece=float(expected_error(sums["gap"].ravel(), rows * len(there))),
        smooth_ece=smooth_of_spread(sums["spread"], rows),
        debiased_ece=debiased_error(equal_mass),
        ks=ranking.ks,
        auroc=ranking.auroc,
        aurc=ranking.aurc,
        noise_floor=floor.mean,
        noise_floor_95=floor.upper,
        thresholds=tuple(_set(limit, sums["sets"][number], rows) for number, limit in enumerate(limits)),
        balanced_error=float((sums["class_wrong"][there] / sums["class_rows"][there]).mean()),
    )


def _set(limit: float, stacked: NDArray[np.float64], rows: int) -> ConfidentSet:
    whole, inside = _bins(stacked[0]), _bins(stacked[1])
    count = int(whole.count.sum())
    if count == 0:
        return ConfidentSet(float(limit), 0.0, None, None, None)
    accuracy = float(whole.correct_sum.sum() / count)
    return ConfidentSet(float(limit), count / rows, accuracy, whole.expected_error, inside.expected_error)


def describe_rounding(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """One sentence for each evaluation whose `rounding` states the largest errors of some metrics."""
    rounded_ones = {name: each.rounding for name, each in evaluations.items() if each.rounding is not None}
    return [
        f"{name}: confidences were counted by their float32 values, so "
        + ", ".join(f"{metric} is right to within {error:.1e}" for metric, error in errors.items())
        + "; all other numbers are exact."
        for name, errors in rounded_ones.items()
    ]
