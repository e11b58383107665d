"""Does a run's time follow its samples? Answered from records of runs that had the machine to themselves."""

import statistics
from collections.abc import Mapping, Sequence

from calibrant.study.record import Record
from calibrant.study.tables import Grid, to_markdown

_INTRO = (
    "A plan that sees fewer samples should take as much less time: 60 % of the updates at most 65 % of the time. "
    "Training time of runs that had the machine to themselves, against the same loss on all data, on the same device "
    "in the same step mode."
)


def timing_table(groups: Mapping[tuple[str, str], Mapping[str, Sequence[Record]]], *, heading: str) -> str:
    """A section with one line for each plan that saves samples and whose full counterpart was timed too."""
    rows = []
    for (data, model), by_label in groups.items():
        for label, records in by_label.items():
            alone = [record for record in records if record.concurrent_runs == 1 and record.seen_share < 0.999]
            for record in alone[:1]:
                reference = _reference(record, by_label)
                if reference:
                    rows.append((f"{data}, {model}", label, *_line(_like(record, alone), reference)))
    if not rows:
        return f"{heading}\n\n{_INTRO}\n\nNot measured yet: no such pair of runs is in `results/`."
    heads = ("data, network", "plan", "against", "updates, %", "time, %", "time at most 5 points above?")
    return f"{heading}\n\n{_INTRO}\n\n{to_markdown(Grid('', '', heads, tuple(rows)))}"


def _reference(record: Record, by_label: Mapping[str, Sequence[Record]]) -> list[Record]:
    """Full-data runs of the same loss: the longest method name that the plan's name continues."""
    found = [
        other
        for records in by_label.values()
        for other in _like(record, records)
        if other.concurrent_runs == 1 and other.seen_share >= 0.999 and record.method.startswith(f"{other.method}+")
    ]
    longest = max((other.method for other in found), key=len, default=None)
    return [other for other in found if other.method == longest]


def _like(record: Record, others: Sequence[Record]) -> list[Record]:
    """Those measured under the same conditions."""
    return [other for other in others if _conditions(other) == _conditions(record)]


def _conditions(record: Record) -> tuple[object, ...]:
    return (
        record.environment.get("device"),
        record.steps_mode,
        record.samples_full,
        record.recipe["engine"]["precision"],
    )


def _line(ours: Sequence[Record], reference: Sequence[Record]) -> tuple[str, str, str, str]:
    updates = statistics.fmean(record.seen_share for record in ours)
    time = statistics.fmean(r.train_seconds for r in ours) / statistics.fmean(r.train_seconds for r in reference)
    # 65 % of the time for 60 % of the updates, as a rule for any share.
    holds = "yes" if time <= updates + 0.05 else "no"
    return reference[0].method, f"{100 * updates:.1f}", f"{100 * time:.1f}", holds
