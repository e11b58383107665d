"""What a decision log may hold, and its rows read back: ids, extras, policies, times and columns."""

import json
import math
import time as clock
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np

from calibrant.decisions import Policy
from calibrant.deployment.decision import LoggedDecisions
from calibrant.errors import invalid, one_line
from calibrant.files import parse_json

LONGEST_ID = 256
# A monitor must be able to hold a column of them in memory.
LONGEST_EXTRA = 1000
MOST_EXTRAS = 100
# Names of extras that are read at once if the reader does not say which it wants.
MOST_NAMES = 1000


def check_id(id: object) -> str:  # noqa: A002
    """Refuse what cannot name a case."""
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID or not _storable(id):
        raise invalid("id", f"be text of 1 to {LONGEST_ID} characters that a database can hold", ascii(id))
    return id


def check_extras(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse facts that are neither text, numbers, yes or no, nor nothing, and too many or too long ones."""
    if len(extras) > MOST_EXTRAS:
        raise invalid("extras of a case", f"be at most {MOST_EXTRAS}", len(extras))
    for name, value in extras.items():
        check_id(name)
        if isinstance(value, str) and len(value) > LONGEST_EXTRA:
            argument = f"extra {one_line(name, most=40)}"
            raise invalid(argument, f"have at most {LONGEST_EXTRA:,} characters", f"{len(value):,}")
        fine = value is None or (_storable(value) if isinstance(value, str) else isinstance(value, int | float))
        if not fine or (isinstance(value, float) and not math.isfinite(value)):
            rule = "be text, a finite number, true, false or nothing"
            raise invalid(f"extra {one_line(name, most=40)}", rule, ascii(value))
    return dict(extras)


def _storable(text: str) -> bool:
    """Whether a database takes it: no zero, which ends text in C, and no lone surrogate, which has no encoding."""
    return "\0" not in text and not any("\ud800" <= sign <= "\udfff" for sign in text)


def stored_policy(digest: object, content: object) -> Policy:
    """A policy that was kept, or one line if its content is not what its digest says."""
    if not isinstance(digest, str) or not isinstance(content, str):  # SQLite keeps anything in any column
        raise invalid("decision log", "be undamaged", "a policy that is no text", "Restore it from a copy.")
    where = f"policy {digest[:12]}... of the decision log"
    policy = Policy.from_dict(parse_json(content, where), where=where)
    if policy.digest != digest:
        raise invalid(where, "be undamaged", "another one", "Restore the log from a copy.")
    return policy


@contextmanager
def undamaged() -> Iterator[None]:
    """Turn values of other types than ours, which SQLite keeps in any column, into one line."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        told = one_line(error, most=100).removesuffix(".")
        raise invalid("decision log", "be undamaged", told, "Restore it from a copy.") from error


def as_columns(rows: Sequence[Any], wanted: Collection[str] | None = None) -> LoggedDecisions:
    """Rows of the joined tables as arrays, with the extras that are wanted; None for all."""

    def column(name: str, kind: Any) -> Any:
        return np.array([getattr(row, name) for row in rows], dtype=kind)

    with undamaged():
        extras = [json.loads(row.extras) for row in rows]
        names = dict.fromkeys(name for own in extras for name in own if wanted is None or name in wanted)
    check_names(names)
    with undamaged():
        return LoggedDecisions(
            sequence=column("sequence", np.int64),
            ids=column("id", object),
            time=column("time", np.int64).view("datetime64[us]"),
            policy=column("policy", object),
            predicted=column("predicted", np.int64),
            confidence=column("confidence", np.float64),
            automate=column("automate", np.bool_),
            target=np.array([-1 if row.target is None else row.target for row in rows], dtype=np.int64),
            label_sequence=np.array([row.label_sequence or 0 for row in rows], dtype=np.int64),
            shortlists=[tuple(json.loads(row.shortlist)) for row in rows],
            reasons=[row.reason for row in rows],
            extras={name: np.array([own.get(name) for own in extras], dtype=object) for name in names},
        )


def check_names(names: Collection[str]) -> None:
    """Refuse to make columns of more extras than fit into memory."""
    if len(names) > MOST_NAMES:
        way_out = "Say which ones to read: extras=[...]."
        raise invalid("extras of the decision log", f"have at most {MOST_NAMES:,} names", f"{len(names):,}", way_out)


def now() -> int:
    """Microseconds since 1970 by the clock of this machine."""
    return clock.time_ns() // 1000


def microseconds(time: datetime) -> int:
    """Since 1970; a time without its zone is refused."""
    if time.tzinfo is None:
        raise invalid("time", "have a zone", time, "datetime.now(UTC) has one.")
    # Exact: a product of a float with a million would be off by one now and then.
    passed = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds
