"""What a threshold buys: error and accuracy over the share that is automated, and everything over the threshold."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibrant import metrics
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics.metric import Weights
from calibrant.predictions import Predictions
from calibrant.report.entries import check_methods
from calibrant.report.statistics import Floats, automated_over
from calibrant.report.style import (
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    figure_with,
    legend_beside,
    line_style,
    new_figure,
    percent_axis,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def accuracy_coverage_curves(
    methods: Mapping[str, Predictions],
    *,
    weights: Weights | None = None,
    title: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Accuracy of the most confident share of the samples, over that share; one line for each method.

    Args:
        methods: Name to predictions.
        weights: Name of an extra column, or one number per row: how much each row counts.
        title: Text above; empty for none.
        ax: Axes to draw into; by default those of a new figure.
    """
    return _over_coverage(methods, "Accuracy of what is automated", lambda accuracy: accuracy, weights, title, ax)


def risk_coverage_curves(
    methods: Mapping[str, Predictions],
    *,
    weights: Weights | None = None,
    title: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Error of the most confident share of the samples, over that share; the area below is the AURC.

    Arguments as in `accuracy_coverage_curves`.
    """
    return _over_coverage(methods, "Error of what is automated", lambda accuracy: 1 - accuracy, weights, title, ax)


@styled
def threshold_curves(
    predictions: Predictions,
    *,
    n_bins: int = DEFAULT_N_BINS,
    points: int = 101,
    title: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Share, accuracy and ECE of S, the samples at confidence `threshold` and above, for `threshold` from 0.5 to 1.

    The accuracy carries its 95 % Wilson band. Where S is empty, accuracy and ECE end: they are not zero there.

    Args:
        predictions: What the model says.
        n_bins: Bins of the ECE of S.
        points: Thresholds on each line.
        title: Text above; empty for none.
        ax: Axes to draw share and accuracy into, without the ECE; by default both panels of a new figure.
    """
    if ax is not None:
        figure, upper, lower = figure_with(ax, 5.6, 5.2)[0], ax, None
    else:
        figure = new_figure(5.6, 5.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    thresholds = np.linspace(0.5, 1.0, points)
    rows = automated_over(predictions, thresholds, n_bins=n_bins)
    nan = (np.nan, np.nan)
    band = np.array([row.interval or nan for row in rows])
    accuracy = np.array([np.nan if row.accuracy is None else row.accuracy for row in rows])
    ece = np.array([np.nan if row.ece is None else row.ece for row in rows])
    upper.plot(thresholds, [row.share for row in rows], color=BLUE, linewidth=2, label="share automated |S|")
    upper.plot(thresholds, accuracy, color=VERMILLION, linestyle="--", linewidth=2, label="accuracy of S")
    upper.fill_between(
        thresholds, band[:, 0], band[:, 1], color=VERMILLION, alpha=0.2, linewidth=0, label="95 % interval"
    )
    upper.set(ylim=(0, 1.02), xlim=(0.5, 1.0), ylabel="Share of samples")
    upper.set_title(title)
    upper.legend(loc="lower left")
    panels = [upper] if lower is None else [upper, lower]
    panels[-1].set_xlabel("Confidence threshold")
    if lower is not None:
        lower.plot(thresholds, ece, color=GREEN, linewidth=2, label="ECE of S")
        lower.set_ylabel("ECE of S")
        lower.set_ylim(bottom=0)
    for axes in panels:
        percent_axis(axes.yaxis)
        for mark in (0.95, 0.99):
            axes.axvline(mark, color=GREY, linewidth=0.9, linestyle=":")
    return figure


@styled
def _over_coverage(
    methods: Mapping[str, Predictions],
    label: str,
    of_accuracy: Callable[[Floats], Floats],
    weights: Weights | None,
    title: str,
    ax: "Axes | None",
) -> "Figure":
    check_methods(methods)
    beside = len(methods) > 6
    figure, axes = figure_with(ax, 7.6 if beside else 5.6, max(4.0, 0.3 + 0.2 * len(methods)))
    for index, (name, predictions) in enumerate(methods.items()):
        curve = metrics.accuracy_coverage(predictions, weights=weights)
        axes.plot(curve.coverage, of_accuracy(curve.accuracy), label=name, **line_style(index))
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.set(xlim=(0, 1), xlabel="Share automated (coverage)", ylabel=label)
    axes.set_title(title)
    if beside:
        legend_beside(figure, ax)
    else:
        axes.legend(loc="best")
    return figure
