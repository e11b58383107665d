"""Make docs/results.{png,svg} from results/: what each method gives on CIFAR-10, beside what the paper prints.

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

from calibrant.report import BLUE, GREY, VERMILLION, new_figure, save_figure, styled
from calibrant.study import Record, read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `paper` is not part of the installed package

from paper.numbers import METRICS, paper_rows
from paper.page import group_records

TARGET = ROOT / "docs" / "results"
DATA, NETWORKS = "cifar10", {"resnet32": "ResNet-32", "resnet50": "ResNet-50"}
EPOCHS = 160
# Plain training with a cosine schedule and averaged weights: all updates, fewer epochs, and a plan with as many updates
# as those. Averaged weights and a temperature are what the plan is to be compared with, so all three have both.
_AVERAGED = "average 0.25, floor 0.2, kind cosine"
EQUAL_UPDATES = {
    "resnet32": {
        "nll, averaged": f"nll ({_AVERAGED})",
        "nll, averaged, 60 % of the epochs": f"nll (epochs 96, {_AVERAGED})",
        "nll+unbiased, averaged": f"nll+unbiased (drop 0.58, share 0.8, {_AVERAGED})",
    },
    "resnet50": {},
}
METHODS = (
    *("nll", "brier", "dca", "ls", "mmce", "entropy", "fl", "flsd", "fl+mdca"),
    *("flsd+h", "flsd+h+p-ema", "flsd+h+unbiased"),
)
PANELS = {
    "seen_share": "Sample updates, %",
    "test_error": "Test error, %",
    "ece": "ECE, %",
    "share@0.95": "above 0.95: |S95|, %",
    "ece@0.95": "ECE(S95), %",
    "automated": "automated at a\npromised 99 %, %",
}


@dataclass(frozen=True)
class Line:
    """One method on one network: our values seed by seed, and the paper's where it has some."""

    name: str
    ours: dict[str, list[float]]
    paper: dict[str, float]
    averaged: bool


def lines(model: str) -> list[Line]:
    """What was run with recommended settings, in the order of `METHODS`, and the runs with equal updates."""
    groups = group_records(read_records(ROOT / "results"))[(DATA, model)]
    printed = {row.method: row for row in paper_rows() if (row.data, row.model) == (DATA, model)}
    made = [line_of("nll, temperature-scaled", groups["nll"], scaled=True)]
    for name in METHODS:
        if name in groups:
            theirs = {metric: printed[name].value(metric) for metric in METRICS} if name in printed else {}
            made.append(line_of(name, groups[name], paper=theirs))
    for name, label in EQUAL_UPDATES[model].items():
        made.append(line_of(f"{name}, scaled", groups[label], scaled=True, averaged=True))
    return made


def line_of(
    name: str,
    records: Sequence[Record],
    *,
    scaled: bool = False,
    paper: dict[str, float] | None = None,
    averaged: bool = False,
) -> Line:
    ours = {metric: [value(record, metric, scaled) for record in records] for metric in PANELS}
    seeds = f"  ({len(records)} seeds)" if len(records) > 1 else ""
    return Line(name + seeds, ours, paper or {}, averaged)


def value(record: Record, metric: str, scaled: bool) -> float:
    if metric == "seen_share":
        # Of the epochs that are usual for the data set: a run with fewer epochs sees less, too.
        found: float | None = record.samples_seen / (record.samples_full / record.recipe["epochs"] * EPOCHS)
    elif metric == "automated":
        found = (record.automation or {})["0.99"]["scaled_share" if scaled else "share"]
    else:
        found = record.value(metric, scaled=scaled)
    assert found is not None, f"{record.file_name} has no {metric}"
    return found


@styled
def picture() -> "Figure":
    """A row a method, a panel a metric; the networks one above the other."""
    groups = {name: lines(model) for model, name in NETWORKS.items()}
    figure = new_figure(13.5, 1.6 + 0.3 * sum(len(group) for group in groups.values()))
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
        for label, line in zip(row[0].get_yticklabels(), group, strict=True):
            label.set(color=VERMILLION if line.averaged else "black", weight="bold" if line.averaged else "normal")
    figure.align_ylabels(rows[:, 0])
    legend(figure)
    return figure


def draw(axes: "Axes", group: Sequence[Line], metric: str) -> None:
    for place, line in enumerate(group):
        colour = VERMILLION if line.averaged else BLUE
        seeds = line.ours[metric]
        if metric in line.paper:
            axes.plot(line.paper[metric], place, "D", markersize=5.5, markerfacecolor="none", markeredgecolor=GREY)
        axes.plot(seeds, [place] * len(seeds), "|", color=colour, markersize=8, alpha=0.7)
        axes.plot(statistics.fmean(seeds), place, "o", color=colour, markersize=6.5)
    axes.set_ylim(len(group) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)


def legend(figure: "Figure") -> None:
    marks = [
        Line2D([], [], marker="o", color=BLUE, linestyle="", label="ours, mean over seeds (bars: each seed)"),
        Line2D([], [], marker="o", color=VERMILLION, linestyle="", label="averaged weights and a temperature"),
        Line2D([], [], marker="D", color=GREY, markerfacecolor="none", linestyle="", label="the paper, as printed"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3)


if __name__ == "__main__":
    for path in save_figure(picture(), TARGET):
        print(f"wrote {path.relative_to(ROOT)}")
