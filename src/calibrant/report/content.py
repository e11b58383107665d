"""Entries become plain values: the JSON that the page carries. Every number on the page is one of these."""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.binning import edge_precision
from calibrant.predictions import Predictions
from calibrant.report.audit import pruning_content
from calibrant.report.entries import ReportEntry
from calibrant.report.statistics import reliability_bands
from calibrant.report.uncertainty import Uncertainty, uncertainties
from calibrant.runs import RunFolder


def method_contents(
    entries: Sequence[ReportEntry],
    *,
    threshold: float,
    n_bins: int,
    n_resamples: int,
    pictures: bool = True,
    data_dir: str | Path | None = None,
) -> list[dict[str, Any]]:
    """All numbers of every method as plain values.

    Args:
        entries: The methods; the others are compared with the first.
        threshold: Threshold of the automated set.
        n_bins: Bins of every binned metric.
        n_resamples: Bootstrap n_resamples; 0 for none.
        pictures: Whether suspect labels come with their images.
        data_dir: Where image sets lie.
    """
    predictions = [entry.predictions for entry in entries]
    evaluations = [evaluate(each, n_bins, thresholds=(threshold,)) for each in predictions]
    doubts = uncertainties(predictions, evaluations, n_resamples=n_resamples)
    parts = zip(entries, evaluations, doubts, strict=True)
    return [
        _content(*each) | {"pruning": pruning_content(each[0], pictures=pictures, data_dir=data_dir)} for each in parts
    ]


def _content(entry: ReportEntry, evaluation: Evaluation, doubts: Uncertainty) -> dict[str, Any]:
    """One method.

    Confidences travel as sorted float64, with one bit per case that says whether it was right: what the page computes
    at any threshold is exact, not read off a grid.
    """
    predictions = entry.predictions
    order = np.argsort(predictions.confidence, kind="stable")
    metrics = evaluation.values() | {
        "noise_floor": evaluation.noise_floor,
        "noise_floor_95": evaluation.noise_floor_95,
        "mean_confidence": float(predictions.confidence.mean()),
        "mean_accuracy": float(predictions.correct.mean()),
    }
    return {
        "name": entry.name,
        "cases": len(predictions),
        "classes": predictions.n_classes,
        "precision": edge_precision(predictions),
        "confidence": _packed(predictions.confidence[order].astype("<f8")),
        "correct": _packed(np.packbits(predictions.correct[order], bitorder="little")),
        "metrics": {name: _number(value) for name, value in metrics.items()} | _costs(entry.run),
        "intervals": {name: [_number(end) for end in pair] for name, pair in doubts.intervals.items()},
        "verdicts": doubts.verdicts,
    } | _bins(predictions, evaluation.n_bins)


def run_content(run: RunFolder | None) -> dict[str, Any] | None:
    """Recipe and environment as the page shows them; None without a run."""
    if run is None:
        return None
    recipe = run.recipe_path.read_text(encoding="utf-8")
    environment = run.summary.get("environment", {}) if run.finished else {}
    return {
        "recipe": recipe,
        "settings": run.settings,
        "environment": {key: value for key, value in environment.items() if value is not None},
    }


def _costs(run: RunFolder | None) -> dict[str, Any]:
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


def _number(value: float | None) -> float | None:
    """A float; None for NaN and infinity, for which JSON has no word."""
    return None if value is None or not math.isfinite(value) else float(value)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
