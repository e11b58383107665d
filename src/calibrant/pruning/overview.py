"""What pruning did so far, put together from the scores and the state."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.pruning.audit import PruningReport, Suspect
from calibrant.pruning.state import PruningState
from calibrant.pruning.table import ScoreTable
from calibrant.runs import PruningAudit


def report_of(
    state: PruningState, sizes: Sequence[int], suspects: list[Suspect], *, seconds: float | None
) -> PruningReport:
    """The report for a person; `sizes` are those of the classes in the full set."""
    by_epoch = [sum(trained) for trained in state.history]
    return PruningReport(
        samples=len(state.labels),
        epoch=state.epoch,
        class_sizes=list(sizes),
        class_kept=list(state.kept_sizes),
        kept_by_epoch=by_epoch,
        seen=sum(by_epoch),
        full=len(state.labels) * state.epoch,
        notes=list(state.notes),
        suspects=suspects,
        seconds=seconds,
    )


def audit_of(table: ScoreTable, state: PruningState, sizes: Sequence[int], settings: dict[str, Any]) -> PruningAudit:
    """The whole record, sample by sample."""
    return PruningAudit(
        index=np.arange(len(state.labels)),
        target=state.labels.copy(),
        left=state.left.astype(np.int64),
        score=table.confidence(),
        excess=table.column("excess"),
        predicted=table.column("predicted").astype(np.int64),
        count=table.column("count").astype(np.int64),
        kept=state.mask().copy(),
        kept_counts=np.array(state.history, dtype=np.int64).reshape(-1, state.n_classes),
        class_sizes=np.array(sizes, dtype=np.int64),
        settings=settings,
    )
