"""The report page and figures: what a model may decide alone, shown to the people who have to decide that."""

from calibrant.report.entries import ReportEntry, read_entries
from calibrant.report.figures import coverage_curves, group_reliability, reliability_diagram, reliability_grid
from calibrant.report.monitor_page import write_monitor_page
from calibrant.report.page import Section, write_label_report, write_report
from calibrant.report.study_figures import ablation_curves
from calibrant.report.style import new_figure, save_figure
from calibrant.report.summaries import Automated, automated

__all__ = [
    "Automated",
    "ReportEntry",
    "Section",
    "ablation_curves",
    "automated",
    "coverage_curves",
    "group_reliability",
    "new_figure",
    "read_entries",
    "reliability_diagram",
    "reliability_grid",
    "save_figure",
    "write_label_report",
    "write_monitor_page",
    "write_report",
]
