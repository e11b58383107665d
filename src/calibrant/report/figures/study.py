"""Many runs at once: a metric over one setting or component, a search, and how long training took."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from calibrant.errors import invalid
from calibrant.report.style import (
    GREY,
    INK,
    MARKERS,
    PALETTE,
    VERMILLION,
    figure_with,
    line_style,
    new_figure,
    percent_axis,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("", "//", "..", "xx", "\\\\", "++")


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

    The setting is drawn as evenly spaced categories because the paper's grids (0.1, 0.5, 1, 5, ...) are neither
    linear nor logarithmic. The lowest value of each error curve is ringed, unless a value was `chosen`: rings on test
    figures beside it would look like the choice.

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
    _curves(left, errors, spreads, ring_lowest=chosen is None)
    _curves(right, shares, spreads, ring_lowest=False)
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
    figure.suptitle(title, weight="bold", fontsize=11)
    return figure


@styled
def training_time_bars(
    seconds: Mapping[str, Mapping[str, float]], *, title: str = "", ax: "Axes | None" = None
) -> "Figure":
    """Training time of each method relative to the first one, grouped by data set.

    Args:
        seconds: Data set to (method to seconds). Every data set names the same methods; the first is the reference.
        title: Text above; empty for none.
        ax: Axes to draw into; by default those of a new figure.
    """
    groups, methods = list(seconds), _common_methods(seconds)
    width = 0.8 / len(methods)
    figure, axes = figure_with(ax, max(4.5, 1.2 + 0.62 * len(groups) * len(methods)), 3.8)
    for index, method in enumerate(methods):
        relative = np.array([seconds[group][method] / seconds[group][methods[0]] for group in groups])
        places = np.arange(len(groups)) - 0.4 + width * (index + 0.5)
        bars = axes.bar(
            places,
            relative,
            width * 0.94,
            label=method,
            color=PALETTE[index % len(PALETTE)],
            hatch=_HATCHES[(index // len(PALETTE)) % len(_HATCHES)],
            edgecolor="white",
        )
        labels = [
            f"{100 * share:.0f} %\n{_clock(seconds[group][method])}"
            for group, share in zip(groups, relative, strict=True)
        ]
        axes.bar_label(
            bars, labels, fontsize=8, padding=3, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        )
    axes.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(visible=False, axis="x")
    percent_axis(axes.yaxis)
    axes.set_ylabel(f"Time relative to {methods[0]}")
    axes.margins(y=0.2)
    axes.set_title(title)
    if ax is None:
        figure.legend(loc="outside lower center", ncols=min(len(methods), 4))
    else:
        ax.legend()
    return figure


def _common_methods(seconds: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not seconds:
        raise invalid("seconds", "hold at least one data set", "an empty mapping")
    methods = list(next(iter(seconds.values())))
    for group, found in seconds.items():
        if list(found) != methods:
            raise invalid(f"seconds[{group!r}]", f"name the methods {methods} in this order", list(found))
    return methods


def _curves(
    axes: "Axes", group: Mapping[str, Sequence[float]], spreads: Mapping[str, Sequence[float]], *, ring_lowest: bool
) -> None:
    for index, (name, series) in enumerate(group.items()):
        style = line_style(index)
        axes.plot(range(len(series)), series, label=name, marker=MARKERS[index % len(MARKERS)], markersize=5, **style)
        if name in spreads:
            bar = {"ecolor": style["color"], "elinewidth": 1.2, "alpha": 0.6}
            axes.errorbar(range(len(series)), series, yerr=spreads[name], fmt="none", **bar)
        # NaN is a gap (ECE of an empty confident set); it is never the lowest value.
        if ring_lowest and not np.isnan(series).all():
            best = int(np.nanargmin(series))
            axes.plot([best], [series[best]], "o", markersize=12, fillstyle="none", color=style["color"])


def _clock(seconds: float) -> str:
    """Seconds in the unit a person would use.

    >>> _clock(42), _clock(600), _clock(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
    objective: Literal["ece", "scaled-nll"] = "ece",
    ax: "Axes | None" = None,
) -> "Figure":
    """Every finished trial by validation error and ECE, coloured by the share of samples it saw; the front is ringed.

    Args:
        error: Validation error of each trial, a fraction.
        ece: Validation ECE, or what `objective` says.
        seen: Share of the sample updates.
        front: Whether no other trial is at least as good in all three and better in one.
        title: Text above; empty for none.
        objective: "scaled-nll": the NLL after temperature scaling stands in the ECE's place.
        ax: Axes to draw into; by default those of a new figure.
    """
    figure, axes = figure_with(ax, 6.4, 4.6)
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
    for axis in (axes.xaxis, axes.yaxis) if objective == "ece" else (axes.xaxis,):
        percent_axis(axis)
    label = "Validation ECE" if objective == "ece" else "Validation NLL after scaling"
    axes.set(xlabel="Validation error", ylabel=label)
    axes.set_title(title)
    axes.legend(loc="best")
    bar = figure.colorbar(points, ax=axes, label="Share of sample updates")
    percent_axis(bar.ax.yaxis)
    return figure
