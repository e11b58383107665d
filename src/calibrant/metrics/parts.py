"""`evaluate_parts`: all metrics of predictions that do not fit in memory, from sums over their parts.

Counts and sums are exact, up to the rounding of float64 additions in another order. Metrics that depend on the order of
all confidences (AUROC, AURC, KS, bins of equal mass) need them together: four or eight bytes per row if they fit,
counts of float32 values above that. There are 8.4 million float32 numbers per doubling: 28 million between 1/10 and 1,
84 million between 1/1000 and 1. So counts are exact for float32 confidences, and a very fine histogram for others,
whose errors can be stated.
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
from calibrant.metrics.binning import Bins, Floats, check_bins, debiased_errors
from calibrant.metrics.confidences import MergedConfidences, Ranked, sort_keys, spread_residuals
from calibrant.metrics.errors import NoiseBin, noise_bins, simulate_noise
from calibrant.metrics.evaluation import Evaluation, Sums, check_thresholds, finish, read_sums
from calibrant.predictions import Kind, Predictions, Scan, scan
from calibrant.predictions.rows import SUM_TOLERANCE, refuse_scores
from calibrant.scale import Executor, map_parts

EXACT_ROWS = 2**27
"""Up to so many rows all confidences are sorted together: at most a gigabyte of keys."""
# Half the distance of float32 numbers between 1/2 and 1.
_HALF_STEP = 2.0**-25
_ONE = int(sort_keys(np.ones(1, np.float32), np.ones(1, np.bool_))[0])


@dataclass
class PartialSums:
    """What some rows add to an evaluation.

    Attributes:
        sums: Sums of metrics and classes.
        bins: Sums over bins on [0, 1].
        sets: Sums over bins of each high-confidence set, by threshold and by the lower end of the bins.
        spread: Sums on the grid of the smooth ECE.
        noise: Bins of the noise floor.
        keys: Confidence and correctness of the rows, as `sort_keys` or `count_keys` returns them; empty in a total.
        counts: How many rows each key stands for; empty if each stands for one.
    """

    sums: Sums
    bins: Bins
    sets: dict[float, dict[float, Bins]]
    spread: Floats
    noise: list[NoiseBin]
    keys: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint32))
    counts: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint32))

    def add(self, other: "PartialSums") -> None:
        """Add the rows that follow, without their keys."""
        self.sums, self.bins, self.spread = self.sums + other.sums, self.bins + other.bins, self.spread + other.spread
        for limit, own in self.sets.items():
            self.sets[limit] = {low: bins + other.sets[limit][low] for low, bins in own.items()}
        for here, there in zip(self.noise, other.noise, strict=True):
            here.merge(there)


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
        columns: Other names of columns, such as {"target": "label"}.
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
    total: PartialSums | None = None
    keys: list[NDArray[Any]] = []
    work = partial(_read_part, n_bins=n_bins, limits=limits, counted=counts is not None)
    for part in map_parts(work, parts, executor):
        if part is None:
            continue
        if counts is None:
            keys.append(part.keys)
        else:
            counts.add(part.keys, part.counts)
        if total is None:
            total = part
        else:
            total.add(part)
    if total is None:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    ranked = Ranked.of_keys(np.concatenate(keys)) if counts is None else counts.ranked()
    bins = {0.0: total.bins}
    merged = MergedConfidences(ranked, n_bins, bins=bins, sets=total.sets, spread=total.spread)
    evaluation = finish(total.sums, merged, limits, simulate_noise(total.noise, seed=seed))
    if counts is None or _is_narrow(opened):
        return evaluation
    return replace(evaluation, rounding=rounding_errors(ranked, n_bins))


def _read_part(part: Scan, *, n_bins: int, limits: Sequence[float], counted: bool) -> PartialSums | None:
    """What the rows of a part add, read block by block; None if there are none.

    Args:
        part: The part.
        n_bins: Bins of every binned metric.
        limits: Least confidences of the high-confidence sets.
        counted: Whether confidences are rounded to float32 and counted.
    """
    total: PartialSums | None = None
    confidences: list[NDArray[Any]] = []
    corrects: list[NDArray[np.bool_]] = []
    for predictions in _checked(part):
        sums, rows = read_sums(predictions, n_bins)
        sets = {}
        for limit in limits:
            inside = rows.above(limit)
            sets[limit] = {0.0: inside.bins(), limit: inside.bins(limit)}
        noise = noise_bins(rows.confidence, n_bins, rows.precision)
        block = PartialSums(sums, rows.bins(), sets, spread_residuals(rows.confidence, rows.correct), noise)
        if total is None:
            total = block
        else:
            total.add(block)
        confidences.append(rows.confidence.astype(np.float32 if _is_narrow(part) else np.float64, copy=False))
        corrects.append(rows.correct)
    if total is not None:
        tops = np.concatenate(confidences), np.concatenate(corrects)
        if counted:
            total.keys, total.counts = count_keys(*tops)
        else:
            total.keys = sort_keys(*tops)
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


def count_keys(
    confidence: NDArray[np.floating], correct: NDArray[np.bool_]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Distinct keys of some rows, their confidences rounded to float32, and how many rows have each."""
    keys, counts = np.unique(sort_keys(confidence.astype(np.float32), correct), return_counts=True)
    return keys, counts.astype(np.uint32)


