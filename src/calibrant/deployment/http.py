"""The routes of the HTTP service around a `Decider`: decisions, labels, health, metrics and the review page.

This module needs the libraries of the extra `serve`; `serve_model` imports it.
"""

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from typing import Any, cast

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from calibrant import __version__
from calibrant.deployment.access import Access, problem, read_token
from calibrant.deployment.decider import Decider
from calibrant.deployment.decision import (
    CasesBody,
    DecisionsAnswer,
    HealthAnswer,
    LabelsAnswer,
    LabelsBody,
    LoggedAnswer,
    Problem,
)
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.prometheus import CONTENT_TYPE
from calibrant.deployment.review import Review
from calibrant.deployment.serve import Settings
from calibrant.deployment.service import Service
from calibrant.errors import one_line

# What any route may answer: the layers before the routes refuse requests, and we may make mistakes.
_ALWAYS = (400, 401, 403, 500)
_WITH_BODY = (408, 413, 415, 422, 429)
# Files of the review page by path. They hold no data, so they are answered without a token.
_REVIEW_FILES = {
    "/review": ("review.html", "text/html"),
    "/review.js": ("review.js", "text/javascript"),
    "/review.css": ("review.css", "text/css"),
}
_DOCS_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_REVIEW_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def create_app(settings: Settings) -> tuple[FastAPI, DecisionLog | None]:
    """The service as an ASGI application, which `serve_model` runs, and its log."""
    token = None
    if settings.token_file is not None:
        token = read_token(settings.token_file)
    decider = Decider.load(settings.path, log=settings.log)
    service = Service(decider, settings.most_cases, settings.most_bytes)
    app = FastAPI(
        title="calibrant",
        version=__version__,
        description=_describe(decider),
        generate_unique_id_function=lambda route: route.name,
        # FastAPI's pages load scripts from another site; /docs is a page of ours.
        docs_url=None,
        redoc_url=None,
    )
    _add_routes(app, service)
    if settings.review:
        _add_review(app, Review(decider, settings.audit, settings.key, settings.pictures), service.for_log)

    def observe(scope: Scope, status: int, seconds: float) -> None:
        service.metrics.count_request(_route_of(app, scope["path"]), status, seconds)
        if settings.access_log:
            _print_request(scope, status, seconds)

    app.add_exception_handler(HTTPException, _answer_framework)
    app.add_exception_handler(RequestValidationError, _answer_framework)
    app.add_middleware(
        Access,
        hosts=settings.allowed_hosts,
        any_address=settings.any_address,
        token=token,
        without_token=["/health", *_REVIEW_FILES],
        observe=observe,
    )
    # What was loaded stays, so that garbage collection need not look at it again and again.
    gc.freeze()
    return app, decider.log


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/decisions", **_documented(DecisionsAnswer, *_WITH_BODY, 409, 503, body=CasesBody))
    async def decide(request: Request) -> Response:
        """Decide about cases. They are in the log when the answer comes."""
        content = await service.with_body(request, service.decide)
        return Response(content, media_type="application/json")

    # FastAPI takes 20 us longer to call a handler than Starlette, whose route answers the most frequent requests.
    app.router.routes.insert(0, Route("/decisions", decide, methods=["POST"]))

    @app.post("/labels", **_documented(LabelsAnswer, *_WITH_BODY, 404, 409, 503, body=LabelsBody))
    async def label(request: Request) -> Response:
        """Keep the true classes of cases; all of the labels or none."""
        keep = partial(_in_thread, service.for_log, service.label)
        return JSONResponse(await service.with_body(request, keep))

    @app.get("/decisions/{id:path}", **_documented(LoggedAnswer, 404, 422, 503))
    async def find(id: str) -> Response:  # noqa: A002
        """A decision as it was logged, with its label if one has come."""
        return JSONResponse(await _in_thread(service.for_log, service.find, id))

    @app.get("/health", **_documented(HealthAnswer, 503))
    async def health() -> Response:
        """Whether the service can decide and its log can be written."""
        return JSONResponse(await _in_thread(service.for_health, service.health))

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """Counts, times, the log and the evidence of the monitor, for Prometheus."""
        page = await _in_thread(service.for_metrics, service.metrics.page)
        return Response(page, headers={"content-type": CONTENT_TYPE})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """This interface as a page, without a script and without anything from another site."""
        page = Environment(autoescape=True).from_string(_asset("docs.html.j2"))
        return HTMLResponse(page.render(openapi=app.openapi()), headers=_DOCS_HEADERS)


def _documented(answer: type[BaseModel], *errors: int, body: type[BaseModel] | None = None) -> dict[str, Any]:
    """What OpenAPI says about a route: its body, answer and errors. The handler reads and writes JSON itself."""
    responses: dict[int, dict[str, Any]] = {status: {"model": Problem} for status in (*_ALWAYS, *errors)}
    documented: dict[str, Any] = {"responses": {200: {"model": answer}, **responses}}
    if body is not None:
        content = {"application/json": {"schema": body.model_json_schema()}}
        documented["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return documented


def _add_review(app: FastAPI, review: Review, pool: Executor) -> None:
    """Add the page at /review, where people label cases."""

    def file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        content = _asset(name)

        async def answer(_: Request) -> Response:
            return Response(content, media_type=kind, headers=_REVIEW_HEADERS)

        return answer

    for path, (name, kind) in _REVIEW_FILES.items():
        app.add_route(path, file(name, kind))

    @app.get("/review/next", include_in_schema=False)
    async def next_case(after: int = Query(0, lt=2**63)) -> Response:
        return JSONResponse({"case": await _in_thread(pool, review.next_case, after)}, headers=_REVIEW_HEADERS)

    @app.get("/review/picture", include_in_schema=False)
    async def picture(id: str) -> Response:  # noqa: A002
        content, kind = await _in_thread(pool, review.picture, id)
        return Response(content, media_type=kind, headers=_REVIEW_HEADERS)


def _asset(name: str) -> str:
    return resources.files("calibrant.deployment").joinpath("assets", name).read_text(encoding="utf-8")


def _in_thread(pool: Executor, function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
    return asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


def _route_of(app: FastAPI, path: str) -> str:
    """The path of the route that a request is for, such as /decisions/{id}."""
    for route in app.routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            return route.path_format
    return "other"


def _print_request(scope: Scope, status: int, seconds: float) -> None:
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    client = (scope.get("client") or ("-",))[0]
    path = one_line(scope.get("raw_path", b"").decode("latin-1"), most=200)
    with suppress(OSError):  # a full disk, or nobody who reads: clients are answered all the same
        sys.stdout.write(f"{moment} {client} {scope['method']} {path} {status} {1000 * seconds:.1f}ms\n")
        sys.stdout.flush()


async def _answer_framework(_: Request, error: Exception) -> Response:
    """Answer what FastAPI refuses itself: an unknown path, a method that the path does not support, a bad query."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return problem(422, "invalid", f"{first['loc'][-1]}: {first['msg']}.")
    refused = cast("HTTPException", error)
    name = {404: "not_found", 405: "method_not_allowed"}.get(refused.status_code, "invalid")
    answer = problem(refused.status_code, name, f"{refused.detail}.")
    answer.headers.update(refused.headers or {})
    return answer


def _describe(decider: Decider) -> str:
    inputs = "; ".join(f"{spec.name}: {spec.dtype} {spec.shape_in_words}" for spec in decider.contents.inputs)
    return f"Inputs: {inputs}. {decider.policy.describe()}"
