"""The budget curve of a study: every method over the updates that it made."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calibrant.report import BudgetLine, budget_curves
from calibrant.studies.summary import Estimate, Results, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def budget_lines(results: Results) -> list[BudgetLine]:
    """A line for each method, or variant of it, that was run at several costs; plans end where all updates are made.

    The control of a plan is the line of its loss on all data. A plan at a budget of 1 is its loss on all data, so that
    run is the last point of both. A method that was run at one cost alone gives no line, but for a plan beside a curve.
    """
    controls = {item.plan: item.control for item in results.controls}
    groups = _groups(results.rows)
    lines = []
    for name, rows in groups.items():
        own = {controls[row.label] for row in rows if row.label in controls}
        full = [row for line in groups.values() if own & {each.label for each in line} for row in line]
        points = {row.seen_share.mean or 0.0: row for row in (*rows, *(r for r in full if r.seen_share.mean == 1.0))}
        if len(points) > 1:
            lines.append(curve_line(name, points, control=any(row.label in controls.values() for row in rows)))
    return lines


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each line: those of a method, or of a variant where several variants of it have the same cost."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    groups: dict[str, list[Row]] = {}
    for method, members in by_method.items():
        one_line = len({row.seen_share.mean for row in members}) == len(members)
        for row in members:
            groups.setdefault(method if one_line else _COST.sub("", row.label, count=1), []).append(row)
    return groups


_COST = re.compile(r" at [\d.e-]+$|@[\d.]+%?")
"""What `at_budgets` adds to a label: `unbiased at 0.6`, `nll@96`."""


def budget_figure(results: Results) -> "Figure | None":
    """The budget curve; None where no method was run at several costs."""
    lines = budget_lines(results)
    if not lines:
        return None
    seeds = max(len(row.seeds) for row in results.rows)
    bars = " (bars: standard deviation over seeds)" if seeds > 1 else " (one seed)"
    return budget_curves(lines, title=f"{results.data}, {results.model}: what a budget of updates buys{bars}")


def curve_line(method: str, points: Mapping[float, Row], *, control: bool) -> BudgetLine:
    """A line through rows by their share of all updates."""
    none = Estimate(None, None, None, ())
    updates = sorted(points)
    rows = [points[share] for share in updates]
    found = {
        "error": [row.test["test_error"] for row in rows],
        "nll": [row.scaled["nll"] for row in rows],
        "automated": [row.automation.get("scaled_share@0.99", none) for row in rows],
    }
    values = {panel: [math.nan if each.mean is None else each.mean for each in line] for panel, line in found.items()}
    spreads = {
        panel: [each.spread if each.over == "seeds" and each.spread is not None else math.nan for each in line]
        for panel, line in found.items()
    }
    name = f"{method}, fewer epochs (to beat)" if control else method
    return BudgetLine(name, updates, values, spreads, control=control)
