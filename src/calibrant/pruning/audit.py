"""What pruning did so far, and which labels may be wrong."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.pruning.table import ScoreTable
from calibrant.tables import Displayed, ShownFields, Table


@dataclass(frozen=True)
class Suspect(ShownFields):
    """A sample whose label may be wrong: the model keeps predicting another class.

    Attributes:
        index: Position in the data set.
        target: The label it carries.
        predicted: The class the model predicted last.
        excess: EMA (bias-corrected) of the top probability minus the label's, in [0, 1].
        confidence: EMA of the top probability.
    """

    index: int
    target: int
    predicted: int
    excess: float
    confidence: float


def find_suspects(table: ScoreTable, labels: NDArray[np.integer], *, limit: int) -> list[Suspect]:
    """The samples with the largest excess among those whose last prediction is not their label; ties by index."""
    predicted = table.column("predicted").astype(np.int64)
    excess = table.corrected("excess")
    doubted = np.flatnonzero((predicted >= 0) & (predicted != labels))
    chosen = doubted[np.argsort(-excess[doubted], kind="stable")[:limit]]
    confidence = table.corrected("confidence")
    return [
        Suspect(int(i), int(labels[i]), int(predicted[i]), round(float(excess[i]), 6), round(float(confidence[i]), 6))
        for i in chosen
    ]


@dataclass(frozen=True)
class Note(ShownFields):
    """Something the pruner refused or could not do, and the epoch when it first happened."""

    epoch: int
    text: str


@dataclass(frozen=True, repr=False)
class PruningReport(Displayed):
    """What pruning did so far.

    Attributes:
        samples: Size of the data set.
        epoch: Finished epochs.
        class_sizes: Samples of each class in the data set.
        class_kept: Samples of each class that train in the coming epoch.
        kept_by_epoch: Samples trained on in each finished epoch.
        seen: Sample updates so far, the sum of `kept_by_epoch`.
        full: What training on all data would have taken.
        notes: Refusals and cuts without effect.
        suspects: Likely wrong labels, the likeliest first.
        seconds: Training time so far, where it was given.
    """

    samples: int
    epoch: int
    class_sizes: list[int]
    class_kept: list[int]
    kept_by_epoch: list[int]
    seen: int
    full: int
    notes: list[Note]
    suspects: list[Suspect]
    seconds: float | None = None

    def _overview(self) -> Table:
        rows: list[tuple[str, object]] = [
            ("trained on in the last epoch", f"{self.kept_by_epoch[-1]:,}" if self.kept_by_epoch else "-"),
            ("in the coming epoch", f"{sum(self.class_kept):,}"),
            ("sample updates", f"{self.seen:,} of {self.full:,}, {self.saved_share:.1%} saved"),
            ("likely wrong labels", len(self.suspects)),
            *((f"epoch {each.epoch}", each.text) for each in self.notes),
        ]
        return Table(f"{self.samples:,} samples, {self.epoch} epochs done", rows)

    @property
    def saved(self) -> int:
        """Sample updates saved, exactly."""
        return self.full - self.seen

    @property
    def saved_share(self) -> float:
        """Sample updates saved as a share of those on all data; 0 before the first epoch."""
        return self.saved / self.full if self.full else 0.0

    @property
    def seconds_saved(self) -> float | None:
        """Estimate of the time saved: the saved updates at the pace of those that were made."""
        return None if self.seconds is None or not self.seen else self.seconds * self.saved / self.seen

    @property
    def class_left(self) -> list[int]:
        """Samples of each class that do not train in the coming epoch."""
        return [size - kept for size, kept in zip(self.class_sizes, self.class_kept, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `json.dump`."""
        derived = {
            "class_left": self.class_left,
            "saved": self.saved,
            "saved_share": self.saved_share,
            "seconds_saved": self.seconds_saved,
        }
        return asdict(self) | derived

    def table(self) -> str:
        """A few lines for people."""
        lines = [
            f"after epoch {self.epoch}: {sum(self.class_kept):,} of {self.samples:,} samples are trained on",
            f"sample updates: {self.seen:,} instead of {self.full:,} ({self.saved_share:.1%} saved)",
        ]
        if self.seconds_saved is not None:
            lines.append(f"time saved: about {self.seconds_saved:,.1f} s")
        lines.append(f"{'class':>8} {'samples':>10} {'kept':>10} {'left':>10}")
        rows = zip(self.class_sizes, self.class_kept, self.class_left, strict=True)
        lines += [f"{k:>8} {size:>10,} {kept:>10,} {left:>10,}" for k, (size, kept, left) in enumerate(rows)]
        lines += [f"epoch {note.epoch}: {note.text}" for note in self.notes]
        lines.append(f"{len(self.suspects)} suspects for wrong labels")
        return "\n".join(lines)
