"""What a watched stream means, in words: what was promised, what was seen, since when it drifts, what to do."""

from calibrant.deployment.signals import PROMISED, GroupShare, Signal
from calibrant.deployment.watch import Watched
from calibrant.tables import plain_table

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
    return _no_alarm(watched)


def _no_alarm(watched: Watched) -> str:
    """What it means that there is no alarm."""
    promises = [signal for signal in watched.signals if signal.about in PROMISED]
    if not watched.signals:
        return "Nothing was promised for these cases alone: they are described, not tested."
    if not promises:
        return "No alarm: the cases are like the calibration cases so far."
    first = promises[0]
    known = {signal.about for signal in promises if signal.cases}
    for about in dict.fromkeys(signal.about for signal in promises):
        if about not in known:
            whose = _CASES[about].removeprefix("all ")
            return (
                f"No alarm, but there are no labels of {whose}: nothing is known about the promised {PROMISED[about]}."
            )
    if watched.labelling is not None and not watched.labelling.fair:
        return "No alarm, but the labels are not a fair draw: they say little about the cases without a label."
    if first.low is None or first.cases < (watched.labels_to_notice or 0):
        return f"No alarm, which says little yet: {_shown(first)}"
    return "No alarm: nothing contradicts the promise so far."


def _shown(signal: Signal) -> str:
    """How much the labels have shown so far."""
    lowest = 100 * (signal.low or 0.0)
    labels = "label shows" if signal.cases == 1 else "labels show"
    return (
        f"{signal.cases:,} {labels} that the {PROMISED[signal.about]} of {_whose(signal)} is at least {lowest:.3g} %; "
        f"{100 * signal.expected:.6g} % is promised."
    )


def _whose(signal: Signal) -> str:
    if signal.group == "all":
        return _CASES[signal.about]
    return signal.group


def findings(watched: Watched) -> list[str]:
    """One sentence per alarm."""
    sentences = []
    for signal in watched.alarms:
        first, last = _case(watched, signal.since or 1), _case(watched, signal.alarm or 1)
        when = f"Noticed at {last}, drifting since about {first}"
        if signal.about in PROMISED:
            what = PROMISED[signal.about]
            sentences.append(
                f"{what[0].upper()}{what[1:]} of {_whose(signal)}: {100 * signal.expected:g} % promised, "
                f"{100 * (signal.seen or 0):.2f} % seen in {signal.cases:,} labelled cases, "
                f"{100 * (signal.since_seen or 0):.2f} % since then. {when}."
            )
        else:
            detail = f" ({signal.detail})" if signal.detail else ""
            sentences.append(f"The {signal.about} changed{detail}. {when}.")
    return sentences


def _case(watched: Watched, case: int) -> str:
    place = watched.place(case) or {}
    known = [place[name] for name in ("id", "time") if place[name] is not None]
    return f"case {case:,}" + (f" ({', '.join(known)})" if known else "")


def advice(watched: Watched) -> list[str]:
    """What to do, in the order in which to do it."""
    promises = {signal.about for signal in watched.signals if signal.about in PROMISED}
    whose = "all cases"
    if promises == {"promise"}:
        whose = "the automated cases"
    if not watched.alarms:
        return _keep_labelling(watched, whose)
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
    steps = [first, again]
    if "shortlist" in broken and len(broken) > 1:
        steps.append("Then choose the shortlist again with the new rule: calibrant route shortlist.")
    return steps


def _keep_labelling(watched: Watched, whose: str) -> list[str]:
    if watched.labels_to_notice is None:
        return []
    part = f"a random part of {whose}"
    column = watched.rule.cluster_column
    if column is not None:
        part = f"cases of {column}s drawn at random, one {column} after the other"
    steps = []
    if watched.labelling is not None and not watched.labelling.fair:
        steps.append(f"Draw the cases to label at random from {whose}, whatever their confidence.")
    steps.append(
        f"Keep labelling {part}. If errors were twice as frequent as promised from the first label on, "
        f"{watched.labels_to_notice:,} labels would show it in 9 of 10 streams; {watched.signals[0].cases:,} have come "
        f"so far. If they become so now, it takes {watched.labels_to_notice_from_now:,} more."
    )
    return steps


def describe(watched: Watched) -> str:
    """Everything, as text."""
    stream = watched.stream
    labelled = int((stream.automate & stream.labelled).sum())
    lines = [headline(watched), *findings(watched)]
    lines.append(f"{len(stream):,} cases, {int(stream.automate.sum()):,} automated, {labelled:,} of these labelled.")
    promises = [signal for signal in watched.signals if signal.about in PROMISED and signal.cases]
    lines += [_shown(signal) for signal in promises[:1] if _shown(signal) not in lines[0]]
    labelling = watched.labelling
    if labelling is not None and not labelling.fair:
        lines.append(
            f"The labels are not a fair draw: the mean confidence of {labelling.labelled:,} labelled cases is "
            f"{100 * labelling.labelled_confidence:.2f} %, and that of {labelling.unlabelled:,} cases beside them "
            f"without a label is {100 * labelling.unlabelled_confidence:.2f} %."
        )
    column = watched.rule.cluster_column
    if column is not None:
        lines.append(f"Each {column} is one bet; its labels count when those of the next {column} begin.")
    if stream.shortlist is not None and stream.listed is None:
        lines.append("The promise of the shortlist was not tested: the cases do not say which classes were listed.")
    if stream.left_out:
        lines.append(f"{stream.left_out:,} cases that other rules decided were left out.")
    title = f"Looked at after every case: all false alarms together have a probability of at most {watched.level:g}"
    if watched.signals:
        lines.append(plain_table(SIGNAL_HEADINGS, [signal_row(signal) for signal in watched.signals], title=title))
    if watched.described:
        lines.append(plain_table(SHARE_HEADINGS, [share_row(share) for share in watched.described], title=SHARE_TITLE))
    lines += [f"- {step}" for step in advice(watched)]
    return "\n".join(lines)


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
