"""All numbers of the page as plain values: the JSON that the page carries."""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.binning import edge_precision
from calibrant.metrics.intervals import resample_models, share_intervals
from calibrant.metrics.model_comparison import differences
from calibrant.predictions import Predictions
from calibrant.report.entries import ReportEntry, check_images, data_uri
from calibrant.report.summaries import class_names, reliability_bands
from calibrant.runs import PruningAudit, RunFolder, Sample

# A picture with more lines than this cannot be read.
_MOST_LINES = 12
_SUSPECTS = 12


def method_contents(
    entries: Sequence[ReportEntry],
    *,
    threshold: float,
    n_bins: int,
    n_resamples: int,
    pictures: bool = True,
    data_dir: str | Path | None = None,
) -> list[dict[str, Any]]:
    """All numbers of every method as plain values; arguments as in `write_report`."""
    predictions = [entry.predictions for entry in entries]
    evaluations = [evaluate(each, n_bins=n_bins, thresholds=(threshold,)) for each in predictions]
    uncertainty = uncertainties(predictions, evaluations, n_resamples=n_resamples)
    contents = []
    for entry, evaluation, doubts in zip(entries, evaluations, uncertainty, strict=True):
        content = _content(entry, evaluation, doubts)
        content["pruning"] = pruning_content(entry, pictures=pictures, data_dir=data_dir)
        contents.append(content)
    return contents


class Uncertainty(NamedTuple):
    """What chance allows to say about one method.

    `intervals` are of 95 %, `verdicts` are "better" or "worse" than the first method if the data can tell, and `wins`
    names the metrics in which the method is better than every other one.
    """

    intervals: dict[str, tuple[float, float]]
    verdicts: dict[str, str]
    wins: list[str]


def same_cases(a: Predictions, b: Predictions) -> bool:
    """Whether two methods were measured on the same cases in the same order, judged by targets and ids."""
    if a.n_classes != b.n_classes or not np.array_equal(a.targets, b.targets):
        return False
    return a.ids is None or b.ids is None or bool((a.ids.astype(np.str_) == b.ids.astype(np.str_)).all())


def uncertainties(
    methods: Sequence[Predictions], evaluations: Sequence[Evaluation], *, n_resamples: int
) -> list[Uncertainty]:
    """Intervals and verdicts of every method; the same as `evaluate` and `compare` give, in a fraction of the time.

    All methods on the cases of the first see the same draws, so one pass serves the intervals of each and the paired
    difference of each to the first. Methods on other cases are resampled alone and get no verdict. Without resamples
    only shares have intervals (exact ones).
    """
    results = [Uncertainty(share_intervals(evaluation), {}, []) for evaluation in evaluations]
    if not n_resamples:
        return results
    together = [place for place, each in enumerate(methods) if same_cases(methods[0], each)]
    alone = [[place] for place in range(len(methods)) if place not in together]
    for places in (together, *alone):
        resampled = resample_models(
            [methods[place] for place in places],
            [evaluations[place] for place in places],
            n_resamples=n_resamples,
            paired=len(places) > 1,
        )
        for place, draws in zip(places, resampled, strict=True):
            against = [
                {row.name: str(row.verdict) for row in differences(other, draws) if row.verdict != "cannot tell"}
                for other in resampled
                if other is not draws
            ]
            verdicts, wins = {}, []
            if draws is not resampled[0]:
                verdicts = against[0]
            if against:
                wins = [name for name in against[0] if all(each.get(name) == "better" for each in against)]
            results[place] = Uncertainty(draws.intervals(), verdicts, wins)
    return results


