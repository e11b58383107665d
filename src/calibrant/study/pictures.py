"""Pictures of studies that the report has no use for."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calibrant.report.style import GREY, INK, PALETTE, VERMILLION, new_figure, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def component_bars(
    labels: Sequence[str],
    errors: Mapping[str, Sequence[float]],
    shares: Mapping[str, Sequence[float]],
    *,
    spreads: Mapping[str, Sequence[float]] | None = None,
    title: str = "",
) -> "Figure":
    """Two panels of bars, one group a component: errors on the left, automated shares on the right.

    Args:
        labels: Names of the components, top to bottom.
        errors: Metric name to one fraction a component; lower is better.
        shares: The same for shares; higher is better.
        spreads: Metric name to half-lengths of error bars; NaN for none.
        title: Text above; empty for none.
    """
    figure = new_figure(9.2, 1.4 + 0.5 * len(labels))
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(left, labels, errors, spreads or {}, "Error")
    _bars(right, labels, shares, spreads or {}, "Share of samples")
    left.invert_yaxis()
    figure.suptitle(title, weight="bold", fontsize=11)
    return figure


def _bars(
    axes: "Axes",
    labels: Sequence[str],
    group: Mapping[str, Sequence[float]],
    spreads: Mapping[str, Sequence[float]],
    axis: str,
) -> None:
    height = 0.8 / len(group)
    for index, (name, values) in enumerate(group.items()):
        places = [number - 0.4 + height * (index + 0.5) for number in range(len(labels))]
        lengths = [0.0 if math.isnan(value) else value for value in values]  # a bar of NaN would lose its label
        bars = axes.barh(places, lengths, height * 0.94, label=name, color=PALETTE[index % len(PALETTE)])
        if name in spreads:
            axes.errorbar(lengths, places, xerr=spreads[name], fmt="none", ecolor=INK, elinewidth=1)
        texts = ["not defined" if math.isnan(value) else f"{100 * value:.2f}" for value in values]
        axes.bar_label(bars, texts, fontsize=7, padding=2)
    axes.set_yticks(range(len(labels)), labels)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(axis)
    axes.locator_params(axis="x", nbins=6)  # more of them run into each other
    percent_axis(axes.xaxis)
    axes.margins(x=0.15)
    # Above the panel: a bar may end anywhere inside it.
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(group))


@styled
def pareto_picture(
    error: Sequence[float],
    ece: Sequence[float],
    seen: Sequence[float],
    front: Sequence[bool],
    *,
    title: str = "",
) -> "Figure":
    """Every finished trial by validation error and ECE, coloured by the share of samples it saw; the front is ringed.

    Args:
        error: Validation error of each trial, a fraction.
        ece: Validation ECE.
        seen: Share of the sample updates.
        front: Whether no other trial is at least as good in all three and better in one.
        title: Text above; empty for none.
    """
    figure = new_figure(6.4, 4.6)
    axes = figure.subplots()
    points = axes.scatter(error, ece, c=seen, cmap="viridis", vmin=0.0, vmax=1.0, s=42, edgecolors=GREY, linewidths=0.6)
    ringed = [index for index, is_front in enumerate(front) if is_front]
    axes.scatter(
        [error[i] for i in ringed],
        [ece[i] for i in ringed],
        s=140,
        facecolors="none",
        edgecolors=VERMILLION,
        linewidths=1.6,
        label="Pareto front of all three",
    )
    for axis in (axes.xaxis, axes.yaxis):
        percent_axis(axis)
    axes.set(xlabel="Validation error", ylabel="Validation ECE")
    axes.set_title(title)
    axes.legend(loc="best")
    bar = figure.colorbar(points, ax=axes, label="Share of sample updates")
    percent_axis(bar.ax.yaxis)
    return figure
