"""What a watched stream says to a person: what is promised, what was seen, since when it drifts, what to do."""

from calibrant.deployment.signals import PROMISED, GroupShare, Signal
from calibrant.deployment.watch import Watched
from calibrant.metrics.metric_tables import plain_table
from calibrant.tables import Table

SIGNAL_HEADINGS = ("test", "of", "cases", "expected", "seen", "interval", "false alarms", "evidence", "alarm at case")

SHARE_HEADINGS = ("share of right cases", "of", "cases", "seen", "95 % interval")
SHARE_TITLE = "Groups that nothing was promised for: described, not tested"


def headline(watched: Watched) -> str:
    """One sentence."""
    broken = {each.about: each.expected for each in watched.alarms if each.about in PROMISED}
    if broken:
        promised = " and the ".join(
            f"promised {PROMISED[about]} of {100 * share:.6g} %" for about, share in broken.items()
        )
        return f"ALARM: the {promised} {'is' if len(broken) == 1 else 'are'} no longer kept."
    if watched.alarms:
        what = ", ".join(each.about for each in watched.alarms)
        return f"ALARM: the cases are no longer like the calibration cases ({what}); the promise does not cover them."
    promises = [each for each in watched.signals if each.about in PROMISED]
    if promises and not any(each.cases for each in promises):
        whose = "automated case" if promises[0].about == "promise" else "case"
        return (
            f"No alarm, but no {whose} has a label: nothing is known about the promised {PROMISED[promises[0].about]}."
        )
    return "No alarm: nothing contradicts the promise so far."


def findings(watched: Watched) -> list[str]:
    """One sentence for each alarm."""
    return [_finding(watched, each) for each in watched.alarms]


def _finding(watched: Watched, signal: Signal) -> str:
    assert signal.alarm is not None
    assert signal.since is not None
    when = f"Noticed at {_case(watched, signal.alarm)}, drifting since about {_case(watched, signal.since)}"
    if signal.about not in PROMISED:
        detail = f" ({signal.detail})" if signal.detail else ""
        return f"The {signal.about} changed{detail}. {when}."
    whose = _ALL[signal.about] if signal.group == "all" else signal.group
    what = PROMISED[signal.about][0].upper() + PROMISED[signal.about][1:]
    since = "" if signal.since_seen is None else f", {100 * signal.since_seen:.2f} % since then"
    return (
        f"{what} of {whose}: {100 * signal.expected:g} % promised, {100 * (signal.seen or 0):.2f} % seen in "
        f"{signal.cases:,} labelled cases{since}. {when}."
    )


_ALL = {
    "promise": "all automated cases",
    "shortlist": "all cases that a person saw",
    "sensitivity": "all positive cases",
    "specificity": "all negative cases",
}


def _case(watched: Watched, case: int) -> str:
    place = watched.place(case)
    named = [str(place[name]) for name in ("id", "time") if place[name] is not None]
    return f"case {case:,}" + (f" ({', '.join(named)})" if named else "")


def advice(watched: Watched) -> list[str]:
    """What to do, in the order in which to do it."""
    stream, refit = watched.stream, watched.labels_to_refit
    promises = list(dict.fromkeys(each.about for each in watched.signals if each.about in PROMISED))
    column = getattr(watched.rule, "cluster_column", None)
    whose = "the automated cases" if promises == ["promise"] else "all cases"
    if not watched.alarms:
        missing = watched.labels_to_notice
        labelled = int(((stream.automate | (whose == "all cases")) & stream.labelled).sum())
        if missing is None:
            return []
        part = f"a random part of {whose}"
        if column is not None:
            part = f"cases of {column}s drawn at random, one {column} after the other"
        return [
            f"Keep labelling {part}. If errors became twice as frequent as promised, "
            f"about {missing:,} labels would show it; {labelled:,} have come so far."
        ]
    since = watched.since or 1
    steps = []
    broken = {each.about for each in watched.alarms} & PROMISED.keys()
    if broken == {"shortlist"}:
        steps.append("Show every class to a person until a new shortlist is chosen.")
    elif broken:
        steps.append("Send every case to a person until a new threshold is chosen.")
    else:
        steps.append(
            f"Have a random part of {whose} since {_case(watched, since)} labelled: only labels can tell "
            "whether the accuracy has changed as well."
        )
    enough = "" if refit is None else f" About {refit:,} are needed if the model is as good on them as it was before."
    binary = bool({"sensitivity", "specificity"} & set(promises))
    what, command = ("shortlist", "shortlist") if broken == {"shortlist"} else ("threshold", "fit")
    steps.append(
        f"Choose the {what} again on labelled cases since {_case(watched, since)}, a random part of all of them and "
        f"not of the automated ones alone: calibrant route {'binary' if binary else command}. "
        f"{watched.labelled_since:,} are labelled.{enough}"
    )
    if "shortlist" in broken and len(broken) > 1:
        steps.append("Then choose the shortlist again with the new rule: calibrant route shortlist.")
    return steps


def describe(watched: Watched) -> str:
    """Everything, as text."""
    stream = watched.stream
    automated = int(stream.automate.sum())
    lines = [headline(watched), *findings(watched)]
    lines.append(
        f"{len(stream):,} cases, {automated:,} automated, "
        f"{int((stream.automate & stream.labelled).sum()):,} of these labelled."
    )
    if (column := getattr(watched.rule, "cluster_column", None)) is not None:
        lines.append(f"Each {column} is one bet; its labels count when those of the next {column} begin.")
    if stream.left_out:
        lines.append(f"{stream.left_out:,} cases that other rules decided were left out.")
    if stream.clock_went_back:
        lines.append(f"The clock went back {stream.clock_went_back:,} times; cases are taken in their own order.")
    lines.append(signal_table(watched))
    if watched.described:
        lines.append(plain_table(SHARE_HEADINGS, [share_row(each) for each in watched.described], title=SHARE_TITLE))
    lines += [*(f"- {step}" for step in advice(watched))]
    return "\n".join(lines)


def watched_overview(watched: Watched) -> Table:
    """What to know first, and a row for each test."""
    return Table(headline(watched), [row_of(each) for each in watched.signals], SIGNAL_HEADINGS)


def signal_table(watched: Watched) -> str:
    """One row for each test."""
    title = f"Looked at after every case: all false alarms together have a probability of at most {watched.level:g}"
    return plain_table(SIGNAL_HEADINGS, [row_of(each) for each in watched.signals], title=title)


def share_row(share: GroupShare) -> tuple[str, ...]:
    """The cells of one group that nothing was promised for."""
    ends = f"{100 * share.low:.2f} to {100 * share.high:.2f} %"
    return (PROMISED[share.about], share.group, f"{share.cases:,}", f"{100 * share.seen:.2f} %", ends)


def row_of(signal: Signal) -> tuple[str, ...]:
    """The cells of one test."""
    seen = "-" if signal.seen is None else f"{100 * signal.seen:.2f} %"
    ends = "-" if signal.low is None or signal.high is None else f"{100 * signal.low:.2f} to {100 * signal.high:.2f} %"
    alarm = "-" if signal.alarm is None else f"{signal.alarm:,}"
    what = PROMISED.get(signal.about, signal.about)
    # The share that is shown of the classes is that of the class which is the most frequent among the reference.
    what = "predicted classes: the commonest" if what == "predicted classes" else what
    expected = f"{100 * signal.expected:.2f} %"
    needed = f"{1 / signal.level:.3g}"
    grown = f"over {needed}" if signal.alarm is not None else f"{10**signal.evidence:.3g} of {needed}"
    return (what, signal.group, f"{signal.cases:,}", expected, seen, ends, f"{signal.level:.2g}", grown, alarm)
