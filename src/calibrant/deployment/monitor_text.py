"""What a watched stream means, in words: what was promised, what was seen, since when it drifts, what to do."""

from calibrant.deployment.signals import PROMISED, GroupShare, Signal
from calibrant.deployment.watch import Watched
from calibrant.metrics.metric_tables import plain_table
from calibrant.tables import Table

SIGNAL_HEADINGS = ("test", "of", "cases", "expected", "seen", "interval", "false alarms", "evidence", "alarm at case")
SHARE_HEADINGS = ("share of right cases", "of", "cases", "seen", "95 % interval")
SHARE_TITLE = "Groups that nothing was promised for: described, not tested"
# Whose cases a promise is about.
_CASES = {
    "promise": "all automated cases",
    "shortlist": "all cases that a person saw",
    "sensitivity": "all positive cases",
    "specificity": "all negative cases",
}


def headline(watched: Watched) -> str:
    """The result in one sentence."""
    broken = {signal.about: signal.expected for signal in watched.alarms if signal.about in PROMISED}
    if broken:
        shares = [f"promised {PROMISED[about]} of {100 * share:.6g} %" for about, share in broken.items()]
        verb = "is" if len(broken) == 1 else "are"
        return f"ALARM: the {' and the '.join(shares)} {verb} no longer kept."
    if watched.alarms:
        what = ", ".join(signal.about for signal in watched.alarms)
        return f"ALARM: the cases are no longer like the calibration cases ({what}); the promise does not cover them."
    promises = [signal for signal in watched.signals if signal.about in PROMISED]
    if promises and not any(signal.cases for signal in promises):
        about = promises[0].about
        whose = {"promise": "automated case"}.get(about, "case")
        return f"No alarm, but no {whose} has a label: nothing is known about the promised {PROMISED[about]}."
    return "No alarm: nothing contradicts the promise so far."


def findings(watched: Watched) -> list[str]:
    """One sentence per alarm."""
    return [_finding(watched, signal) for signal in watched.alarms]


def _finding(watched: Watched, signal: Signal) -> str:
    assert signal.alarm is not None
    assert signal.since is not None
    when = f"Noticed at {_case(watched, signal.alarm)}, drifting since about {_case(watched, signal.since)}"
    if signal.about not in PROMISED:
        detail = f" ({signal.detail})" if signal.detail else ""
        return f"The {signal.about} changed{detail}. {when}."
    whose = _CASES[signal.about] if signal.group == "all" else signal.group
    what = PROMISED[signal.about]
    return (
        f"{what[0].upper()}{what[1:]} of {whose}: {100 * signal.expected:g} % promised, "
        f"{100 * (signal.seen or 0):.2f} % seen in {signal.cases:,} labelled cases, "
        f"{100 * (signal.since_seen or 0):.2f} % since then. {when}."
    )


def _case(watched: Watched, case: int) -> str:
    place = watched.place(case)
    known = [place[name] for name in ("id", "time") if place[name] is not None]
    return f"case {case:,}" + (f" ({', '.join(known)})" if known else "")


