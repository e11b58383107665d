"""Pictures of many runs: a metric over one setting or component, and a search."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from calibrant.errors import invalid
from calibrant.report.style import GREY, INK, MARKERS, PALETTE, VERMILLION, line_style, new_figure, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def ablation_curves(
    values: Sequence[float],
    errors: Mapping[str, Sequence[float]],
    shares: Mapping[str, Sequence[float]],
    *,
    parameter: str,
    chosen: float | None = None,
    spreads: Mapping[str, Sequence[float]] | None = None,
    title: str = "",
) -> "Figure":
    """Two panels over one setting, as in the paper: errors on the left, automated shares on the right.

    The values are evenly spaced because the paper's grids (0.1, 0.5, 1, 5, ...) are neither linear nor logarithmic.

    Args:
        values: The setting's values, shape (V,).
        errors: Curve name to V fractions, e.g. `{"ECE": ..., "ECE(S95)": ..., "TE": ...}`; lower is better.
        shares: Curve name to V fractions, e.g. `{"|S95|": ..., "|S99|": ...}`; higher is better.
        parameter: Name on the axis: lambda, kappa, interval, alpha.
        chosen: The one of `values` that was chosen on validation; a dashed line marks it.
        spreads: Curve name to V half-lengths of error bars; NaN for none.
        title: Text above; empty for none.
    """
    spreads = spreads or {}
    for group in (errors, shares, spreads):
        for name, series in group.items():
            if len(series) != len(values):
                raise invalid(f"curve {name!r}", f"have one value for each of the {len(values)} settings", len(series))
    figure = new_figure(8.6, 3.6)
    left, right = figure.subplots(1, 2)
    _curves(left, errors, spreads)
    _curves(right, shares, spreads)
    left.set_ylabel("Error")
    right.set_ylabel("Share of samples")
    for axes in (left, right):
        percent_axis(axes.yaxis)
        axes.set_xlabel(parameter)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.margins(y=0.12)
        if chosen is not None:
            axes.axvline(
                list(values).index(chosen), color=GREY, linestyle="--", linewidth=1, label="chosen on validation"
            )
        # Above the panel: a curve may run anywhere inside it.
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    left.set_ylim(bottom=0)
    right.set_ylim(bottom=0)
    figure.suptitle(title, weight="bold", fontsize=11)
    return figure


def _curves(axes: "Axes", group: Mapping[str, Sequence[float]], spreads: Mapping[str, Sequence[float]]) -> None:
    for index, (name, series) in enumerate(group.items()):
        style = line_style(index)
        axes.plot(range(len(series)), series, label=name, marker=MARKERS[index % len(MARKERS)], markersize=5, **style)
        if name in spreads:
            bar = {"ecolor": style["color"], "elinewidth": 1.2, "alpha": 0.6}
            axes.errorbar(range(len(series)), series, yerr=spreads[name], fmt="none", **bar)


@styled
def component_bars(
    labels: Sequence[str],
    errors: Mapping[str, Sequence[float]],
    shares: Mapping[str, Sequence[float]],
    *,
    spreads: Mapping[str, Sequence[float]] | None = None,
    title: str = "",
) -> "Figure":
    """Two panels of bars, one group per component: errors on the left, automated shares on the right.

    Args:
        labels: Names of the components, top to bottom.
        errors: Metric name to one fraction per component; lower is better.
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
        lengths = np.nan_to_num(np.asarray(values, dtype=np.float64))  # a bar of NaN would lose its label
        error_bars = None
        if name in spreads:
            error_bars = np.nan_to_num(np.asarray(spreads[name], dtype=np.float64))
        colour = PALETTE[index % len(PALETTE)]
        # Labels of bars that know their error bars are written behind these.
        bars = axes.barh(
            places,
            lengths,
            height * 0.94,
            xerr=error_bars,
            ecolor=INK,
            error_kw={"elinewidth": 1},
            label=name,
            color=colour,
        )
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
    objective: Literal["ece", "scaled-nll"] = "ece",
) -> "Figure":
    """Every finished trial by validation error and ECE, coloured by the share of samples it saw; the front is ringed.

    Args:
        error: Validation error of each trial, a fraction.
        ece: Validation ECE, or what `objective` says.
        seen: Share of the sample updates.
        front: Whether no other trial is at least as good in all three and better in one.
        title: Text above; empty for none.
        objective: "scaled-nll": `ece` holds the NLL after temperature scaling instead.
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
    percent_axis(axes.xaxis)
    axes.set(xlabel="Validation error", ylabel="Validation NLL after scaling")
    if objective == "ece":
        percent_axis(axes.yaxis)
        axes.set_ylabel("Validation ECE")
    axes.set_title(title)
    axes.legend(loc="best")
    bar = figure.colorbar(points, ax=axes, label="Share of sample updates")
    percent_axis(bar.ax.yaxis)
    return figure
