"""Make docs/results.svg, each finding beside its control, docs/paper.svg, ours beside the paper's, docs/compute.svg,
quality against compute, and docs/ablation-NAME.svg, the paper's ablations.

python docs/make/results_picture.py
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from calibrant.report import save_figure
from calibrant.report.style import BLUE, GREY, INK, VERMILLION, new_figure, percent_axis, styled
from calibrant.studies import Record, read_records
from calibrant.studies.ablation import ablation_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `paper` is not part of the installed package

from paper.beside import picture_name, recorded_ablations
from paper.findings import (
    ECE,
    ERROR,
    FEWER,
    FORMER,
    NLL,
    PRUNED,
    SMALLER,
    Finding,
    Metric,
    compute_curves,
    findings,
)
from paper.numbers import METRICS, paper_rows
from paper.runs import group_records, in_words

DOCS = ROOT / "docs"
DATA, NETWORKS = "cifar10", {"resnet32": "ResNet-32", "resnet50": "ResNet-50"}
METHODS = (
    *("nll", "brier", "dca", "ls", "mmce", "entropy", "fl", "flsd", "fl+mdca"),
    *("flsd+h", "flsd+h+p-ema", "flsd+h+unbiased"),
)
PANELS = {
    "test_error": "Test error, %",
    "ece": "ECE, %",
    "share@0.95": "above 0.95: |S95|, %",
    "ece@0.95": "ECE(S95), %",
}
_COLOURS = {"better": BLUE, "worse": VERMILLION, "inconclusive": GREY}


@styled
def findings_picture() -> "Figure":
    """A row for each finding, a panel for each metric: the difference from the control.

    In percent of the control, so that data sets share an axis; that of ECE in points, since its control may be near 0.
    """
    found = findings(group_records(read_records(ROOT / "results")))
    figure = new_figure(11.5, 1.3 + 0.55 * len(found))
    panels = {ERROR: "Test error", NLL: "NLL, scaled", ECE: "ECE as trained"}
    row = figure.subplots(1, len(panels), sharey=True)
    for axes, (metric, title) in zip(row, panels.items(), strict=True):
        for place, each in enumerate(found):
            interval(axes, each, metric, place)
        axes.axvline(0, color="black", linewidth=1)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("difference, points" if metric is ECE else "difference, %", fontsize=9)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.12)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
    row[0].set_ylim(len(found) - 0.5, -0.5)
    names = [f"{each.name}, {each.where}\nagainst {each.control_name}; {seeds(each)}" for each in found]
    names = [name.replace("`", "") for name in names]
    row[0].set_yticks(range(len(found)), names, fontsize=9)
    legend(figure, [Line2D([], [], marker="o", color=colour, label=word) for word, colour in _COLOURS.items()])
    return figure


def interval(axes: "Axes", each: Finding, metric: Metric, place: int) -> None:
    unit = 1.0 if metric is ECE else metric.mean(each.control) / 100
    difference, half = each.difference(metric)
    colour = _COLOURS[each.verdict(metric)]
    bars = None if half is None else half / unit
    axes.errorbar(difference / unit, place, xerr=bars, fmt="o", color=colour, markersize=7, capsize=3, linewidth=2)


def seeds(each: Finding) -> str:
    return "one seed" if each.seeds == 1 else f"{each.seeds} seeds"


@dataclass(frozen=True)
class Line:
    """One method on one network: our values seed by seed, and the paper's if it has some."""

    name: str
    ours: dict[str, list[float]]
    paper: dict[str, float]


def lines(model: str) -> list[Line]:
    """What was run with recommended settings, in the order of `METHODS`."""
    groups = group_records(read_records(ROOT / "results"))[(DATA, model)]
    printed = {row.method: row for row in paper_rows() if (row.data, row.model) == (DATA, model)}
    made = []
    for name in METHODS:
        if name in groups:
            theirs = {metric: printed[name].value(metric) for metric in METRICS} if name in printed else {}
            made.append(line_of(name, groups[name], theirs))
    return made


def line_of(name: str, records: Sequence[Record], paper: dict[str, float]) -> Line:
    ours = {metric: [value(record, metric) for record in records] for metric in PANELS}
    return Line(name + (f"  ({len(records)} seeds)" if len(records) > 1 else ""), ours, paper)


def value(record: Record, metric: str) -> float:
    found = record.value(metric)
    assert found is not None, f"{record.file_name} has no {metric}"
    return found


