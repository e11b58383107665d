"""What pruning left out in a run, as plain values for the page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.samples import Sample, training_samples
from calibrant.report.thumbnails import check_images, data_uri

if TYPE_CHECKING:
    from calibrant.pruning import PruningAudit
    from calibrant.training import Run

# More lines than this cannot be told apart; then the lowest and the highest class stand for all.
_LINES = 12
_SUSPECTS = 12


def audit_of(run: "Run | None") -> "PruningAudit | None":
    """The audit of a run; None where nothing was pruned or nothing is known."""
    if run is None or not run.pruning_path.is_file():
        return None
    from calibrant.pruning import load_audit

    audit = load_audit(run.pruning_path)
    everything = bool((audit.kept_counts == audit.class_sizes).all())
    return None if everything or not len(audit.kept_counts) else audit


def pruning_content(run: "Run | None", *, pictures: bool = True) -> dict[str, Any] | None:
    """Kept shares over epochs and likely wrong labels; None where nothing was pruned or nothing is known."""
    audit = audit_of(run)
    if run is None or audit is None:
        return None
    names = names_of(run, len(audit.class_sizes))
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
        "suspects": _suspects(run, audit, names, pictures),
    }


def _lines(audit: "PruningAudit", names: list[str]) -> dict[str, Any]:
    present = np.flatnonzero(audit.class_sizes)
    share = audit.kept_share[:, present]
    if len(present) <= _LINES:
        return {"names": [names[k] for k in present], "classes": share.T.tolist()}
    ends = [share.min(axis=1).tolist(), share.max(axis=1).tolist()]
    return {"names": [f"lowest of {len(present)} classes", f"highest of {len(present)} classes"], "classes": ends}


def _suspects(run: "Run", audit: "PruningAudit", names: list[str], pictures: bool) -> list[dict[str, Any]]:
    """Samples whose label the model kept contradicting, the surest first."""
    doubtful = np.flatnonzero((audit.predicted >= 0) & (audit.predicted != audit.target) & (audit.excess > 0))
    order = doubtful[np.argsort(-audit.excess[doubtful], kind="stable")[:_SUSPECTS]]
    samples: Sequence[Sample | None] = training_samples(run, audit.target, order) or [None] * len(order)
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
        for i, sample in zip(order, samples, strict=True)
    ]


def names_of(run: "Run", classes: int) -> list[str]:
    """Names of a run's classes: those of its test predictions where there are as many, else their numbers."""
    from calibrant.report.tables import class_names

    if run.predictions_path("test").is_file():
        names = class_names(run.predictions("test"))
        if len(names) == classes:
            return list(names)
    return [str(k) for k in range(classes)]
