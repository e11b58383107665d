"""All that the page says about each method: as values for its template, and as the JSON that its scripts read."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.binning import bin_edges, edge_precision
from calibrant.report.comparison_table import Compared, compared
from calibrant.report.entries import ReportEntry, check_images, data_uri
from calibrant.report.judged import Shown
from calibrant.report.summaries import (
    Mistake,
    automated,
    class_names,
    confident_mistakes,
    largest_tie,
    reliability_bands,
    worst_classes,
)
from calibrant.report.wording import DASH, fixed, headline, percent
from calibrant.runs import PruningAudit, RunFolder, Sample

# A picture with more lines than this cannot be read.
_MOST_LINES = 12
_SUSPECTS = 12
# Rows of the table beside the threshold chart.
_LADDER = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.999)


def method_contents(
    shown: Sequence[Shown],
    *,
    threshold: float,
    n_bins: int,
    n_resamples: int,
    pictures: bool = True,
    data_dir: str | Path | None = None,
) -> list[dict[str, Any]]:
    """All that the page says about every method; arguments as in `write_report`."""
    cases = [each.entry.predictions for each in shown]
    evaluations = [evaluate(predictions, n_bins=n_bins, thresholds=(threshold,)) for predictions in cases]
    numbers = compared(cases, evaluations, n_resamples=n_resamples)
    by_name = {each.entry.name: evaluation for each, evaluation in zip(shown, evaluations, strict=True)}
    contents = []
    for each, evaluation, of_method in zip(shown, evaluations, numbers, strict=True):
        _add_promises_and_costs(of_method, each)
        content = _content(each, evaluation, threshold)
        content["compared"] = of_method
        content["calibration"] = ""
        if each.raw_name is not None:
            content["calibration"] = _calibration(each.calibration, by_name[each.raw_name], evaluation)
        content["pictures"] = _mistake_pictures(each.entry, content["mistakes"], data_dir) if pictures else {}
        content["pruning"] = pruning_content(each.entry, pictures=pictures, data_dir=data_dir)
        contents.append(content)
    return contents


def script_content(content: dict[str, Any]) -> dict[str, Any]:
    """What the scripts of the page read of one method, as plain values.

    They get the sorted confidences as float64 and one bit per case for its correctness, so what they compute at any
    threshold is exact and not read off a grid.
    """
    predictions, pruning = content["predictions"], content["pruning"]
    if pruning is not None:
        pruning = {name: pruning[name] for name in ("epochs", "overall", "classes", "names")}
    order = np.argsort(predictions.confidence, kind="stable")
    return {
        **{name: content[name] for name in ("name", "bins", "edges")},
        "pruning": pruning,
        "rule_threshold": content["shown"].threshold,
        "promises_nothing": content["shown"].promises_nothing,
        "precision": edge_precision(predictions),
        "confidence": _packed(predictions.confidence[order].astype("<f8")),
        "correct": _packed(np.packbits(predictions.correct[order], bitorder="little")),
    }


def _add_promises_and_costs(numbers: Compared, shown: Shown) -> None:
    """Add what the comparison table shows beside metrics."""
    for target, (share, interval_of_share) in shown.promised.items():
        numbers.values[f"promised@{target:g}"] = share
        if interval_of_share:
            numbers.intervals[f"promised@{target:g}"] = interval_of_share
    run = shown.entry.run
    if run is not None and run.finished:
        summary = run.summary
        numbers.values["samples_seen"] = summary["samples_seen"]
        numbers.values["train_seconds"] = summary["timing"]["train_seconds"]


def _content(shown: Shown, evaluation: Evaluation, threshold: float) -> dict[str, Any]:
    entry, n_bins = shown.entry, evaluation.n_bins
    predictions = entry.predictions
    result = automated(predictions, threshold, n_bins=n_bins)
    bands = reliability_bands(predictions, n_bins)
    bins = zip(*(values.tolist() for values in bands), strict=True)
    return {
        "name": entry.name,
        "predictions": predictions,
        "cases": len(predictions),
        "classes": predictions.n_classes,
        "shown": shown,
        "headline": lambda name: headline(name, result),
        "result": result,
        "ladder": [automated(predictions, step, n_bins=n_bins) for step in _LADDER],
        "evaluation": evaluation,
        "mean_confidence": float(predictions.confidence.mean()),
        "accuracy": float(predictions.correct.mean()),
        "edges": bin_edges(n_bins, edge_precision(predictions)).tolist(),
        "bins": [dict(zip(bands._fields, values, strict=True)) for values in bins],
        "tie": largest_tie(predictions),
        "worst_classes": worst_classes(predictions, threshold=threshold),
        "mistakes": confident_mistakes(predictions),
        "wrong": int((~predictions.correct).sum()),
        "run": run_content(entry.run),
    }


def _calibration(calibrated_by: str, before: Evaluation, after: Evaluation) -> str:
    """What calibration did to a method, in one sentence."""
    text = f"Calibrated by {calibrated_by}: ECE {percent(before.ece, 2)} before and {percent(after.ece, 2)} after"
    if before.nll is None:  # of a class and a score
        return f"{text}."
    nll = [DASH if each.nll is None or np.isinf(each.nll) else fixed(each.nll, 3) for each in (before, after)]
    return f"{text}, NLL {nll[0]} before and {nll[1]} after."


def _mistake_pictures(entry: ReportEntry, mistakes: Sequence[Mistake], data_dir: str | Path | None) -> dict[int, str]:
    """The images of mistakes by row, if they are at hand."""
    images = entry.images
    if images is None and entry.run is not None:
        images = entry.run.test_images(entry.predictions.targets, data_dir)
    if images is None:
        return {}
    images = check_images(images, len(entry.predictions), f"images of {entry.name!r}")
    return {mistake.row: data_uri(images[mistake.row]) for mistake in mistakes}


def run_content(run: RunFolder | None) -> dict[str, Any] | None:
    """Recipe and environment as the page shows them; None without a run."""
    if run is None:
        return None
    environment = {}
    if run.finished:
        known = run.summary.get("environment", {})
        environment = {key: value for key, value in known.items() if value is not None}
    return {"recipe": run.recipe_path.read_text(encoding="utf-8"), "environment": environment}


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
    samples = int(audit.class_sizes.sum())
    full = len(audit.kept_counts) * samples
    present = np.flatnonzero(audit.class_sizes)
    share = audit.kept_share[:, present]
    lines, line_names = share.T.tolist(), [names[k] for k in present]
    if len(present) > _MOST_LINES:
        lines = [share.min(axis=1).tolist(), share.max(axis=1).tolist()]
        line_names = [f"lowest of {len(present)} classes", f"highest of {len(present)} classes"]
    return {
        "epochs": list(range(1, len(trained) + 1)),
        "overall": (trained / samples).tolist(),
        "names": line_names,
        "classes": lines,
        "samples": samples,
        "kept_last": int(trained[-1]),
        "seen": int(trained.sum()),
        "full": full,
        "saved_share": 1 - int(trained.sum()) / full,
        "suspects": _suspects(entry, audit, names, pictures=pictures, data_dir=data_dir),
    }


def _suspects(
    entry: ReportEntry, audit: PruningAudit, names: list[str], *, pictures: bool, data_dir: str | Path | None
) -> list[dict[str, Any]]:
    """Samples whose label the model kept contradicting, the most confident contradiction first."""
    doubtful = audit.suspects(_SUSPECTS)
    samples: Sequence[Sample | None] | None = None
    if entry.run is not None:
        samples = entry.run.training_samples(audit.target, doubtful, data_dir)
    suspects = []
    for i, sample in zip(doubtful, samples or [None] * len(doubtful), strict=True):
        identity, picture = f"sample {i}", None
        if sample is not None:
            identity = sample.identity
        if sample is not None and pictures:
            picture = data_uri(check_images(sample.image[None], 1)[0])
        suspects.append(
            {
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
