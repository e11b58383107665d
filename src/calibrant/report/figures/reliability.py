"""Is the model as right as it says? Reliability diagrams and the confidences of right and wrong answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid
from calibrant.metrics import Bins, reliability_bins, split_groups
from calibrant.metrics.metric import Groups
from calibrant.predictions import Predictions, require_predictions
from calibrant.report.entries import check_methods
from calibrant.report.statistics import Bands, reliability_bands
from calibrant.report.style import BLUE, GREY, INK, VERMILLION, figure_with, new_figure, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BAND, _BAND_EDGE = "#fbe3ad", "#d98c00"


@styled
def reliability_diagram(
    predictions: Predictions, *, n_bins: int = DEFAULT_N_BINS, title: str = "", ax: "Axes | None" = None
) -> "Figure":
    """Accuracy over confidence, with counts.

    Blue bars are the accuracy of each bin with its 95 % Wilson interval; the amber boxes are where 95 % of the bins of
    a perfectly calibrated model with as many samples would fall (the noise floor): a bar that ends inside its box is no
    evidence of miscalibration. The lower panel counts the samples of each bin.

    Args:
        predictions: What the model says.
        n_bins: Equal-width bins on [0, 1].
        title: Text above; empty for none.
        ax: Axes to draw the accuracy into, without the counts; by default both panels of a new figure.
    """
    if ax is not None:
        figure, _ = figure_with(ax, 5.2, 5.6)
        _draw_reliability(ax, reliability_bands(predictions, n_bins), title)
        ax.set(xlabel="Confidence", ylabel="Accuracy")
        ax.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none")  # bars may lie behind it
        return figure
    figure = new_figure(5.2, 5.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    bands = reliability_bands(predictions, n_bins)
    _draw_reliability(upper, bands, title)
    upper.set_ylabel("Accuracy")
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    _draw_counts(lower, bands.bins)
    return figure


@styled
def reliability_grid(
    methods: Mapping[str, Predictions], *, n_bins: int = DEFAULT_N_BINS, columns: int = 4, counts: bool = True
) -> "Figure":
    """Reliability diagrams of several methods side by side on common axes, as in the paper's figure.

    Args:
        methods: Name to predictions, drawn in this order, row by row.
        n_bins: Equal-width bins on [0, 1].
        columns: Most diagrams in a row.
        counts: Whether each bar carries the number of its samples.
    """
    check_methods(methods)
    if columns < 1:
        raise invalid("columns", "be at least 1", columns)
    across = min(columns, len(methods))
    down = -(-len(methods) // across)
    figure = new_figure(2.9 * across + 0.3, 2.9 * down + 0.7)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (name, predictions) in zip(grid.flat, methods.items(), strict=False):
        bands = reliability_bands(predictions, n_bins)
        _draw_reliability(axes, bands, name, line_break=True)
        axes.set_aspect("equal")
        if counts:
            _write_counts(axes, bands.bins)
    for axes in grid.flat[len(methods) :]:
        axes.remove()
    figure.supxlabel("Confidence")
    figure.supylabel("Accuracy")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4 if across > 2 else 2)
    return figure


def group_reliability(
    predictions: Predictions, groups: Groups, *, n_bins: int = DEFAULT_N_BINS, columns: int = 4, most: int = 11
) -> "Figure":
    """Reliability diagrams of all cases and of each group, the largest groups first.

    Args:
        predictions: What the model says.
        groups: Name of an extra column, or one value for each row.
        n_bins: Equal-width bins on [0, 1].
        columns: Most diagrams in a row.
        most: Groups that are drawn at most.
    """
    parts = split_groups(predictions, groups)
    largest = sorted(parts.items(), key=lambda item: -len(item[1]))[: max(most, 1)]
    # A group may be called "all", too: then its picture stands beside the other one.
    named = {f"{name} ({len(part):,})": part for name, part in largest}
    return reliability_grid({f"all ({len(predictions):,} cases)": predictions, **named}, n_bins=n_bins, columns=columns)


@styled
def confidence_histogram(
    predictions: Predictions, *, n_bins: int = 20, title: str = "", ax: "Axes | None" = None
) -> "Figure":
    """How sure the model is where it is right and where it is wrong.

    Stacked shares of all samples over confidence; the dashed lines are the mean confidence and the accuracy, whose
    distance is the calibration gap of the whole set.

    Args:
        predictions: What the model says.
        n_bins: Equal-width bins on [0, 1].
        title: Text above; empty for none.
        ax: Axes to draw into; by default those of a new figure.
    """
    require_predictions(predictions)
    figure, axes = figure_with(ax, 5.6, 3.6)
    bins = reliability_bins(predictions, n_bins)
    left, width = bins.edges[:-1], np.diff(bins.edges)
    right, wrong = bins.correct_sum / len(predictions), (bins.count - bins.correct_sum) / len(predictions)
    axes.bar(left, right, width, align="edge", color=BLUE, edgecolor="white", linewidth=0.5, label="right")
    axes.bar(
        left, wrong, width, bottom=right, align="edge", color=VERMILLION, edgecolor="white", hatch="///", label="wrong"
    )
    mean, accuracy = float(predictions.confidence.mean()), float(predictions.correct.mean())
    axes.axvline(mean, color=INK, linestyle="--", linewidth=1.2, label=f"mean confidence {100 * mean:.1f} %")
    axes.axvline(accuracy, color=INK, linestyle=":", linewidth=1.6, label=f"accuracy {100 * accuracy:.1f} %")
    percent_axis(axes.yaxis)
    axes.set(xlim=(0, 1), xlabel="Confidence", ylabel="Share of samples")
    axes.set_title(title)
    axes.legend(loc="upper left")
    return figure


def _draw_reliability(axes: "Axes", bands: Bands, title: str, *, line_break: bool = False) -> None:
    bins = bands.bins
    some = bins.count > 0
    left, width = bins.edges[:-1][some], np.diff(bins.edges)[some]
    accuracy, floor = bins.accuracy[some], bands.floor_low[some]
    height = bands.floor_high[some] - floor
    band: dict[str, Any] = {"x": left, "height": height, "width": width, "bottom": floor, "align": "edge"}
    # The amber boxes lie behind the bars, where they do not tint them; their outlines lie in front, to be seen at all.
    axes.bar(**band, facecolor=_BAND, edgecolor=_BAND_EDGE, zorder=1.5, label="noise floor (perfect model)")
    axes.bar(left, accuracy, width, align="edge", color=BLUE, edgecolor="white", zorder=2, label="accuracy")
    axes.bar(**band, facecolor="none", edgecolor=_BAND_EDGE, linewidth=1.1, zorder=2.5)
    errors = np.stack([accuracy - bands.low[some], bands.high[some] - accuracy])
    whiskers: dict[str, Any] = {"fmt": "none", "ecolor": INK, "elinewidth": 1.1, "capsize": 2.5}
    axes.errorbar(left + width / 2, accuracy, yerr=errors, **whiskers, zorder=3, label="95 % interval")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2, zorder=2.8, label="perfect calibration")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    ece = f"ECE {100 * bins.expected_error:.2f} %"
    if line_break:
        axes.set_title(f"{title}\n{ece}", fontsize=10)
    else:
        axes.set_title(title, loc="left")
        axes.set_title(ece, loc="right", fontsize=10)


def _draw_counts(axes: "Axes", bins: Bins) -> None:
    left, width = bins.edges[:-1], np.diff(bins.edges)
    bars = axes.bar(left, bins.count, width, align="edge", color=GREY, edgecolor="white", label="samples")
    axes.bar_label(bars, [f"{count:,}" if count else "" for count in bins.count], fontsize=8, padding=1)
    axes.set(xlabel="Confidence", ylabel="Samples")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(y=0.25)


def _write_counts(axes: "Axes", bins: Bins) -> None:
    for left, right, count in zip(bins.edges[:-1], bins.edges[1:], bins.count, strict=True):
        if count:
            axes.text(
                (left + right) / 2,
                0.015,
                f"{count:,}",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
                color="white",
                bbox={"facecolor": INK, "edgecolor": "none", "alpha": 0.55, "pad": 0.8},
            )