@styled
def paper_picture() -> "Figure":
    """A row for each method, a panel for each metric; the networks one above the other."""
    groups = {name: lines(model) for model, name in NETWORKS.items()}
    figure = new_figure(10.5, 1.6 + 0.3 * sum(len(group) for group in groups.values()))
    rows = figure.subplots(
        len(groups), len(PANELS), sharex="col", height_ratios=[len(group) for group in groups.values()]
    )
    for (name, group), row in zip(groups.items(), rows, strict=True):
        for axes, (metric, title) in zip(row, PANELS.items(), strict=True):
            draw(axes, group, metric)
            axes.set_yticks(range(len(group)), [line.name for line in group] if axes is row[0] else [])
            if name == next(iter(groups)):
                axes.set_title(title, fontsize=10)
        row[0].set_ylabel(name, weight="bold")
    figure.align_ylabels(rows[:, 0])
    ours = Line2D([], [], marker="o", color=BLUE, linestyle="", label="ours, mean over seeds (bars: each seed)")
    diamond = {"marker": "D", "color": GREY, "markerfacecolor": "none", "linestyle": ""}
    legend(figure, [ours, Line2D([], [], label="the paper, as printed", **diamond)])
    return figure


def draw(axes: "Axes", group: Sequence[Line], metric: str) -> None:
    for place, line in enumerate(group):
        found = line.ours[metric]
        if metric in line.paper:
            axes.plot(line.paper[metric], place, "D", markersize=5.5, markerfacecolor="none", markeredgecolor=GREY)
        axes.plot(found, [place] * len(found), "|", color=BLUE, markersize=8, alpha=0.7)
        axes.plot(statistics.fmean(found), place, "o", color=BLUE, markersize=6.5)
    axes.set_ylim(len(group) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)


def legend(figure: "Figure", marks: list[Line2D]) -> None:
    figure.legend(handles=marks, loc="outside lower center", ncols=3)


_CURVES = {
    SMALLER: {"color": BLUE, "marker": "o", "linewidth": 2.6, "zorder": 4},
    FEWER: {"color": INK, "marker": "s", "linewidth": 2.6, "zorder": 3},
    FORMER: {"color": GREY, "marker": "s", "linewidth": 1.6, "linestyle": "--"},
    PRUNED: {"color": VERMILLION, "marker": "^", "linewidth": 1.6},
}


@styled
def compute_picture() -> "Figure":
    """Error and NLL against compute on both CIFAR sets; bars are standard deviations over seeds."""
    groups = group_records(read_records(ROOT / "results"))
    places = [("cifar10", "resnet32"), ("cifar100", "resnet32")]
    figure = new_figure(10.5, 6.4)
    rows = figure.subplots(len(places), 2, sharex=True)
    for place, row in zip(places, rows, strict=True):
        curves = compute_curves(groups[place])
        for axes, metric in zip(row, (ERROR, NLL), strict=True):
            for curve in curves:
                values = [metric.mean(runs) for runs in curve.runs]
                spreads = [spread(metric, runs) for runs in curve.runs]
                axes.errorbar(curve.shares, values, yerr=spreads, capsize=3, label=curve.name, **_CURVES[curve.name])
            axes.set_ylabel(metric.title[0].upper() + metric.title[1:])
            axes.set_title(in_words(place), fontsize=10)
            axes.set_xlim(0.25, 1.05)
            percent_axis(axes.xaxis)
    for axes in rows[-1]:
        axes.set_xlabel("Compute (FLOPs), share of 160 epochs at full size")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def spread(metric: Metric, runs: Sequence[Record]) -> float:
    """The standard deviation over seeds; 0 if there is only one."""
    if len(runs) == 1:
        return 0.0
    return statistics.stdev(map(metric.of, runs))


PICTURES = {"compute": compute_picture, "results": findings_picture, "paper": paper_picture}


if __name__ == "__main__":
    figures = {name: picture() for name, picture in PICTURES.items()}
    for name, results in recorded_ablations(group_records(read_records(ROOT / "results"))).items():
        figures[picture_name(name)] = ablation_figure(name, results)
    for name, figure in figures.items():
        svg, png = save_figure(figure, DOCS / name)
        png.unlink()  # no page shows it
        print(f"wrote {svg.relative_to(ROOT)}")
