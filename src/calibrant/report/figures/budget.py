"""What a budget of updates buys: plans over their cost, beside the control that they have to beat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from calibrant.errors import invalid
from calibrant.report.style import INK, MARKERS, line_style, new_figure, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = {"error": "Test error", "nll": "NLL after scaling", "automated": "Automated at 99 %"}
_IN_PERCENT = ("error", "automated")


@dataclass(frozen=True)
class BudgetLine:
    """One line of the picture.

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

    A plan is worth something where it lies below its control, which is drawn thick and black (above it, in the panel on
    the right). Bars are standard deviations over seeds.

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
            # Above the plans: it is what they are compared with.
            _line(axes, line, metric, {"color": INK, "linewidth": 2.8, "linestyle": dash, "marker": "s", "zorder": 3})
        axes.set(xlabel="Updates, share of all", ylabel=label)
        percent_axis(axes.xaxis)
        if metric in _IN_PERCENT:
            percent_axis(axes.yaxis)
        axes.margins(y=0.12)
        # Where nothing may be automated, all lines are 0; the axis must not show negative shares then.
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
