"""`calibrant purge`: forget what names the cases of old decisions, and keep what the monitor needs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from calibrant.cli._shared import Json, Many, answer


def purge(
    log: Path, /, *, before: datetime, keep: Annotated[list[str] | None, Many] = None, as_json: Json = False
) -> None:
    """Replace the ids of old decisions by random ones and delete their reasons and extras.

    Predicted classes, confidences, decisions, shortlists, labels and their order stay, and the groups and clusters that
    a rule of the log needs, so that "calibrant monitor" finds the same evidence. Labels for purged cases are refused
    from then on. This cannot be undone.

    Args:
        log: The log of "calibrant serve".
        before: Purge decisions that were logged before this time, like 2026-01-31 or 2026-01-31T12:00, in UTC if it
            names no zone.
        keep: Other columns to keep.
    """
    from calibrant.deployment import DecisionLog

    if before.tzinfo is None:
        before = before.replace(tzinfo=UTC)
    with DecisionLog(log) as opened:
        purged, cases = opened.purge(before, keep=keep or ()), len(opened)
    text = f"Purged {purged:,} of {cases:,} decisions: their ids, reasons and extras are gone."
    answer(text, {"purged": purged, "decisions": cases}, as_json=as_json)