def advice(watched: Watched) -> list[str]:
    """What to do, in the order in which to do it."""
    stream, rule = watched.stream, watched.rule
    promises = {signal.about for signal in watched.signals if signal.about in PROMISED}
    whose, eligible = "all cases", stream.labelled
    if promises == {"promise"}:
        whose, eligible = "the automated cases", stream.automate & stream.labelled
    if not watched.alarms:
        if watched.labels_to_notice is None:
            return []
        part = f"a random part of {whose}"
        column = getattr(rule, "cluster_column", None)
        if column is not None:
            part = f"cases of {column}s drawn at random, one {column} after the other"
        return [
            f"Keep labelling {part}. If errors became twice as frequent as promised, about "
            f"{watched.labels_to_notice:,} labels would show it; {int(eligible.sum()):,} have come so far."
        ]
    since = _case(watched, watched.since or 1)
    broken = {signal.about for signal in watched.alarms} & PROMISED.keys()
    what, command = "threshold", "fit"
    if promises & {"sensitivity", "specificity"}:
        command = "binary"
    first = "Send every case to a person until a new threshold is chosen."
    if broken == {"shortlist"}:
        what = command = "shortlist"
        first = "Show every class to a person until a new shortlist is chosen."
    elif not broken:
        first = (
            f"Have a random part of {whose} since {since} labelled: only labels can tell whether the accuracy has "
            "changed as well."
        )
    again = (
        f"Choose the {what} again on labelled cases since {since}, a random part of all of them and not of the "
        f"automated ones alone: calibrant route {command}. {watched.labelled_since:,} are labelled."
    )
    if watched.labels_to_refit is not None:
        again += f" About {watched.labels_to_refit:,} are needed if the model is as good on them as it was before."
    steps = [first, again]
    if "shortlist" in broken and len(broken) > 1:
        steps.append("Then choose the shortlist again with the new rule: calibrant route shortlist.")
    return steps


def describe(watched: Watched) -> str:
    """Everything, as text."""
    stream = watched.stream
    labelled = int((stream.automate & stream.labelled).sum())
    lines = [headline(watched), *findings(watched)]
    lines.append(f"{len(stream):,} cases, {int(stream.automate.sum()):,} automated, {labelled:,} of these labelled.")
    column = getattr(watched.rule, "cluster_column", None)
    if column is not None:
        lines.append(f"Each {column} is one bet; its labels count when those of the next {column} begin.")
    if stream.shortlist is not None and stream.listed is None:
        lines.append("The promise of the shortlist was not tested: the cases do not say which classes were listed.")
    if stream.left_out:
        lines.append(f"{stream.left_out:,} cases that other rules decided were left out.")
    if stream.clock_went_back:
        lines.append(f"The clock went back {stream.clock_went_back:,} times; cases are taken in their own order.")
    title = f"Looked at after every case: all false alarms together have a probability of at most {watched.level:g}"
    lines.append(plain_table(SIGNAL_HEADINGS, [signal_row(signal) for signal in watched.signals], title=title))
    if watched.described:
        lines.append(plain_table(SHARE_HEADINGS, [share_row(share) for share in watched.described], title=SHARE_TITLE))
    lines += [f"- {step}" for step in advice(watched)]
    return "\n".join(lines)


def watched_overview(watched: Watched) -> Table:
    """The headline and a row per test."""
    return Table(headline(watched), [signal_row(signal) for signal in watched.signals], SIGNAL_HEADINGS)


def share_row(share: GroupShare) -> tuple[str, ...]:
    """The cells of one group without a promise of its own."""
    ends = f"{100 * share.low:.2f} to {100 * share.high:.2f} %"
    return (PROMISED[share.about], share.group, f"{share.cases:,}", f"{100 * share.seen:.2f} %", ends)


def signal_row(signal: Signal) -> tuple[str, ...]:
    """The cells of one test."""
    # The share shown for the classes is that of the class that is the most frequent in the reference.
    names = {**PROMISED, "predicted classes": "predicted classes: the commonest"}
    seen = ends = alarm = "-"
    if signal.seen is not None:
        seen = f"{100 * signal.seen:.2f} %"
    if signal.low is not None and signal.high is not None:
        ends = f"{100 * signal.low:.2f} to {100 * signal.high:.2f} %"
    needed = f"{1 / signal.level:.3g}"
    if signal.alarm is None:
        evidence = f"{10**signal.evidence:.3g} of {needed}"
    else:
        evidence, alarm = f"over {needed}", f"{signal.alarm:,}"
    what, expected = names.get(signal.about, signal.about), f"{100 * signal.expected:.2f} %"
    return (what, signal.group, f"{signal.cases:,}", expected, seen, ends, f"{signal.level:.2g}", evidence, alarm)
