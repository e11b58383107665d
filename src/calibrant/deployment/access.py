"""Which requests the service answers at all: the Host, Origin, token and content type that they must have."""

import re
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from calibrant.deployment.onnx_file import library
from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.files import reading

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

# A token of 16 characters cannot be guessed over a network; one of more than 512 is some other file.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")


class Refused(Exception):
    """A request that is not answered.

    Args:
        status: HTTP status.
        error: One word for programs.
        detail: One or two sentences for people.
    """

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.error, self.detail = status, error, detail


class Access:
    """ASGI middleware that refuses requests before their body is read.

    A page that somebody has open in a browser may send requests to every address that the browser can reach. So the
    `Host` must be ours (the page may have pointed a name of its own at our address), `Origin` and `Sec-Fetch-Site` must
    not be those of another site, and a body must be `application/json`, which no page may send to another site without
    being allowed to.

    Args:
        app: The application.
        hosts: Names and addresses, without a port, under which it may be asked.
        any_address: Whether every IP address may be the `Host`, for a service that listens on all of a machine's
            addresses. A page can point a name at us, but not an address.
        token: If not None, every request but `GET /health` needs the header `Authorization: Bearer TOKEN`.
    """

    def __init__(self, app: _App, *, hosts: Collection[str], any_address: bool, token: str | None) -> None:
        self.app = app
        self.hosts = {host.lower().rstrip(".") for host in hosts}
        self.any_address = any_address
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self.check(scope["method"], scope["path"], _headers(scope["headers"]))
        except Refused as refused:
            responses = library("fastapi.responses", "serve")
            body = {"error": refused.error, "detail": refused.detail}
            # The body is not read, so the connection cannot be used again.
            headers = {"connection": "close"}
            if refused.status == 401:
                headers["www-authenticate"] = "Bearer"
            await responses.JSONResponse(body, refused.status, headers)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def check(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Raise `Refused` for a request that is not answered."""
        self._check_host(headers.get("host", ""))
        _check_site(headers)
        if self.token is not None and (method, path) != ("GET", "/health"):
            self._check_token(headers.get("authorization", ""))
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            told = f"Content-Type must be application/json, got {_shown(kind)}."
            raise Refused(415, "unsupported_media_type", told)

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name in self.hosts or is_loopback(name) or (self.any_address and _is_address(name)):
            return
        told = f"Host must be a name of this service, got {_shown(host)}. Allow it with --allowed-host."
        raise Refused(400, "unknown_host", told)

    def _check_token(self, given: str) -> None:
        scheme, _, token = given.partition(" ")
        known = self.token is not None and secrets.compare_digest(token.strip().encode("latin-1"), self.token)
        if scheme.lower() != "bearer" or not known:
            told = "This service needs its token, in the header Authorization: Bearer TOKEN."
            raise Refused(401, "unauthorized", told)


def _check_site(headers: dict[str, str]) -> None:
    site = headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin"):
        told = f"Requests of pages of other sites are refused, got Sec-Fetch-Site {_shown(site)}."
        raise Refused(403, "cross_site", told)
    origin = headers.get("origin")
    # A proxy may end TLS before us, so the scheme may differ.
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        told = f"Requests of pages of other sites are refused, got Origin {_shown(origin)}."
        raise Refused(403, "cross_site", told)


def _headers(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; one that stands there twice is all of its values, which then match nothing."""
    found: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _host_name(host: str) -> str:
    """The name or address in a Host header, without its port; empty for what is none."""
    try:
        split = urlsplit(f"//{host}")
        name = split.hostname or ""
        plain = split.netloc == host and "@" not in host
    except ValueError:
        return ""
    return name.rstrip(".") if plain else ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether a name or an address is that of the machine itself."""
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def read_token(path: str | Path) -> str:
    """The token in a file: one line of 16 to 512 letters, digits and signs of base64 or URLs."""
    with reading(path), Path(path).open("rb") as file:
        content = file.read(1024)
    token = content.decode("latin-1").strip()
    if not _TOKEN.fullmatch(token):
        # What the file holds may be a secret, so it is not shown.
        way_out = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe())".'
        raise invalid(
            f"token file {path}", "hold one line of 16 to 512 letters, digits and ._~+/=-", "other text", way_out
        )
    return token


def check_exposure(address: str, token: str | None) -> None:
    """Refuse to listen beyond this machine without a token."""
    if token is None and not is_loopback(address):
        raise InvalidInput(
            f"host {address} can be reached from other machines, so a token is needed. Add --token-file FILE, "
            "or listen on 127.0.0.1."
        )


def _shown(value: str) -> str:
    return one_line(repr(value), most=100)
