"""What rules, shortlists and their checks say to a person, as text."""

from calibrant.decisions.check import PromiseCheck
from calibrant.decisions.coverage import CoverageRow
from calibrant.decisions.rule import RoutingRule
from calibrant.decisions.shortlist import Shortlist, ShortlistCheck
from calibrant.decisions.stream import RouteCounts
from calibrant.metrics.metric_tables import plain_table
from calibrant.predictions import names_or_numbers
from calibrant.tables import FEW, Table


def describe_rule(rule: RoutingRule, rows: list[CoverageRow]) -> str:
    """What was chosen, beside what else could have been (`risk_coverage`)."""
    lines = [_coverage_table(rows), rule.note]
    if rule.class_thresholds is not None:
        names = names_or_numbers(rule.class_names, rule.n_classes)
        for name, value in zip(names, rule.class_thresholds, strict=True):
            lines.append(f"  {name}: {'never automated' if value is None else _told_apart([value])[0]}")
    elif rule.threshold is not None:
        lines.append(f"Threshold: {_told_apart([rule.threshold])[0]}")
    evidence = rule.evidence
    if rule.automates and evidence is not None:
        share = _percent(evidence.automated, evidence.cases)
        lines.append(
            f"Automated: {evidence.automated:,} of {evidence.cases:,} cases ({share}), {evidence.errors:,} wrong."
        )
        low, high = 1000 * (1 - evidence.automation_high), 1000 * (1 - evidence.automation_low)
        lines.append(f"Of 1,000 cases a person sees {rule.review_per_1000:.0f} ({low:.0f} to {high:.0f}).")
    if rule.group_evidence is not None:
        lines.append(_group_table(rule))
    if rule.costs is not None:
        mine, all_reviewed = rule.costs.per_1000, rule.costs.per_1000_all_review
        lines.append(f"Cost per 1,000 cases: {mine:.1f}; {all_reviewed:.1f} if a person sees all.")
    return "\n".join(lines)


def rule_overview(rule: RoutingRule) -> Table:
    """Promise, thresholds and evidence, one below the other."""
    rows: list[tuple[str, object]] = []
    if rule.target_accuracy is not None and rule.confidence is not None:
        rows.append(("promised accuracy", f"{rule.target_accuracy:g}, with probability {rule.confidence:g}"))
    rows += _threshold_rows(rule)
    if (evidence := rule.evidence) is not None:
        share = _percent(evidence.automated, evidence.cases)
        rows.append(("automated", f"{evidence.automated:,} of {evidence.cases:,} cases ({share})"))
        rows.append(("of these wrong", f"{evidence.errors:,}"))
    if rule.groups is not None:
        rows.append(("promised by group", rule.groups))
    if rule.costs is not None:
        costs = f"{rule.costs.per_1000:.1f}; {rule.costs.per_1000_all_review:.1f} if a person sees all"
        rows.append(("cost per 1,000 cases", costs))
    if rule.note:
        rows.append(("note", rule.note))
    return Table(f"{rule.n_classes} classes", rows)


def _threshold_rows(rule: RoutingRule) -> list[tuple[str, object]]:
    if rule.class_thresholds is None:
        value = "nothing is automated" if rule.threshold is None else _told_apart([rule.threshold])[0]
        return [("threshold", value)]
    names = names_or_numbers(rule.class_names, rule.n_classes)
    rows: list[tuple[str, object]] = [
        (f"threshold of {name}", "never automated" if value is None else _told_apart([value])[0])
        for name, value in list(zip(names, rule.class_thresholds, strict=True))[:FEW]
    ]
    if rule.n_classes > FEW:
        rows.append((f"{rule.n_classes - FEW:,} more classes", "see class_thresholds"))
    return rows


def shortlist_overview(shortlist: Shortlist) -> Table:
    """Promise, level and evidence, one below the other."""
    rows: list[tuple[str, object]] = [
        ("promised coverage", f"{shortlist.coverage:g}, with probability {shortlist.confidence:g}"),
        ("least probability", f"{shortlist.least:.6f}"),
        ("chosen on", f"{shortlist.cases:,} cases"),
        ("true class not listed", f"{shortlist.missed:,}"),
        ("mean length", f"{shortlist.mean_length:.2f}"),
        *([("note", shortlist.note)] if shortlist.note else []),
    ]
    return Table(f"{shortlist.n_classes} classes", rows)


