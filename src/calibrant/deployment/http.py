"""An HTTP service around a `Decider`: decisions, labels and health."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from calibrant import __version__
from calibrant.checks import whole
from calibrant.defaults import MOST_BYTES, MOST_CASES
from calibrant.deployment.access import Access, check_exposure, is_loopback, read_token
from calibrant.deployment.decider import Decider, Outside
from calibrant.deployment.decision import CasesBody, ContradictingLabel, DuplicateId, LabelsBody, UnknownId
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.onnx_file import library
from calibrant.errors import CalibrantError, InvalidInput, OutputError, invalid, one_line, our_fault
from calibrant.files import parse_json

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE_S = 30
# When a client may ask again after 503. The service has waited for a locked log already.
_RETRY_S = 5
_Body = TypeVar("_Body", bound=BaseModel)


class TooLarge(InvalidInput):
    """A body or a batch beyond the service's limits."""


# Status and the word for programs of each error.
_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (TooLarge, 413, "too_large"),
    (DuplicateId, 409, "duplicate_id"),
    (ContradictingLabel, 409, "contradicting_label"),
    (UnknownId, 404, "unknown_id"),
    (OutputError, 503, "log_unavailable"),
    (CalibrantError, 422, "invalid"),
)


class _Service:
    """The answers of the service, without HTTP."""

    def __init__(self, decider: Decider, most_cases: int, most_bytes: int) -> None:
        self.decider = decider
        self.most_cases = whole("most_cases", most_cases, 1)
        self.most_bytes = whole("most_bytes", most_bytes, 1)
        # The digests are computed once, not for every answer.
        self.versions = {"model": decider.contents.network, "policy": decider.policy.digest}

    async def body(self, parts: AsyncIterator[bytes], kind: type[_Body]) -> _Body:
        content = bytearray()
        async for part in parts:
            content += part
            # Checked while it arrives, so that a refused body does not fill the memory first.
            if len(content) > self.most_bytes:
                limit = f"the body must have at most {self.most_bytes:,} bytes"
                raise TooLarge(f"{limit}, got more. Send fewer cases at once.")
        return _read(bytes(content), kind)

    def decide(self, cases: CasesBody) -> dict[str, Any]:
        arrays = [cases.inputs]
        if isinstance(cases.inputs, dict):
            arrays = list(cases.inputs.values())
        for rows in arrays:
            if isinstance(rows, list) and len(rows) > self.most_cases:
                raise TooLarge(f"a request must hold at most {self.most_cases:,} cases, got {len(rows):,}.")
        decisions = self.decider.decide(**dict(cases))
        return {**self.versions, "decisions": [self.decider.to_dict(each) for each in decisions]}

    @property
    def log(self) -> DecisionLog:
        if self.decider.log is None:
            raise UnknownId("this service keeps no log, so it knows neither decisions nor labels.")
        return self.decider.log

    def find(self, id: str) -> dict[str, Any]:  # noqa: A002
        found = self.log.find(id)
        if found is None:
            raise UnknownId(f"id {one_line(repr(id), most=100)} was never decided in this log.")
        return {**found.to_dict(), "class": self.decider.class_names[found.decision.predicted]}

    def label(self, labels: LabelsBody) -> dict[str, int]:
        if len(labels.labels) > self.most_cases:
            raise TooLarge(f"a request must hold at most {self.most_cases:,} labels, got {len(labels.labels):,}.")
        return {"new": self.log.label_all(labels.labels)}

    def health(self) -> dict[str, Any]:
        logged = None
        if self.decider.log is not None:
            logged = self.decider.log.check()
        return {"status": "ok", **self.versions, "logged": logged}


def create_app(
    decider: Decider,
    *,
    most_cases: int = MOST_CASES,
    most_bytes: int = MOST_BYTES,
    token: str | None = None,
    allowed_hosts: Collection[str] = (),
    any_address: bool = False,
) -> "FastAPI":
    """The service as an ASGI application; `serve_model` runs it.

    Args:
        decider: What decides; with a log, every answered decision is in it.
        most_cases: Cases, or labels, in one request.
        most_bytes: Length of a body.
        token: Every request but `GET /health` must then have the header `Authorization: Bearer TOKEN`.
        allowed_hosts: Names, besides those of this machine itself, that clients may ask for in the header `Host`.
        any_address: Whether clients may ask for any IP address in the header `Host`.
    """
    fastapi = library("fastapi", "serve")
    in_thread = library("fastapi.concurrency", "serve").run_in_threadpool
    service = _Service(decider, most_cases, most_bytes)
    app: FastAPI = fastapi.FastAPI(title="calibrant", version=__version__, description=_describe(decider))
    app.add_middleware(Access, hosts=allowed_hosts, any_address=any_address, token=token)
    # A thread of its own: all others may be waiting for a locked log.
    for_health = ThreadPoolExecutor(max_workers=1, thread_name_prefix="health")

    async def decide(request: Any) -> Any:
        """Decide about cases. They are in the log when the answer comes."""
        return await in_thread(service.decide, await service.body(request.stream(), CasesBody))

    async def label(request: Any) -> Any:
        """Keep the true classes of cases; all of the labels or none."""
        return await in_thread(service.label, await service.body(request.stream(), LabelsBody))

    # FastAPI reads annotations, and the class exists only where the extra is installed.
    decide.__annotations__["request"] = label.__annotations__["request"] = fastapi.Request

    @app.get("/decisions/{id:path}")
    async def find(id: str) -> Any:  # noqa: A002
        """A decision as it was logged, with its label if one has come."""
        return await in_thread(service.find, id)

    @app.get("/health")
    async def health() -> Any:
        """Whether the service can decide and its log can be read."""
        return await asyncio.get_running_loop().run_in_executor(for_health, service.health)

    app.post("/decisions", openapi_extra=_documented(CasesBody))(decide)
    app.post("/labels", openapi_extra=_documented(LabelsBody))(label)
    app.exception_handler(Exception)(_answer)
    app.exception_handler(CalibrantError)(_answer)
    app.exception_handler(library("starlette.exceptions", "serve").HTTPException)(_answer_http)
    return app


