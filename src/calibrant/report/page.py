"""One self-contained page: template, style, script, Plotly and data in a single file that opens from disk."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from calibrant import __version__
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid, printable
from calibrant.files import as_path, write_text
from calibrant.metrics.evaluation import FEWEST_RESAMPLES, default_resamples
from calibrant.metrics.metric import Groups
from calibrant.report.comparison import comparison
from calibrant.report.content import method_contents, run_content
from calibrant.report.entries import ReportEntry, Sources, read_entries
from calibrant.report.groups import group_section
from calibrant.report.judged import Policies, Shown, judged
from calibrant.report.sections import Section
from calibrant.report.statistics import automated, automated_over
from calibrant.report.style import DARK_PALETTE, PALETTE
from calibrant.report.tables import confident_mistakes, worst_classes
from calibrant.report.thumbnails import Pixels, check_images, data_uri
from calibrant.report.uncertainty import same_cases
from calibrant.report.wording import DASH, confidence, fixed, headline, interval, per_thousand, percent

# Rows of the text that stands beside the threshold chart.
_LADDER = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.999)


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
) -> Path:
    """Write the page.

    Args:
        sources: A run, its folder, a file with predictions, predictions, or several of these; a mapping gives them
            names, a `ReportEntry` images too. The first one is shown first.
        path: The `.html` file; written whole or not at all. None: `report.html` in the run, else in the working
            directory.
        policy: A policy or its file; for several sources a mapping from their names. Calibrated and raw scores are
            shown side by side, and what the first policy promises is the headline. None: the run's own.
        raw: Do not use the policy of the run.
        title: Heading of the page.
        threshold: Where the slider starts and what the comparison table is about. None: the rule's, else 0.95.
        n_bins: Bins of the reliability diagram and of every binned metric.
        n_resamples: Resamples behind the intervals of the comparison table; 0 for none. None: 1000, and none where a
            source has more than 100,000 cases, of which a million took minutes.
        pictures: Whether mistakes and suspect labels are shown with their images; False where those are private.
        data_dir: Where image sets lie, for these images; by default where training looks for them.
        groups: Name of an extra column of the predictions, or one value for each case: each model group by group, the
            worst group named.
        sections: Tables and pictures of several runs, below the comparison.
    """
    entries = read_entries(sources)
    target = _target(entries) if path is None else as_path(path)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise invalid("path", "end in .html", str(path))
    html = build_page(
        entries,
        policy=policy,
        raw=raw,
        title=title,
        threshold=threshold,
        n_bins=n_bins,
        n_resamples=n_resamples,
        pictures=pictures,
        data_dir=data_dir,
        groups=groups,
        sections=sections,
    )
    write_text(target, html)
    return target


def build_page(
    sources: Sources,
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
) -> str:
    """The page of `write_report` as text; the same sources give the same text."""
    if n_resamples is not None and 0 != n_resamples < FEWEST_RESAMPLES:
        raise invalid("n_resamples", f"be a whole number of at least {FEWEST_RESAMPLES}, or 0 for none", n_resamples)
    entries = read_entries(sources)
    if n_resamples is None:
        n_resamples = 1000 if all(default_resamples(entry.predictions) for entry in entries) else 0
    shown = judged(entries, policy=policy, raw=raw)
    if threshold is None:
        threshold = 0.95 if shown[0].threshold is None else shown[0].threshold
    made = [each.entry for each in shown]
    made = [entry._replace(images=_images(entry, data_dir) if pictures else None) for entry in made]
    settings: dict[str, Any] = {"threshold": threshold, "n_bins": n_bins}
    if groups is not None:
        of_groups: dict[str, Any] = {"n_resamples": n_resamples, **settings}
        sections = [*sections, *(group_section(each.name, each.predictions, groups, **of_groups) for each in made)]
    methods = method_contents(made, n_resamples=n_resamples, pictures=pictures, data_dir=data_dir, **settings)
    for method, each in zip(methods, shown, strict=True):
        _add_promises(method, each)
    columns, rows = comparison(methods, threshold)
    palettes = {"light": PALETTE, "dark": DARK_PALETTE}
    scripts = _scripts()
    return (
        page_environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            version=__version__,
            sources=len(entries),
            methods=methods,
            details=[_details(entry, **settings) for entry in made],
            shown=shown,
            calibrations=_calibrations(shown, methods),
            columns=columns,
            promised=[each.entry.name for each in shown if each.promised],
            rows=rows,
            n_resamples=n_resamples,
            same_cases=all(same_cases(made[0].predictions, entry.predictions) for entry in made),
            style=asset("page.css"),
            scripts=scripts,
            security=content_security(scripts.values()),
            data=embeddable({"threshold": threshold, "palettes": palettes, "methods": methods}),
            per_thousand=per_thousand,
            fixed=fixed,
            sections=sections,
            **settings,
        )
    )


def _add_promises(method: dict[str, Any], shown: Shown) -> None:
    method["rule_threshold"] = shown.threshold
    for target, (share, interval_of_share) in shown.promised.items():
        method["metrics"][f"promised@{target:g}"] = share
        if interval_of_share:
            method["intervals"][f"promised@{target:g}"] = list(interval_of_share)


def _target(entries: Sequence[ReportEntry]) -> Path:
    run = entries[0].run
    return Path("report.html") if run is None or len(entries) > 1 else run.report_path


def page_environment() -> Environment:
    """Templates with the filters of our pages; what is put into them is escaped."""
    loader = PackageLoader("calibrant.report", "assets")
    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=loader,
        # Names may hold what no page can: control characters and lone surrogates are written out.
        finalize=lambda value: printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {
        "confidence": confidence,
        "percent": percent,
        "interval": interval,
        "points": lambda share: fixed(100 * share, 2),
        "thousands": lambda count: f"{count:,}",
    }
    return environment


def _calibrations(shown: Sequence[Shown], methods: Sequence[dict[str, Any]]) -> list[str]:
    """For each method what calibration did to it, in one sentence; empty where nothing was done."""
    by_name = {method["name"]: method["metrics"] for method in methods}
    sentences = []
    for each in shown:
        if each.raw_name is None:
            sentences.append("")
            continue
        before, after = by_name[each.raw_name], by_name[each.entry.name]
        nll = (DASH if one["nll"] is None else fixed(one["nll"], 3) for one in (before, after))
        sentences.append(
            f"Calibrated by {each.calibration}: ECE {percent(before['ece'], 2)} before and {percent(after['ece'], 2)} "
            f"after, NLL {next(nll)} before and {next(nll)} after."
        )
    return sentences


def _details(entry: ReportEntry, *, threshold: float, n_bins: int) -> dict[str, Any]:
    """What stands on the page as text only and is not needed by its script."""
    predictions = entry.predictions
    result = automated(predictions, threshold, n_bins=n_bins)
    mistakes = confident_mistakes(predictions)
    return {
        "headline": lambda name: headline(name, result),
        "result": result,
        "ladder": automated_over(predictions, _LADDER, n_bins=n_bins),
        "classes": worst_classes(predictions, threshold=threshold),
        "mistakes": mistakes,
        "wrong": int((~predictions.correct).sum()),
        "pictures": {} if entry.images is None else {m.row: data_uri(entry.images[m.row]) for m in mistakes},
        "run": run_content(entry.run),
    }


def _images(entry: ReportEntry, data_dir: str | Path | None) -> Pixels | None:
    if entry.images is not None:
        return check_images(entry.images, len(entry.predictions), f"images of {entry.name!r}")
    found = None if entry.run is None else entry.run.test_images(entry.predictions.targets, data_dir)
    return None if found is None else check_images(found, len(found))


def _scripts() -> dict[str, str]:
    """The three inline scripts in the order they run; everything but the charts works before Plotly is read."""
    return {
        "page": asset("numbers.js") + asset("page.js"),
        "plotly": plotly_script(),
        "charts": asset("charts.js"),
    }


def plotly_script() -> str:
    """Plotly itself."""
    return resources.files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")


def content_security(scripts: Iterable[str]) -> str:
    """Content security policy: nothing is fetched, and no script runs but those whose digest is listed."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Plotly writes style rules of its own, hence unsafe-inline; styles cannot run code or, here, fetch anything.
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def embeddable(content: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the names in it are."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate cannot be encoded; written out it is valid JSON.
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def asset(name: str) -> str:
    """One of the files that pages are made of."""
    return resources.files("calibrant.report").joinpath("assets", name).read_text(encoding="utf-8")
