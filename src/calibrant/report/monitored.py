"""The page of a watched stream: what is promised, what was seen, since when it drifts, what to do."""

import math
from pathlib import Path

from calibrant import __version__
from calibrant.deployment import (
    PROMISED,
    SHARE_HEADINGS,
    SHARE_TITLE,
    SIGNAL_HEADINGS,
    Signal,
    Watched,
    advice,
    findings,
    headline,
    row_of,
    share_row,
)
from calibrant.errors import invalid
from calibrant.files import as_path, write_text
from calibrant.report.page import asset, content_security, embeddable, page_environment, plotly_script
from calibrant.report.style import DARK_PALETTE, PALETTE

# Charts of single tests; more are not looked at.
_CHARTS = 12


def write_monitor_page(watched: Watched, path: str | Path, *, title: str = "Does the promise still hold?") -> Path:
    """Write one page with curves over time; a single file that opens from disk.

    Args:
        watched: What `calibrant.deployment.watch` found.
        path: The `.html` file; written whole or not at all.
        title: Heading of the page.
    """
    target = as_path(path)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise invalid("path", "end in .html", str(path))
    write_text(target, build_monitor_page(watched, title=title))
    return target


def build_monitor_page(watched: Watched, *, title: str = "Does the promise still hold?") -> str:
    """The page of `write_monitor_page` as text."""
    environment = page_environment()
    content = watched.to_dict()
    # All cases first; then what is closest to an alarm, or beyond it.
    ordered = sorted(watched.signals, key=lambda each: (each.group != "all", -_near(each)))
    known = [each for each in ordered if each.cases]
    signals = [each.to_dict(curves=True) | {"title": _title(each)} for each in known]
    charted = signals[:_CHARTS]
    scripts = {"plotly": plotly_script(), "monitor": asset("monitor.js")}
    palettes = {"light": PALETTE, "dark": DARK_PALETTE}
    promises = [each for each in watched.signals if each.about in PROMISED]
    html: str = environment.get_template("monitor.html.j2").render(
        title=title,
        version=__version__,
        content=content,
        headline=headline(watched),
        promise=watched.rule.note,
        findings=findings(watched),
        advice=advice(watched),
        first=promises[0].to_dict() if promises else None,
        kept=_title(promises[0]).lower() if promises else "",
        charted=charted,
        hidden=len(signals) - len(charted),
        headings=SIGNAL_HEADINGS,
        rows=[row_of(each) for each in watched.signals],
        share_title=SHARE_TITLE,
        share_headings=SHARE_HEADINGS,
        shares=[share_row(each) for each in watched.described],
        style=asset("page.css"),
        scripts=scripts,
        security=content_security(scripts.values()),
        data=embeddable({"signals": signals[:_CHARTS], "charted": len(charted), "palettes": palettes}),
    )
    return html


def _near(signal: Signal) -> float:
    return signal.evidence + math.log10(signal.level)


def _title(signal: Signal) -> str:
    what = {
        "promise": "Accuracy of automated cases",
        "shortlist": "True class on the shortlist",
        "sensitivity": "Sensitivity",
        "specificity": "Specificity",
        "share automated": "Share automated",
        "confidence": "Mean confidence",
        "predicted classes": "Share of the most frequent class",
    }
    return what[signal.about] if signal.group == "all" else f"{what[signal.about]}: {signal.group}"
