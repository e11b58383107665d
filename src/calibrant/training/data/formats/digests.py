"""Compare files with the digests that their publishers give."""

import hashlib
from pathlib import Path
from typing import Any

from calibrant.errors import InvalidInput

_KINDS = {"md5": "MD5", "sha1": "SHA-1", "sha256": "SHA-256"}


def digest_of(content: Any, kind: str) -> str:
    """Hexadecimal digest of a block of bytes. It finds damage; MD5 and SHA-1 do not stop an attacker.

    >>> digest_of(b"", "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    return hashlib.new(kind, content, usedforsecurity=False).hexdigest()


def file_digest(path: Path, kind: str) -> str:
    """Hexadecimal digest of a file, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def check_content(content: Any, digest: str, what: str) -> None:
    """Refuse bytes whose digest is not `digest`, written as `sha1:...`."""
    kind, expected = digest.split(":")
    _compare(digest_of(content, kind), expected, kind, what)


def check_file(path: Path, digest: str) -> None:
    """Refuse a file whose digest is not `digest`, written as `md5:...`."""
    kind, expected = digest.split(":")
    _compare(file_digest(path, kind), expected, kind, str(path))


def _compare(got: str, expected: str, kind: str, what: str) -> None:
    if got != expected:
        raise InvalidInput(
            f"{what}: {_KINDS[kind]} must be {expected}, got {got}. It is damaged or another version: delete it and "
            "get it again with 'calibrant data fetch', or load your own copy as arrays:FILE.npz, which is not compared."
        )
