"""Smooth ECE (Blasiok and Nakkiran 2023): a calibration error without bins, with a bandwidth chosen by the data."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from calibrant.metrics.tops import Tops, Weights, weighted_rows
from calibrant.predictions import Predictions

# Cells of the grid on [0, 1] and smallest bandwidth: two cells, below which the grid would show.
CELLS = 2048
_SMALLEST = 1e-3
_BISECTIONS = 10


def smooth_calibration_error(predictions: Predictions, *, weights: Weights | None = None) -> float:
    """Smooth ECE with a reflected Gaussian kernel and the bandwidth at which the error equals the bandwidth.

    With r = confidence - correct, smECE_s is the integral over [0, 1] of |(1/n) sum_i r_i K_s(t, c_i)|. It falls as s
    grows; the result is its value at the s where both are equal (searched in 0.001..1).
    """
    if weights is not None:
        return weighted_rows(predictions, weights).smooth()
    return smooth_of(Tops.of(predictions))


def smooth_of(tops: Tops) -> float:
    """Smooth ECE of confidences."""
    return smooth_of_spread(spread_residuals((c, c - correct) for c, correct in tops.blocks()), len(tops.correct))


def spread_residuals(parts: Iterable[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Sums of residuals on the grid, each shared by the two nearest centres; shape (cells + 1,), the last one is 0.

    Args:
        parts: Confidences and residuals of some rows, part by part.
    """
    spread = np.zeros(CELLS + 1)
    for confidence, residual in parts:
        low, part = grid_position(confidence)
        spread[:-1] += np.bincount(low, residual * (1.0 - part), CELLS)
        spread[1:] += np.bincount(low, residual * part, CELLS)
    return spread


def smooth_of_spread(spread: NDArray[np.float64], rows: int) -> float:
    """Smooth ECE from the sums of that many rows."""
    return float(smooth_error(spread[None, :CELLS] / rows)[0])


def grid_position(confidence: NDArray[np.float64], cells: int = CELLS) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The cell whose centre lies at or below each value, and how far the value is on the way to the next one."""
    position = np.clip(confidence * cells - 0.5, 0.0, cells - 1.0)
    low = position.astype(np.int64)
    return low, position - low


def smooth_error(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooth ECE of residuals on the grid, divided by n; one value for each row of shape (r, cells)."""
    # Reflection at 0 and 1 makes the Gaussian diagonal in the cosine basis: this is heat flow in an insulated rod.
    waves = fft.dct(spread, type=2, axis=-1)
    frequency = np.pi * np.arange(spread.shape[-1])

    def error(bandwidth: NDArray[np.float64]) -> NDArray[np.float64]:
        damped = waves * np.exp(-0.5 * (bandwidth[:, None] * frequency) ** 2)
        result: NDArray[np.float64] = np.abs(fft.idct(damped, type=2, axis=-1)).sum(axis=-1)
        return result

    low, high = np.full(len(spread), _SMALLEST), np.ones(len(spread))
    over, under = error(low) - low, error(high) - high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        excess = error(middle) - middle
        above = excess > 0
        low, over = np.where(above, middle, low), np.where(above, excess, over)
        high, under = np.where(above, high, middle), np.where(above, under, excess)
    # The error falls almost linearly over so short an interval; where even the smallest bandwidth is above the
    # error (over <= 0) the bracket has closed on it.
    return error(np.where(over > 0, low + (high - low) * over / np.maximum(over - under, 1e-300), low))
