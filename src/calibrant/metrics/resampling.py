"""Every metric of many weighted copies of the same rows at once: what the bootstrap needs.

A resample is a count for each row. Rows are sorted by confidence once; then a metric of all resamples is a few
cumulative sums along the sorted rows, read off at the edges of bins, at ties, or at ranks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.metrics.binning import bin_edges, edge_precision, expected_error, rounded
from calibrant.metrics.errors import debiased
from calibrant.metrics.names import set_metric
from calibrant.metrics.ranking import risk_of_groups
from calibrant.metrics.smooth import CELLS, grid_position, smooth_error
from calibrant.metrics.totals import brier_rows
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]
# Entries of one block of resamples: eight arrays of this many float64 are about 35 MB.
_BLOCK = 2**19


def draw_weights(rows: int, n_resamples: int, seed: int) -> list[Callable[[], Floats]]:
    """Recipes for blocks of bootstrap weights of shape (r, rows): how often n draws with replacement hit each row.

    Each block has its own generator, so the values depend on the seed alone, not on who computes which block when.
    """
    step = max(1, _BLOCK // rows)
    sizes = [min(step, n_resamples - start) for start in range(0, n_resamples, step)]
    seeds = np.random.SeedSequence(seed).spawn(len(sizes))

    def draw(size: int, own: np.random.SeedSequence) -> Floats:
        drawn = np.random.default_rng(own).integers(0, rows, size=(size, rows))
        drawn += rows * np.arange(size)[:, None]
        return np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)

    return [partial(draw, size, own) for size, own in zip(sizes, seeds, strict=True)]


def resample(metrics: Sequence["WeightedMetrics"], n_resamples: int, seed: int) -> list[dict[str, Floats]]:
    """Bootstrap values of each set of predictions; all of them see the same draws."""

    def block(draw: Callable[[], Floats]) -> list[dict[str, Floats]]:
        weights = draw()
        return [metric(weights) for metric in metrics]

    rows = len(metrics[0].order)
    # NumPy lets go of the interpreter inside its loops: as many threads as torch may use, no more.
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        blocks = list(pool.map(block, draw_weights(rows, n_resamples, seed)))
    return [
        {name: np.concatenate([part[which][name] for part in blocks]) for name in blocks[0][which]}
        for which in range(len(metrics))
    ]


def bootstrap(
    predictions: Predictions, n_bins: int, thresholds: Sequence[float], *, n_resamples: int, seed: int = 0
) -> dict[str, Floats]:
    """Flat name to the metric's values over resampled rows, which depend on the seed and the number of rows alone."""
    (draws,) = resample([WeightedMetrics(predictions, n_bins, thresholds)], n_resamples, seed)
    return draws


