"""A small HTTP service around a `Decider`: decisions, labels, health, and one clear line for every bad body."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibrant import __version__
from calibrant.checks import whole
from calibrant.defaults import MOST_BYTES, MOST_CASES
from calibrant.deployment.access import Access, check_exposure, is_loopback, read_token
from calibrant.deployment.decider import Decider, Outside
from calibrant.deployment.decision import Extra
from calibrant.deployment.log import ContradictingLabel, DecisionLog, DuplicateId, UnknownId
from calibrant.deployment.onnx_file import library
from calibrant.errors import CalibrantError, InvalidInput, OutputError, invalid, one_line, our_fault
from calibrant.files import parse_json

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE_S = 30
# When a client may ask again after 503. A locked log was waited for already.
_RETRY_S = 5
_Body = TypeVar("_Body", bound=BaseModel)


class CasesBody(BaseModel):
    """Cases to decide about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    inputs: Any = Field(description="Rows of numbers; for a model with several inputs, an object of them by name.")
    ids: list[str] | None = Field(None, description="A distinct id for each case; made by the service by default.")
    extras: list[dict[str, Extra]] | None = Field(None, description="Other facts about each case, such as groups.")


class LabelsBody(BaseModel):
    """What was true of cases that were decided before."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: dict[str, int | str] = Field(description="The true class, by its name or number, of each id.")


class TooLarge(InvalidInput):
    """A body or a batch beyond the service's limits."""


# Status, and the word for programs.
_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (TooLarge, 413, "too_large"),
    (DuplicateId, 409, "duplicate_id"),
    (ContradictingLabel, 409, "contradicting_label"),
    (UnknownId, 404, "unknown_id"),
    (OutputError, 503, "log_unavailable"),
    (CalibrantError, 422, "invalid"),
)


class _Service:
    """What the service answers, without HTTP."""

    def __init__(self, decider: Decider, most_cases: int, most_bytes: int) -> None:
        self.decider = decider
        self.most_cases, self.most_bytes = whole("most_cases", most_cases, 1), whole("most_bytes", most_bytes, 1)

    async def body(self, parts: AsyncIterator[bytes], kind: type[_Body]) -> _Body:
        content = bytearray()
        async for part in parts:
            content += part
            # While it comes in: what is refused must not fill the memory first.
            if len(content) > self.most_bytes:
                told = f"the body must have at most {self.most_bytes:,} bytes, got more. Send fewer cases at once."
                raise TooLarge(told)
        return _read(bytes(content), kind)

    def decide(self, cases: CasesBody) -> dict[str, Any]:
        inputs = cases.inputs
        for rows in inputs.values() if isinstance(inputs, dict) else [inputs]:
            if isinstance(rows, list) and len(rows) > self.most_cases:
                raise TooLarge(f"a request must hold at most {self.most_cases:,} cases, got {len(rows):,}.")
        made = self.decider.decide(inputs, ids=cases.ids, extras=cases.extras)
        return {**_versions(self.decider), "decisions": [self.decider.to_dict(each) for each in made]}

    @property
    def log(self) -> DecisionLog:
        if self.decider.log is None:
            raise UnknownId("this service keeps no log, so it knows neither decisions nor labels.")
        return self.decider.log

    def find(self, id: str) -> dict[str, Any]:  # noqa: A002
        found = self.log.find(id)
        if found is None:
            raise UnknownId(f"id {one_line(repr(id), most=100)} was never decided in this log.")
        return {**found.to_dict(), "class": self.decider.contents.name_of(found.decision.predicted)}

    def label(self, labels: LabelsBody) -> dict[str, int]:
        if len(labels.labels) > self.most_cases:
            raise TooLarge(f"a request must hold at most {self.most_cases:,} labels, got {len(labels.labels):,}.")
        return {"new": self.log.label_all(labels.labels)}

    def health(self) -> dict[str, Any]:
        logged = None if self.decider.log is None else self.decider.log.check()
        return {"status": "ok", **_versions(self.decider), "logged": logged}


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
        """Say what was true of cases; all of the labels are kept, or none."""
        return await in_thread(service.label, await service.body(request.stream(), LabelsBody))

    # FastAPI reads annotations, and the class exists only where the extra is installed.
    decide.__annotations__["request"] = label.__annotations__["request"] = fastapi.Request

    @app.get("/decisions/{id:path}")
    async def find(id: str) -> Any:  # noqa: A002
        """A decision as it was logged, with its label where that has come."""
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
    """A body as one of the models; whatever is wrong with it is one line."""
    found = parse_json(content, "the body")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidInput(f"{one_line(place, most=80)}: {first['msg']}.") from error


async def _answer(_: Any, error: Exception) -> Any:
    """One line for what went wrong; a fault of ours is told to the terminal, never with its traceback to the client."""
    responses = library("fastapi.responses", "serve")
    for kind, status, name in _ANSWERS:
        if isinstance(error, kind):
            headers = {"retry-after": str(_RETRY_S)} if status == 503 else {}
            return responses.JSONResponse({"error": name, "detail": one_line(error)}, status, headers)
    sys.stderr.write(f"calibrant: {our_fault(error)}\n")
    told = "this is a fault of the service; nothing was decided."
    return responses.JSONResponse({"error": "internal", "detail": told}, 500)


async def _answer_http(_: Any, error: Any) -> Any:
    """What the framework refuses by itself: an unknown path, or a method that the path does not take."""
    responses = library("fastapi.responses", "serve")
    name = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
    return responses.JSONResponse({"error": name, "detail": f"{error.detail}."}, error.status_code, error.headers)


def _documented(kind: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _versions(decider: Decider) -> dict[str, str]:
    return {"model": decider.contents.network, "policy": decider.policy.digest}


def _describe(decider: Decider) -> str:
    inputs = "; ".join(f"{s.name}: {s.dtype} (n, {', '.join(map(str, s.shape))})" for s in decider.contents.inputs)
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
    """Serve an exported file until the process is told to stop; requests that are under way are answered first.

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
        ready: Told the address as soon as clients can connect.
    """
    uvicorn = library("uvicorn", "serve")
    library("fastapi", "serve")
    token = None if token_file is None else read_token(token_file)
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
        # uvicorn raises the signal again after its graceful end, and the exit code would be that of a crash.
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
