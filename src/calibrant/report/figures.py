"""Pictures of predictions: each function returns a matplotlib `Figure`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.metrics import accuracy_coverage, split_groups
from calibrant.metrics.metric import Groups, Weights
from calibrant.predictions import Predictions
from calibrant.report.entries import check_methods
from calibrant.report.style import BLUE, GREY, INK, line_style, new_figure, panels_with, percent_axis, styled
from calibrant.report.summaries import Bands, reliability_bands

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND, _BAND_EDGE = "#fbe3ad", "#d98c00"


@styled
def reliability_diagram(
    predictions: Predictions, *, n_bins: int = DEFAULT_N_BINS, title: str = "", ax: "Axes | None" = None
) -> "Figure":
    """Accuracy over confidence, with counts.

    Blue bars are the accuracy of each bin with its exact 95 % interval. The amber boxes hold 95 % of the bins of a
    perfectly calibrated model with as many samples (the noise floor): a bar that ends inside its box is no evidence of
    miscalibration. The lower panel counts the samples of each bin.

    Args:
        predictions: What the model says.
        n_bins: Equal-width bins on [0, 1].
        title: Text above; empty for none.
        ax: Axes to draw the accuracy into, without the counts; by default both panels of a new figure.
    """
    bands = reliability_bands(predictions, n_bins)
    figure, panels = panels_with(ax, 5.2, 5.6, (3.2, 1))
    _draw_reliability(panels[0], bands, title)
    panels[0].set_ylabel("Accuracy")
    panels[-1].set_xlabel("Confidence")
    if ax is not None:
        ax.legend(loc="upper left", frameon=True, framealpha=0.9, edgecolor="none")  # bars may lie behind it
        return figure
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    _draw_counts(panels[1], bands)
    return figure


@styled
def reliability_grid(methods: Mapping[str, Predictions], *, n_bins: int = DEFAULT_N_BINS) -> "Figure":
    """Reliability diagrams of several methods side by side on common axes, as in the paper's figure.

    Each bar shows the number of its samples.

    Args:
        methods: Name to predictions, drawn in this order, row by row.
        n_bins: Equal-width bins on [0, 1].
    """
    check_methods(methods)
    across = min(4, len(methods))
    down = -(-len(methods) // across)
    figure = new_figure(2.9 * across + 0.3, 2.9 * down + 0.7)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (name, predictions) in zip(grid.flat, methods.items(), strict=False):
        bands = reliability_bands(predictions, n_bins)
        _draw_reliability(axes, bands, name, line_break=True)
        axes.set_aspect("equal")
        _write_counts(axes, bands)
    for axes in grid.flat[len(methods) :]:
        axes.remove()
    figure.supxlabel("Confidence")
    figure.supylabel("Accuracy")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4 if across > 2 else 2)
    return figure


def group_reliability(predictions: Predictions, groups: Groups, *, n_bins: int = DEFAULT_N_BINS) -> "Figure":
    """Reliability diagrams of all cases and of the eleven largest groups.

    Args:
        predictions: What the model says.
        groups: Name of an extra column, or one value per row.
        n_bins: Equal-width bins on [0, 1].
    """
    parts = split_groups(predictions, groups)
    largest = sorted(parts.items(), key=lambda item: -len(item[1]))[:11]
    # A group may have the name "all", too: "cases" keeps the two apart.
    diagrams = {f"all ({len(predictions):,} cases)": predictions}
    diagrams |= {f"{name} ({len(part):,})": part for name, part in largest}
    return reliability_grid(diagrams, n_bins=n_bins)


def _draw_reliability(axes: "Axes", bands: Bands, title: str, *, line_break: bool = False) -> None:
    left, width = bands.low_edge, bands.high_edge - bands.low_edge
    accuracy, floor = bands.accuracy, bands.floor_low
    height = bands.floor_high - floor
    band: dict[str, Any] = {"x": left, "height": height, "width": width, "bottom": floor, "align": "edge"}
    # The amber boxes lie behind the bars, so they do not tint them; their outlines lie in front, so they can be seen.
    axes.bar(**band, facecolor=_BAND, edgecolor=_BAND_EDGE, zorder=1.5, label="noise floor (perfect model)")
    axes.bar(left, accuracy, width, align="edge", color=BLUE, edgecolor="white", zorder=2, label="accuracy")
    axes.bar(**band, facecolor="none", edgecolor=_BAND_EDGE, linewidth=1.1, zorder=2.5)
    errors = np.stack([accuracy - bands.low, bands.high - accuracy])
    whiskers: dict[str, Any] = {"fmt": "none", "ecolor": INK, "elinewidth": 1.1, "capsize": 2.5}
    axes.errorbar(left + width / 2, accuracy, yerr=errors, **whiskers, zorder=3, label="95 % interval")
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2, zorder=2.8, label="perfect calibration")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    ece = f"ECE {100 * bands.ece:.2f} %"
    if line_break:
        axes.set_title(f"{title}\n{ece}", fontsize=10)
    else:
        axes.set_title(title, loc="left")
        axes.set_title(ece, loc="right", fontsize=10)


def _draw_counts(axes: "Axes", bands: Bands) -> None:
    width = bands.high_edge - bands.low_edge
    bars = axes.bar(bands.low_edge, bands.cases, width, align="edge", color=GREY, edgecolor="white", label="samples")
    axes.bar_label(bars, [f"{count:,}" for count in bands.cases], fontsize=8, padding=1)
    axes.set_ylabel("Samples")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(y=0.25)


def _write_counts(axes: "Axes", bands: Bands) -> None:
    box = {"facecolor": INK, "edgecolor": "none", "alpha": 0.55, "pad": 0.8}
    text: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 7, "color": "white"}
    for middle, count in zip((bands.low_edge + bands.high_edge) / 2, bands.cases, strict=True):
        axes.text(middle, 0.015, f"{count:,}", bbox=box, **text)


@styled
def coverage_curves(
    methods: Mapping[str, Predictions],
    *,
    error: bool = False,
    weights: Weights | None = None,
    title: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Accuracy of the most confident share of the samples, over that share; one line per method.

    Args:
        methods: Name to predictions.
        error: Draw the error instead; the area below the line is the AURC.
        weights: Name of an extra column, or one number per row: how much each row counts.
        title: Text above; empty for none.
        ax: Axes to draw into; by default those of a new figure.
    """
    check_methods(methods)
    beside = len(methods) > 6
    figure, (axes,) = panels_with(ax, 7.6 if beside else 5.6, max(4.0, 0.3 + 0.2 * len(methods)))
    for index, (name, predictions) in enumerate(methods.items()):
        curve = accuracy_coverage(predictions, weights=weights)
        values = 1 - curve.accuracy if error else curve.accuracy
        axes.plot(curve.coverage, values, label=name, **line_style(index))
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.set(xlim=(0, 1), xlabel="Share automated (coverage)", ylabel="Accuracy of what is automated")
    if error:
        axes.set_ylabel("Error of what is automated")
    axes.set_title(title)
    if beside and ax is None:
        figure.legend(loc="outside right upper")
    else:
        axes.legend(loc="best")
    return figure
