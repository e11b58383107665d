"""Which requests the service answers: the Host, Origin, token and content type that they must have."""

import math
import re
import secrets
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrant.deployment.decision import ContradictingLabel, DuplicateId, UnknownId
from calibrant.errors import CalibrantError, OutputError, invalid, one_line, our_fault
from calibrant.files import reading

_CLIENT_LEFT = 499
# A token of 16 characters cannot be guessed over a network; one of more than 512 is some other file.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
# The rest of the body is not read, so the connection cannot be used again.
_CLOSED = (400, 401, 403, 408, 413, 415, 429)
# When a client may ask again after 429 and 503. The service has waited for a locked log already.
_RETRY_S = 5
_TELL_EVERY_S = 60
# Status and the word for programs of each error.
_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (DuplicateId, 409, "duplicate_id"),
    (ContradictingLabel, 409, "contradicting_label"),
    (UnknownId, 404, "unknown_id"),
    (OutputError, 503, "log_unavailable"),
    (CalibrantError, 422, "invalid"),
)


class Refused(Exception):
    """A request that is refused, with the HTTP status, one word for programs and one or two sentences for people."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail


def problem(status: int, error: str, detail: str) -> JSONResponse:
    """The answer to a request that is refused or fails: JSON and the headers that the status needs."""
    headers = {}
    if status in _CLOSED:
        headers["connection"] = "close"
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in (429, 503):
        headers["retry-after"] = str(_RETRY_S)
    return JSONResponse({"error": error, "detail": detail}, status, headers)


def _problem_of(error: Exception) -> JSONResponse:
    """The answer to an error. No traceback goes to the client."""
    if isinstance(error, Refused):
        return problem(error.status, error.error, error.detail)
    for kind, status, name in _ERRORS:
        if isinstance(error, kind):
            return problem(status, name, one_line(error))
    return problem(500, "internal", "this is a fault of the service; nothing was decided.")


class Access:
    """ASGI middleware that refuses requests before their body is read, and answers every error.

    Any web page that is open in a browser may send requests to every address that the browser can reach. So the `Host`
    must be ours (a page may point a name of its own at our address), `Origin` and `Sec-Fetch-Site` must not be those of
    another site, and a body must be `application/json`, which no page may send to another site without permission.

    Args:
        app: The application.
        hosts: Names and addresses of the service, without a port.
        any_address: Whether every IP address may be the `Host`, for a service that listens on all addresses of a
            machine. A page can point a name at us, but not an address.
        token: If not None, requests need the header `Authorization: Bearer TOKEN`.
        without_token: Paths that may be read without the token.
        observe: Called after each request with its scope, the status of its answer and the seconds that it took.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        any_address: bool,
        token: str | None,
        without_token: Collection[str],
        observe: Callable[[Scope, int, float], None],
    ) -> None:
        self.app = app
        self.hosts = {host.lower().rstrip(".") for host in hosts}
        self.any_address = any_address
        self.token = token
        self.without_token = without_token
        self.observe = observe
        self.told_at = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = perf_counter()
        # Stays if the client leaves before it is answered.
        status = _CLIENT_LEFT

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self.check(scope["method"], scope["path"], Headers(scope=scope))
            await self.app(scope, receive, send_and_note)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 (the client gets it)
            self._tell_operator(error)
            await _problem_of(error)(scope, receive, send_and_note)
        finally:
            self.observe(scope, status, perf_counter() - begun)

    def _tell_operator(self, error: Exception) -> None:
        """Print why the log cannot be used, at most once a minute, and every fault of ours."""
        message = ""
        if isinstance(error, OutputError) and monotonic() - self.told_at >= _TELL_EVERY_S:
            self.told_at = monotonic()
            message = one_line(error)
        elif not isinstance(error, CalibrantError | Refused):
            message = our_fault(error)
        if message:
            with suppress(OSError):  # its disk may be full, too
                sys.stderr.write(f"calibrant: {message}\n")

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raise `Refused` for a request that is not answered."""
        host, origin = _value(headers, "host"), _value(headers, "origin")
        site = _value(headers, "sec-fetch-site")
        name = _host_name(host)
        if name not in self.hosts and not _is_loopback(name) and not (self.any_address and _is_address(name)):
            detail = f"Host must be a name of this service, got {_shown(host)}. Allow it with --allowed-host."
            raise Refused(400, "unknown_host", detail)
        fault = ""
        if site not in ("", "none", "same-origin"):
            fault = f"Sec-Fetch-Site {_shown(site)}"
        # A proxy may end TLS before us, so the scheme may differ.
        elif origin and origin.partition("://")[2].lower() != host.lower():
            fault = f"Origin {_shown(origin)}"
        if fault:
            raise Refused(403, "cross_site", f"Requests from pages of other sites are refused, got {fault}.")
        if self.token is not None and not (method == "GET" and path in self.without_token):
            scheme, _, token = _value(headers, "authorization").partition(" ")
            correct = secrets.compare_digest(token.strip().encode("latin-1"), self.token.encode())
            if scheme.lower() != "bearer" or not correct:
                detail = "This service needs its token, in the header Authorization: Bearer TOKEN."
                raise Refused(401, "unauthorized", detail)
        kind = _value(headers, "content-type").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            detail = f"Content-Type must be application/json, got {_shown(kind)}."
            raise Refused(415, "unsupported_media_type", detail)


def _value(headers: Headers, name: str) -> str:
    """The value of a header; empty if it is missing. Those of one that occurs twice are joined: they match nothing."""
    return ", ".join(headers.getlist(name))


@lru_cache(maxsize=128)
def _host_name(host: str) -> str:
    """The name or address in a Host header, without its port; empty if it has none."""
    try:
        split = urlsplit(f"//{host}")
        name = split.hostname or ""
    except ValueError:
        return ""
    if split.netloc != host or "@" in host:
        return ""
    return name.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=128)
def _is_loopback(name: str) -> bool:
    """Whether a name or an address is that of the machine itself."""
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def read_token(path: str | Path) -> str:
    """Read a token: one line of 16 to 512 letters, digits and characters of base64 or URLs."""
    with reading(path), Path(path).open("rb") as file:
        content = file.read(1024)
    token = content.decode("latin-1").strip()
    if not _TOKEN.fullmatch(token):
        rule = "hold one line of 16 to 512 letters, digits and ._~+/=-"
        hint = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe())".'
        # The content may be a secret, so it is not shown.
        raise invalid(f"token file {path}", rule, "other text", hint)
    return token


def _shown(value: str) -> str:
    return one_line(repr(value), most=100)
