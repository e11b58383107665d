"""What `/metrics` shows: counts of requests and decisions, the state of the log, and the evidence of the monitor."""

import math
import os
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from calibrant.deployment.log import DecisionLog
from calibrant.deployment.monitor_stream import Stream
from calibrant.deployment.signals import Signal
from calibrant.deployment.watch import watch
from calibrant.errors import CalibrantError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper ends in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# The monitor reads all labelled cases, so it is asked at most this often.
_WATCH_EVERY_S = 60


class Metrics(Collector):
    """Counts of requests and decisions, and what is known when the page is read.

    Args:
        log: The log; None without one.
        waiting: Gives the number of requests that no thread has begun to decide.
    """

    def __init__(self, log: DecisionLog | None, waiting: Callable[[], int]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._log, self._waiting = log, waiting
        self._signals: tuple[Signal, ...] = ()
        self._watched_at = -math.inf
        self._registry = CollectorRegistry()
        own: CollectorRegistry | None = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:  # several workers
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
            own = None
        words = "Answered requests by route and status."
        self._requests = Counter("calibrant_requests_total", words, ["route", "status"], registry=own)
        words = "Time to an answer by route."
        self._seconds = Histogram("calibrant_request_seconds", words, ["route"], registry=own, buckets=_BUCKETS)
        words = "Decisions that were answered."
        decisions = Counter("calibrant_decisions_total", words, ["decision"], registry=own)
        self._automated, self._reviewed = decisions.labels("auto"), decisions.labels("review")
        self._registry.register(self)

    def count_decisions(self, automated: int, reviewed: int) -> None:
        """Count decisions that were answered."""
        self._automated.inc(automated)
        self._reviewed.inc(reviewed)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """The page in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Gauge]:
        """What is known now; the library calls this for the page."""
        words = "Requests that wait to be decided, in this process."
        yield Gauge("calibrant_waiting_requests", words, self._waiting())
        log = self._log
        if log is None:
            return
        up, words = 1, "Whether the decision log can be read and written."
        try:
            last = log.check()
        except CalibrantError:
            up = 0
        yield Gauge("calibrant_log_up", words, up)
        if not up:
            return
        yield Gauge("calibrant_log_decisions", "Decisions in the log.", last)
        words = "Time of the last write to the log, in this process."
        yield Gauge("calibrant_log_write_seconds", words, log.write_seconds)
        if time.monotonic() - self._watched_at > _WATCH_EVERY_S:
            self._signals = _watch(log)
            self._watched_at = time.monotonic()
        names = ("test", "group")
        evidence = Gauge("calibrant_monitor_evidence", "log10 of a bet that a promise is broken.", labels=names)
        alarm = Gauge("calibrant_monitor_alarm", "Whether a promise is broken.", labels=names)
        labels = Gauge("calibrant_monitor_labels", "Labelled cases that a promise was tested on.", labels=names)
        for signal in self._signals:
            values = [signal.about, signal.group]
            evidence.add_metric(values, signal.evidence)
            alarm.add_metric(values, int(signal.alarm is not None))
            labels.add_metric(values, signal.cases)
        yield from (evidence, alarm, labels)


def _watch(log: DecisionLog) -> tuple[Signal, ...]:
    """What `calibrant monitor` finds about the promise; nothing if there is nothing to test."""
    try:
        return watch(Stream.of_log(log, extras=[], labelled=True)).signals
    except CalibrantError:
        return ()
