"""The budget curve from records: plans that met a budget, their controls, and the run on all updates."""

from collections.abc import Mapping, Sequence

from calibrant.report import BudgetLine
from calibrant.studies import Record
from calibrant.studies.controls import curve_line, find_controls
from calibrant.studies.study_results import summarise_row
from paper.groups import Groups


def budget_pictures(groups: Groups) -> dict[str, tuple[str, list[BudgetLine]]]:
    """Name of each picture, one for each data set, network and schedule with a curve, to its title and its lines."""
    return {
        f"budget-{data}-{model.replace(':', '-')}" + (f"-{number + 1}" if number else ""): (
            f"{data}, {model}: {label}",
            lines,
        )
        for (data, model), by_label in groups.items()
        for number, (label, lines) in enumerate(budget_curves_of(by_label).items())
    }


def budget_curves_of(by_label: Mapping[str, Sequence[Record]]) -> dict[str, list[BudgetLine]]:
    """For each run on all updates, by its label, the line of its control and a line for each plan.

    Only plans that were given a budget count: one with a rate of its own is a single point. A curve needs two budgets.
    """
    curves: dict[str, dict[str, dict[float, list[Record]]]] = {}
    controls: dict[str, str] = {}
    wholes: dict[str, list[Record]] = {}  # on all updates: where every line ends
    for found in find_controls(by_label):
        if not found.full or found.plan[0].recipe.get("budget", 1.0) == 1.0:
            continue
        key, loss = found.full[0].label, found.control[0].method
        lines, controls[key] = curves.setdefault(key, {}), loss
        share, whole = round(found.share, 3), wholes.setdefault(key, [])
        _add(whole, found.full)
        for method, records in ((loss, found.control), (found.plan[0].method, found.plan)):
            points = lines.setdefault(method, {1.0: whole})
            _add(points.setdefault(share, []), records)
    return {
        key: [
            curve_line(
                method, {share: summarise_row(method, group) for share, group in points.items()}, control=control
            )
            for method, points in lines.items()
            for control in [method == controls[key]]
        ]
        for key, lines in curves.items()
        if any(len(points) > 2 for points in lines.values())
    }


def _add(records: list[Record], more: Sequence[Record]) -> None:
    """Add the seeds that are not there yet: a control stands beside several plans, each with seeds of its own."""
    known = {record.seed for record in records}
    records.extend(record for record in more if record.seed not in known)
