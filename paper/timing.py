"""Does a run's time follow its samples? Answered from records of runs that had the machine to themselves."""

import statistics
from collections.abc import Mapping, Sequence

from calibrant.studies import Record
from calibrant.tables import Table
from paper.numbers import BASELINE
from paper.runs import in_words

_INTRO = (
    "A plan that sees fewer samples should also take less time: 60 % of the updates at most 65 % of the time. The "
    "table compares training times of runs that had the machine to themselves. The reference is the same loss on all "
    "data (NLL if that was not run), on the same device, in the same step mode, for the same number of epochs. The "
    "first epoch compiles the steps, which takes the same time for every plan. So the epochs after the first are also "
    "shown alone."
)


def timing_table(groups: Mapping[tuple[str, str], Mapping[str, Sequence[Record]]], *, heading: str) -> str:
    """A section with one line for each plan that saves samples and whose full counterpart was timed too."""
    rows = []
    for place, by_label in groups.items():
        for label, records in by_label.items():
            alone = [record for record in records if record.concurrent_runs == 1 and record.seen_share < 0.999]
            for record in alone[:1]:
                reference = _reference(record, by_label)
                if reference:
                    rows.append((in_words(place), label, *_line(_like(record, alone), reference)))
    if not rows:
        return f"{heading}\n\n{_INTRO}\n\nNot measured yet: no such pair of runs is in `results/`."
    whole = ("updates, %", "time, %", "at most 5 points above?")
    later = ("updates after the first epoch, %", "time, %", "at most 5 points above?")
    heads = ("data, network", "plan", "against", "epochs", *whole, *later)
    return f"{heading}\n\n{_INTRO}\n\n{Table('', rows, heads).markdown()}"


def _reference(record: Record, by_label: Mapping[str, Sequence[Record]]) -> list[Record]:
    """Full-data runs of the same loss, the longest method name that the plan's name continues; else of NLL."""
    full = [
        other
        for records in by_label.values()
        for other in _like(record, records)
        if other.concurrent_runs == 1 and other.seen_share >= 0.999
    ]
    same_loss = {other.method for other in full if record.method.startswith(f"{other.method}+")}
    method = max(same_loss, key=len, default=BASELINE)
    return [other for other in full if other.method == method]


def _like(record: Record, others: Sequence[Record]) -> list[Record]:
    """Those measured under the same conditions."""
    return [other for other in others if _conditions(other) == _conditions(record)]


def _conditions(record: Record) -> tuple[object, ...]:
    return (
        record.environment.get("device"),
        record.steps_mode,
        record.samples_full,
        record.recipe["engine"]["precision"],
        record.recipe["epochs"],
    )


def _line(ours: Sequence[Record], reference: Sequence[Record]) -> tuple[str, ...]:
    whole = _cells(
        statistics.fmean(record.seen_share for record in ours),
        statistics.fmean(r.train_seconds for r in ours) / statistics.fmean(r.train_seconds for r in reference),
    )
    return reference[0].method, str(ours[0].recipe["epochs"]), *whole, *_later(ours, reference)


def _later(ours: Sequence[Record], reference: Sequence[Record]) -> tuple[str, ...]:
    """The same without the first epoch, where both were recorded with it."""
    plan, full = ([(r.later_samples, r.later_seconds) for r in records] for records in (ours, reference))
    if any(not samples or not seconds for samples, seconds in (*plan, *full)):
        return "-", "-", "-"
    updates, time = (
        statistics.fmean(pair[index] or 0 for pair in plan) / statistics.fmean(pair[index] or 0 for pair in full)
        for index in (0, 1)
    )
    return _cells(updates, time)


def _cells(updates: float, time: float) -> tuple[str, str, str]:
    # 65 % of the time for 60 % of the updates, as a rule for any share.
    return f"{100 * updates:.1f}", f"{100 * time:.1f}", "yes" if time <= updates + 0.05 else "no"
