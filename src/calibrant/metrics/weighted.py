"""Every metric of rows that count more or less: importance weights for another class mix, region or sampling.

Weights are scaled to a mean of 1, so that only their ratios matter and equal weights give the plain metrics. Where a
definition counts rows (equal mass, AURC) it counts weight instead; the debiased error takes the effective number of
rows of a bin, (sum of w)^2 / sum of w^2.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from calibrant.errors import invalid
from calibrant.metrics.binning import Bins, bin_edges, bin_index, edge_precision, rounded
from calibrant.metrics.confident import ConfidentSet
from calibrant.metrics.groups import column_of
from calibrant.metrics.noise import NoiseFloor
from calibrant.metrics.ranking import Ranking, risk_of_groups
from calibrant.metrics.smooth import smooth_of_spread, spread_residuals
from calibrant.metrics.tops import Weights
from calibrant.metrics.totals import brier_rows, minus_target, sum_gaps
from calibrant.predictions import Predictions, require_predictions

Floats = NDArray[np.float64]


def check_weights(predictions: Predictions, weights: Weights) -> Floats:
    """One weight per row, scaled to a mean of 1: the name of an extra column, or the values themselves."""
    require_predictions(predictions)
    values = column_of(predictions, weights, "weights")
    try:
        found = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise invalid("weights", "be numbers", str(error)) from error
    if not np.isfinite(found).all() or (found < 0).any() or not (found > 0).any():
        raise invalid("weights", "be finite, not negative, and not all 0", f"{found.min()} to {found.max()}")
    return np.asarray(found / found.mean())


class WeightedRows:
    """The metrics of some rows as functions of their weights.

    Args:
        predictions: The rows.
        weights: One weight per row with a mean of 1, as `check_weights` gives them.
    """

    def __init__(self, predictions: Predictions, weights: Floats) -> None:
        self.predictions, self.weights, self.n = predictions, weights, len(predictions)
        self.precision = edge_precision(predictions)
        self.confidence, self.correct = predictions.confidence, predictions.correct
        self.gap = weights * (self.confidence - self.correct)

    def mean(self, values: NDArray[Any]) -> float:
        """Weighted mean of one value per row; rows without weight do not count, whatever their value is."""
        return float((self.weights * np.where(self.weights > 0, values, 0.0)).sum() / self.n)

    def bins(self, n_bins: int, *, equal_mass: bool = False) -> Bins:
        """Sums over bins; counts are sums of weights."""
        return self._bins(self._equal_mass_edges(n_bins) if equal_mass else bin_edges(n_bins, self.precision))

    def _bins(self, edges: Floats, rows: NDArray[np.bool_] | None = None) -> Bins:
        weights = self.weights if rows is None else np.where(rows, self.weights, 0.0)
        index, size = bin_index(self.confidence, edges), len(edges) - 1
        sums = (np.bincount(index, weights * each, size) for each in (1.0, self.confidence, self.correct))
        count, confidence_sum, correct_sum = sums
        return Bins(edges, count, confidence_sum, correct_sum)  # type: ignore[arg-type] # weights are no whole numbers

    def _equal_mass_edges(self, n_bins: int) -> Floats:
        """As `SortedTops.equal_mass_edges`, with weight in place of rows."""
        order = np.argsort(self.confidence, kind="stable")
        ranked, weight = self.confidence[order], np.cumsum(self.weights[order])
        parts = min(n_bins, self.n)
        ranks = np.cumsum(np.full(parts, self.n // parts) + (np.arange(parts) < self.n % parts))[:-1]
        # A little less: sums of weights are rounded.
        at = np.minimum(np.searchsorted(weight, ranks - 1e-9 * self.n), self.n - 1)
        cuts = np.unique(ranked[at])
        top = ranked[self.weights[order] > 0][-1]
        return np.concatenate([[0.0], cuts[cuts < top], [1.0]])

    def debiased(self, n_bins: int) -> float:
        """Debiased error over bins of equal mass; chance goes by the effective number of rows."""
        bins = self.bins(n_bins, equal_mass=True)
        index = bin_index(self.confidence, bins.edges)
        square = np.bincount(index, self.weights**2, len(bins.edges) - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            effective = bins.count**2 / square
            chance = bins.accuracy * (1.0 - bins.accuracy) / (effective - 1.0)
            terms = np.where(effective < 2 - 1e-9, 0.0, bins.gap**2 - chance)
        return float(np.sqrt(max(0.0, np.nansum(bins.count * np.where(bins.count > 0, terms, 0.0)) / self.n)))

    def class_gaps(self, n_bins: int) -> Floats:
        """Shape (n_bins, K): weighted sums over a class's bin of probability minus (target is that class)."""
        edges = bin_edges(n_bins, self.precision)
        total = np.zeros((n_bins, self.predictions.n_classes))
        for part, probabilities in self.predictions.chunks():
            residual = minus_target(probabilities, self.predictions.targets[part]) * self.weights[part, None]
            total += sum_gaps(probabilities, residual, edges)
        return total

    def classwise(self, n_bins: int) -> float:
        """Class-wise ECE."""
        return float(np.abs(self.class_gaps(n_bins)).sum() / (self.n * self.predictions.n_classes))

    def smooth(self) -> float:
        """Smooth ECE."""
        return smooth_of_spread(spread_residuals([(self.confidence, self.gap)]), self.n)

    def ranking(self) -> Ranking:
        """AUROC, AURC and KS error."""
        return self.ranked(np.argsort(self.confidence, kind="stable"), self.weights)

    def ranked(self, order: NDArray[np.int64], weights: Floats) -> Ranking:
        """The same for other weights with the same sum, along rows in ascending order of confidence."""
        confidence, own = self.confidence[order], weights[order]
        ends = np.append(np.flatnonzero(np.diff(confidence)), self.n - 1)
        wrong = own * ~self.correct[order]
        gap = own * (confidence - self.correct[order])
        count, errors, surplus = (np.cumsum(each)[ends] for each in (own, wrong, gap))
        size, bad = np.diff(count, prepend=0.0), np.diff(errors, prepend=0.0)
        total, all_wrong = count[-1], errors[-1]
        beaten = float(((size - bad) * (errors - bad / 2.0)).sum())
        pairs = (total - all_wrong) * all_wrong
        above = np.maximum(total - count, 0.0)
        # The harmonic numbers for any amount of weight: H(x) is digamma(x + 1) but for a constant.
        steps = digamma(above + size + 1.0) - digamma(above + 1.0)
        used = size > 0
        rate = np.divide(bad, size, out=np.zeros_like(bad), where=used)
        risk = np.where(used, risk_of_groups(above, all_wrong - errors, np.ones_like(size), rate, steps), 0.0)
        risk += np.where(used, bad - rate, 0.0)
        auroc = float(beaten / pairs) if pairs > 1e-12 * total**2 else None
        return Ranking(auroc, float(risk.sum() / total), float(np.abs(surplus).max() / total))

    def confident(self, threshold: float, n_bins: int) -> ConfidentSet:
        """The high-confidence set."""
        inside = self.confidence >= rounded(np.asarray([threshold]), self.precision)
        size = float(self.weights[inside].sum())
        if size <= 0.0:
            return ConfidentSet(float(threshold), 0.0, None, None, None)
        whole = self._bins(bin_edges(n_bins, self.precision), inside)
        within = self._bins(bin_edges(n_bins, self.precision, threshold), inside)
        accuracy = float(self.weights[inside & self.correct].sum() / size)
        return ConfidentSet(float(threshold), size / self.n, accuracy, whole.expected_error, within.expected_error)

    def noise(self, n_bins: int, *, draws: int = 400, seed: int = 0) -> NoiseFloor:
        """ECE of a perfectly calibrated model with these confidences and weights."""
        generator = np.random.default_rng(seed)
        index = bin_index(self.confidence, bin_edges(n_bins, self.precision))
        expected = self.weights * np.minimum(self.confidence, 1.0)
        found = []
        for _ in range(draws):
            right = self.weights * (generator.random(self.n) < self.confidence)
            found.append(np.abs(np.bincount(index, expected - right, n_bins)).sum() / self.n)
        return NoiseFloor(float(np.mean(found)), float(np.quantile(found, 0.95)))

    def brier(self) -> float:
        """Brier score."""
        return self.mean(brier_rows(self.predictions))
