"""Independent streams of randomness from one seed, so that nothing depends on what was drawn before."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
