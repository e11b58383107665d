"""The text that names a set: `digits`, `arrays:FILE.npz`, `folder:DIR?size=64`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from calibrant.errors import did_you_mean, invalid

LARGEST_SIDE = 4096
"""Pixels on each side of a picture to train on. Networks see far smaller ones, and memory ends soon above it."""

# What may stand before a colon and is no module; `python` marks data that came as Python objects.
_KINDS = ("arrays", "folder", "python")


@dataclass(frozen=True)
class Spec:
    """A parsed name of a set."""

    kind: str  # `digits`, `cifar10`, ..., or `arrays`, `folder`
    path: str = ""  # what follows the colon
    options: Mapping[str, str] = field(default_factory=dict)

    def size(self) -> int | None:
        """The option `size`: the side of the square to which pictures are resized; None if it is left out."""
        text = self.options.get("size")
        if text is None:
            return None
        # Python refuses to read some thousand digits, so their number is checked first.
        if not text.isascii() or not text.isdigit() or len(text) > 9 or not 0 < int(text) <= LARGEST_SIDE:
            rule = f"be a whole number from 1 to {LARGEST_SIDE}"
            raise invalid("size in the name of the data", rule, repr(text[:40]))
        return int(text)

    def allow(self, *names: str) -> None:
        """Refuse any option that is not among `names`."""
        for name in self.options:
            if name not in names:
                hint = "Leave out the question mark and what follows."
                if names:
                    hint = did_you_mean(name, names)
                raise invalid("data", f"use options that '{self.kind}' knows", repr(name), hint)


def anchored(text: str) -> str:
    """The name of a set with its path made absolute, so that it means the same from any folder.

    >>> anchored("digits")
    'digits'
    """
    spec = parse_spec(text)
    if not spec.path or spec.kind not in ("arrays", "folder"):
        return text
    return text.replace(f"{spec.kind}:{spec.path}", f"{spec.kind}:{Path(spec.path).expanduser().absolute()}", 1)


def own_data(text: object) -> str | None:
    """The function of the user's own that the name of a set stands for, `module:function`; None for any other name.

    >>> own_data("mine.sets:scans"), own_data("folder:scans"), own_data("digits")
    ('mine.sets:scans', None, None)
    """
    if not isinstance(text, str):
        return None
    spec = parse_spec(text)
    named = spec.path.isidentifier() and all(part.isidentifier() for part in spec.kind.split("."))
    if not named or spec.kind in _KINDS:
        return None
    spec.allow()
    return f"{spec.kind}:{spec.path}"


def parse_spec(text: str) -> Spec:
    """Take the name of a set apart.

    >>> parse_spec("folder:my photos?size=64")
    Spec(kind='folder', path='my photos', options={'size': '64'})
    """
    if not isinstance(text, str):
        raise invalid("data", "be the name of a set, arrays:FILE.npz or folder:DIR", repr(text))
    head, mark, query = text.rpartition("?")
    # A question mark may be part of a file name; only `?key=value` is ours.
    if not mark or "=" not in query:
        head, query = text, ""
    kind, _, path = head.partition(":")
    return Spec(kind, path, dict(parse_qsl(query, keep_blank_values=True)))
