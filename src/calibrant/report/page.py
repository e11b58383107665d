"""Writes the report: template, style, scripts, Plotly and data in one file that opens from disk and loads nothing."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from calibrant import __version__
from calibrant.decisions.multilabel import LabelCases, MultiLabel, evaluate_labels
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid, printable
from calibrant.files import as_path, write_text
from calibrant.metrics import Evaluation, evaluate_groups
from calibrant.metrics.evaluation import check_resamples, default_resamples
from calibrant.metrics.metric import Groups, label, set_metric
from calibrant.predictions import Predictions
from calibrant.report.comparison_table import comparison, same_cases
from calibrant.report.content import method_contents, script_content
from calibrant.report.entries import Sources, read_entries
from calibrant.report.judged import Policies, judged
from calibrant.report.style import DARK_PALETTE, PALETTE
from calibrant.report.wording import confidence, fixed, interval, per_thousand, percent, probability
from calibrant.tables import Table

# Nobody reads more groups than this; the worst are kept.
_GROUPS = 50


class WrittenPage(type(Path())):  # type: ignore[misc]  # Python 3.11 has no other base for paths
    """The path of a page that was written; a notebook shows it as a link."""

    def _repr_html_(self) -> str:
        target = self.resolve()
        address = target.as_uri()
        if target.is_relative_to(Path.cwd()):  # Jupyter opens only what lies below the notebook
            address = quote(target.relative_to(Path.cwd()).as_posix())
        return f'<a href="{escape(address)}" target="_blank">{escape(str(self))}</a>'


@dataclass(frozen=True)
class Section:
    """A table on the page, with its caption above it.

    `leads` says whether it is shown at the top of the page, and not below the comparison.
    """

    title: str
    grid: Table
    leads: bool = False


def write_report(
    sources: Sources,
    path: str | Path | None = None,
    *,
    policy: Policies = None,
    raw: bool = False,
    title: str = "What may the model decide alone?",
    threshold: float | None = None,
    n_bins: int = DEFAULT_N_BINS,
    n_resamples: int | None = None,
    pictures: bool = True,
    data_dir: str | Path | None = None,
    groups: Groups | None = None,
    sections: Sequence[Section] = (),
    noun: Literal["model", "label"] = "model",
) -> Path:
    """Write the page and return its path, which a notebook shows as a link. The same sources give the same page.

    Args:
        sources: A run, its folder, a file with predictions, predictions, or several of these; a mapping gives them
            names, a `ReportEntry` images too. The first one is shown first.
        path: The `.html` file; written whole or not at all. None: `report.html` in the run, or in the working directory
            without a run.
        policy: A policy or its file; for several sources a mapping from their names. Calibrated and raw scores are
            shown side by side, and what the first policy promises is the headline. None: the run's own.
        raw: Do not use the policy of the run.
        title: Heading of the page.
        threshold: Start of the slider and threshold of the comparison table. None: the rule's, or 0.95.
        n_bins: Bins of the reliability diagram and of every binned metric.
        n_resamples: Resamples behind the intervals of the comparison table; 0 for none. None: 1000, or none if a source
            has more than 100,000 cases.
        pictures: Whether mistakes and suspect labels are shown with their images; pass False if those are private.
        data_dir: Folder of the image sets, for these images; by default the folder that training uses.
        groups: Name of an extra column of the predictions, or one value per case: shows each model group by group and
            names the worst group.
        sections: Further tables, below the comparison or at the top of the page.
        noun: What the sources are. The page of labels has no slider and no comparison.
    """
    entries = read_entries(sources)
    if path is None:
        path = "report.html"
        if len(entries) == 1 and entries[0].run is not None:
            path = entries[0].run.report_path
    target = html_path(path)
    if n_resamples is None:
        few_cases = all(default_resamples(entry.predictions) for entry in entries)
        n_resamples = 1000 if few_cases else 0
    check_resamples(n_resamples, level=0.95)
    shown = judged(entries, policy=policy, raw=raw)
    threshold = next(value for value in (threshold, shown[0].threshold, 0.95) if value is not None)
    settings: dict[str, Any] = {"threshold": threshold, "n_bins": n_bins, "n_resamples": n_resamples}
    methods = method_contents(shown, pictures=pictures, data_dir=data_dir, **settings)
    if groups is not None:
        parts = [group_section(each["name"], each["predictions"], groups, **settings) for each in methods]
        sections = [*sections, *parts]
    comparable = all(same_cases(methods[0]["predictions"], method["predictions"]) for method in methods)
    columns, rows = comparison([method["compared"] for method in methods], threshold, comparable=comparable)
    return write_page(
        target,
        "page.html.j2",
        # In the order they run; everything but the charts works before Plotly is read.
        {"page": asset("numbers.js") + asset("page.js"), "plotly": plotly_script(), "charts": asset("charts.js")},
        {"threshold": threshold, "methods": [script_content(method) for method in methods]},
        title=title,
        sources=len(entries),
        methods=methods,
        columns=columns,
        rows=rows,
        same_cases=comparable,
        per_thousand=per_thousand,
        fixed=fixed,
        sections=sections,
        noun=noun,
        **settings,
    )


def write_label_report(rules: MultiLabel, cases: LabelCases, path: str | Path) -> Path:
    """Write a page: what is promised for each label, whether it holds on these cases, and the calibration of each.

    Args:
        rules: What was chosen, on other cases.
        cases: Labelled cases of each label.
        path: The `.html` file.
    """
    here = rules.table_of_check(rules.check(cases))
    sections = [
        Section("Promises", rules.table(), leads=True),
        Section("On these cases", here, leads=True),
        Section("Metrics of each label", evaluate_labels(cases)),
    ]
    shown = {name: cases[name] for name in rules.labels}
    return write_report(shown, path, title="Several labels per case", n_resamples=0, sections=sections, noun="label")


def group_section(
    name: str, predictions: Predictions, groups: Groups, *, threshold: float, n_bins: int, n_resamples: int
) -> Section:
    """The groups of one model, worst first, with intervals that hold in all groups at once."""
    grouped = evaluate_groups(predictions, groups, n_bins=n_bins, thresholds=(threshold,), n_resamples=n_resamples)
    headings = {
        "test_error": f"{label('test_error')} %",
        "ece": f"{label('ece')} %",
        set_metric("share", threshold): f"automated at {confidence(threshold)}, %",
        set_metric("accuracy", threshold): "right among these, %",
    }
    worst_first = sorted(grouped.groups.items(), key=lambda item: -item[1].test_error)
    rows = [
        (group, f"{result.n:,}", *(_group_cell(result, metric) for metric in headings))
        for group, result in (("all", grouped.overall), *worst_first[:_GROUPS])
    ]
    caption = f"In percent. Worst by test error: {grouped.worst()}."
    if grouped.level is not None:
        worse = ", ".join(grouped.stand_out()[:_GROUPS]) or "none"
        caption += (
            f" Intervals of the {len(grouped.groups):,} groups hold together with {100 * grouped.level:g} % for each "
            f"metric (Bonferroni). Worse than all cases beyond chance: {worse}."
        )
    if len(worst_first) > _GROUPS:
        caption += f" The {len(worst_first) - _GROUPS:,} groups with the lowest test error are left out."
    title = f"Groups: {name}"
    if isinstance(groups, str):
        title = f"Groups by {groups}: {name}"
    return Section(title, Table("Groups", rows, ("group", "cases", *headings.values()), caption))


def _group_cell(result: Evaluation, metric: str) -> str:
    value, ends = result.values()[metric], (result.intervals or {}).get(metric)
    if value is None:
        return "-"
    if ends is None:
        return f"{100 * value:.2f}"
    return f"{100 * value:.2f} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"


def html_path(path: str | Path) -> Path:
    """The path of a page; another ending than that of a page is refused."""
    target = as_path(path)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise invalid("path", "end in .html", str(path))
    return target


def write_page(target: Path, template: str, scripts: dict[str, str], data: dict[str, Any], **values: Any) -> Path:
    """Fill in a template and write it. `values` are escaped, `data` is for the scripts, and no other scripts run."""
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=PackageLoader("calibrant.report", "assets"),
        finalize=_printable,
    )
    environment.filters |= {
        "confidence": confidence,
        "percent": percent,
        "probability": probability,
        "interval": interval,
        "points": lambda share: fixed(100 * share, 2),
        "thousands": lambda count: f"{count:,}",
    }
    palettes = {"light": PALETTE, "dark": DARK_PALETTE}
    html = environment.get_template(template).render(
        version=__version__,
        style=asset("page.css"),
        scripts=scripts,
        security=_content_security(scripts.values()),
        data=_embeddable(data | {"palettes": palettes}),
        **values,
    )
    write_text(target, html)
    return WrittenPage(target)


def _printable(value: object) -> object:
    """Write out control characters and lone surrogates, which no page can hold."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def plotly_script() -> str:
    """Plotly's script, which the installation puts beside our own assets."""
    try:
        return asset("plotly.min.js")
    except FileNotFoundError:  # a clone that was not installed
        return resources.files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")


def _content_security(scripts: Iterable[str]) -> str:
    """Content security policy: nothing is fetched, and no script runs but those whose digest is listed."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Plotly writes style rules of its own, hence unsafe-inline; styles cannot run code or, here, fetch anything.
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _embeddable(content: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the names in it are."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate cannot be encoded; written out it is valid JSON.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def asset(name: str) -> str:
    """One of the files that pages are made of."""
    return resources.files("calibrant.report").joinpath("assets", name).read_text(encoding="utf-8")
