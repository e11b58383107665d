"""The picture of what a budget buys."""

import math

import pytest

from calibrant.errors import InvalidInput
from calibrant.report import BudgetLine, budget_curves


def line(name, shift, *, control=False, spread=0.01):
    values = {"error": [0.2 + shift, 0.1], "nll": [0.5 + shift, 0.3], "automated": [0.6 - shift, math.nan]}
    return BudgetLine(name, [0.5, 1.0], values, {metric: [spread, spread] for metric in values}, control=control)


def test_a_line_for_each_plan_and_the_control_in_each_panel():
    figure = budget_curves([line("nll", 0.0, control=True), line("nll+random", 0.05)], title="toy")
    panels = figure.axes
    assert [axes.get_ylabel() for axes in panels] == ["Test error", "NLL after scaling", "Automated at 99 %"]
    for axes, values in zip(panels, ([0.25, 0.1], [0.55, 0.3]), strict=False):
        drawn = {each.get_label(): each for each in axes.lines}
        assert list(drawn["nll+random"].get_xdata()) == [0.5, 1.0]
        assert list(drawn["nll+random"].get_ydata()) == pytest.approx(values)
        # The control is the line to beat: thicker than any plan, and on top.
        assert drawn["nll"].get_linewidth() > drawn["nll+random"].get_linewidth()
        assert drawn["nll"].get_zorder() > drawn["nll+random"].get_zorder()
        assert len(axes.collections) == 2  # a band each


def test_without_a_spread_there_is_no_band():
    figure = budget_curves([line("nll+random", 0.0, spread=math.nan)])
    assert all(not axes.collections for axes in figure.axes)


def test_wrong_lengths_and_no_lines_are_refused():
    with pytest.raises(InvalidInput, match="error of 'a' must have one value for each of the 2 budgets, got 1"):
        BudgetLine("a", [0.5, 1.0], {"error": [0.1]})
    with pytest.raises(InvalidInput, match="lines must hold at least one line"):
        budget_curves([])
