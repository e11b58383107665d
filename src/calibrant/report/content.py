"""Entries become plain values: the JSON that the page carries. Every number on the page is one of these."""

import base64
import math
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics import compare, evaluate
from calibrant.metrics.binning import edge_precision
from calibrant.predictions import Predictions
from calibrant.report.audit import pruning_content
from calibrant.report.entries import Entry
from calibrant.report.statistics import reliability_bands, wilson

if TYPE_CHECKING:
    from calibrant.training.run import Run


def method_content(entry: Entry, first: Entry, *, delta: float, n_bins: int, resamples: int) -> dict[str, Any]:
    """All numbers of one method as plain values.

    Confidences travel as sorted float64, one bit a case says whether it was right: what the page computes at any
    threshold is exact, not read off a grid.

    Args:
        entry: The method.
        first: The method that it is compared with, pair by pair where both saw the same cases.
        delta: Threshold of the automated set.
        n_bins: Bins of every binned metric.
        resamples: Bootstrap resamples; 0 for no intervals.
    """
    predictions = entry.predictions
    order = np.argsort(predictions.confidence, kind="stable")
    result = evaluate(predictions, n_bins, thresholds=(delta,), bootstrap=resamples)
    evaluation = result.to_dict()
    metrics = result.values() | {
        "noise_floor": result.noise_floor,
        "noise_floor_95": result.noise_floor_95,
        "mean_confidence": float(predictions.confidence.mean()),
        "mean_accuracy": float(predictions.correct.mean()),
    }
    return {
        "name": entry.name,
        "cases": len(predictions),
        "classes": predictions.classes,
        "precision": edge_precision(predictions),
        "confidence": _packed(predictions.confidence[order].astype("<f8")),
        "correct": _packed(np.packbits(predictions.correct[order], bitorder="little")),
        "metrics": metrics | {"nll": evaluation["nll"]} | _costs(entry.run),
        "intervals": evaluation.get("intervals", {}) | _proportions(predictions, metrics, delta),
        "verdicts": _verdicts(first.predictions, predictions, delta=delta, n_bins=n_bins, resamples=resamples),
        "pruning": pruning_content(entry.run),
    } | _bins(predictions, n_bins)


def same_cases(a: Predictions, b: Predictions) -> bool:
    """Whether two methods were measured on the same cases in the same order, as far as one can see."""
    if a.classes != b.classes or not np.array_equal(a.targets, b.targets):
        return False
    return a.ids is None or b.ids is None or bool((a.ids.astype(np.str_) == b.ids.astype(np.str_)).all())


def _verdicts(a: Predictions, b: Predictions, *, delta: float, n_bins: int, resamples: int) -> dict[str, str]:
    if a is b or not resamples or not same_cases(a, b):
        return {}
    rows = compare(a, b, n_bins=n_bins, thresholds=(delta,), bootstrap=resamples).rows
    return {row.name: row.verdict for row in rows if row.verdict != "cannot tell"}


def run_content(run: "Run | None") -> dict[str, Any] | None:
    """Recipe and environment as the page shows them; None without a run."""
    if run is None:
        return None
    recipe = (run.path / "recipe.toml").read_text(encoding="utf-8")
    environment = run.summary.get("environment", {}) if run.finished else {}
    return {
        "recipe": recipe,
        "settings": tomllib.loads(recipe),
        "environment": {key: value for key, value in environment.items() if value is not None},
    }


def _proportions(predictions: Predictions, metrics: dict[str, float | None], delta: float) -> dict[str, list[float]]:
    """Wilson intervals of the shares: where nothing is wrong, the bootstrap would claim certainty, [100, 100]."""
    n = len(predictions)
    counts = {"test_error": (metrics["test_error"], n), f"share@{delta:g}": (metrics[f"share@{delta:g}"], n)}
    automated = round((metrics[f"share@{delta:g}"] or 0.0) * n)
    counts[f"accuracy@{delta:g}"] = (metrics[f"accuracy@{delta:g}"], automated)
    ends = {}
    for name, (share, trials) in counts.items():
        if share is not None:
            low, high = wilson(round(share * trials), trials)
            ends[name] = [float(low), float(high)]
    return ends


def _costs(run: "Run | None") -> dict[str, Any]:
    if run is None or not run.finished:
        return {}
    summary = run.summary
    return {
        "samples_seen": summary.get("samples_seen"),
        "train_seconds": summary.get("timing", {}).get("train_seconds"),
    }


def _bins(predictions: Predictions, n_bins: int) -> dict[str, Any]:
    bands = reliability_bands(predictions, n_bins)
    bins = bands.bins
    rows = [
        {
            "low_edge": float(bins.edges[b]),
            "high_edge": float(bins.edges[b + 1]),
            "count": int(bins.count[b]),
            "right": int(bins.correct_sum[b]),
            "confidence": _number(bins.confidence[b]),
            "accuracy": _number(bins.accuracy[b]),
            "low": _number(bands.low[b]),
            "high": _number(bands.high[b]),
            "floor_low": _number(bands.floor_low[b]),
            "floor_high": _number(bands.floor_high[b]),
        }
        for b in range(len(bins.count))
    ]
    return {"edges": bins.edges.tolist(), "bins": rows}


def _number(value: np.float64) -> float | None:
    """A float, or None for NaN: JSON has no word for it."""
    return None if math.isnan(value) else float(value)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
