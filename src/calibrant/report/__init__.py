"""Pictures and pages: what a model may decide alone, shown to the people who have to decide that."""

from calibrant.report.entries import ReportEntry, read_entries
from calibrant.report.figures.budget import BudgetLine, budget_curves
from calibrant.report.figures.collection import save_figures
from calibrant.report.figures.coverage import accuracy_coverage_curves, risk_coverage_curves, threshold_curves
from calibrant.report.figures.pruning import kept_share, score_distributions
from calibrant.report.figures.reliability import (
    confidence_histogram,
    group_reliability,
    reliability_diagram,
    reliability_grid,
)
from calibrant.report.figures.study import ablation_curves, component_bars, pareto_picture, training_time_bars
from calibrant.report.grid import Grid, to_latex, to_markdown, to_terminal
from calibrant.report.groups import group_grid, group_section
from calibrant.report.monitored import build_monitor_page, write_monitor_page
from calibrant.report.page import build_page, write_report
from calibrant.report.sections import Section
from calibrant.report.statistics import Automated, automated
from calibrant.report.style import (
    BLUE,
    GREY,
    INK,
    PALETTE,
    VERMILLION,
    line_style,
    new_figure,
    percent_axis,
    require_matplotlib,
    save_figure,
    styled,
)

__all__ = [
    "BLUE",
    "GREY",
    "INK",
    "PALETTE",
    "VERMILLION",
    "Automated",
    "BudgetLine",
    "Grid",
    "ReportEntry",
    "Section",
    "ablation_curves",
    "accuracy_coverage_curves",
    "automated",
    "budget_curves",
    "build_monitor_page",
    "build_page",
    "component_bars",
    "confidence_histogram",
    "group_grid",
    "group_reliability",
    "group_section",
    "kept_share",
    "line_style",
    "new_figure",
    "pareto_picture",
    "percent_axis",
    "read_entries",
    "reliability_diagram",
    "reliability_grid",
    "require_matplotlib",
    "risk_coverage_curves",
    "save_figure",
    "save_figures",
    "score_distributions",
    "styled",
    "threshold_curves",
    "to_latex",
    "to_markdown",
    "to_terminal",
    "training_time_bars",
    "write_monitor_page",
    "write_report",
]