def _group_table(rule: RoutingRule) -> str:
    headings = (rule.groups or "group", "cases", "automated", "wrong", "accuracy %", "promised")
    rows = [
        (
            each.name,
            f"{each.cases:,}",
            f"{each.automated:,}",
            f"{each.errors:,}",
            "-" if not each.automated else f"{100 * (each.automated - each.errors) / each.automated:.2f}",
            "yes" if each.promised and rule.automates else "no",
        )
        for each in rule.group_evidence or ()
    ]
    return plain_table(headings, rows)


def describe_counts(counts: RouteCounts) -> str:
    """How many cases of a file were automated."""
    share = _percent(counts.automated, counts.cases)
    return f"{counts.automated:,} of {counts.cases:,} cases are automated ({share}), the others go to a person."


def describe_check(result: PromiseCheck) -> str:
    """Whether a rule's promise held, group by group."""
    overview = check_overview(result)
    rows = [tuple(str(cell) for cell in row) for row in overview.rows]
    return f"{plain_table(tuple(overview.columns), rows)}\n{overview.title}"


def check_overview(result: PromiseCheck) -> Table:
    """The verdict, and a row for each group."""
    headings = ("group", "automated", "wrong", "accuracy %", f"{100 * result.confidence:g} % interval", "promise held")
    rows = [
        (
            line.name,
            f"{line.automated:,}",
            f"{line.errors:,}",
            "-" if line.accuracy is None else f"{100 * line.accuracy:.2f}",
            f"{100 * line.low:.2f} to {100 * line.high:.2f}",
            "-" if line.accuracy is None else "yes" if line.held else "NO",
        )
        for line in result.groups
    ]
    if not result.tested:
        sentence = f"No case is automated: {result.cases:,} cases say nothing about the promised accuracy."
        return Table(sentence, rows, headings)
    verdict = "is contradicted by"
    if result.held:
        verdict = "holds on" if result.reached else "is missed, but by no more than chance, on"
    sentence = f"The promised accuracy of {100 * result.target_accuracy:.6g} % {verdict} {result.cases:,} cases."
    return Table(sentence, rows, headings)


def describe_shortlist(shortlist: Shortlist) -> str:
    """What was chosen, and on what."""
    lines = [shortlist.note]
    if shortlist.least > 0:
        lines.append(
            f"Listed: the most probable class, and every class with a probability of {shortlist.least:.6f} or more."
        )
    lines.append(f"Of {shortlist.cases:,} cases {shortlist.missed:,} have their true class off the list.")
    return "\n".join(lines)


def describe_shortlist_check(shortlist: Shortlist, result: ShortlistCheck) -> str:
    """Whether a shortlist's promise held for the reviewed cases."""
    if result.covered is None:
        return "No case goes to a person: nothing is said of the shortlist."
    verdict = "is contradicted"
    if result.held:
        verdict = "holds" if result.covered >= shortlist.coverage else "is missed, but by no more than chance"
    return (
        f"Shortlists of {result.mean_length:.2f} classes hold the true one in {100 * result.covered:.2f} % of "
        f"{result.cases:,} cases "
        f"({100 * result.low:.2f} to {100 * result.high:.2f} %): "
        f"the promised share of {100 * shortlist.coverage:.6g} % {verdict}."
    )


def _coverage_table(rows: list[CoverageRow]) -> str:
    costs = rows[0].cost_per_1000 is not None
    headings = ("automated", "threshold", "accuracy %", "interval %", "review", *(["cost"] if costs else []))
    cells = [
        (
            f"{1000 * row.coverage:.0f}",
            threshold,
            f"{100 * row.accuracy:.2f}",
            f"{100 * row.accuracy_low:.1f} to {100 * row.accuracy_high:.1f}",
            f"{row.review_per_1000:.0f} ({row.review_low:.0f} to {row.review_high:.0f})",
            *([f"{row.cost_per_1000:.1f}"] if costs else []),
        )
        for row, threshold in zip(rows, _told_apart([row.threshold for row in rows]), strict=True)
    ]
    return plain_table(headings, cells, title="Risk and coverage, per 1,000 cases (each interval for its own line)")


def _told_apart(thresholds: list[float]) -> list[str]:
    """Six decimals, or as many more as it takes to tell thresholds from each other and from 1.

    >>> _told_apart([0.95, 0.99999991])
    ['0.9500000', '0.9999999']
    """
    distinct = {*thresholds, 1.0}
    # 17 decimals tell any two confidences apart: the next number below 1 is 1e-16 away, and none is below 1 / K.
    digits = next(d for d in range(6, 18) if d == 17 or len({f"{each:.{d}f}" for each in distinct}) == len(distinct))
    return [f"{each:.{digits}f}" for each in thresholds]


def _percent(part: int, whole: int) -> str:
    """One rounding for every share that is printed: to the nearest tenth, halves up, exact in whole numbers."""
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10} %"
