"""What `calibrant route` prints for people."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from calibrant.routing import CoverageRow, PromiseCheck, RoutingRule, Shortlist, ShortlistCheck


def percent(part: int, whole: int) -> str:
    """One rounding for every share that is printed: to the nearest tenth, halves up, exact in whole numbers."""
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10} %"


def print_fit(rule: RoutingRule, rows: list[CoverageRow], path: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(_coverage_table(rows))
    console.print(rule.note, markup=False)
    if rule.temperature is not None:
        console.print(f"Temperature: {rule.temperature:.4f}")
    if rule.class_thresholds is not None:
        names = rule.class_names or tuple(map(str, range(rule.n_classes)))
        for name, value in zip(names, rule.class_thresholds, strict=True):
            console.print(f"  {name}: {'never automated' if value is None else f'{value:.6f}'}", markup=False)
    elif rule.threshold is not None:
        console.print(f"Threshold: {rule.threshold:.6f}")
    evidence = rule.evidence
    if rule.automates and evidence is not None:
        share = percent(evidence.automated, evidence.cases)
        console.print(
            f"Automated: {evidence.automated:,} of {evidence.cases:,} cases ({share}), {evidence.errors:,} wrong."
        )
        low, high = 1000 * (1 - evidence.automation_high), 1000 * (1 - evidence.automation_low)
        console.print(f"Of 1,000 cases a person sees {rule.review_per_1000:.0f} ({low:.0f} to {high:.0f}).")
    if rule.costs is not None:
        mine, everything = rule.costs.per_1000, rule.costs.per_1000_all_review
        console.print(f"Cost per 1,000 cases: {mine:.1f}; {everything:.1f} if a person sees all.")
    console.print(f"Wrote {path}", markup=False)


def _coverage_table(rows: list[CoverageRow]) -> Table:
    costs = rows[0].cost_per_1000 is not None
    table = Table(title="Risk and coverage, per 1,000 cases (each interval for its own line)")
    for name in ("automated", "threshold", "accuracy %", "interval %", "review", *(["cost"] if costs else [])):
        table.add_column(name, no_wrap=True)
    for row in rows:
        cells = [
            f"{1000 * row.coverage:.0f}",
            f"{row.threshold:.6f}",
            f"{100 * row.accuracy:.2f}",
            f"{100 * row.accuracy_low:.1f} to {100 * row.accuracy_high:.1f}",
            f"{row.review_per_1000:.0f} ({row.review_low:.0f} to {row.review_high:.0f})",
        ]
        table.add_row(*cells, *([f"{row.cost_per_1000:.1f}"] if costs else []))
    return table


def print_check(result: PromiseCheck) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table(
        "group", "automated", "wrong", "accuracy %", f"{100 * result.confidence:g} % interval", "promise held"
    )
    for line in result.groups:
        accuracy = "-" if line.accuracy is None else f"{100 * line.accuracy:.2f}"
        interval = f"{100 * line.low:.2f} to {100 * line.high:.2f}"
        held = "-" if line.accuracy is None else "yes" if line.held else "NO"
        table.add_row(line.name, f"{line.automated:,}", f"{line.errors:,}", accuracy, interval, held)
    console.print(table)
    if not result.tested:
        console.print(f"No case is automated: {result.cases:,} cases say nothing about the promised accuracy.")
        return
    verdict = "is contradicted by"
    if result.held:
        verdict = "holds on" if result.reached else "is missed, but by no more than chance, on"
    console.print(f"The promised accuracy of {result.target_accuracy:g} {verdict} {result.cases:,} cases.")


def print_shortlist(shortlist: Shortlist, path: Path) -> None:
    """What was chosen, and on what."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(shortlist.note, markup=False)
    if shortlist.least > 0:
        console.print(
            f"Listed: the most probable class, and every class with a probability of {shortlist.least:.6f} or more."
        )
    console.print(f"Of {shortlist.cases:,} cases {shortlist.missed:,} have their true class off the list.")
    console.print(f"Wrote {path}", markup=False)


def print_shortlist_check(shortlist: Shortlist, result: ShortlistCheck) -> None:
    """One line for the reviewed cases."""
    console = Console(highlight=False, soft_wrap=True)
    if result.covered is None:
        console.print("No case goes to a person: nothing is said of the shortlist.")
        return
    verdict = "is contradicted"
    if result.held:
        verdict = "holds" if result.covered >= shortlist.coverage else "is missed, but by no more than chance"
    console.print(
        f"Shortlists of {result.mean_length:.2f} classes hold the true one in {100 * result.covered:.2f} % of "
        f"{result.cases:,} cases "
        f"({100 * result.low:.2f} to {100 * result.high:.2f} %): "
        f"the promised share of {shortlist.coverage:g} {verdict}."
    )
