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

Each finding compares a method with a control, which cost as much unless it says otherwise. All numbers come from
recorded runs: official test set, last epoch, mean over seeds. NLL is after a temperature.

![Quality against compute: smaller images first, fewer epochs, the former default, its best pruning plan](compute.svg)
"""
_FIGURES = """
## Every method with its control

![Each method and its control: differences in error, NLL and ECE with their intervals](results.svg)
"""
_BELOW = """
Each cell shows method / control.

- **Bold**: the 95 % interval of the difference excludes 0. The interval is over seeds if there are several, else over
  test images. It is not corrected for the number of rows.
- **Decided alone**: the share of the test images above a threshold that promises 99 % accuracy. Temperature and
  threshold are fitted on one half of the validation set each.
- **The same, best score**: as before, but the [ranking score](routing.md#another-ranking-more-automation) is chosen,
  too, with the defaults of `route fit`: a tenth of the validation cases for calibrator and score, nine tenths for the
  promise. A dash means that the predictions of a run were not kept, so this column could not be computed.

"""
_LIMITS = """
## What the results do not show

- **Which part of the default helps.** It differs from the paper's recipe in schedule, averaged weights, crops (SVHN)
  and batch size (CIFAR-100). We did not measure these changes one by one.
- **Other networks and other data.** We trained on small images, from scratch, with few seeds.
- **Schedules chosen without test figures.** Those of the default and of the smaller images go back to runs on
  CIFAR-10 and CIFAR-100 whose test figures we had seen.
"""
_MORE = """## More

- [The paper's claims](paper.md), one by one, and what was not run.
- [All results](all-results.html): every method and every plan with its control, to sort and search. The same
  [as CSV](all-results.csv), one line per run.
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
    shows = ["\n## What the results show", "", *(_wrapped(line) for line in sentences(found, all_plans(groups)))]
    parts = [
        _HEAD,
        *shows,
        _LIMITS + _unfair(groups),
        _FIGURES,
        "",
        table(found).strip("\n"),
        _BELOW + _settings(found),
        "",
        _MORE,
    ]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def readme_findings(folder: str | Path) -> str:
    """What the page shows, for the README: the first finding in words, and a table with a row for each kind."""
    groups = group_records(read_records(folder))
    found, plans = findings(groups), all_plans(groups)
    heads = ("comparison", "example", "method", "control", "all comparisons")
    rows = [_in_brief(kind, [row for row in found if row.kind == kind], plans) for kind in _BRIEF]
    table = Table("", [row for row in rows if row], heads).markdown().strip("\n")
    parts = [table] if found else []
    resolutions = [row for row in found if row.kind == "resolution"]
    if resolutions:
        note = f"{_smaller(resolutions)} {_resolution(resolutions[0])}"
        parts.insert(0, textwrap.fill(note, 120, break_on_hyphens=False))
    return "\n\n".join(parts) + "\n"


# What is compared, for the README, and the metrics to show; the first of them decides.
_BRIEF: dict[str, tuple[str, tuple[Metric, ...]]] = {
    "resolution": ("smaller images early, against fewer epochs", (NLL, ERROR)),
    "default": ("the default, against the paper's `nll` recipe", (ERROR, NLL)),
    "plan": ("pruning, against fewer epochs", (NLL, ERROR)),
    "huber": ("the paper's loss, against the same without its Huber term", (ECE, NLL)),
    "pruning": ("the paper's pruning, against leaving out random samples", (ERROR, ECE)),
}
_BRIEF_TITLES = {ERROR: "error {} %", NLL: "NLL {}", ECE: "ECE {} %"}


def _in_brief(kind: str, rows: Sequence[Finding], plans: Sequence[Finding]) -> tuple[str, ...]:
    """Return the README's row of one kind: figures of its first finding, and how all of them ended. () without one."""
    if not rows:
        return ()
    title, metrics = _BRIEF[kind]
    first = rows[0]
    example = f"{first.where}, {_paid(first)}"
    if kind == "plan":
        example = f"{first.where}, {first.name}, {_seeds(first)}"
        rows = [plan for plan in plans if plan.kind == "plan"]
    figures = [
        ", ".join(_BRIEF_TITLES[metric].format(f"{metric.mean(runs):.{metric.digits}f}") for metric in metrics)
        for runs in (first.ours, first.control)
    ]
    verdicts = [row.verdict(metrics[0]) for row in rows]
    counts = [f"{verdicts.count(word)} {word}" for word in ("better", "worse", "inconclusive") if word in verdicts]
    return (title, example, *figures, ", ".join(counts))


def _wrapped(line: str) -> str:
    indent = " " * (line.index("- ") + 2)
    return textwrap.fill(line, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def table(found: Sequence[Finding]) -> str:
    """The rows as Markdown."""
    where = ("method, against its control", "data, network", "seeds", "compute, millions of updates")
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


_Kind = tuple[str, Callable[[Sequence[Finding]], str], Callable[[Finding], str]]
"""The name of a kind, its headline, and the sentence for one row."""


def sentences(found: Sequence[Finding], plans: Sequence[Finding]) -> list[str]:
    """Return what the rows show, as items of a nested Markdown list; each item names its control.

    Args:
        found: The rows.
        plans: Every plan that has a control. The verdict on plans counts all of them; `found` holds only a few.
    """
    kinds: tuple[_Kind, ...] = (
        ("resolution", _smaller, _resolution),
        ("default", _default_headline, _default),
        ("plan", lambda _: _worth(plans), _plan),
        ("huber", _huber_headline, _huber),
        ("pruning", _pruning_headline, _pruning),
    )
    items = []
    for kind, headline, sentence in kinds:
        rows = [row for row in found if row.kind == kind]
        if rows:
            items += [f"- {headline(rows)}", *(f"    - {sentence(row)}" for row in rows)]
    return items


def _cell(each: Finding, metric: Metric) -> str:
    text = _both((metric.mean(each.ours), metric.mean(each.control)), metric.digits)
    return text if each.verdict(metric) == "inconclusive" else f"**{text}**"


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


def _place(row: Finding) -> str:
    return f"{row.where} ({_paid(row)})"


def _data(row: Finding) -> str:
    return row.where.split(", ")[0]


def _paid(row: Finding) -> str:
    """Seeds, and the cost if it is not that of the whole run for both."""
    ours, control = (f"{cost:.1f}" for cost in row.cost)
    if row.kind == "resolution":
        return f"{_seeds(row)}, {_share(row)} of the compute"
    if ours != control:
        return f"{_seeds(row)}, {ours} and {control} million updates"
    return _seeds(row)


def _default_headline(rows: Sequence[Finding]) -> str:
    verdicts = [row.verdict(ERROR) for row in rows]
    if all(verdict == "better" for verdict in verdicts):
        return "**The default beats the paper's `nll` recipe.**"
    return "**The default, compared with the paper's `nll` recipe.**"


def _default(row: Finding) -> str:
    text = f"{_place(row)}: error {ERROR.mean(row.ours):.1f} % instead of {ERROR.mean(row.control):.1f} %."
    shares = row.automated()
    if shares and any(shares):
        ours, control = (f"{share:.0f} %" if share else "none" for share in shares)
        text += f" A promise of 99 % accuracy covers {ours} of the images instead of {control}."
    return text


def _smaller(rows: Sequence[Finding]) -> str:
    head = "and fewer epochs at equal compute"
    if all(row.verdict(NLL) == "better" for row in rows):
        head = "beat fewer epochs at equal compute"
    return f"**Smaller images early in the training {head}.** The controls have the same loss, momentum and flips."


def _resolution(row: Finding) -> str:
    text = f"{_place(row)}: {_error_and_nll(row.ours)}. The control, fewer epochs at full size: "
    text += f"{_error_and_nll(row.control)}."
    if row.whole:
        text += f" All epochs at full size: {_error_and_nll(row.whole)}."
        if row.recovered is not None:
            text += f" Smaller images recover {100 * row.recovered:.0f} %"
            if row.recovered_interval is not None:
                low, high = row.recovered_interval
                text += f" (95 % interval {100 * low:.0f} to {100 * high:.0f} %)"
            text += " of the NLL that fewer epochs lose."
    elif row.former:
        text += f" The former default, all epochs: {_error_and_nll(row.former)}."
    return text


def _share(row: Finding) -> str:
    whole = row.former or row.whole or row.ours
    return f"{100 * row.ours[0].compute / whole[0].compute:.0f} %"


def _error_and_nll(records: Sequence[Record]) -> str:
    return f"error {ERROR.mean(records):.2f} %, NLL {NLL.mean(records):.4f}"


def _worth(plans: Sequence[Finding]) -> str:
    verdicts = [plan.verdict(NLL) for plan in plans if plan.kind == "plan"]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    inconclusive = len(verdicts) - better - worse
    head = "Pruning did not beat shorter training"
    if better > worse:
        head = "Some pruning plans beat shorter training"
    if better > worse and better == len(verdicts):
        head = "Every pruning plan beat shorter training"
    return (
        f"**{head}.** By NLL, {better} of {len(verdicts)} plans were better than their control, {worse} worse, "
        f"{inconclusive} inconclusive. A control trains on all data for fewer epochs, with the same loss and schedule."
    )


def _plan(row: Finding) -> str:
    recovered = "nothing"
    if row.recovered is not None and row.recovered > 0:
        recovered = f"{100 * row.recovered:.0f} %"
    return (
        f"{row.where}, {row.name} ({_seeds(row)}): NLL {NLL.mean(row.ours):.3f}, control {NLL.mean(row.control):.3f}, "
        f"difference {_difference(row, NLL)} ({row.verdict(NLL)}). The plan recovers {recovered} of what fewer "
        "epochs lose."
    )


def _huber_headline(rows: Sequence[Finding]) -> str:
    effect = {
        "better": "lowers ECE",
        "worse": "raises ECE",
        "inconclusive": "does not change ECE beyond chance",
    }
    return f"**The paper's Huber term {effect[rows[0].verdict(ECE)]} on {_data(rows[0])}.**"


def _huber(row: Finding) -> str:
    return (
        f"{_place(row)}: ECE {ECE.mean(row.ours):.2f} % with the term, {ECE.mean(row.control):.2f} % without "
        f"({row.verdict(ECE)})."
    )


def _pruning_headline(rows: Sequence[Finding]) -> str:
    effect = {
        "better": "lowers the error",
        "worse": "costs accuracy",
        "inconclusive": "does not change the error beyond chance",
    }
    return f"**The paper's pruning {effect[rows[0].verdict(ERROR)]} on {_data(rows[0])}.**"


def _pruning(row: Finding) -> str:
    return (
        f"{_place(row)}: error {ERROR.mean(row.ours):.1f} %. If a random part of the samples is left out instead: "
        f"{ERROR.mean(row.control):.1f} % ({row.verdict(ERROR)})."
    )


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
            f"- **{each.where}.** The default made {ours:.1f} million updates, the paper's `nll` recipe "
            f"{control:.1f} million. Without a control at equal cost it has no row."
        )
    return "".join(_wrapped(line) + "\n" for line in lines)
