"""Does the promise still hold: tests of a rule and its stream that may be looked at after every case."""

from calibrant.monitoring.betting import promise_capital
from calibrant.monitoring.describe import (
    SHARE_HEADINGS,
    SHARE_TITLE,
    SIGNAL_HEADINGS,
    advice,
    describe,
    findings,
    headline,
    row_of,
    share_row,
)
from calibrant.monitoring.files import is_log, read_reference, read_rule, read_stream, stream_of_log
from calibrant.monitoring.ranks import conformal_ranks
from calibrant.monitoring.signals import PROMISED, Curve, GroupShare, Signal
from calibrant.monitoring.stream import Stream
from calibrant.monitoring.watch import Watched, watch

__all__ = [
    "PROMISED",
    "SHARE_HEADINGS",
    "SHARE_TITLE",
    "SIGNAL_HEADINGS",
    "Curve",
    "GroupShare",
    "Signal",
    "Stream",
    "Watched",
    "advice",
    "conformal_ranks",
    "describe",
    "findings",
    "headline",
    "is_log",
    "promise_capital",
    "read_reference",
    "read_rule",
    "read_stream",
    "row_of",
    "share_row",
    "stream_of_log",
    "watch",
]
