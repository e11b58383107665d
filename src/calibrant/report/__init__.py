"""Pictures and pages: what a model may decide alone, shown to the people who have to decide that."""

from calibrant.metrics.proportion import wilson
from calibrant.report.entries import Entry, read_entries
from calibrant.report.grid import Grid, to_latex, to_markdown, to_terminal
from calibrant.report.page import build_page, write_report
from calibrant.report.statistics import Automated, automated

__all__ = [
    "Automated",
    "Entry",
    "Grid",
    "automated",
    "build_page",
    "read_entries",
    "to_latex",
    "to_markdown",
    "to_terminal",
    "wilson",
    "write_report",
]
