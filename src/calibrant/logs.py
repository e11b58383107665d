"""Silence the loggers of other libraries for a while."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """Let loggers pass only messages of at least `level` inside the block, and restore them after it.

    >>> with at_level(logging.ERROR, "noisy"):
    ...     logging.getLogger("noisy").isEnabledFor(logging.WARNING)
    False
    """
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.setLevel(old)