class WeightedMetrics:
    """The metrics of `evaluate`, but for class-wise ECE, as functions of row weights.

    Args:
        predictions: The rows.
        n_bins: Bins of every binned metric.
        thresholds: Least confidences of the high-confidence sets.
        calibration: Whether calibration errors and high-confidence sets are asked for, which take most of the time.
    """

    def __init__(
        self, predictions: Predictions, n_bins: int, thresholds: Sequence[float], *, calibration: bool = True
    ) -> None:
        self.calibration = calibration
        self.order = np.argsort(predictions.confidence, kind="stable")
        self.confidence, correct = predictions.confidence[self.order], predictions.correct[self.order]
        # Positions of the last row of each group of equal confidences.
        self.ends = np.append(np.flatnonzero(np.diff(self.confidence)), len(self.order) - 1)
        self.n_bins = n_bins
        self.residual = self.confidence - correct
        self.wrong = (~correct).astype(np.float64)
        self.endless = np.flatnonzero(np.isinf(predictions.nll))
        self.scores = np.stack(
            [np.where(np.isinf(predictions.nll), 0.0, predictions.nll), brier_rows(predictions)], axis=1
        )
        self.tied = len(self.ends) < len(self.order)
        self.group_end = self.ends[np.searchsorted(self.ends, np.arange(len(self.order)))]
        self.harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, len(self.order) + 1))])
        precision = edge_precision(predictions)
        self.cuts = self._cuts(bin_edges(n_bins, precision))
        self.thresholds = [
            (
                threshold,
                int(np.searchsorted(self.confidence, rounded(np.asarray([threshold]), precision)[0], side="left")),
                self._cuts(bin_edges(n_bins, precision, threshold)),
            )
            for threshold in thresholds
        ]
        low, self.part = grid_position(self.confidence)
        self.cells, self.cell_starts = np.unique(low, return_index=True)

    def _cuts(self, edges: Floats) -> NDArray[np.int64]:
        """Positions in the sorted rows where bins begin and end."""
        inner = np.searchsorted(self.confidence, edges[1:-1], side="right")
        return np.concatenate([[0], inner, [len(self.order)]])

    def __call__(self, weights: Floats) -> dict[str, Floats]:
        """Metric name to one value for each row of weights, shape (r, n) in the order of the predictions.

        NaN stands for "not defined": AUROC without wrong or right rows, an empty high-confidence set.
        """
        total = weights.sum(axis=1)
        ordered = weights[:, self.order]
        residuals = ordered * self.residual
        count, gap, wrong = _running(ordered), _running(residuals), _running(ordered * self.wrong)
        means = weights @ self.scores / total[:, None]
        # Infinity times a weight of 0 would be NaN: only rows that a resample draws make its NLL infinite.
        nll = np.where(weights[:, self.endless].any(axis=1), np.inf, means[:, 0])
        values = {"test_error": wrong[:, -1] / total, "nll": nll, "brier": means[:, 1]}
        values["ks"], values["auroc"], values["aurc"] = self._ranked(count, gap, wrong)
        if self.calibration:
            values |= self._errors(residuals, count, gap, wrong)
        return values

    def _errors(self, residuals: Floats, count: Floats, gap: Floats, wrong: Floats) -> dict[str, Floats]:
        bins = np.diff(gap[:, self.cuts], axis=1)
        values = {"ece": expected_error(bins, count[:, -1])}
        values["ece_equal_mass"], values["debiased_ece"] = self._equal_mass(count, gap, wrong)
        values["mce"] = (np.abs(bins) / np.maximum(np.diff(count[:, self.cuts], axis=1), 1.0)).max(axis=1)
        values["smooth_ece"] = self._smooth(residuals)
        for threshold, start, cuts in self.thresholds:
            values |= self._confident(count, gap, wrong, threshold, start, cuts)
        return values

    def _ranked(self, count: Floats, gap: Floats, wrong: Floats) -> tuple[Floats, Floats, Floats]:
        if self.tied:
            keep = np.concatenate([[0], self.ends + 1])
            count, gap, wrong = count[:, keep], gap[:, keep], wrong[:, keep]
        total = count[:, -1]
        size, wrong_here = np.diff(count, axis=1), np.diff(wrong, axis=1)
        right = total - wrong[:, -1]
        beaten = np.einsum("ij,ij->i", size - wrong_here, (wrong[:, 1:] + wrong[:, :-1]) / 2.0)
        with np.errstate(invalid="ignore"):
            auroc = beaten / (right * wrong[:, -1])
        above = total[:, None] - count
        steps = -np.diff(self.harmonic[above.astype(np.int64)], axis=1)
        errors_above = wrong[:, -1:] - wrong[:, 1:]
        aurc = risk_of_groups(above[:, 1:], errors_above, size, wrong_here, steps).sum(axis=1) / total
        return np.abs(gap).max(axis=1) / total, auroc, aurc

    def _equal_mass(self, count: Floats, gap: Floats, wrong: Floats) -> tuple[Floats, Floats]:
        """ECE and debiased error over bins of equal mass, whose cuts lie elsewhere in each resample."""
        n = round(float(count[0, -1]))
        parts = min(self.n_bins, n)
        ranks = np.cumsum(np.full(parts, n // parts) + (np.arange(parts) < n % parts))[:-1]
        # The row at each rank, then the end of its group of equal confidences.
        at = np.stack([np.searchsorted(row[1:], ranks, side="left") for row in count])
        cuts = np.concatenate([np.zeros((len(at), 1), int), self.group_end[at] + 1], axis=1)
        cuts = np.concatenate([cuts, np.full((len(at), 1), count.shape[1] - 1)], axis=1)
        size, gaps, errors = (np.diff(np.take_along_axis(sums, cuts, axis=1), axis=1) for sums in (count, gap, wrong))
        right = size - errors
        return expected_error(gaps, n), debiased(size, gaps + right, right)

    def _confident(
        self, count: Floats, gap: Floats, wrong: Floats, threshold: float, start: int, cuts: NDArray[np.int64]
    ) -> dict[str, Floats]:
        size = count[:, -1] - count[:, start]
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                set_metric("share", threshold): size / count[:, -1],
                set_metric("accuracy", threshold): 1.0 - (wrong[:, -1] - wrong[:, start]) / size,
                set_metric("ece", threshold): expected_error(
                    np.diff(gap[:, np.maximum(self.cuts, start)], axis=1), size
                ),
                set_metric("ece_inside", threshold): expected_error(
                    np.diff(gap[:, np.maximum(cuts, start)], axis=1), size
                ),
            }

    def _smooth(self, residuals: Floats) -> Floats:
        spread = np.zeros((len(residuals), CELLS + 1))
        upper = residuals * self.part
        spread[:, self.cells] = np.add.reduceat(residuals - upper, self.cell_starts, axis=1)
        spread[:, self.cells + 1] += np.add.reduceat(upper, self.cell_starts, axis=1)
        return smooth_error(spread[:, :CELLS] / len(self.order))


def _running(values: Floats) -> Floats:
    """Cumulative sums along rows with a leading zero, shape (r, n + 1)."""
    out = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=out[:, 1:])
    return out
