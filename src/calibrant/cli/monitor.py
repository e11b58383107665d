"""`calibrant monitor`: does the promise of a rule still hold on the cases that it meets?"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calibrant.cli._shared import Json, Reading, answer, refuse_with_labels
from calibrant.errors import CheckFailed, invalid

if TYPE_CHECKING:
    from calibrant.decisions import MultiLabel


def monitor(
    source: Path,
    /,
    *,
    policy: Path | None = None,
    labels: Path | None = None,
    reference: Path | None = None,
    groups: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    where: str | None = None,
    false_alarms: float = 0.05,
    page: Annotated[Path | None, Parameter(name=["--out", "-o", "--page"])] = None,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Test whether a rule's promise still holds. The exit code is 0 if nothing contradicts it and 1 for an alarm.

    Run it as often as you like, after every case if you like: the probability of a false alarm, ever, stays below
    --false-alarms.

    Args:
        source: What was decided, in its order: the log of "calibrant serve", decisions of
            "calibrant route apply" (.csv, .parquet), labelled predictions, or a folder of Parquet files of either.
        policy: The policy that decided, of "calibrant route". Default, for a log: that of its last decision.
        labels: True classes of decided cases: a table with columns id and target, in the order in which they came.
            Decisions may hold their labels instead (column target), with the time or number of each in labelled_at.
        reference: The raw predictions that the rule was chosen on: tests, without labels, whether confidence, share
            automated and predicted classes are still theirs.
        groups: A column: the promise is tested in each of its groups that the rule makes it for.
        since: Only cases that were decided at this time (2026-01-31T12:00, in UTC if it names no zone) or later. Choose
            it without looking at the cases: the level holds for one beginning.
        until: Only cases that were decided before this time.
        where: COLUMN=VALUE: only cases with this value of a column. Their promise is tested if the rule makes it.
        false_alarms: Probability that any test ever raises a false alarm.
        page: Write a page with curves over time here.
    """
    from calibrant.decisions import MultiLabel, Policy
    from calibrant.deployment import describe, headline, read_reference, read_stream, watch
    from calibrant.report import write_monitor_page

    rules = MultiLabel.of_file(policy)
    if rules is not None:
        refuse_with_labels(labels=labels, reference=reference, groups=groups, since=since, until=until, where=where)
        refuse_with_labels(page=page, **vars(reading))
        _monitor_labels(rules, source, false_alarms, as_json=as_json)
        return
    decided_by = None if policy is None else Policy.load(policy)
    # Read only the columns that are needed: whoever may post cases may fill the others with anything.
    extras = [groups] if groups else []
    chosen = None
    if where is not None:
        column, sign, value = where.partition("=")
        if not sign or not column:
            raise invalid("where", "be COLUMN=VALUE", repr(where))
        chosen = (column, value)
        extras.append(column)
    read = reading.options()
    stream = read_stream(source, decided_by, labels=labels, **read, extras=extras)
    stream = stream.select(since=since, until=until, where=chosen)
    cases = None
    if reference is not None:
        cases = read_reference(reference, stream.policy, **read)
    watched = watch(stream, reference=cases, groups=groups, level=false_alarms)
    text, content = describe(watched), {**watched.to_dict(), "page": None}
    if page is not None:
        written = write_monitor_page(watched, page)
        text, content["page"] = f"{text}\nWrote {written}", str(written)
    answer(text, content, as_json=as_json)
    if watched.alarms:
        raise CheckFailed(headline(watched))


def _monitor_labels(rules: "MultiLabel", source: Path, false_alarms: float, *, as_json: bool) -> None:
    """The same for labelled cases with several labels."""
    from calibrant.decisions import read_labels
    from calibrant.deployment import headline, watch_labels

    watched = watch_labels(rules, read_labels(source, rules.labels), level=false_alarms)
    lines = [f"{label}: {headline(each)}" for label, each in watched.items()]
    answer("\n".join(lines), {label: each.to_dict() for label, each in watched.items()}, as_json=as_json)
    if any(each.alarms for each in watched.values()):
        raise CheckFailed("a label raised an alarm")
