"""`evaluate_parts`: all metrics of predictions that do not fit in memory, from sums over their parts.

Metrics that depend on the order of all confidences (AUROC, AURC, KS, bins of equal mass) need them together: four bytes
per row for float32 probabilities, eight for others. Everything else adds up. The numbers are those of `evaluate`, up to
the rounding of float64 additions in another order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import InvalidInput, invalid
from calibrant.metrics.binning import check_bins
from calibrant.metrics.confidences import Confidences, Ranked, sort_keys
from calibrant.metrics.evaluation import Evaluation, Sums, check_thresholds, finish, read_sums
from calibrant.metrics.functions import NoiseBin, noise_bins, simulate_noise
from calibrant.predictions import Kind, Predictions, Scan, scan
from calibrant.predictions.rows import SUM_TOLERANCE, Precision, refuse_scores
from calibrant.scale import Executor, map_parts


@dataclass
class _PartialSums:
    """What some rows add to an evaluation; `keys` hold their confidence and correctness, as `sort_keys` returns it."""

    sums: Sums
    noise: list[NoiseBin]
    keys: list[NDArray[Any]]

    def add(self, other: "_PartialSums") -> None:
        """Add the rows that follow."""
        self.sums += other.sums
        self.keys += other.keys
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
    """
    check_bins(n_bins)
    limits = check_thresholds(thresholds)
    opened = scan(Path(source).absolute(), kind=kind, columns=columns)
    if not opened.has_targets:
        raise invalid(opened.where, "have targets", "none", "Name their column: --columns target=COLUMN.")
    parts = opened.parts()
    if executor is not None:
        executor.check_shared(*(Path(part.where) for part in (parts[0], parts[-1])))
    total = _added(map_parts(partial(_read_part, n_bins=n_bins), parts, executor))
    if total is None:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    ranked = Ranked.of_keys(np.concatenate(total.keys))
    confidences = Confidences(ranked, n_bins, _precision(opened))
    return finish(total.sums, confidences, limits, simulate_noise(total.noise, seed=seed))


def _read_part(part: Scan, *, n_bins: int) -> _PartialSums | None:
    """What the rows of a part add; None if there are none."""
    return _added(_read_block(block, n_bins, _precision(part)) for block in _checked(part))


def _read_block(predictions: Predictions, n_bins: int, precision: Precision) -> _PartialSums:
    sums, rows = read_sums(predictions, n_bins)
    confidence = rows.confidence
    if precision != "float32":
        confidence = confidence.astype(np.float64, copy=False)
    noise = noise_bins(confidence, n_bins, precision)
    return _PartialSums(sums, noise, [sort_keys(confidence, rows.correct)])


def _added(sums: Iterable[_PartialSums | None]) -> _PartialSums | None:
    total: _PartialSums | None = None
    for each in sums:
        if total is None:
            total = each
        elif each is not None:
            total.add(each)
    return total


def _precision(opened: Scan) -> Precision:
    """The precision of confidences: those of logits come from a softmax in float64."""
    if opened.kind == "probabilities":
        return opened.precision
    return "float64"


def _checked(part: Scan) -> Iterator[Predictions]:
    make = {"logits": Predictions.from_logits, "probabilities": Predictions.from_probabilities}[part.kind]
    for block in part.blocks(ids=False, extras=()):
        assert block.targets is not None
        try:
            yield make(block.scores, block.targets)
        except InvalidInput as error:
            # Named by its row in the file instead of in the block.
            tolerance = None
            if part.kind == "probabilities":
                tolerance = SUM_TOLERANCE[part.precision]
            try:
                refuse_scores(part.kind, block.scores, block.start, tolerance)
            except InvalidInput as known:
                raise InvalidInput(f"{part.where}: {known}") from error
            raise
