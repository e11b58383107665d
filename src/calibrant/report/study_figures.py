"""The picture of an ablation: metrics over one setting or several components."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calibrant.errors import invalid
from calibrant.report.style import GREY, MARKERS, line_style, new_figure, percent_axis, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def ablation_curves(
    labels: Sequence[str],
    errors: Mapping[str, Sequence[float]],
    shares: Mapping[str, Sequence[float]],
    *,
    parameter: str,
    chosen: str | None = None,
    spreads: Mapping[str, Sequence[float]] | None = None,
    connected: bool = True,
    title: str = "",
) -> "Figure":
    """Two panels over the values of a setting, as in the paper: errors on the left, automated shares on the right.

    The values are evenly spaced because the paper's grids (0.1, 0.5, 1, 5, ...) are neither linear nor logarithmic.

    Args:
        labels: The values of the setting, V texts.
        errors: Curve name to V fractions, e.g. `{"ECE": ..., "ECE(S95)": ..., "TE": ...}`; NaN is a gap.
        shares: Curve name to V fractions, e.g. `{"|S95|": ..., "|S99|": ...}`.
        parameter: Name on the axis: lambda, kappa, interval, alpha.
        chosen: The one of `labels` that was chosen on validation; a dashed line marks it.
        spreads: Curve name to V half-lengths of error bars; NaN for none.
        connected: Whether a line connects the values; False for components.
        title: Text above; empty for none.
    """
    spreads = spreads or {}
    for group in (errors, shares, spreads):
        for name, series in group.items():
            if len(series) != len(labels):
                raise invalid(f"curve {name!r}", f"have one value for each of the {len(labels)} settings", len(series))
    places = range(len(labels))
    figure = new_figure(8.6, 3.6)
    for axes, group, what in zip(figure.subplots(1, 2), (errors, shares), ("Error", "Share of samples"), strict=True):
        for index, (name, series) in enumerate(group.items()):
            style = line_style(index)
            if not connected:
                style["linestyle"] = "none"
            axes.plot(places, series, label=name, marker=MARKERS[index % len(MARKERS)], markersize=5, **style)
            if name in spreads:
                bar = {"ecolor": style["color"], "elinewidth": 1.2, "alpha": 0.6}
                axes.errorbar(places, series, yerr=spreads[name], fmt="none", **bar)
        percent_axis(axes.yaxis)
        axes.set_xlabel(parameter)
        axes.set_ylabel(what)
        axes.set_xticks(places, labels)
        if not connected:
            axes.tick_params(axis="x", rotation=40)
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
        if chosen is not None:
            place = list(labels).index(chosen)
            axes.axvline(place, color=GREY, linestyle="--", linewidth=1, label="chosen on validation")
        # Above the panel: a curve may run anywhere inside it.
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    figure.suptitle(title, weight="bold", fontsize=11)
    return figure
