"""What a watched stream says to a person: what is promised, what was seen, since when it drifts, what to do."""

from calibrant.metrics import plain_table
from calibrant.monitoring.signals import Signal
from calibrant.monitoring.watch import Watched

SIGNAL_HEADINGS = ("test", "of", "cases", "expected", "seen", "interval", "false alarms", "evidence", "alarm at")


def headline(watched: Watched) -> str:
    """One sentence."""
    if watched.broken:
        return f"ALARM: the promised accuracy of {watched.rule.target_accuracy:g} is no longer kept."
    if watched.alarms:
        what = ", ".join(each.about for each in watched.alarms)
        return f"ALARM: the cases are no longer like the calibration cases ({what}); the promise does not cover them."
    promises = [each for each in watched.signals if each.about == "promise"]
    if promises and not any(each.cases for each in promises):
        return "No alarm, but no automated case has a label: nothing is known about the promised accuracy."
    return "No alarm: nothing contradicts the promise so far."


def findings(watched: Watched) -> list[str]:
    """One sentence for each alarm."""
    return [_finding(watched, each) for each in watched.alarms]


def _finding(watched: Watched, signal: Signal) -> str:
    assert signal.alarm is not None
    assert signal.since is not None
    when = f"Noticed at {_case(watched, signal.alarm)}, drifting since about {_case(watched, signal.since)}"
    if signal.about != "promise":
        detail = f" ({signal.detail})" if signal.detail else ""
        return f"The {signal.about} changed{detail}. {when}."
    whose = "all automated cases" if signal.group == "all" else signal.group
    since = "" if signal.since_seen is None else f", {100 * signal.since_seen:.2f} % since then"
    return (
        f"Accuracy of {whose}: {100 * signal.expected:g} % promised, {100 * (signal.seen or 0):.2f} % seen in "
        f"{signal.cases:,} labelled cases{since}. {when}."
    )


def _case(watched: Watched, case: int) -> str:
    place = watched.place(case)
    named = [str(place[name]) for name in ("id", "time") if place[name] is not None]
    return f"case {case:,}" + (f" ({', '.join(named)})" if named else "")


def advice(watched: Watched) -> list[str]:
    """What to do, in the order in which to do it."""
    stream, refit = watched.stream, watched.labels_to_refit
    if not watched.alarms:
        missing = watched.labels_to_notice
        labelled = int((stream.automate & stream.labelled).sum())
        if missing is None:
            return []
        return [
            f"Keep labelling a random part of the automated cases. If errors became twice as frequent as promised, "
            f"about {missing:,} labels would show it; {labelled:,} have come so far."
        ]
    since = watched.since or 1
    steps = []
    if watched.broken:
        steps.append("Send every case to a person until a new threshold is chosen.")
    else:
        steps.append(
            f"Have a random part of the automated cases since {_case(watched, since)} labelled: only labels can tell "
            "whether the accuracy has changed as well."
        )
    enough = "" if refit is None else f" About {refit:,} are needed if the model is as good on them as it was before."
    steps.append(
        f"Choose the threshold again on labelled cases since {_case(watched, since)}, a random part of all of them and "
        f"not of the automated ones alone: calibrant route fit. {watched.labelled_since:,} are labelled.{enough}"
    )
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
    if stream.left_out:
        lines.append(f"{stream.left_out:,} cases that other rules decided were left out.")
    if stream.clock_went_back:
        lines.append(f"The clock went back {stream.clock_went_back:,} times; cases are taken in their own order.")
    lines += [signal_table(watched), *(f"- {step}" for step in advice(watched))]
    return "\n".join(lines)


def signal_table(watched: Watched) -> str:
    """One row for each test."""
    title = f"Looked at after every case: all false alarms together have a probability of at most {watched.level:g}"
    return plain_table(SIGNAL_HEADINGS, [row_of(each) for each in watched.signals], title=title)


def row_of(signal: Signal) -> tuple[str, ...]:
    """The cells of one test."""
    seen = "-" if signal.seen is None else f"{100 * signal.seen:.2f} %"
    ends = "-" if signal.low is None or signal.high is None else f"{100 * signal.low:.2f} to {100 * signal.high:.2f} %"
    alarm = "-" if signal.alarm is None else f"{signal.alarm:,}"
    what = "accuracy" if signal.about == "promise" else signal.about
    expected = f"{100 * signal.expected:.2f} %"
    grown = f"{10 ** min(signal.evidence, 6):.3g} of {1 / signal.level:.3g}"
    return (what, signal.group, f"{signal.cases:,}", expected, seen, ends, f"{signal.level:.2g}", grown, alarm)
