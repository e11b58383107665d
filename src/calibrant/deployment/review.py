"""The review page: cases that went to a person, and a random share of the automated ones, one after the other.

Labels of reviewed cases say nothing about the automated ones, which the promise is about. So a share of these is drawn
at random and shown, too, and the page does not say which is which: neither the decision nor the predicted class nor its
probability is sent to it, and both kinds of cases come with choices of the same kind.
"""

import hashlib
import mimetypes
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrant.checks import fraction
from calibrant.deployment.decider import Decider
from calibrant.deployment.decision import UnknownId
from calibrant.deployment.log import DecisionLog
from calibrant.errors import InvalidInput

# A case that was given to one reviewer is not given to another for this time.
_LEASE_S = 300
_BLOCK = 500
# Up to this many classes are all shown; of more, those of the shortlist.
_ALL_CLASSES = 10
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


class Review:
    """Which case a reviewer sees next.

    Args:
        decider: With a log.
        audit: Share of the automated cases that are drawn.
        key: A secret text that all processes of a service have; which cases are drawn depends on it.
        pictures: Folder with the pictures that the extra `picture` of a case names; None for none.
    """

    def __init__(self, decider: Decider, audit: float, key: str, pictures: str | Path | None = None) -> None:
        if decider.log is None:
            raise InvalidInput("the review page needs a log. Leave out --no-log.")
        self.log: DecisionLog = decider.log
        self.decider = decider
        self.audit = fraction("audit", audit, ends=True)
        self.pictures: Path | None = None
        if pictures is not None:
            self.pictures = Path(pictures)
            if not self.pictures.is_dir():
                raise InvalidInput(f"pictures {pictures} must be a folder.")
        self._key = key
        self._leases: dict[str, float] = {}
        self._lock = threading.Lock()
        # Numbers of classes in the shortlists that were seen last, from which those of drawn cases are chosen.
        self._sizes = [2]

    def next_case(self, after: int) -> dict[str, Any] | None:
        """The first case after this number of the log that needs a label; None if there is none."""
        now = time.monotonic()
        for block in self.log.decisions(since=after, labelled=False, block=_BLOCK):
            for row in range(len(block)):
                name = str(block.ids[row])
                automated = bool(block.automate[row])
                if (automated and not self.drawn(name)) or not self._lease(name, now):
                    continue
                facts = {key: values[row] for key, values in block.extras.items() if values[row] is not None}
                choices = self._choices(name, int(block.predicted[row]), block.shortlists[row], automated=automated)
                return {
                    "id": name,
                    "sequence": int(block.sequence[row]),
                    "extras": facts,
                    "choices": [self.decider.class_names[k] for k in choices],
                    "classes": self.decider.class_names,
                    "picture": self.pictures is not None and "picture" in facts,
                }
        return None

    def drawn(self, name: str) -> bool:
        """Whether an automated case is among those that are drawn."""
        digest = hashlib.sha256(f"{self._key}:{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.audit * 2**64

    def _lease(self, name: str, now: float) -> bool:
        with self._lock:
            for known in [known for known, until in self._leases.items() if until < now]:
                del self._leases[known]
            if name in self._leases:
                return False
            self._leases[name] = now + _LEASE_S
        return True

    def _choices(self, name: str, predicted: int, listed: Sequence[int], *, automated: bool) -> list[int]:
        """Classes for buttons in the order of their numbers, which says nothing about the case."""
        classes = range(len(self.decider.class_names))
        if len(classes) <= _ALL_CLASSES or self.decider.policy.shortlist is None:
            return list(classes)[:_ALL_CLASSES]
        if not automated:
            self._sizes = [*self._sizes[-100:], max(len(listed), 1)]
            return sorted(listed)[:_ALL_CLASSES]
        # A list as a reviewed case would have: the predicted class, and others in its length.
        draw = random.Random(f"{self._key}:{name}")  # noqa: S311 (the key is the secret)
        others = [k for k in classes if k != predicted]
        return sorted([predicted, *draw.sample(others, draw.choice(self._sizes) - 1)])[:_ALL_CLASSES]

    def picture(self, name: str) -> tuple[bytes, str]:
        """The picture of a case and its type; only files of the folder are read."""
        logged = self.log.find(name)
        if self.pictures is not None and logged is not None:
            folder = self.pictures.resolve()
            path = (folder / str(logged.extras.get("picture", ""))).resolve()
            with suppress(OSError):  # the name is too long for a file, or the file cannot be read
                if path.is_relative_to(folder) and path.suffix.lower() in _PICTURES and path.is_file():
                    return path.read_bytes(), mimetypes.guess_type(path.name)[0] or "image/png"
        raise UnknownId("there is no picture of this case.")
