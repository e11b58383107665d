"""What was decided about one case, and many of them as columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrant.tables import ShownFields

Extra = str | int | float | bool | None


@dataclass(frozen=True)
class Decision(ShownFields):
    """One case.

    Attributes:
        id: The case's name, distinct within a log.
        predicted: Number of the most probable class.
        confidence: Its calibrated probability.
        automate: True where the model decides alone, False where a person does.
        shortlist: For a person: numbers of the classes to look at first, most probable first; empty for automated cases
            and where there is no shortlist.
        reason: One sentence for a person.
        extras: Other facts about the case by name, such as groups.
    """

    id: str
    predicted: int
    confidence: float
    automate: bool
    shortlist: tuple[int, ...] = ()
    reason: str = ""
    extras: Mapping[str, Extra] = field(default_factory=dict)

    @property
    def decision(self) -> Literal["auto", "review"]:
        """The word that `calibrant route apply` writes."""
        return "auto" if self.automate else "review"


@dataclass(frozen=True)
class LoggedDecisions(ShownFields):
    """Decisions of a log in their order, as columns; one entry for each decision.

    Attributes:
        sequence: Number in the log, from 1 on. It is the order: clocks may go back.
        ids: Names of the cases, as objects.
        time: When each was logged by the clock of who logged it, UTC, `datetime64[us]`.
        policy: Digest of the policy that decided, as objects.
        predicted: Number of the most probable class, int64.
        confidence: Its calibrated probability, float64.
        automate: True where the model decided alone.
        target: The true class where a label has come, else -1; int64.
        label_sequence: Number of the label in the order in which labels came, from 1 on; 0 without one.
        shortlists: Numbers of the classes that were listed for a person.
        reasons: One sentence each.
        extras: Other facts by name, as objects; None where a case has none of that name.
    """

    sequence: NDArray[np.int64]
    ids: NDArray[np.object_]
    time: NDArray[np.datetime64]
    policy: NDArray[np.object_]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    automate: NDArray[np.bool_]
    target: NDArray[np.int64]
    label_sequence: NDArray[np.int64]
    shortlists: list[tuple[int, ...]]
    reasons: list[str]
    extras: dict[str, NDArray[np.object_]]

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Where a label has come."""
        return np.asarray(self.target >= 0)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Where a label has come and is the predicted class."""
        return np.asarray(self.target == self.predicted)


@dataclass(frozen=True)
class Logged:
    """One decision as it stands in a log.

    Attributes:
        decision: The decision.
        sequence: Its number in the log.
        time: When it was logged, UTC.
        policy: Digest of the policy that decided.
        target: The true class, where a label has come.
    """

    decision: Decision
    sequence: int
    time: datetime
    policy: str
    target: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        each = self.decision
        return {
            "id": each.id,
            "sequence": self.sequence,
            "time": self.time.isoformat(),
            "policy": self.policy,
            "predicted": each.predicted,
            "confidence": each.confidence,
            "decision": each.decision,
            "shortlist": list(each.shortlist),
            "reason": each.reason,
            "extras": dict(each.extras),
            "target": self.target,
        }
