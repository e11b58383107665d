"""`Predictions`: scores and targets of one model on one set of rows, checked once."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from calibrant.checks import fraction
from calibrant.defaults import Kind
from calibrant.errors import InvalidInput, invalid, naming
from calibrant.predictions import checks
from calibrant.predictions.checks import Precision
from calibrant.predictions.display import predictions_html
from calibrant.predictions.on_disk import OnDisk
from calibrant.predictions.origin import Origin, RowsPart
from calibrant.predictions.rows import (
    Rows,
    check_rows,
    chunks,
    load_chunk,
    logits_of,
    probabilities_of,
    read_chunk,
)

Scores = ArrayLike | torch.Tensor


class Predictions:
    """What a model said about n rows of K classes, and what was true.

    Made by `from_logits`, `from_probabilities` or `load`; whether scores are logits or probabilities is never guessed.
    Scores are not copied and keep their type; confidences are computed in float64, chunk by chunk.

    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    >>> predictions.confidence.tolist(), predictions.correct.tolist()
    ([0.9, 0.6], [True, False])
    """

    _kind: Kind
    _precision: Precision
    _scores: NDArray[Any] | OnDisk
    _targets: NDArray[np.int64]
    _ids: NDArray[Any] | Callable[[], NDArray[Any]] | None
    _class_names: tuple[str, ...] | None
    _extras: Mapping[str, NDArray[Any]]
    origin: Origin = Origin()
    """Where these rows come from, as far as that is known."""
    _repr_html_ = predictions_html

    def __init__(self, *_: object, **__: object) -> None:
        raise InvalidInput("Predictions must say what its scores are: use from_logits, from_probabilities or load.")

    @classmethod
    def from_logits(
        cls,
        logits: Scores,
        targets: Scores,
        *,
        ids: Any = None,
        class_names: Sequence[str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Scores before the softmax.

        Args:
            logits: Shape (n, K), finite; NumPy, torch or lists; float16, bfloat16, float32 or float64.
            targets: Shape (n,), integers in 0..K-1.
            ids: Optionally one distinct string or integer per row.
            class_names: Optionally one distinct name per class.
            extras: Optionally other columns by name, one number or string per row: groups, weights.
        """
        return cls._make("logits", logits, targets, ids, class_names, extras)

    @classmethod
    def from_probabilities(
        cls,
        probabilities: Scores,
        targets: Scores,
        *,
        ids: Any = None,
        class_names: Sequence[str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Scores after the softmax.

        Args:
            probabilities: Shape (n, K), not negative; rows sum to 1 within 1e-4 (float16: 1e-3, bfloat16: 5e-3).
                They are used as they are, never renormalised.
            targets: Shape (n,), integers in 0..K-1.
            ids: Optionally one distinct string or integer per row.
            class_names: Optionally one distinct name per class.
            extras: Optionally other columns by name, one number or string per row: groups, weights.
        """
        return cls._make("probabilities", probabilities, targets, ids, class_names, extras)

    @classmethod
    def from_binary(
        cls,
        scores: Scores,
        targets: Scores,
        *,
        kind: Kind,
        ids: Any = None,
        class_names: Sequence[str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """One logit or one probability per row, that of class 1, as models of two classes give it.

        Args:
            scores: Shape (n,) or (n, 1): the logit of class 1 (class 0 gets 0) or its probability.
            targets: Shape (n,), 0 or 1.
            kind: What they are: "logits" or "probabilities". It is never guessed.
            ids: As in `from_logits`, like `class_names` and `extras`.
            class_names: Those of class 0 and class 1.
            extras: Other columns.

        >>> Predictions.from_binary([0.2, 0.9], [0, 1], kind="probabilities").probabilities.round(1).tolist()
        [[0.8, 0.2], [0.1, 0.9]]
        """
        return cls._make(kind, checks.both_classes(scores, kind), targets, ids, class_names, extras)

    @classmethod
    def _make(
        cls,
        kind: Kind,
        scores: Any,
        targets: Any,
        ids: Any,
        class_names: Any,
        extras: Any,
        precision: Precision | None = None,
    ) -> Self:
        """Check all parts and put them together; `precision` only where it is not that of the scores."""
        values, own_precision = checks.as_scores(kind, scores, kind)
        rows, classes = values.shape
        self = cls._join(
            kind,
            precision or own_precision,
            values,
            checks.as_targets(targets, rows, classes),
            checks.as_ids(ids, rows),
            checks.as_class_names(class_names, classes),
            checks.as_extras(extras, rows),
        )
        _ = self._rows  # reads the scores, which checks their values
        if kind == "logits":
            checks.warn_if_probabilities(values, stacklevel=4)
        return self

    @classmethod
    def _join(
        cls,
        kind: Kind,
        precision: Precision,
        scores: NDArray[Any] | OnDisk,
        targets: NDArray[np.int64],
        ids: NDArray[Any] | Callable[[], NDArray[Any]] | None,
        class_names: tuple[str, ...] | None,
        extras: Mapping[str, NDArray[Any]],
    ) -> Self:
        """Put checked parts together."""
        self = cls.__new__(cls)
        self._kind, self._precision, self._scores = kind, precision, scores
        self._targets, self._ids, self._class_names, self._extras = targets, ids, class_names, extras
        return self

    @cached_property
    def _rows(self) -> Rows:
        return check_rows(self._scores, self._targets, self._kind, self._precision)

    def __len__(self) -> int:
        return int(self._scores.shape[0])

    def __repr__(self) -> str:
        return f"Predictions({len(self)} rows, {self.n_classes} classes, from {self._kind} in {self._precision})"

    @property
    def kind(self) -> Kind:
        """What the scores are: "logits" or "probabilities"."""
        return self._kind

    @property
    def precision(self) -> Precision:
        """The type that the scores came in."""
        return self._precision

    @property
    def scores(self) -> NDArray[Any]:
        """The (n, K) scores as given, read-only; bfloat16 is held as float32.

        Scores that were left on disk are all read; see `read_scores` for some of them.
        """
        view = self._scores[:].view()
        view.flags.writeable = False
        return view

    def read_scores(self, rows: slice) -> NDArray[Any]:
        """The scores of some rows as given."""
        return self._scores[rows]

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self._scores.shape[1])

    @property
    def targets(self) -> NDArray[np.int64]:
        """True classes, shape (n,)."""
        return self._targets

    @property
    def ids(self) -> NDArray[Any] | None:
        """One name or number per row, or None."""
        return self._ids() if callable(self._ids) else self._ids

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """One name per class, or None."""
        return self._class_names

    @property
    def extras(self) -> Mapping[str, NDArray[Any]]:
        """Other columns by name, one number or string per row: groups, weights; read-only."""
        return MappingProxyType(self._extras)

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Top probability of each row, float64, read-only."""
        return self._rows.confidence

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The class with the top probability (the first of them on a tie)."""
        return self._rows.predicted

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the prediction is the target."""
        return np.asarray(self._rows.predicted == self._targets)

    @property
    def nll(self) -> NDArray[np.float64]:
        """Minus the log probability of the target, row by row; infinite where that probability is 0."""
        return self._rows.nll

    @property
    def logits(self) -> NDArray[Any]:
        """The logits as given; an error for probabilities, whose logits are not known."""
        if self._kind == "logits":
            return self.scores
        raise InvalidInput(
            "logits are not in these predictions: they were made from probabilities. Use log_probabilities."
        )

    def as_logits(self) -> NDArray[Any]:
        """The logits, or the logarithm of the probabilities with 0 raised to the smallest number of their precision.

        >>> Predictions.from_probabilities([[1.0, 0.0]], [0]).as_logits().round(1).tolist()
        [[0.0, -744.4]]
        """
        return logits_of(self.scores, self._kind, self._precision)

    def with_logits(self, logits: Scores) -> Self:
        """The same rows, targets, ids, class names and extras with other scores, which are logits."""
        return self.from_logits(logits, self._targets, ids=self.ids, class_names=self._class_names, extras=self._extras)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """All probabilities as a new float64 array of shape (n, K); see `chunks` for sets too large for that."""
        return probabilities_of(self._scores[:], self._kind)

    @property
    def log_probabilities(self) -> NDArray[np.float64]:
        """Log probabilities, a new float64 array of shape (n, K); minus infinity where a probability is 0."""
        wide = torch.from_numpy(np.array(self._scores[:], dtype=np.float64))
        logs: NDArray[np.float64] = (wide.log_softmax(dim=1) if self._kind == "logits" else wide.log()).numpy()
        return logs

    def chunks(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Walk through the rows: a slice of row numbers and the float64 probabilities of these rows.

        The arrays may be written to. A file that was opened with `mmap` is read once: rows are checked on the way.
        """
        known: Rows | None = self.__dict__.get("_rows")
        found = Rows.of(self._kind, len(self)) if known is None else known
        for part, rows, probabilities in self.walk():
            if known is None:
                found.fill(part, rows)
            yield part, probabilities
        self.__dict__["_rows"] = found.frozen()

    def walk(self) -> Iterator[tuple[slice, Rows, NDArray[np.float64]]]:
        """Walk as `chunks` does, with what is known of each row, and keep nothing of it.

        For sets so large that a few numbers per row are too many: confidences come in the type of the scores.
        """
        known: Rows | None = self.__dict__.get("_rows")
        for part in chunks(len(self), self.n_classes):
            chunk = load_chunk(self._scores, part)
            if known is None:
                rows = read_chunk(chunk, self._targets, self._kind, self._precision, part)
            else:
                rows = known.subset(part)
            yield part, rows, probabilities_of(chunk, self._kind)

    def subset(self, mask: Any) -> Self:
        """Some of the rows: a boolean mask, or row numbers in the order wanted.

        >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        >>> len(predictions.subset(predictions.confidence > 0.8))
        1
        """
        rows = checks.as_rows(mask, len(self))
        part = self._join(
            self._kind,
            self._precision,
            self._scores[rows],
            self._targets[rows],
            None if self.ids is None else checks.as_ids(self.ids[rows], len(rows)),
            self._class_names,
            checks.as_extras({name: values[rows] for name, values in self._extras.items()}, len(rows)),
        )
        part.__dict__["_rows"] = self._rows.subset(rows)
        part.origin = Origin(calibrated_by=self.origin.calibrated_by)
        return part

    def split(self, share: float, *, seed: int = 0) -> tuple[Self, Self]:
        """Two random parts, each in the order of the rows: what one was used for, the other has not seen.

        Args:
            share: The first part's share of the rows, above 0 and below 1; each part gets at least one row.
            seed: Of the random choice.

        >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]], [0, 1, 0])
        >>> [len(part) for part in predictions.split(0.5)]
        [1, 2]
        """
        fraction("share", share)
        if len(self) < 2:
            raise invalid("predictions", "have at least 2 cases to be split", len(self))
        # Rounded, halves down: half of seven cases is three.
        first = min(max(math.ceil(share * len(self) - 0.5), 1), len(self) - 1)
        order = np.random.default_rng(seed).permutation(len(self))
        parts = self.subset(np.sort(order[:first])), self.subset(np.sort(order[first:]))
        if self.origin.path is not None and self.origin.part is None:
            for index, part in enumerate(parts):
                part.origin = replace(self.origin, part=RowsPart(share, seed, index))
        return parts

    def save(self, path: str | Path) -> None:
        """Write a `.npz` without pickle, or a table by its ending: `.csv`, `.parquet`. All or nothing."""
        from calibrant.predictions.files import save

        save(self, path)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        kind: Kind | None = None,
        columns: Mapping[str, str] | None = None,
        class_names: Sequence[str] | None = None,
        mmap: bool | Literal["auto"] = False,
    ) -> Self:
        """Read what `save` wrote, or files made elsewhere; see `scan` for what they hold. Targets must be there.

        Args:
            source: `.npz`, `.csv` or `.parquet`, or a folder or pattern of Parquet files.
            kind: What the scores are, for a file that does not say.
            columns: Where the target and the id have other names: `{"target": "label", "id": "case"}`.
            class_names: Names of the classes, in the order wanted.
            mmap: Leave scores, ids and extras on disk, for files larger than memory; "auto" does so for large ones. An
                uncompressed `.npz` is read in place; everything else is unpacked into a temporary file first. Scores
                are then checked when they are first read.
        """
        from calibrant.predictions.files import load
        from calibrant.predictions.reader import scan

        with naming(source):
            opened = scan(source, kind=kind, columns=columns, class_names=class_names)
            on_disk = opened.is_large if mmap == "auto" else mmap
            found = load(opened, mmap=on_disk)
            parts = found.scores, found.targets, found.ids, opened.class_names, found.extras
            if on_disk:
                self = cls._join(opened.kind, opened.precision, *parts)
            else:
                self = cls._make(opened.kind, *parts, opened.precision)
        self.origin = Origin(Path(source))
        return self
