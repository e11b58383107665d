"""What makes a run repeatable: seeds for each purpose, and a record of versions, hardware and commit."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import torch

from calibrant import __version__


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose: `derive_seed(0, "augment", epoch)`.

    An epoch's randomness follows from the seed and the epoch alone. A resumed run needs no generator state, and
    every rank can draw for the whole batch.

    >>> derive_seed(0, "augment", 1) != derive_seed(0, "augment", 2)
    True
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@contextmanager
def seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed torch's global generators inside the block (initialisation, dropout) and restore them after it."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive_seed(seed, *purpose))
        yield


def describe_environment() -> dict[str, object]:
    """Versions, device and commit as plain values; never a host name, a user name or a path."""
    return {
        "calibrant": __version__,
        "commit": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": _version("lightning"),
        # Pillow-SIMD rounds resized pixels differently.
        "pillow": _version("pillow-simd") or _version("pillow"),
        "system": platform.system(),
        "cpu_cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cuda": torch.version.cuda,
    }


def git_commit() -> str | None:
    """Commit of the source tree that this package runs from (CALIBRANT_COMMIT if there is no .git), or None."""
    stated = os.environ.get("CALIBRANT_COMMIT")
    if stated:
        return stated
    source = Path(__file__).resolve()
    found = ""
    # An installed copy may lie inside somebody else's repository, whose commit says nothing about us.
    for words in (["ls-files", "--error-unmatch", source.name], ["rev-parse", "HEAD"]):
        command = ["git", "-C", str(source.parent), *words]
        try:
            # The words are fixed and there is no shell: no user input enters the command.
            found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return None
    return found.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
