"""What the service takes, decides and keeps: requests, decisions and labels, and how a log stores them.

A new field of a decision is added to `Decision` and its row here, to the table of the log in `database.py`, and filled
in by `Decider`.
"""

import json
import re
import sys
import time as clock
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from calibrant.errors import InvalidInput, invalid, one_line
from calibrant.tables import ShownFields

Extra = str | int | float | bool | None

_LONGEST_ID = 256
# A monitor must be able to hold a column of them in memory.
_LONGEST_EXTRA = 1000
_MOST_EXTRAS = 100
_ENCODER = json.JSONEncoder(allow_nan=False, default=int)
# What no database holds: a zero, which ends text in C, and lone surrogates, which have no encoding.
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")
# Control characters, line separators and changes of direction would let an id look like another one.
_UNPRINTABLE = re.compile("[\\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Names of extras that are read at once if the reader does not say which it wants.
_MOST_NAMES = 1000


class DuplicateId(InvalidInput):
    """A case with this id was decided before."""


class UnknownId(InvalidInput):
    """No case with this id was decided."""


class ContradictingLabel(InvalidInput):
    """The case has another label already."""


class CasesBody(BaseModel):
    """Cases to decide about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    inputs: Any = Field(description="Rows of numbers; for a model with several inputs, an object of them by name.")
    ids: list[str] | None = Field(None, description="A distinct id for each case; made by the service by default.")
    extras: list[dict[str, Extra]] | None = Field(None, description="Other facts about each case, such as groups.")


class LabelsBody(BaseModel):
    """The true classes of cases that were decided before."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: dict[str, int | str] = Field(description="The true class, by its name or number, of each id.")
    by: str | None = Field(None, max_length=100, description="Who says so; kept in the log.")


class DecisionAnswer(BaseModel):
    """The decision about one case."""

    id: str
    decision: Literal["auto", "review"] = Field(description="auto: the model decides alone; review: a person does.")
    predicted: int = Field(description="Number of the most probable class.")
    class_name: str = Field(alias="class", description="Name of that class.")
    confidence: float = Field(description="Its calibrated probability.")
    shortlist: list[str] = Field(description="For a person: the classes to look at first.")
    reason: str


class DecisionsAnswer(BaseModel):
    """Decisions in the order of the cases. They are in the log."""

    model: str = Field(description="Digest of the network.")
    policy: str = Field(description="Digest of the policy.")
    decisions: list[DecisionAnswer]


class LoggedAnswer(DecisionAnswer):
    """A decision as it was logged."""

    sequence: int = Field(description="Its number in the log.")
    time: str
    policy: str
    extras: dict[str, Extra]
    target: int | None = Field(description="Number of the true class, if a label has come.")


class LabelsAnswer(BaseModel):
    """How many labels were new."""

    new: int


class HealthAnswer(BaseModel):
    """The service can decide, and its log can be written."""

    status: Literal["ok"]
    model: str
    policy: str
    logged: int | None = Field(description="Number of the last decision in the log; null without a log.")


class Problem(BaseModel):
    """Why a request was refused. Nothing was decided or logged."""

    error: str = Field(description="One word for programs.")
    detail: str = Field(description="One or two sentences for people.")


@dataclass(frozen=True)
class Decision(ShownFields):
    """The decision about one case.

    Attributes:
        id: The case's name, distinct within a log.
        predicted: Number of the most probable class.
        confidence: Its calibrated probability.
        automate: True if the model decides alone, False if a person does.
        shortlist: For a person: numbers of the classes to look at first, most probable first; empty for automated cases
            and without a shortlist.
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

    def to_dict(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Plain JSON values, classes by name."""
        return {
            "id": self.id,
            "decision": self.decision,
            "predicted": self.predicted,
            "class": class_names[self.predicted],
            "confidence": self.confidence,
            "shortlist": [class_names[k] for k in self.shortlist],
            "reason": self.reason,
        }

    def to_row(self, n_classes: int) -> dict[str, Any]:
        """Values for the columns of a log; what a log cannot keep is refused."""
        check_id(self.id)
        if not 0 <= self.predicted < n_classes:
            raise invalid("predicted", f"lie in 0..{n_classes - 1}", self.predicted)
        if not 0 <= self.confidence <= 1:
            raise invalid("confidence", "lie in 0..1", self.confidence)
        # Most are empty, and encoding them would take a fifth of the time of a logged batch.
        shortlist, extras = "[]", "{}"
        if self.shortlist:
            shortlist = _ENCODER.encode(self.shortlist)
        if self.extras:
            _check_extras(self.extras)
            extras = _ENCODER.encode(dict(self.extras))
        # NumPy's numbers are no numbers for a database.
        return {
            "id": self.id,
            "predicted": int(self.predicted),
            "confidence": float(self.confidence),
            "automate": bool(self.automate),
            "shortlist": shortlist,
            "reason": self.reason,
            "extras": extras,
        }


def check_names(names: Collection[str]) -> None:
    """Refuse to make columns of more extras than fit into memory."""
    if len(names) > _MOST_NAMES:
        rule, hint = f"have at most {_MOST_NAMES:,} names", "Say which ones to read: extras=[...]."
        raise invalid("extras of the decision log", rule, f"{len(names):,}", hint)


@dataclass(frozen=True)
class LoggedDecisions(ShownFields):
    """Decisions of a log in their order, as columns with one entry per decision.

    Attributes:
        sequence: Number in the log, from 1 on. It is the order: clocks may go back.
        ids: Names of the cases, as objects.
        time: When each was logged by the clock of the process that logged it, UTC, `datetime64[us]`.
        policy: Digest of the policy that decided, as objects.
        predicted: Number of the most probable class, int64.
        confidence: Its calibrated probability, float64.
        automate: True if the model decided alone.
        target: The true class if a label has come, else -1; int64.
        label_sequence: Number of the label in the order in which labels came, from 1 on; 0 without one.
        shortlists: Numbers of the classes that were listed for a person.
        extras: Other facts by name, as objects; None if a case has none of that name.
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
    extras: dict[str, NDArray[np.object_]]

    @classmethod
    def from_rows(cls, rows: Sequence[Any], wanted: Collection[str] | None = None) -> Self:
        """Columns from rows of the joined tables, with the extras that are wanted; None for all."""

        def column(name: str, kind: Any) -> Any:
            return np.array([row[name] for row in rows], dtype=kind)

        with undamaged():
            extras = [json.loads(row["extras"]) for row in rows]
            names = dict.fromkeys(name for facts in extras for name in facts if wanted is None or name in wanted)
        check_names(names)
        with undamaged():
            return cls(
                sequence=column("sequence", np.int64),
                ids=column("id", object),
                time=column("time", np.int64).view("datetime64[us]"),
                policy=column("policy", object),
                predicted=column("predicted", np.int64),
                confidence=column("confidence", np.float64),
                automate=column("automate", np.bool_),
                target=column("target", np.int64),
                label_sequence=column("label_sequence", np.int64),
                shortlists=[tuple(json.loads(row["shortlist"])) for row in rows],
                extras={name: np.array([facts.get(name) for facts in extras], dtype=object) for name in names},
            )

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, kw_only=True)
class Logged(Decision):
    """One decision in a log.

    Attributes:
        sequence: Its number in the log.
        time: When it was logged, UTC.
        policy: Digest of the policy that decided.
        target: The true class, if a label has come.
    """

    sequence: int
    time: datetime
    policy: str
    target: int | None

    @classmethod
    def from_row(cls, row: Any) -> Self:
        """The decision in a row of the joined tables."""
        with undamaged():
            return cls(
                row["id"],
                row["predicted"],
                row["confidence"],
                bool(row["automate"]),
                tuple(json.loads(row["shortlist"])),
                row["reason"],
                json.loads(row["extras"]),
                sequence=row["sequence"],
                time=datetime.fromtimestamp(row["time"] / 1e6, UTC),
                policy=row["policy"],
                target=row["target"],
            )

    def to_dict(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Plain JSON values, classes by name."""
        more = {"sequence": self.sequence, "time": self.time.isoformat(), "policy": self.policy, "target": self.target}
        return {**super().to_dict(class_names), "extras": self.extras, **more}


# -- what a log may keep ----------------------------------------------------------------------------------------------


def check_id(id: object) -> None:  # noqa: A002
    """Refuse what cannot name a case."""
    if not isinstance(id, str) or not 0 < len(id) <= _LONGEST_ID or _UNPRINTABLE.search(id):
        raise invalid("id", f"be text of 1 to {_LONGEST_ID} characters without control characters", ascii(id))


def _check_extras(extras: Mapping[str, Any]) -> None:
    if len(extras) > _MOST_EXTRAS:
        raise invalid("extras of a case", f"be at most {_MOST_EXTRAS}", len(extras))
    for name, value in extras.items():
        check_id(name)
        argument = f"extra {one_line(name, most=40)}"
        if isinstance(value, str):
            if len(value) > _LONGEST_EXTRA:
                raise invalid(argument, f"have at most {_LONGEST_EXTRA:,} characters", f"{len(value):,}")
            fine = not _UNSTORABLE.search(value)
        else:
            fine = value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)
        if not fine:
            raise invalid(argument, "be text, a finite number, true, false or nothing", ascii(value))


@contextmanager
def undamaged() -> Iterator[None]:
    """Report values of other types than ours, which SQLite keeps in any column, as a damaged log."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        fault = one_line(error, most=100).removesuffix(".")
        raise invalid("decision log", "be undamaged", fault, "Restore it from a copy.") from error


def now() -> int:
    """Microseconds since 1970 by the clock of this machine."""
    return clock.time_ns() // 1000


def microseconds(time: datetime) -> int:
    """Microseconds since 1970; a time without its zone is refused."""
    if time.tzinfo is None:
        raise invalid("time", "have a zone", time, "datetime.now(UTC) has one.")
    # Exact: a product of a float with a million would be off by one now and then.
    passed = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds
