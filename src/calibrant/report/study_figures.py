"""Pictures of many runs: metrics over one setting or several components, and a search."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.errors import invalid
from calibrant.report.style import GREY, MARKERS, VERMILLION, line_style, new_figure, percent_axis, styled

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
    title: str = "",
) -> "Figure":
    """Two panels over the values of a setting, as in the paper: errors on the left, automated shares on the right.

    The values are evenly spaced because the paper's grids (0.1, 0.5, 1, 5, ...) are neither linear nor logarithmic.
    Without numbers as labels, such as for components, the points are not connected.

    Args:
        labels: The values of the setting, V texts.
        errors: Curve name to V fractions, e.g. `{"ECE": ..., "ECE(S95)": ..., "TE": ...}`; NaN is a gap.
        shares: Curve name to V fractions, e.g. `{"|S95|": ..., "|S99|": ...}`.
        parameter: Name on the axis: lambda, kappa, interval, alpha.
        chosen: The one of `labels` that was chosen on validation; a dashed line marks it.
        spreads: Curve name to V half-lengths of error bars; NaN for none.
        title: Text above; empty for none.
    """
    spreads = spreads or {}
    for group in (errors, shares, spreads):
        for name, series in group.items():
            if len(series) != len(labels):
                raise invalid(f"curve {name!r}", f"have one value for each of the {len(labels)} settings", len(series))
    connected = all(label.replace(".", "").isdecimal() for label in labels)
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


@styled
def pareto_picture(
    error: Sequence[float],
    calibration: Sequence[float],
    seen: Sequence[float],
    front: Sequence[bool],
    *,
    label: str = "validation ECE",
    title: str = "",
) -> "Figure":
    """Every finished trial by validation error and calibration, coloured by the share of samples; the front is ringed.

    Args:
        error: Validation error of each trial, a fraction.
        calibration: What `label` says, of each trial.
        seen: Share of the sample updates.
        front: Whether no other trial is at least as good in all three and better in one.
        label: Name of the second axis.
        title: Text above; empty for none.
    """
    figure = new_figure(6.4, 4.6)
    axes = figure.subplots()
    points = axes.scatter(
        error, calibration, c=seen, cmap="viridis", vmin=0.0, vmax=1.0, s=42, edgecolors=GREY, linewidths=0.6
    )
    ringed = [(x, y) for x, y, on_front in zip(error, calibration, front, strict=True) if on_front]
    ring: dict[str, Any] = {"s": 140, "facecolors": "none", "edgecolors": VERMILLION, "linewidths": 1.6}
    axes.scatter(*zip(*ringed, strict=True), **ring, label="Pareto front of all three")
    axes.set(xlabel="validation error", ylabel=label)
    percent_axis(axes.xaxis)
    if "NLL" not in label:
        percent_axis(axes.yaxis)
    axes.set_title(title)
    axes.legend(loc="best")
    bar = figure.colorbar(points, ax=axes, label="Share of sample updates")
    percent_axis(bar.ax.yaxis)
    return figure
