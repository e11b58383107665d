"""`calibrant serve`: an exported file as a small HTTP service that logs every decision."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calibrant.cli._shared import Switch, say
from calibrant.defaults import MOST_BYTES, MOST_CASES


def serve(
    model: Path,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log: Path = Path("decisions.db"),
    no_log: Annotated[bool, Switch] = False,
    most_cases: int = MOST_CASES,
    most_bytes: int = MOST_BYTES,
    token_file: Path | None = None,
    allowed_host: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    workers: int = 1,
    access_log: Annotated[bool, Switch] = False,
    review: Annotated[bool, Switch] = False,
    audit: float = 0.02,
    picture_folder: Path | None = None,
) -> None:
    """Serve decisions over HTTP: POST /decisions, POST /labels, GET /decisions/ID, /health, /metrics and /docs.

    Every decision is in the log before it is answered. Ctrl-C or SIGTERM end it once open requests are answered.

    Args:
        model: An ONNX file written by "calibrant export".
        host: Address to listen on. Default: this machine alone. Any other needs --token-file and a proxy that encrypts.
        port: Port to listen on; 0 for any free one.
        log: Decision log, an SQLite file.
        no_log: Keep no log.
        most_cases: Cases, or labels, in one request.
        most_bytes: Length of a body.
        token_file: File with a token of at least 16 characters, which every request but GET /health must then have as
            "Authorization: Bearer TOKEN".
        allowed_host: A further name of the service (the header Host), such as that of a proxy. Repeatable.
        workers: Number of processes; all write to the same log.
        access_log: Print a line per request: time, client, method, path, status and milliseconds.
        review: Let people label cases at /review: those that the model did not decide alone, and a share of the others,
            so that the monitor can see whether the promise holds.
        audit: That share.
        picture_folder: Folder with the pictures that the extra "picture" of a case names, for /review.
    """
    from calibrant.deployment import serve_model

    serve_model(
        model,
        host=host,
        port=port,
        log=None if no_log else log,
        most_cases=most_cases,
        most_bytes=most_bytes,
        token_file=token_file,
        allowed_hosts=allowed_host,
        workers=workers,
        access_log=access_log,
        review=review,
        audit=audit,
        pictures=picture_folder,
        ready=lambda address: say(f"Serving {model} at {address}"),
    )
