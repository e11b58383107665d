"""The budget curve of a study: every method over the updates that it made."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from calibrant.study.summary import Estimate, Results, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.report import BudgetLine


def budget_lines(results: Results) -> "list[BudgetLine]":
    """A line for each method that was run at several costs, its plans ending where all updates are made.

    The control of a plan is the line of its loss on all data. A plan at a budget of 1 is its loss on all data, so that
    run is the last point of both. A method that was run at one cost alone gives no line, but for a plan beside a curve.
    """
    by_method: dict[str, list[Row]] = {}
    for row in results.rows:
        by_method.setdefault(row.method, []).append(row)
    controls = {item.control for item in results.controls}
    losses = {row.method for row in results.rows if row.label in controls}
    lines = []
    for method, rows in by_method.items():
        base = method.rpartition("+")[0]
        is_plan = method not in losses and base in losses
        full = [row for row in by_method.get(base, ()) if row.seen_share.mean == 1.0] if is_plan else []
        points = {row.seen_share.mean or 0.0: row for row in (*rows, *full)}
        if len(points) > 1:
            lines.append(curve_line(method, points, control=method in losses))
    return lines


def budget_figure(results: Results) -> "Figure | None":
    """The budget curve; None where no method was run at several costs."""
    from calibrant.report import budget_curves

    lines = budget_lines(results)
    if not lines:
        return None
    seeds = max(len(row.seeds) for row in results.rows)
    bars = " (bars: standard deviation over seeds)" if seeds > 1 else " (one seed)"
    return budget_curves(lines, title=f"{results.data}, {results.model}: what a budget of updates buys{bars}")


def curve_line(method: str, points: Mapping[float, Row], *, control: bool) -> "BudgetLine":
    """A line through rows by their share of all updates."""
    from calibrant.report import BudgetLine

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
