"""The answers of the HTTP service, without HTTP: bodies in, JSON out."""

import asyncio
import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from queue import SimpleQueue
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from calibrant.checks import whole
from calibrant.deployment.access import Refused
from calibrant.deployment.decider import Decider, Scored
from calibrant.deployment.decision import CasesBody, Decision, LabelsBody, UnknownId
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.prometheus import Metrics
from calibrant.errors import CalibrantError, InvalidInput, OutputError, one_line
from calibrant.files import parse_json

# Threads that decide: while one waits for the disk or for a large body, others work.
_THREADS = max(4, os.cpu_count() or 1)
# A thread takes further requests that wait as long as this has not passed. Slow models are thus asked in parallel.
_TOGETHER_S = 0.002
_MOST_TOGETHER = 64
# Larger bodies are read a few at a time, because a body takes about ten times its length of memory.
_LARGE = 2**18
_LARGE_AT_ONCE = 2
_MOST_IN_FLIGHT = 8
# How long a body may take, from the end of its headers.
BODY_S = 20
# A key of an object; a string with an escaped quote may look like one.
_KEY = re.compile(rb'"\s*:')
_Body = TypeVar("_Body", bound=BaseModel)
_T = TypeVar("_T")


@dataclass
class _Request:
    """A body with cases, what the network said about them, and the answer."""

    content: bytes
    future: asyncio.Future[bytes]
    scored: Scored | None = None
    answer: bytes | Exception = b""


