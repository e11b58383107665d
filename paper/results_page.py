"""`docs/results.md` and the findings of the README, written from `results/` alone: no number is typed by hand."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from calibrant.studies import Record, read_records
from calibrant.tables import Table
from paper.findings import ECE, ERROR, METRICS, NLL, Finding, Metric, all_plans, findings, unfair
from paper.runs import Groups, group_records

_HEAD = """<!-- Written by docs/make/results.py from results/*.json. Change those, not this. -->
# Results

Each row is a method beside a control that cost as much. Every number comes from a recorded run: official test set, last
epoch, means over seeds.

![Quality against computing: smaller images first, fewer epochs, the former default, its best pruning plan](compute.svg)

![Each method beside its control: differences in error, NLL and ECE with their intervals](results.svg)
"""
_BELOW = """
Method / control; **bold** where the difference is more than chance: its 95 % interval, over seeds where there are
several, else over test images, excludes 0 (not corrected for the number of rows). *Decided alone*: the share of the
test images above a threshold that promises 99 % accuracy, chosen on the validation set after a temperature (fitted on
half of it). *Best score*: the same promise if the [ranking score](routing.md#another-ranking-more-automation) is
chosen, too, with the defaults of `route fit`, which leave nine tenths of the cases to the promise instead of a half. A
dash: the predictions of a run were not kept, and this column is younger than its record.
"""
_LIMITS = """
## What it does not show

- **Which part of the default does it.** It differs from the paper's recipe in schedule, averaged weights, crops (SVHN)
  and batch size (CIFAR-100); these were not taken apart.
- **Other networks and other data.** These are small images, networks trained from scratch, and few seeds.
- **A choice without any look at test figures.** The default's schedule goes back to runs on CIFAR-10 and CIFAR-100
  whose test figures were in view.
"""
_MORE = """## More

- [The paper's claims](paper.md), one by one, its numbers beside ours, and what was not run.
- [All results](all-results.html): every method, every plan beside its control, to sort and search;
  the same [as CSV](all-results.csv), one line per run.
- [results/README.md](../results/README.md): how settings were chosen, and what is still missing.
"""

# Two numbers stay on one line.
_SLASH = "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}"


def results_page(folder: str | Path) -> str:
    """The page as Markdown."""
    groups = group_records(read_records(folder))
    found = findings(groups)
    if not found:
        return f"{_HEAD}\nNothing yet: `results/` holds no method together with its control.\n\n{_MORE}"
    shows = ["\n## What it shows", "", *(_wrapped(line) for line in sentences(found, all_plans(groups)))]
    parts = [
        _HEAD,
        "",
        table(found).strip("\n"),
        _BELOW + _settings(found),
        *shows,
        _LIMITS + _unfair(groups),
        "",
        _MORE,
    ]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def readme_findings(folder: str | Path) -> str:
    """What the page shows, for the README: one row of figures for each kind, the others by their verdict."""
    groups = group_records(read_records(folder))
    lines = sentences(findings(groups), all_plans(groups), brief=True)
    return "\n".join(map(_wrapped, lines)) + "\n"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def table(found: Sequence[Finding]) -> str:
    """The rows as Markdown."""
    where = ("method, against its control", "data, network", "seeds", "computing, millions of updates")
    heads = (*where, *(metric.title for metric in METRICS), "decided alone, %", "the same, best score, %")
    rows = [
        (
            f"{each.name}, against {each.control_name}",
            *(each.where, str(each.seeds), _both(each.cost, 1)),
            *(_cell(each, metric) for metric in METRICS),
            _decided(each.automated()),
            _decided(each.automated("best_share")),
        )
        for each in found
    ]
    return Table("", rows, heads).markdown()


def sentences(found: Sequence[Finding], plans: Sequence[Finding], *, brief: bool = False) -> list[str]:
    """What the rows say, as three list items; each names the control.

    Args:
        found: The rows.
        plans: Every plan that has its control, for the verdict on plans: the rows hold a few of them.
        brief: Figures of the first row of each kind alone.
    """
    names = ("resolution", "default", "plan", "huber", "pruning")
    kinds = {kind: [each for each in found if each.kind == kind] for kind in names}
    made = []
    if kinds["resolution"]:
        made.append(
            f"- **{_smaller(kinds['resolution'])}**: {_described(kinds['resolution'], _resolution, NLL, brief)}."
        )
    if kinds["default"]:
        made.append(f"- **{_headline(kinds['default'])}**: {_described(kinds['default'], _default, ERROR, brief)}.")
    if kinds["plan"]:
        made.append(f"- {_worth(plans)} {_CONTROL}{_described(kinds['plan'], _plan, NLL, brief)}.")
    parts = [words(kinds[kind]) for kind, words in (("huber", _huber), ("pruning", _pruning)) if kinds[kind]]
    if parts:
        made.append("- " + " ".join(parts))
    return made


def _described(found: Sequence[Finding], sentence: Callable[[Finding], str], metric: Metric, brief: bool) -> str:
    if not brief:
        return "; ".join(map(sentence, found))
    first, *others = found
    verdicts: dict[str, list[str]] = {}
    for each in others:
        verdicts.setdefault(each.verdict(metric), []).append(f"{each.where.replace(', ', ' with ')} ({_paid(each)})")
    same = first.verdict(metric)
    parts = [f"{'also ' if word == same else ''}{word} on {', '.join(places)}" for word, places in verdicts.items()]
    return "; ".join([sentence(first), *parts])


def _cell(each: Finding, metric: Metric) -> str:
    text = _both((metric.mean(each.ours), metric.mean(each.control)), metric.digits)
    return text if each.verdict(metric) == "cannot tell" else f"**{text}**"


def _both(pair: tuple[float, float], digits: int) -> str:
    return _SLASH.join(f"{value:.{digits}f}" for value in pair)


def _decided(shares: tuple[float, float] | None) -> str:
    return "-" if shares is None else _SLASH.join(f"{share:.0f}" if share else "none" for share in shares)


def _difference(each: Finding, metric: Metric) -> str:
    difference, half = each.difference(metric)
    spread = "" if half is None else f" ± {half:.{metric.digits}f}"
    return f"{difference:+.{metric.digits}f}{spread}"


def _seeds(each: Finding) -> str:
    return "one seed" if each.seeds == 1 else f"{each.seeds} seeds"


def _headline(found: Sequence[Finding]) -> str:
    words = [each.verdict(ERROR) for each in found]
    if all(word == "better" for word in words):
        return "The default beats the paper's `nll` recipe"
    return "The default beside the paper's `nll` recipe" + ("" if "worse" in words else ", not always beyond chance")


def _paid(each: Finding) -> str:
    ours, control = each.cost
    if each.kind == "resolution":
        return f"{_seeds(each)}, {_share(each)} of the computing"
    cost = f"{ours:.1f} against {control:.1f} million updates"
    if ours == control:
        cost = "as many updates"
    return f"{_seeds(each)}, {cost}"


def _default(each: Finding) -> str:
    text = f"on {each.where} ({_paid(each)}) error {_against(each, ERROR)} %"
    shares = each.automated()
    if shares and any(shares):
        covered, beside = (f"{share:.0f} %" if share else "nothing" for share in shares)
        text += f", and a promise of 99 % covers {covered} of the images, against {beside}"
    return text


def _smaller(found: Sequence[Finding]) -> str:
    words = {each.verdict(NLL) for each in found}
    if words == {"better"}:
        return "Smaller images early in the training beat fewer epochs at equal computing"
    return "Smaller images early in the training, beside fewer epochs at equal computing"


def _resolution(each: Finding) -> str:
    text = f"on {each.where} ({_seeds(each)}, {_share(each)} of the computing) error and NLL "
    text += f"{_error_and_nll(each.ours)}, against {_error_and_nll(each.control)} of fewer epochs"
    if each.whole:
        text += f" and {_error_and_nll(each.whole)} of all the computing"
        if each.recovered is not None:
            text += f": it recovers {100 * each.recovered:.0f} %"
            if each.recovered_interval is not None:
                low, high = each.recovered_interval
                text += f" (95 % interval {100 * low:.0f} to {100 * high:.0f})"
            text += " of what fewer epochs lose in NLL"
    elif each.former:
        text += f"; the former default with all the computing {_error_and_nll(each.former)}"
    return text


def _share(each: Finding) -> str:
    whole = each.former or each.whole or each.ours
    return f"{100 * each.ours[0].compute / whole[0].compute:.0f} %"


def _error_and_nll(records: Sequence[Record]) -> str:
    return f"{ERROR.mean(records):.2f} % / {NLL.mean(records):.4f}"


def _worth(plans: Sequence[Finding]) -> str:
    plans = [each for each in plans if each.kind == "plan"]
    words = [each.verdict(NLL) for each in plans]
    better, worse = words.count("better"), words.count("worse")
    if better > worse and better == len(words):
        return "**Pruning beats fewer epochs** in every plan that was run beside its control."
    inconclusive = len(words) - better - worse
    counts = (
        f"{better} of {len(words)} plans better than their control by NLL, {worse} worse, {inconclusive} inconclusive"
    )
    head = "Some pruning plans beat shorter training" if better > worse else "Pruning did not beat shorter training"
    return f"**{head}**: {counts}."


_CONTROL = "The control has the same loss and schedule on all data for fewer epochs. NLL, plan against control: "


def _plan(each: Finding) -> str:
    recovered = "nothing"
    if each.recovered is not None and each.recovered > 0:
        recovered = f"{100 * each.recovered:.0f} %"
    return (
        f"on {each.where}, {each.name} ({_seeds(each)}), {_against(each, NLL)} (difference "
        f"{_difference(each, NLL)}): {each.verdict(NLL)}; it recovers {recovered} of what fewer epochs lose"
    )


def _huber(found: Sequence[Finding]) -> str:
    first, *others = found
    word = {
        "better": "calibrates",
        "worse": "makes calibration worse",
        "cannot tell": "does not calibrate beyond chance",
    }
    return (
        f"**The paper's Huber term {word[first.verdict(ECE)]} on {first.where}**: ECE {_against(first, ECE)} % without "
        f"it, at as many updates ({_seeds(first)}){_elsewhere(others, ECE)}."
    )


def _pruning(found: Sequence[Finding]) -> str:
    first, *others = found
    word = {"better": "helps", "worse": "costs accuracy", "cannot tell": "changes the error by no more than chance"}
    return (
        f"**Its pruning {word[first.verdict(ERROR)]} on {first.where}**: error {_against(first, ERROR)} % where a "
        f"random part of the samples rests instead, at as many updates ({_seeds(first)}){_elsewhere(others, ERROR)}."
    )


def _elsewhere(others: Sequence[Finding], metric: Metric) -> str:
    places = (f"on {each.where} {_against(each, metric)} % ({_seeds(each)}): {each.verdict(metric)}" for each in others)
    return "".join(f"; {place}" for place in places)


def _against(each: Finding, metric: Metric) -> str:
    digits = 1 if metric is ERROR else metric.digits
    return f"{metric.mean(each.ours):.{digits}f} against {metric.mean(each.control):.{digits}f}"


def _settings(found: Sequence[Finding]) -> str:
    """The legend of short names."""
    plans = [each for each in found if each.kind == "plan" and each.ours[0].variant]
    lines = [f"`{each.name.split('`')[1]}` on {each.where}: {each.ours[0].variant}." for each in plans]
    return textwrap.fill("Settings of " + " ".join(lines), 120, break_on_hyphens=False) + "\n" if lines else ""


def _unfair(groups: Groups) -> str:
    lines = []
    for each in unfair(groups):
        ours, control = each.cost
        lines.append(
            f"- **{each.where}.** The default made {ours:.1f} million updates there, the paper's `nll` recipe "
            f"{control:.1f} million: it has no control at equal cost, so it has no row."
        )
    return "".join(_wrapped(line) + "\n" for line in lines)
