"""What `/metrics` shows, in the text format of Prometheus."""

import math
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant.deployment.log import DecisionLog
from calibrant.deployment.monitor_stream import Stream
from calibrant.deployment.watch import watch
from calibrant.errors import CalibrantError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DECISIONS = ("auto", "review")
_ROUTES = ("/decisions", "/decisions/{id}", "/labels", "/health", "/metrics", "/review", "other")
_STATUSES = (200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 503)
# Upper ends in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
# The monitor reads the whole log, so it is asked at most this often.
_WATCH_EVERY_S = 60


class Metrics:
    """Counts of requests and decisions. Several processes keep theirs in a folder, so that each can show the sums."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._evidence: list[str] = []
        self._watched_at = -math.inf
        self._watching = threading.Lock()
        size = len(_DECISIONS) + len(_ROUTES) * (len(_STATUSES) + len(_BUCKETS) + 1)
        self._counts: NDArray[np.float64] = np.zeros(size)
        if folder is not None:
            self._counts = np.memmap(folder / f"{os.getpid()}.counts", dtype=np.float64, mode="w+", shape=(size,))
        # Views of the counts, made once: they are changed at every request.
        self._decisions, self._statuses, self._buckets, self._seconds = _parts(self._counts)

    def count_decisions(self, automated: int, reviewed: int) -> None:
        """Count decisions that were answered."""
        self._decisions[0] += automated
        self._decisions[1] += reviewed

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        name = path
        if method == "GET" and path.startswith("/decisions/"):
            name = "/decisions/{id}"
        if name not in _ROUTES:
            name = "other"
        route = _ROUTES.index(name)
        if status not in _STATUSES:
            status = 500
        self._statuses[route, _STATUSES.index(status)] += 1
        self._buckets[route, bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[route] += seconds

    def text(self, log: DecisionLog | None, waiting: int) -> str:
        """The page, with the number of requests that no thread has begun to decide."""
        counts = self._counts
        if self._folder is not None:
            # The counts of a process that has ended remain, so that sums never fall.
            counts = np.sum([np.fromfile(file) for file in self._folder.glob("*.counts")], axis=0)
        decisions, statuses, buckets, sums = _parts(counts)
        lines = _family("calibrant_decisions_total", "counter", "Decisions that were answered.")
        for name, count in zip(_DECISIONS, decisions, strict=True):
            lines.append(f'calibrant_decisions_total{{decision="{name}"}} {count:.0f}')
        lines += _family("calibrant_requests_total", "counter", "Answered requests by route and status.")
        for route, row in zip(_ROUTES, statuses, strict=True):
            for status, count in zip(_STATUSES, row, strict=True):
                if count:
                    labels = f'route="{route}",status="{status}"'
                    lines.append(f"calibrant_requests_total{{{labels}}} {count:.0f}")
        lines += _family("calibrant_request_seconds", "histogram", "Time to an answer by route.")
        for route, row, seconds in zip(_ROUTES, buckets, sums, strict=True):
            lines += _histogram("calibrant_request_seconds", f'route="{route}"', row, seconds)
        lines += _family("calibrant_waiting_requests", "gauge", "Requests that wait to be decided, in this process.")
        lines.append(f"calibrant_waiting_requests {waiting}")
        if log is not None:
            lines += self._of_log(log)
        return "\n".join(lines) + "\n"

    def _of_log(self, log: DecisionLog) -> list[str]:
        lines = _family("calibrant_log_up", "gauge", "Whether the decision log can be read and written.")
        try:
            last = log.check()
        except CalibrantError:
            return [*lines, "calibrant_log_up 0"]
        lines.append("calibrant_log_up 1")
        lines += _family("calibrant_log_decisions", "gauge", "Decisions in the log.")
        lines.append(f"calibrant_log_decisions {last}")
        lines += _family("calibrant_log_write_seconds", "gauge", "Time of the last write to the log, in this process.")
        lines.append(f"calibrant_log_write_seconds {log.write_seconds:.6f}")
        return lines + self._of_monitor(log)

    def _of_monitor(self, log: DecisionLog) -> list[str]:
        if self._watching.acquire(blocking=False):
            try:
                if time.monotonic() - self._watched_at > _WATCH_EVERY_S:
                    self._evidence = _evidence(log)
                    self._watched_at = time.monotonic()
            finally:
                self._watching.release()
        return self._evidence


def _parts(counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Decisions, requests by route and status, by route and time, and the sums of times by route."""
    routes = len(_ROUTES)
    ends = np.cumsum([len(_DECISIONS), routes * len(_STATUSES), routes * len(_BUCKETS)])
    decisions, statuses, buckets, sums = np.split(counts, ends)
    return decisions, statuses.reshape(routes, -1), buckets.reshape(routes, -1), sums


def _evidence(log: DecisionLog) -> list[str]:
    """What `calibrant monitor` finds about the promise; nothing if there is nothing to test."""
    try:
        watched = watch(Stream.of_log(log, extras=[]))
    except CalibrantError:
        return []
    evidence = _family("calibrant_monitor_evidence", "gauge", "Evidence that a promise is broken, as log10 of a bet.")
    alarms = _family("calibrant_monitor_alarm", "gauge", "Whether a promise is broken.")
    labels = _family("calibrant_monitor_labels", "gauge", "Labelled cases that a promise was tested on.")
    for signal in watched.signals:
        group = signal.group.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        names = f'test="{signal.about}",group="{group}"'
        evidence.append(f"calibrant_monitor_evidence{{{names}}} {signal.evidence:.6g}")
        alarms.append(f"calibrant_monitor_alarm{{{names}}} {int(signal.alarm is not None)}")
        labels.append(f"calibrant_monitor_labels{{{names}}} {signal.cases}")
    return [*evidence, *alarms, *labels]


def _family(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _histogram(name: str, labels: str, counts: Iterable[float], seconds: float) -> list[str]:
    lines = []
    total = 0.0
    for end, count in zip(_BUCKETS, counts, strict=True):
        total += count
        limit = str(end).replace("inf", "+Inf")
        lines.append(f'{name}_bucket{{{labels},le="{limit}"}} {total:.0f}')
    return [*lines, f"{name}_sum{{{labels}}} {seconds:.6f}", f"{name}_count{{{labels}}} {total:.0f}"]
