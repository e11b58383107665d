"""An HTTP service around a `Decider`: decisions, labels and health."""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from html import escape
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from calibrant import __version__
from calibrant.checks import whole
from calibrant.defaults import MOST_BYTES, MOST_CASES
from calibrant.deployment.access import (
    Access,
    App,
    Receive,
    Refused,
    Scope,
    Send,
    is_loopback,
    problem,
    read_token,
)
from calibrant.deployment.decider import Decider
from calibrant.deployment.decision import (
    CasesBody,
    ContradictingLabel,
    DecisionsAnswer,
    DuplicateId,
    HealthAnswer,
    LabelsAnswer,
    LabelsBody,
    LoggedAnswer,
    Problem,
    UnknownId,
)
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.onnx_file import library
from calibrant.deployment.prometheus import CONTENT_TYPE, FOLDER
from calibrant.deployment.review import ICON, PAGE_POLICY, Review, asset
from calibrant.deployment.service import Service
from calibrant.errors import CalibrantError, InvalidInput, OutputError, invalid, one_line, our_fault

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE_S = 30
# Names the settings of a worker in its environment.
_WORKER = "CALIBRANT_SERVE_WORKER"
# Status and the word for programs of each error.
_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (DuplicateId, 409, "duplicate_id"),
    (ContradictingLabel, 409, "contradicting_label"),
    (UnknownId, 404, "unknown_id"),
    (OutputError, 503, "log_unavailable"),
    (CalibrantError, 422, "invalid"),
)
_DOCS_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = ":root { color-scheme: light dark } body { font: 16px/1.5 system-ui; max-width: 60rem; margin: 2rem auto }"
# What the layers before the routes refuse.
_ALWAYS = (400, 401, 403, 500)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every process of a service has to know; as JSON in the environment of workers."""

    path: str
    log: str | None
    most_cases: int
    most_bytes: int
    token_file: str | None
    allowed_hosts: Collection[str]
    any_address: bool
    access_log: bool
    audit: float | None  # None: no review page
    pictures: str | None
    key: str  # the secret of the review page
    parent: int  # the process that ends its workers


def create_app(settings: Settings) -> tuple[Access, DecisionLog | None]:
    """The service as an ASGI application, which `serve_model` runs, and its log."""
    fastapi = library("fastapi", "serve")
    responses = library("fastapi.responses", "serve")
    token = None
    if settings.token_file is not None:
        token = read_token(settings.token_file)
    decider = Decider.load(settings.path, log=settings.log)
    service = Service(decider, settings.most_cases, settings.most_bytes)
    # The pages of FastAPI load scripts from another site; /docs is a page of ours.
    app: FastAPI = fastapi.FastAPI(
        title="calibrant", version=__version__, description=_describe(decider), docs_url=None, redoc_url=None
    )

    async def decide(request: Any) -> Any:
        """Decide about cases. They are in the log when the answer comes."""
        content = await service.with_body(request, service.decide)
        return responses.Response(content, media_type="application/json")

    async def label(request: Any) -> Any:
        """Keep the true classes of cases; all of the labels or none."""
        keep = partial(_in_thread, service.for_log, service.label)
        return responses.JSONResponse(await service.with_body(request, keep))

    async def find(id: str) -> Any:  # noqa: A002
        """A decision as it was logged, with its label if one has come."""
        return responses.JSONResponse(await _in_thread(service.for_log, service.find, id))

    async def health() -> Any:
        """Whether the service can decide and its log can be written."""
        return responses.JSONResponse(await _in_thread(service.for_health, service.health))

    async def metrics() -> Any:
        """Counts, times, the log and the evidence of the monitor, for Prometheus."""
        page = await _in_thread(service.for_metrics, service.metrics.page)
        return responses.Response(page, headers={"content-type": CONTENT_TYPE})

    async def docs() -> Any:
        """This interface as a page."""
        page = _interface_page(app.openapi())
        return responses.HTMLResponse(page, headers={"content-security-policy": _DOCS_POLICY})

    # FastAPI reads annotations, and the class exists only if the extra is installed.
    decide.__annotations__["request"] = label.__annotations__["request"] = fastapi.Request
    with_body = (408, 413, 415, 422, 429)
    _route(app, decide, "POST", "/decisions", DecisionsAnswer, (*with_body, 409, 503), body=CasesBody)
    _route(app, label, "POST", "/labels", LabelsAnswer, (*with_body, 404, 409, 503), body=LabelsBody)
    _route(app, find, "GET", "/decisions/{id:path}", LoggedAnswer, (404, 422, 503))
    _route(app, health, "GET", "/health", HealthAnswer, (503,))
    pages: dict[str, Callable[..., Awaitable[Any]]] = {"/metrics": metrics, "/docs": docs}
    if settings.audit is not None:
        pages |= _review_pages(Review(decider, settings.audit, settings.key, settings.pictures), service.for_log)
    for path, handler in pages.items():
        app.get(path, include_in_schema=False)(_answering(handler))
    app.add_exception_handler(library("starlette.exceptions", "serve").HTTPException, _answer_http)
    observe = partial(_observe, service, settings.access_log)
    # What was loaded stays, so that garbage collection need not look at it again and again.
    gc.freeze()
    hosts, any_address = settings.allowed_hosts, settings.any_address
    guarded = Access(_with_short_cut(app, decide), hosts=hosts, any_address=any_address, token=token, observe=observe)
    return guarded, decider.log


def _with_short_cut(app: "FastAPI", decide: Callable[..., Awaitable[Any]]) -> App:
    """The application, in which requests for decisions, the most frequent ones, do not take FastAPI's longer way."""
    request = library("fastapi", "serve").Request
    answer = _answering(decide)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if (scope.get("method"), scope.get("path")) != ("POST", "/decisions"):
            await app(scope, receive, send)
            return
        response = await answer(request(scope, receive, send))
        await response(scope, receive, send)

    return application


