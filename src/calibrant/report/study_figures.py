"""Pictures of many runs: a metric over one setting or component, a search, and plans over their cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from calibrant.errors import invalid
from calibrant.report.style import GREY, INK, MARKERS, PALETTE, VERMILLION, line_style, new_figure, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = {"error": "Test error", "nll": "NLL after scaling", "automated": "Automated at 99 %"}
_IN_PERCENT = ("error", "automated")


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


@dataclass(frozen=True)
class BudgetLine:
    """One line of `budget_curves`.

    Attributes:
        name: In the legend.
        updates: Shares of all updates, ascending, shape (B,).
        values: "error" and "automated" as fractions, and "nll": B means over seeds each; NaN for a gap.
        spreads: The same names to B standard deviations; NaN for none.
        control: Whether it is a control: all data for fewer epochs, the line to beat.
    """

    name: str
    updates: Sequence[float]
    values: Mapping[str, Sequence[float]]
    spreads: Mapping[str, Sequence[float]] = field(default_factory=dict)
    control: bool = False

    def __post_init__(self) -> None:
        for metric, series in (*self.values.items(), *self.spreads.items()):
            if len(series) != len(self.updates):
                rule = f"have one value for each of the {len(self.updates)} budgets"
                raise invalid(f"{metric} of {self.name!r}", rule, len(series))


@styled
def budget_curves(lines: Sequence[BudgetLine], *, title: str = "") -> "Figure":
    """Three panels over the share of updates: test error, NLL after scaling, and what may be automated at 99 %.

    A plan is worth its cost if it lies below its control (above it in the panel on the right), which is drawn thick and
    black. Bars are standard deviations over seeds.

    Args:
        lines: Plans and controls.
        title: Text above; empty for none.
    """
    if not lines:
        raise invalid("lines", "hold at least one line", "none")
    figure = new_figure(10.2, 3.7)
    for axes, (metric, label) in zip(figure.subplots(1, 3), _PANELS.items(), strict=True):
        plans = [line for line in lines if not line.control]
        for index, line in enumerate(plans):
            _line(axes, line, metric, {**line_style(index), "marker": MARKERS[index % len(MARKERS)]})
        for index, line in enumerate(line for line in lines if line.control):
            dash = ("-", "--", ":")[index % 3]
            # In front of the plans, which are compared with it.
            _line(axes, line, metric, {"color": INK, "linewidth": 2.8, "linestyle": dash, "marker": "s", "zorder": 3})
        axes.set(xlabel="Updates, share of all", ylabel=label)
        percent_axis(axes.xaxis)
        if metric in _IN_PERCENT:
            percent_axis(axes.yaxis)
        axes.margins(y=0.12)
        # If nothing may be automated, all lines are 0, and the axis must not show negative shares.
        if metric == "automated" and axes.get_ylim()[0] < 0:
            axes.set_ylim(bottom=0)
        if metric == "automated" and not any(np.nansum(line.values[metric]) for line in lines):
            axes.text(0.5, 0.5, "nothing can be promised", transform=axes.transAxes, ha="center", color=INK)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 3))
    figure.suptitle(title, weight="bold", fontsize=11)
    return figure


def _line(axes: "Axes", line: BudgetLine, metric: str, style: dict[str, object]) -> None:
    means = np.asarray(line.values[metric], dtype=np.float64)
    axes.plot(line.updates, means, label=line.name, markersize=5, **style)  # type: ignore[arg-type]
    spreads = np.asarray(line.spreads.get(metric, ()), dtype=np.float64)
    if spreads.size and not np.isnan(spreads).all():
        # Bars, not a band: budgets of one seed may lie between those of several.
        bars = {"ecolor": str(style["color"]), "capsize": 4, "elinewidth": 1.4, "zorder": 3}
        axes.errorbar(line.updates, means, yerr=spreads, fmt="none", **bars)  # type: ignore[arg-type]
