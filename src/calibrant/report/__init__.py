"""Pictures and pages: what a model may decide alone, shown to the people who have to decide that."""

from calibrant.report.entries import ReportEntry, read_entries
from calibrant.report.figures import (
    BudgetLine,
    ablation_curves,
    accuracy_coverage_curves,
    budget_curves,
    component_bars,
    confidence_histogram,
    group_reliability,
    kept_share,
    pareto_picture,
    reliability_diagram,
    reliability_grid,
    risk_coverage_curves,
    save_figure,
    save_figures,
    score_distributions,
    threshold_curves,
    training_time_bars,
)
from calibrant.report.groups import read_groups
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
    "group_reliability",
    "kept_share",
    "line_style",
    "new_figure",
    "pareto_picture",
    "percent_axis",
    "read_entries",
    "read_groups",
    "reliability_diagram",
    "reliability_grid",
    "require_matplotlib",
    "risk_coverage_curves",
    "save_figure",
    "save_figures",
    "score_distributions",
    "styled",
    "threshold_curves",
    "training_time_bars",
    "write_monitor_page",
    "write_report",
]