class Service:
    """What the service answers about at most `most_cases` cases and `most_bytes` bytes in a request."""

    def __init__(self, decider: Decider, most_cases: int, most_bytes: int) -> None:
        self.decider = decider
        self.most_cases = whole("most_cases", most_cases, 1)
        self.most_bytes = whole("most_bytes", most_bytes, 1)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._in_flight = 0  # bytes of large bodies
        # A case has a list per row of its input; ids and extras may have brackets in their text, too.
        per_case = sum(1 + sum(accumulate(spec.shape[:-1], mul)) for spec in decider.contents.inputs)
        self._most_lists = (most_cases + 1) * (per_case + 16)
        # Each case may have 100 extras, and there are colons in text.
        self._most_colons = (most_cases + 1) * 300
        # The digests are computed once, not for every answer.
        self.versions = {"model": decider.contents.network, "policy": decider.policy.digest}
        # Requests that no thread has begun, and the mailboxes of threads without work.
        self._waiting: deque[_Request] = deque()
        self._idle: list[SimpleQueue[_Request]] = [SimpleQueue() for _ in range(_THREADS)]
        for mailbox in self._idle:
            threading.Thread(target=self._work, args=(mailbox,), name="decide", daemon=True).start()
        self.metrics = Metrics(decider.log, lambda: len(self._waiting))
        # Health has a thread of its own: all others may be waiting for a locked log.
        self.for_health = ThreadPoolExecutor(1, thread_name_prefix="health")
        self.for_metrics = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self.for_log = ThreadPoolExecutor(_THREADS, thread_name_prefix="log")

    async def decide(self, content: bytes) -> bytes:
        """Decide about the cases in a body; returns the answer as JSON."""
        request = _Request(content, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._hand_over()
        return await request.future

    def label(self, content: bytes) -> dict[str, int]:
        """Keep the labels in a body."""
        self._check_parts(content)
        body = read_body(content, LabelsBody)
        labels = body.labels
        if len(labels) > self.most_cases:
            raise _too_large(f"a request must hold at most {self.most_cases:,} labels, got {len(labels):,}.")
        return {"new": self.log.label_all(labels, by=body.by or None)}

    def find(self, id: str) -> dict[str, Any]:  # noqa: A002
        """A decision as it was logged."""
        logged = self.log.find(id)
        if logged is None:
            raise UnknownId(f"id {one_line(repr(id), most=100)} was never decided in this log.")
        return logged.to_dict(self.decider.class_names)

    def health(self) -> dict[str, Any]:
        """Whether the service can decide and its log can be written."""
        logged = None
        if self.decider.log is not None:
            logged = self.decider.log.check()
        return {"status": "ok", **self.versions, "logged": logged}

    @property
    def log(self) -> DecisionLog:
        """The log; refused without one."""
        if self.decider.log is None:
            raise UnknownId("this service keeps no log, so it knows neither decisions nor labels.")
        return self.decider.log

    # -- threads that decide --------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Give waiting requests to idle threads; the event loop calls it, so that no lock is needed."""
        while self._waiting and self._idle:
            try:
                request = self._waiting.popleft()
            except IndexError:
                return  # a thread has just taken it
            # The thread that worked last: the caches of its core still hold the model. A pool takes its threads in
            # turn, which costs more for a request of one case.
            self._idle.pop().put(request)

    def _work(self, mailbox: "SimpleQueue[_Request]") -> None:
        """Answer the requests in a mailbox, each with further ones that wait while little time has passed."""
        while True:
            requests = [mailbox.get()]
            self._score(requests[0])
            ends = time.perf_counter() + _TOGETHER_S
            with suppress(IndexError):  # no other one waits
                while len(requests) < _MOST_TOGETHER and time.perf_counter() < ends:
                    requests.append(self._waiting.popleft())
                    self._score(requests[-1])
            try:
                self._decide([request for request in requests if request.scored is not None])
            except Exception as error:  # noqa: BLE001 (the clients get it, and this thread goes on)
                for request in requests:
                    request.answer = request.answer or error
            unwritten = [request.answer for request in requests if isinstance(request.answer, OutputError)]
            # Whoever waits behind them would wait as long for the same answer.
            with suppress(IndexError):
                while unwritten:
                    requests.append(self._waiting.popleft())
                    requests[-1].answer = unwritten[0]
            with suppress(RuntimeError):  # the loop was closed, so nobody waits for an answer
                requests[0].future.get_loop().call_soon_threadsafe(self._deliver, mailbox, requests)

    def _deliver(self, mailbox: "SimpleQueue[_Request]", requests: Sequence[_Request]) -> None:
        self._idle.append(mailbox)
        self._hand_over()
        for request in requests:
            if request.future.done():
                continue  # the client has gone
            if isinstance(request.answer, Exception):
                request.future.set_exception(request.answer)
            else:
                request.future.set_result(request.answer)

    def _score(self, request: _Request) -> None:
        try:
            self._check_parts(request.content)
            cases = read_body(request.content, CasesBody)
            self._check_number(cases.inputs)
            request.scored = self.decider.scored(**dict(cases))
        except Exception as error:  # noqa: BLE001 (the client gets it)
            request.answer = error

    def _decide(self, requests: Sequence[_Request]) -> None:
        if not requests:
            return
        try:
            outcomes = self.decider.decide_all([request.scored for request in requests if request.scored])
        except Exception as error:  # noqa: BLE001 (the client gets it)
            requests[0].answer = error
            if len(requests) > 1:
                # One of them may be the cause, and the others must not suffer.
                for request in requests:
                    self._decide([request])
            return
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, CalibrantError):
                request.answer = outcome
            else:
                request.answer = self._answer(outcome)

    def _answer(self, decisions: Sequence[Decision]) -> bytes:
        automated = sum(decision.automate for decision in decisions)
        self.metrics.count_decisions(automated, len(decisions) - automated)
        shown = [decision.to_dict(self.decider.class_names) for decision in decisions]
        return json.dumps({**self.versions, "decisions": shown}, separators=(",", ":")).encode()

    def _check_parts(self, content: bytes) -> None:
        """Refuse a body with many more lists, objects or names than its cases can have.

        The parser takes a second for millions of them, in which no other thread gets to work.
        """
        lists = content.count(b"[") + content.count(b"{")
        if lists > self._most_lists or content.count(b":") > self._most_colons:
            limit = f"a request must hold at most {self.most_cases:,} cases or labels"
            raise _too_large(f"{limit}, got many more lists or names.")

    def _check_number(self, inputs: Any) -> None:
        for rows in inputs.values() if isinstance(inputs, dict) else [inputs]:
            if isinstance(rows, list) and len(rows) > self.most_cases:
                raise _too_large(f"a request must hold at most {self.most_cases:,} cases, got {len(rows):,}.")

    # -- bodies ---------------------------------------------------------------------------------------------------

    async def with_body(self, request: Request, handle: Callable[[bytes], Awaitable[_T]]) -> _T:
        """Read a body and answer it. Its length and time are limited; large ones are answered a few at a time."""
        parts: list[bytes] = []
        size = held = 0
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    # Checked while it arrives, so that a refused body does not fill the memory first.
                    if size > self.most_bytes:
                        limit = f"the body must have at most {self.most_bytes:,} bytes"
                        raise _too_large(f"{limit}, got more. Send fewer cases at once.")
                    if size > _LARGE:
                        self._in_flight += size - held
                        held = size
                    if held and self._in_flight > _MOST_IN_FLIGHT * self.most_bytes:
                        detail = "too many large bodies are under way. Try again, or send fewer cases at once."
                        raise Refused(429, "too_busy", detail)
            content = b"".join(parts)
            if not held:
                return await handle(content)
            async with self._large:
                return await handle(content)
        except TimeoutError as error:
            raise Refused(408, "too_slow", f"the body did not arrive within {BODY_S} s.") from error
        finally:
            self._in_flight -= held


def _too_large(detail: str) -> Refused:
    return Refused(413, "too_large", detail)


def read_body(content: bytes, kind: type[_Body]) -> _Body:
    """Parse and check a body; the first fault is an `InvalidInput`."""
    try:
        # Ten times as fast as `parse_json`, which gets what this parser refuses or may have misunderstood.
        values = from_json(content, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        values = parse_json(content, "the body")
    # This parser keeps the last of two equal keys.
    if len(_KEY.findall(content)) != _count_keys(values):
        values = parse_json(content, "the body")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part)[:80] for part in first["loc"]) or "the body"
        raise InvalidInput(f"{one_line(place, most=80)}: {first['msg']}.") from error


def _count_keys(values: Any) -> int:
    """The number of keys in an object, in its objects, and in the objects of its lists."""
    if not isinstance(values, dict):
        return 0
    total = len(values)
    for value in values.values():
        if isinstance(value, dict):
            total += len(value)
        elif isinstance(value, list):
            total += sum(len(each) for each in value if isinstance(each, dict))
    return total
