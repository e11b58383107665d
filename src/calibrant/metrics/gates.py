"""Limits for a pipeline: an evaluation passes, or the limits that it breaks are named."""

from collections.abc import Sequence
from typing import Literal

from calibrant.errors import did_you_mean, invalid
from calibrant.metrics.evaluation import Evaluation
from calibrant.metrics.metric import METRICS, Metric

# Metrics of the first high-confidence set, and the accuracy of all rows, which is no metric of its own.
_OTHERS: dict[str, Literal["min", "max"]] = {
    "accuracy": "min",
    "share": "min",
    "share_accuracy": "min",
    "share_ece": "max",
}


class Gates:
    """Limits on metrics, as fractions (0.02 for 2 %).

    Args:
        limits: `max_NAME` for a metric that is better if it is lower, `min_NAME` for one that is better if it is
            higher; NAME as in `calibrant.metrics.METRICS`. Also `min_accuracy`, and for the rows at or above the first
            threshold `min_share`, `min_share_accuracy` and `max_share_ece`. None is no limit.

    >>> from calibrant import Predictions, evaluate
    >>> Gates(max_ece=0.1).broken(evaluate(Predictions.from_probabilities([[0.8, 0.2]], [1])))
    ['ece 0.8 is above the limit 0.1']
    """

    def __init__(self, **limits: float | None) -> None:
        known = limit_names()
        for name in limits:
            if name not in known:
                raise invalid(name, "be the name of a limit", repr(name), did_you_mean(name, known))
        self.limits = {name: limit for name, limit in limits.items() if limit is not None}

    def check(self, thresholds: Sequence[float]) -> None:
        """Refuse limits that cannot hold: a share outside 0..1, or one about the first of no thresholds."""
        for name, limit in self.limits.items():
            metric = name[4:]
            if metric.startswith("share") and not thresholds:
                raise invalid(name, "be used with thresholds", "none")
            is_share = metric not in METRICS or METRICS[metric].percent
            if is_share and not 0.0 <= limit <= 1.0:
                raise invalid(name, "be a fraction in 0..1", limit, "Write 0.02 for 2 %.")

    def broken(self, result: Evaluation, *, name: str = "") -> list[str]:
        """One short sentence for each limit that does not hold; `name` says in it what was evaluated."""
        values = result.values()
        values["accuracy"] = 1.0 - result.test_error
        if result.thresholds:
            first = result.thresholds[0]
            values |= {"share": first.share, "share_accuracy": first.accuracy, "share_ece": first.ece}
        prefix = f"{name}: " if name else ""
        sentences = []
        for limit_name, limit in self.limits.items():
            side, metric = limit_name[:3], limit_name[4:]
            value = values.get(metric)
            if value is None:
                sentences.append(f"{prefix}{metric} is not defined here, so {limit_name} cannot hold")
            elif side == "max" and value > limit:
                sentences.append(f"{prefix}{metric} {value:.6g} is above the limit {limit:g}")
            elif side == "min" and value < limit:
                sentences.append(f"{prefix}{metric} {value:.6g} is below the limit {limit:g}")
        return sentences


def limit_names() -> list[str]:
    """The names of all limits that `Gates` takes."""
    names = [f"{side}_{name}" for name, metric in METRICS.items() for side in _sides(metric)]
    return names + [f"{side}_{name}" for name, side in _OTHERS.items()]


def _sides(metric: Metric) -> tuple[str, ...]:
    if metric.better == "higher":
        return ("min",)
    if metric.better == "lower":
        return ("max",)
    return ("min", "max")
