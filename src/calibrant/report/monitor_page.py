"""The page of the monitor: what is promised, what was observed, since when it drifts, and what to do."""

import math
from pathlib import Path

from calibrant.deployment import Signal, Watched, advice, headline
from calibrant.deployment.monitor_text import (
    SHARE_HEADINGS,
    SHARE_TITLE,
    SIGNAL_HEADINGS,
    findings,
    share_row,
    signal_row,
)
from calibrant.deployment.signals import PROMISED
from calibrant.report.page import asset, html_path, plotly_script, write_page

# Nobody looks at more charts than this.
_CHARTS = 12


def write_monitor_page(watched: Watched, path: str | Path, *, title: str = "Does the promise still hold?") -> Path:
    """Write one page with curves over time; a single file that opens from disk.

    Args:
        watched: Result of `calibrant.deployment.watch`.
        path: The `.html` file; written whole or not at all.
        title: Heading of the page.
    """
    target = html_path(path)
    # All cases first; then what is closest to an alarm, or beyond it.
    ordered = sorted(
        watched.signals, key=lambda signal: (signal.group != "all", -signal.evidence - math.log10(signal.level))
    )
    signals = [signal.to_dict(curves=True) | {"title": _title(signal)} for signal in ordered if signal.cases]
    charted = signals[:_CHARTS]
    promises = [signal for signal in watched.signals if signal.about in PROMISED]
    first, kept = None, ""
    if promises:
        first, kept = promises[0].to_dict(), _title(promises[0]).lower()
    return write_page(
        target,
        "monitor.html.j2",
        {"plotly": plotly_script(), "monitor": asset("monitor.js")},
        {"signals": charted, "charted": len(charted)},
        title=title,
        content=watched.to_dict(),
        headline=headline(watched),
        promise=watched.rule.note,
        findings=findings(watched),
        advice=advice(watched),
        first=first,
        kept=kept,
        charted=charted,
        hidden=len(signals) - len(charted),
        headings=SIGNAL_HEADINGS,
        rows=[signal_row(signal) for signal in watched.signals],
        share_title=SHARE_TITLE,
        share_headings=SHARE_HEADINGS,
        shares=[share_row(description) for description in watched.described],
    )


_TITLES = {
    "promise": "Accuracy of automated cases",
    "shortlist": "True class on the shortlist",
    "confidence": "Mean confidence",
    "predicted classes": "Share of the most frequent class",
}


def _title(signal: Signal) -> str:
    title = _TITLES.get(signal.about, signal.about.capitalize())
    if signal.group == "all":
        return title
    return f"{title}: {signal.group}"
