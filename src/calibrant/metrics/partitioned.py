"""`evaluate_parts`: all metrics of predictions that do not fit in memory, from sums over their parts.

Metrics that depend on the order of all confidences (AUROC, AURC, KS, bins of equal mass) need them together: four bytes
per row for float32 probabilities, eight for others. Everything else adds up. The numbers are those of `evaluate`, up to
the rounding of float64 additions in another order.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import InvalidInput, invalid, naming
from calibrant.metrics.binning import check_bins
from calibrant.metrics.confidences import Confidences, Ranked, sort_keys
from calibrant.metrics.evaluation import Evaluation, Sums, check_thresholds, finish, read_sums
from calibrant.metrics.functions import NoiseBin, noise_bins, simulate_noise
from calibrant.predictions import Kind, Predictions, Scan, scan
from calibrant.scale import Executor, map_parts


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
    if opened.kind == "score":
        raise invalid(opened.where, "have confidences in 0..1 to be read in parts", "scores that are only ranked")
    parts = [part for part in opened.parts() if part.n_rows != 0]
    if not parts:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    if executor is not None:
        executor.check_shared(*(Path(part.where) for part in (parts[0], parts[-1])))
    results = iter(map_parts(partial(_read_part, n_bins=n_bins), parts, executor))
    sums, noise, first_keys = next(results)
    keys = [first_keys]
    for more_sums, more_noise, more_keys in results:
        sums += more_sums
        keys.append(more_keys)
        for here, there in zip(noise, more_noise, strict=True):
            here.merge(there)
    ranked = Ranked.of_keys(np.concatenate(keys))
    # Confidences of logits come from a softmax in float64.
    precision = opened.precision if opened.kind != "logits" else "float64"
    return finish(sums, Confidences(ranked, n_bins, precision), limits, simulate_noise(noise, seed=seed))


def _read_part(part: Scan, *, n_bins: int) -> tuple[Sums, list[NoiseBin], NDArray[Any]]:
    """What the rows of a part add: sums, bins of the noise floor, and confidence and correctness as `sort_keys`."""
    with naming(part.where):
        sums, rows = read_sums(Predictions.of_scan(part, mmap=part.is_large), n_bins)
    confidence = rows.confidence.astype("float32" if rows.precision == "float32" else "float64", copy=False)
    return sums, noise_bins(confidence, n_bins, rows.precision), sort_keys(confidence, rows.correct)
