"""The rule that every reader keeps, whatever it is given. It is written here and nowhere else.

Either the command ends with 0 and says the right thing, or it ends with 2 and one line on standard error. It shows no
traceback, does not hang, stays within a bound of memory, and leaves no file behind that it was not asked for.
"""

import unicodedata
from dataclasses import dataclass, field

SECONDS = 20
MEGABYTES = 500
"""Above what the process had before it read the file."""
LONGEST_LINE = 1_000
_TRACEBACK = "Traceback (most recent call last)"


@dataclass
class Attempt:
    """What happened when a damaged file was read.

    Attributes:
        code: Exit code; minus the signal where a signal ended it; None where it was stopped after `SECONDS`.
        out: Standard output.
        err: Standard error.
        megabytes: Memory at its highest, above the beginning; 0 where that was not measured.
        left: Files that were made or changed although the command did not end with 0.
        right: Whether what it said is right; None where nothing is known about that.
    """

    code: int | None
    out: str = ""
    err: str = ""
    megabytes: float = 0.0
    left: list[str] = field(default_factory=list)
    right: bool | None = None


def verdict(attempt: Attempt) -> str:
    """`read` or `refused` where the rule was kept; otherwise how it was broken."""
    lines = [line for line in attempt.err.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith("calibrant: warning: ")]
    for broken, word in (
        (attempt.code is None, "hang"),
        (_TRACEBACK in attempt.err or _TRACEBACK in attempt.out, "traceback"),
        (attempt.code is not None and attempt.code < 0, f"signal {-(attempt.code or 0)}"),
        (attempt.code not in (0, 2), f"exit {attempt.code}"),
        (attempt.megabytes > MEGABYTES, "memory"),
        (attempt.code == 2 and len(errors) != 1, f"{len(errors)} lines"),
        (attempt.code == 2 and any(len(line) > LONGEST_LINE for line in errors), "long line"),
        (attempt.code == 2 and any(map(_steers, "".join(errors))), "escapes"),
        (attempt.code == 2 and bool(attempt.left), "file left"),
        (attempt.code == 0 and attempt.right is False, "wrong number"),
    ):
        if broken:
            return word
    return "read" if attempt.code == 0 else "refused"


def _steers(character: str) -> bool:
    """Whether a terminal may obey it. Letters for private use and the joiners of some scripts only look odd."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs"} and character not in "\u200c\u200d"


KEPT = ("read", "refused")
