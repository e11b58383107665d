"""Pictures: each function takes predictions (or plain series) and returns a matplotlib `Figure`."""

from calibrant.report.figures.budget import BudgetLine, budget_curves
from calibrant.report.figures.collection import save_figures
from calibrant.report.figures.coverage import accuracy_coverage_curves, risk_coverage_curves, threshold_curves
from calibrant.report.figures.pruning import kept_share, score_distributions
from calibrant.report.figures.reliability import (
    confidence_histogram,
    group_reliability,
    reliability_diagram,
    reliability_grid,
)
from calibrant.report.figures.study import ablation_curves, component_bars, pareto_picture, training_time_bars
from calibrant.report.style import save_figure

__all__ = [
    "BudgetLine",
    "ablation_curves",
    "accuracy_coverage_curves",
    "budget_curves",
    "component_bars",
    "confidence_histogram",
    "group_reliability",
    "kept_share",
    "pareto_picture",
    "reliability_diagram",
    "reliability_grid",
    "risk_coverage_curves",
    "save_figure",
    "save_figures",
    "score_distributions",
    "threshold_curves",
    "training_time_bars",
]
