"""`serve_model`: the processes of the HTTP service, its socket, its signals and its end."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from shutil import copy
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from calibrant.checks import whole
from calibrant.defaults import MOST_BYTES, MOST_CASES
from calibrant.errors import CalibrantError, InvalidInput, importing, invalid, one_line

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE_S = 30
# Names the settings of a worker in its environment.
_WORKER = "CALIBRANT_SERVE_WORKER"
# Names the folder in which several processes keep their counts, so that each can show the sums. prometheus_client reads
# it when it is imported. The counts of a process that has ended remain, so that sums never fall.
_COUNTS = "PROMETHEUS_MULTIPROC_DIR"


class Settings(BaseModel):
    """What every process of a service has to know; as JSON in the environment of workers."""

    path: Path
    log: Path | None
    most_cases: int
    most_bytes: int
    token_file: Path | None
    allowed_hosts: list[str]
    any_address: bool  # whether every IP address is a name of the service
    access_log: bool
    review: bool
    audit: float
    pictures: Path | None
    # The secret of the review page.
    key: str = Field(default_factory=token_hex)
    # The process that ends its workers.
    parent: int = Field(default_factory=os.getpid)


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
    with importing("serving a model", "FastAPI, uvicorn and prometheus_client", "serve"):
        import uvicorn
        from uvicorn.supervisors import Multiprocess

        from calibrant.deployment import connections, http
    whole("workers", workers, 1)
    with closing(_listen(host, port, with_token=token_file is not None)) as listening, TemporaryDirectory() as counts:
        address = listening.getsockname()
        settings = Settings(
            path=path,
            log=log,
            most_cases=most_cases,
            most_bytes=most_bytes,
            token_file=token_file,
            allowed_hosts=[host, *allowed_hosts],
            any_address=not ip_address(address[0]).is_loopback,
            access_log=access_log,
            review=review,
            audit=audit,
            pictures=pictures,
        )
        config: dict[str, Any] = {
            "http": connections.LimitedProtocol,
            "backlog": connections.BACKLOG,
            "timeout_keep_alive": connections.PATIENCE_S,
            "log_level": "warning",
            "access_log": False,
            "timeout_graceful_shutdown": _GRACE_S,
        }
        # With several workers, too: what is wrong with the arguments is an error of this process.
        app, decisions = http.create_app(settings)
        if ready is not None:
            ready(f"http://{address[0]}:{address[1]}")
        if workers > 1:
            if decisions is not None:
                decisions.close()
            # A worker that dies is started again: with the model and the token of the others, also if somebody has
            # replaced their files.
            settings.path = Path(copy(path, counts))
            if token_file is not None:
                settings.token_file = Path(copy(token_file, counts))
            os.environ |= {_WORKER: settings.model_dump_json(), _COUNTS: counts}
            run = uvicorn.Config("calibrant.deployment.serve:worker_app", factory=True, workers=workers, **config)
            Multiprocess(run, sockets=[listening]).run()
            return
        connections.Server(uvicorn.Config(app, **config)).run(sockets=[listening])
        if decisions is not None:
            decisions.close()


def worker_app() -> "FastAPI":
    """The application in a process that `serve_model` started."""
    settings = Settings.model_validate_json(os.environ[_WORKER])

    def end_with_parent() -> None:
        while os.getppid() == settings.parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    from calibrant.deployment.http import create_app

    try:
        return create_app(settings)[0]
    except CalibrantError as error:  # uvicorn would print a traceback
        sys.exit(f"calibrant: {one_line(error)}")


def _listen(host: str, port: int, *, with_token: bool) -> socket.socket:
    if not 0 <= whole("port", port, 0) < 2**16:
        raise invalid("port", "lie in 0..65535", port)
    try:
        listening = socket.create_server((host, port), backlog=2048)
        # Connections inherit it. Without it the second part of an answer waits 40 ms for the client's acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Choose another host or port."
        ) from error
    address = listening.getsockname()[0]
    if not with_token and not ip_address(address).is_loopback:
        listening.close()
        raise InvalidInput(
            f"host {address} can be reached from other machines, so a token is needed. Add --token-file FILE, "
            "or listen on 127.0.0.1."
        )
    return listening