def _content(entry: ReportEntry, evaluation: Evaluation, doubts: Uncertainty) -> dict[str, Any]:
    """One method.

    The page gets the sorted confidences as float64 and one bit per case for its correctness, so what it computes at any
    threshold is exact and not read off a grid.
    """
    predictions = entry.predictions
    costs = {}
    if entry.run is not None and entry.run.finished:
        summary = entry.run.summary
        costs = {"samples_seen": summary["samples_seen"], "train_seconds": summary["timing"]["train_seconds"]}
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
        # A metric that is not defined is left out; one without a finite value is None.
        "metrics": {name: _number(value) for name, value in metrics.items() if value is not None} | costs,
        "intervals": {name: [_number(end) for end in pair] for name, pair in doubts.intervals.items()},
        "verdicts": doubts.verdicts,
        "wins": doubts.wins,
    } | _bins(predictions, evaluation.n_bins)


def run_content(run: RunFolder | None) -> dict[str, Any] | None:
    """Recipe and environment as the page shows them; None without a run."""
    if run is None:
        return None
    environment = {}
    if run.finished:
        environment = run.summary.get("environment", {})
    return {
        "recipe": run.recipe_path.read_text(encoding="utf-8"),
        "settings": run.settings,
        "environment": {key: value for key, value in environment.items() if value is not None},
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
    """A float; None for NaN and infinity, which JSON does not have."""
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def pruning_content(
    entry: ReportEntry, *, pictures: bool = True, data_dir: str | Path | None = None
) -> dict[str, Any] | None:
    """Kept shares over epochs and likely wrong labels; None if nothing was pruned or nothing is known."""
    audit = None if entry.run is None else entry.run.audit()
    if audit is None:
        return None
    names = list(class_names(entry.predictions))
    if len(names) != len(audit.class_sizes):  # the predictions are about other classes
        names = [str(k) for k in range(len(audit.class_sizes))]
    trained = audit.kept_counts.sum(axis=1)
    full = len(audit.kept_counts) * int(audit.class_sizes.sum())
    return {
        "epochs": list(range(1, len(trained) + 1)),
        "overall": (trained / audit.class_sizes.sum()).tolist(),
        **_kept_lines(audit, names),
        "samples": int(audit.class_sizes.sum()),
        "kept_last": int(trained[-1]),
        "seen": int(trained.sum()),
        "full": full,
        "saved_share": 1 - int(trained.sum()) / full,
        "suspects": _suspects(entry, audit, names, pictures=pictures, data_dir=data_dir),
    }


def _kept_lines(audit: PruningAudit, names: list[str]) -> dict[str, Any]:
    """One line per class, or the lowest and the highest of many classes."""
    present = np.flatnonzero(audit.class_sizes)
    share = audit.kept_share[:, present]
    if len(present) <= _MOST_LINES:
        return {"names": [names[k] for k in present], "classes": share.T.tolist()}
    ends = [share.min(axis=1).tolist(), share.max(axis=1).tolist()]
    return {"names": [f"lowest of {len(present)} classes", f"highest of {len(present)} classes"], "classes": ends}


def _suspects(
    entry: ReportEntry, audit: PruningAudit, names: list[str], *, pictures: bool, data_dir: str | Path | None
) -> list[dict[str, Any]]:
    """Samples whose label the model kept contradicting, the most confident contradiction first."""
    doubtful = np.flatnonzero((audit.predicted >= 0) & (audit.predicted != audit.target) & (audit.excess > 0))
    doubtful = doubtful[np.argsort(-audit.excess[doubtful], kind="stable")[:_SUSPECTS]]
    samples: Sequence[Sample | None] | None = None
    if entry.run is not None:
        samples = entry.run.training_samples(audit.target, doubtful, data_dir)
    suspects = []
    for i, sample in zip(doubtful, samples or [None] * len(doubtful), strict=True):
        identity, picture = f"sample {audit.index[i]}", None
        if sample is not None:
            identity = sample.identity
        if sample is not None and pictures:
            picture = data_uri(check_images(sample.image[None], 1)[0])
        suspects.append(
            {
                "index": int(audit.index[i]),
                "identity": identity,
                "picture": picture,
                "label": names[audit.target[i]],
                "predicted": names[audit.predicted[i]],
                "excess": float(audit.excess[i]),
                "score": float(audit.score[i]),
                "left": int(audit.left[i]),
            }
        )
    return suspects