class KeyCounts:
    """Counts of all keys that are possible with so many classes.

    Args:
        n_classes: Number of classes K; no confidence is below 1/K, but for the tolerance of sums.
        rows: Number of rows to come.
    """

    def __init__(self, n_classes: int, rows: int) -> None:
        self._low = int(sort_keys(np.asarray([0.99 / n_classes], np.float32), np.zeros(1, np.bool_))[0])
        self._counts = np.zeros(_ONE - self._low + 1, np.uint32 if rows < 2**32 else np.uint64)

    def add(self, keys: NDArray[np.uint32], counts: NDArray[np.uint32]) -> None:
        """Add the distinct keys of a part."""
        self._counts[keys - np.uint32(self._low)] += counts

    def ranked(self) -> Ranked:
        """The rows in the order of their confidence."""
        pairs = self._counts.reshape(-1, 2)  # a value's wrong rows, then its right ones
        there = np.flatnonzero(pairs.any(axis=1))
        values = (there.astype(np.uint32) + np.uint32(self._low >> 1)).view(np.float32)
        wrong, right = pairs[there].T.astype(np.int64)
        return Ranked(values, (wrong + right)[None], wrong[None])


def rounding_errors(ranked: Ranked, n_bins: int) -> dict[str, float]:
    """Largest errors of metrics if rows of one float32 value had different confidences.

    A confidence is off by up to 3e-8. The order of the rows of one value is not known: for the AUROC that concerns its
    pairs of a right and a wrong row; for the AURC, among the first j of m rows with e errors there may be e (m - e) / m
    errors more or fewer than j e / m; the largest sum of the KS error may lie inside a value; and at each edge between
    bins of equal mass the rows of one value may belong to the bin on the other side.
    """
    size, bad = ranked.size[0].astype(np.int64), ranked.wrong[0].astype(np.int64)
    rows, wrong = int(size.sum()), int(bad.sum())
    mixed = (size - bad) * bad
    pairs, above = wrong * (rows - wrong), rows - np.cumsum(size)
    # Above the harmonic numbers between `above` and `above + size`.
    steps = np.where(above > 0, size / np.maximum(above, 1), 1.0 + np.log(size))
    crowd = float(size.max()) / rows
    moved = 2 * (n_bins - 1) * crowd + _HALF_STEP
    debiased = max(float(debiased_errors(ranked.equal_mass(n_bins)).item()), np.sqrt(4 * moved))
    return {
        "auroc": float(mixed.sum()) / (2 * pairs) if pairs else 0.0,
        "aurc": float((mixed / size * steps).sum()) / rows,
        "ks": crowd + _HALF_STEP,
        "ece_equal_mass": moved,
        "debiased_ece": 4 * moved / debiased,
    }


def describe_rounding(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """One sentence for each evaluation whose `rounding` states the largest errors of some metrics."""
    sentences = []
    for name, evaluation in evaluations.items():
        if evaluation.rounding is not None:
            errors = [f"{metric} is right to within {error:.1e}" for metric, error in evaluation.rounding.items()]
            sentences.append(
                f"{name}: confidences were counted by their float32 values, so {', '.join(errors)}; all other numbers "
                "are exact."
            )
    return sentences
