"""What pruning left out in a run, as plain values for the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.report.entries import ReportEntry
from calibrant.report.tables import class_names
from calibrant.report.thumbnails import check_images, data_uri
from calibrant.runs import PruningAudit, RunFolder, Sample

# More lines than this cannot be told apart; then the lowest and the highest class stand for all.
_LINES = 12
_SUSPECTS = 12


def pruning_content(
    entry: ReportEntry, *, pictures: bool = True, data_dir: str | Path | None = None
) -> dict[str, Any] | None:
    """Kept shares over epochs and likely wrong labels; None where nothing was pruned or nothing is known."""
    audit = None if entry.run is None else entry.run.audit()
    if entry.run is None or audit is None:
        return None
    names = names_of(entry, len(audit.class_sizes))
    trained = audit.kept_counts.sum(axis=1)
    full = len(audit.kept_counts) * int(audit.class_sizes.sum())
    return {
        "epochs": list(range(1, len(trained) + 1)),
        "overall": (trained / audit.class_sizes.sum()).tolist(),
        **_lines(audit, names),
        "samples": int(audit.class_sizes.sum()),
        "kept_last": int(trained[-1]),
        "seen": int(trained.sum()),
        "full": full,
        "saved_share": 1 - int(trained.sum()) / full,
        "suspects": _suspects(audit, names, _wanted(entry.run, audit, data_dir), pictures),
    }


def _lines(audit: PruningAudit, names: list[str]) -> dict[str, Any]:
    present = np.flatnonzero(audit.class_sizes)
    share = audit.kept_share[:, present]
    if len(present) <= _LINES:
        return {"names": [names[k] for k in present], "classes": share.T.tolist()}
    ends = [share.min(axis=1).tolist(), share.max(axis=1).tolist()]
    return {"names": [f"lowest of {len(present)} classes", f"highest of {len(present)} classes"], "classes": ends}


def _doubtful(audit: PruningAudit) -> NDArray[np.int64]:
    """Samples whose label the model kept contradicting, the surest first."""
    found = np.flatnonzero((audit.predicted >= 0) & (audit.predicted != audit.target) & (audit.excess > 0))
    return found[np.argsort(-audit.excess[found], kind="stable")[:_SUSPECTS]]


def _wanted(run: RunFolder, audit: PruningAudit, data_dir: str | Path | None) -> Sequence[Sample | None]:
    order = _doubtful(audit)
    return run.training_samples(audit.target, order, data_dir) or [None] * len(order)


def _suspects(
    audit: PruningAudit, names: list[str], samples: Sequence[Sample | None], pictures: bool
) -> list[dict[str, Any]]:
    return [
        {
            "index": int(audit.index[i]),
            "identity": f"sample {audit.index[i]}" if sample is None else sample.identity,
            "picture": None if sample is None or not pictures else data_uri(check_images(sample.image[None], 1)[0]),
            "label": names[audit.target[i]],
            "predicted": names[audit.predicted[i]],
            "excess": float(audit.excess[i]),
            "score": float(audit.score[i]),
            "left": int(audit.left[i]),
        }
        for i, sample in zip(_doubtful(audit), samples, strict=True)
    ]


def names_of(entry: ReportEntry, n_classes: int) -> list[str]:
    """Names of a run's classes: those of the predictions where there are as many, else their numbers."""
    names = class_names(entry.predictions)
    return list(names) if len(names) == n_classes else [str(k) for k in range(n_classes)]