def _read(content: bytes, kind: type[_Body]) -> _Body:
    """Parse and check a body; the first fault is an `InvalidInput`."""
    values = parse_json(content, "the body")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidInput(f"{one_line(place, most=80)}: {first['msg']}.") from error


async def _answer(_: Any, error: Exception) -> Any:
    """Answer an error with one line; a fault of ours is printed, and its traceback is never sent to the client."""
    responses = library("fastapi.responses", "serve")
    for kind, status, name in _ANSWERS:
        if isinstance(error, kind):
            answer = responses.JSONResponse({"error": name, "detail": one_line(error)}, status)
            if status == 503:
                answer.headers["retry-after"] = str(_RETRY_S)
            return answer
    sys.stderr.write(f"calibrant: {our_fault(error)}\n")
    detail = "this is a fault of the service; nothing was decided."
    return responses.JSONResponse({"error": "internal", "detail": detail}, 500)


async def _answer_http(_: Any, error: Any) -> Any:
    """Answer what the framework refuses itself: an unknown path, or a method that the path does not support."""
    responses = library("fastapi.responses", "serve")
    name = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
    return responses.JSONResponse({"error": name, "detail": f"{error.detail}."}, error.status_code, error.headers)


def _documented(kind: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _describe(decider: Decider) -> str:
    inputs = "; ".join(f"{spec.name}: {spec.dtype} {spec.shape_in_words}" for spec in decider.contents.inputs)
    return f"Inputs: {inputs}. {decider.policy.describe()}"


def serve_model(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log: str | Path | None = "decisions.db",
    outside: Outside = "refuse",
    most_cases: int = MOST_CASES,
    most_bytes: int = MOST_BYTES,
    token_file: str | Path | None = None,
    allowed_hosts: Collection[str] = (),
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve an exported file until the process gets SIGINT or SIGTERM; open requests are answered first.

    Args:
        path: An ONNX file of `export_onnx`.
        host: Address to listen on; by default this machine alone. Any other needs `token_file`.
        port: 0 for any free one.
        log: Path or URL of the decision log; None for none.
        outside: What happens to inputs outside the model's ranges, as for `Decider`.
        most_cases: Cases, or labels, in one request.
        most_bytes: Length of a body.
        token_file: A file with a token, which every request but `GET /health` must then have.
        allowed_hosts: Names, besides `host` and those of this machine itself, under which clients may ask.
        ready: Called with the address as soon as clients can connect.
    """
    uvicorn = library("uvicorn", "serve")
    library("fastapi", "serve")
    token = None
    if token_file is not None:
        token = read_token(token_file)
    with closing(_listen(host, port, token)) as listening:
        address = listening.getsockname()
        decider = Decider.load(path, log=log, outside=outside)
        app = create_app(
            decider,
            most_cases=most_cases,
            most_bytes=most_bytes,
            token=token,
            allowed_hosts={host, *allowed_hosts},
            any_address=not is_loopback(address[0]),
        )
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE_S)
        server = uvicorn.Server(config)
        if ready is not None:
            ready(f"http://{address[0]}:{address[1]}")
        # uvicorn raises the signal again after its graceful stop, and the exit code would be that of a crash.
        server.capture_signals = lambda: _signals(server.handle_exit)
        server.run(sockets=[listening])
    if decider.log is not None:
        decider.log.close()


def _listen(host: str, port: int, token: str | None) -> socket.socket:
    if not 0 <= whole("port", port, 0) < 2**16:
        raise invalid("port", "lie in 0..65535", port)
    try:
        listening = socket.create_server((host, port), backlog=2048)
        # Connections inherit it. Without it the second part of an answer waits 40 ms for the client's acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another port."
        ) from error
    try:
        check_exposure(listening.getsockname()[0], token)
    except InvalidInput:
        listening.close()
        raise
    return listening


@contextmanager
def _signals(stop: Callable[[int, Any], None]) -> Iterator[None]:
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, stop) for each in wanted}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