def _review_pages(review: Review, pool: Executor) -> dict[str, Callable[..., Awaitable[Any]]]:
    """The handlers of the page at /review, where people label cases, by path."""
    responses = library("fastapi.responses", "serve")
    safe = {"content-security-policy": PAGE_POLICY, "x-content-type-options": "nosniff", "cache-control": "no-store"}

    def file(content: str | bytes, kind: str) -> Callable[[], Awaitable[Any]]:
        async def answer() -> Any:
            return responses.Response(content, media_type=kind, headers=safe)

        return answer

    async def next_case(after: int = 0) -> Any:
        return responses.JSONResponse({"case": await _in_thread(pool, review.next_case, after)}, headers=safe)

    async def picture(id: str) -> Any:  # noqa: A002
        content, kind = await _in_thread(pool, review.picture, id)
        return responses.Response(content, media_type=kind, headers=safe)

    return {
        "/review": file(asset("review.html"), "text/html"),
        "/review.js": file(asset("review.js"), "text/javascript"),
        "/review.css": file(asset("review.css"), "text/css"),
        "/review.ico": file(ICON, "image/gif"),
        "/review/next": next_case,
        "/review/picture": picture,
    }


def _in_thread(pool: Executor, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
    return asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _observe(service: Service, access_log: bool, scope: Mapping[str, Any], status: int, seconds: float) -> None:
    service.metrics.count_request(scope["method"], scope["path"], status, seconds)
    if access_log:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        client = (scope.get("client") or ("-",))[0]
        path = one_line(scope.get("raw_path", b"").decode("latin-1"), most=200)
        sys.stdout.write(f"{moment} {client} {scope['method']} {path} {status} {1000 * seconds:.1f}ms\n")
        sys.stdout.flush()


def _route(
    app: "FastAPI",
    handler: Callable[..., Awaitable[Any]],
    method: str,
    path: str,
    answer: type[BaseModel],
    errors: Collection[int],
    *,
    body: type[BaseModel] | None = None,
) -> None:
    """Add a route whose body, answer and errors OpenAPI describes. The handler reads and writes JSON itself."""
    documented: dict[str, Any] = {}
    if body is not None:
        schema = {"application/json": {"schema": body.model_json_schema()}}
        documented["requestBody"] = {"required": True, "content": schema}
    problems: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in (*_ALWAYS, *errors)}
    app.add_api_route(
        path,
        _answering(handler),
        methods=[method],
        operation_id=handler.__name__,
        response_model=None,
        responses={200: {"model": answer}, **problems},
        openapi_extra=documented,
    )


