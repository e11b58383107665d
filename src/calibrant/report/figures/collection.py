"""All pictures of a report at once."""

from pathlib import Path

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.files import as_path
from calibrant.metrics.metric import Groups
from calibrant.report.audit import names_of
from calibrant.report.entries import ReportEntry, Sources, read_entries
from calibrant.report.figures.coverage import accuracy_coverage_curves, risk_coverage_curves, threshold_curves
from calibrant.report.figures.pruning import kept_share, score_distributions
from calibrant.report.figures.reliability import (
    confidence_histogram,
    group_reliability,
    reliability_diagram,
    reliability_grid,
)
from calibrant.report.judged import Policies, judged
from calibrant.report.style import save_figure


def save_figures(
    sources: Sources,
    folder: str | Path,
    *,
    policy: Policies = None,
    raw: bool = False,
    n_bins: int = DEFAULT_N_BINS,
    groups: Groups | None = None,
) -> list[Path]:
    """Write every figure that the sources have the data for, as SVG and PNG.

    Args:
        sources: As for `write_report`.
        folder: Where to write; made where it is missing. Files of a method are numbered in the order of the page:
            names are free text and need not be file names.
        policy: As for `write_report`.
        raw: As for `write_report`.
        n_bins: Bins of the reliability diagrams.
        groups: As for `write_report`.
    """
    made = [shown.entry for shown in judged(read_entries(sources), policy=policy, raw=raw)]
    base = as_path(folder, "folder")
    methods = {entry.name: entry.predictions for entry in made}
    figures = {
        "reliability-grid": reliability_grid(methods, n_bins=n_bins),
        "accuracy-coverage": accuracy_coverage_curves(methods),
        "risk-coverage": risk_coverage_curves(methods),
    }
    for number, entry in enumerate(made, start=1):
        figures[f"{number}-reliability"] = reliability_diagram(entry.predictions, n_bins=n_bins, title=entry.name)
        figures[f"{number}-confidence"] = confidence_histogram(entry.predictions, title=entry.name)
        figures[f"{number}-threshold"] = threshold_curves(entry.predictions, n_bins=n_bins, title=entry.name)
        if groups is not None:
            figures[f"{number}-groups"] = group_reliability(entry.predictions, groups, n_bins=n_bins)
    written = [path for stem, figure in figures.items() for path in save_figure(figure, base / stem)]
    for number, entry in enumerate(made, start=1):
        written += _save_pruning(entry, base, number)
    return written


def _save_pruning(entry: ReportEntry, base: Path, number: int) -> list[Path]:
    audit = None if entry.run is None else entry.run.audit()
    if entry.run is None or audit is None:
        return []
    names = names_of(entry, len(audit.class_sizes))
    shares = kept_share(audit.kept_share, class_names=names, title=entry.name)
    groups = {"trained on at the end": audit.score[audit.kept], "left out": audit.score[~audit.kept]}
    scores = score_distributions({name: group for name, group in groups.items() if len(group)}, title=entry.name)
    return [*save_figure(shares, base / f"{number}-kept"), *save_figure(scores, base / f"{number}-scores")]