def _answering(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A handler that answers errors with one line; a fault of ours is printed, and no traceback goes to the client."""
    responses = library("fastapi.responses", "serve")
    gone = library("starlette.requests", "serve").ClientDisconnect

    @wraps(handler)
    async def answer(*arguments: Any, **named: Any) -> Any:
        try:
            return await handler(*arguments, **named)
        except gone:
            return responses.Response(status_code=400)  # nobody gets it
        except Refused as error:
            return problem(error.status, error.error, error.detail)
        except Exception as error:  # noqa: BLE001 (the client gets it)
            for kind, status, name in _ERRORS:
                if isinstance(error, kind):
                    return problem(status, name, one_line(error))
            sys.stderr.write(f"calibrant: {our_fault(error)}\n")
            return problem(500, "internal", "this is a fault of the service; nothing was decided.")

    return answer


async def _answer_http(_: Any, error: Any) -> Any:
    """Answer what the framework refuses itself: an unknown path, or a method that the path does not support."""
    responses = library("fastapi.responses", "serve")
    name = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
    return responses.JSONResponse({"error": name, "detail": f"{error.detail}."}, error.status_code, error.headers)


def _describe(decider: Decider) -> str:
    inputs = "; ".join(f"{spec.name}: {spec.dtype} {spec.shape_in_words}" for spec in decider.contents.inputs)
    return f"Inputs: {inputs}. {decider.policy.describe()}"


def _interface_page(openapi: dict[str, Any]) -> str:
    """The page at /docs for an OpenAPI document, without a script and without anything from another site."""
    info = openapi["info"]
    title = escape(f"{info['title']} {info['version']}")
    parts = [f"<h1>{title}</h1><p>{escape(info['description'])}</p>"]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            statuses = ", ".join(operation["responses"])
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['description'])} Statuses: {statuses}.</p>")
    parts.append("<h2><a href='openapi.json'>openapi.json</a></h2>")
    parts.append(f"<pre>{escape(json.dumps(openapi, indent=2))}</pre>")
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>"
    )


def serve_model(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log: str | Path | None = "decisions.db",
    most_cases: int = MOST_CASES,
    most_bytes: int = MOST_BYTES,
    token_file: str | Path | None = None,
    allowed_hosts: Collection[str] = (),
    workers: int = 1,
    access_log: bool = False,
    review: bool = False,
    audit: float = 0.02,
    pictures: str | Path | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve an exported file until the process gets SIGINT or SIGTERM; open requests are answered first.

    The arguments are those of `calibrant serve`; without a `log` none is kept. `ready` is called with the address as
    soon as clients can connect.
    """
    uvicorn = library("uvicorn", "serve")
    limits = library("calibrant.deployment.connections", "serve")
    library("fastapi", "serve")
    whole("workers", workers, 1)
    with closing(_listen(host, port, with_token=token_file is not None)) as listening, TemporaryDirectory() as counts:
        address = listening.getsockname()
        settings = Settings(
            path=str(path),
            log=None if log is None else str(log),
            most_cases=most_cases,
            most_bytes=most_bytes,
            token_file=None if token_file is None else str(token_file),
            allowed_hosts=[host, *allowed_hosts],
            any_address=not is_loopback(address[0]),
            access_log=access_log,
            audit=audit if review else None,
            pictures=None if pictures is None else str(pictures),
            key=token_hex(16),
            parent=os.getpid(),
        )
        config = {
            "http": limits.LimitedProtocol,
            "backlog": limits.BACKLOG,
            "timeout_keep_alive": limits.PATIENCE_S,
            "log_level": "warning",
            "access_log": False,
            "timeout_graceful_shutdown": _GRACE_S,
        }
        # With several workers, too: what is wrong with the arguments is an error of this process.
        app, decisions = create_app(settings)
        if ready is not None:
            ready(f"http://{address[0]}:{address[1]}")
        if workers > 1:
            _close(decisions)
            os.environ |= {_WORKER: json.dumps(asdict(settings)), FOLDER: counts}
            run = uvicorn.Config("calibrant.deployment.http:worker_app", factory=True, workers=workers, **config)
            library("uvicorn.supervisors", "serve").Multiprocess(run, sockets=[listening]).run()
            return
        server = uvicorn.Server(uvicorn.Config(app, **config))
        # uvicorn raises the signal again after its graceful stop, and the exit code would be that of a crash.
        server.capture_signals = lambda: _signals(server.handle_exit)
        server.run(sockets=[listening])
        _close(decisions)


def _close(log: DecisionLog | None) -> None:
    if log is not None:
        log.close()


def worker_app() -> Access:
    """The application in a process that `serve_model` started."""
    settings = Settings(**json.loads(os.environ[_WORKER]))

    def end_with_parent() -> None:
        while os.getppid() == settings.parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return create_app(settings)[0]


def _listen(host: str, port: int, *, with_token: bool) -> socket.socket:
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
    address = listening.getsockname()[0]
    if not with_token and not is_loopback(address):
        listening.close()
        raise InvalidInput(
            f"host {address} can be reached from other machines, so a token is needed. Add --token-file FILE, "
            "or listen on 127.0.0.1."
        )
    return listening


@contextmanager
def _signals(stop: Callable[[int, Any], None]) -> Iterator[None]:
    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
