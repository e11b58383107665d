"""`Predictions`: scores and targets of one model on one set of rows, checked once."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import as_array, fraction, whole
from calibrant.defaults import Kind
from calibrant.errors import CalibrantWarning, InvalidInput, did_you_mean, invalid, naming
from calibrant.files import as_path, atomic_write, sha256_of
from calibrant.predictions.columns import (
    as_class_names,
    as_extras,
    as_ids,
    as_labels,
    as_rows,
    as_targets,
    class_order,
    columns_in_order,
    names_or_numbers,
)
from calibrant.predictions.npz import CALIBRATED_BY, calibrated_by
from calibrant.predictions.reader import Scan, load_content, opened_scan, prediction_files, scan
from calibrant.predictions.readings import RIGHT_OR_WRONG, Request, check_columns, shortened
from calibrant.predictions.rows import (
    OnDisk,
    Precision,
    Rows,
    as_scores,
    as_top_scores,
    both_classes,
    check_rows,
    chunks,
    load_chunk,
    logits_of,
    probabilities_of,
    read_chunk,
    warn_if_probabilities,
)
from calibrant.predictions.table_files import FrameSource, arrow_table, table_writer

# Fewer rows than this can all be wrong, and so many standard errors below chance are no chance.
_FEWEST_TO_DOUBT = 30
_STANDARD_ERRORS = 5.0
_PREFIX: dict[Kind, str] = {"logits": "logit_", "probabilities": "probability_"}


@dataclass(frozen=True)
class RowsPart:
    """One of the two parts that `Predictions.split` makes.

    Attributes:
        share: The first part's share of the rows.
        seed: Seed of the random choice.
        index: 0 for the first part, 1 for the rest.
        clusters: The column whose equal values stayed in one part; None if rows were split one by one.
    """

    share: float
    seed: int
    index: int
    clusters: str | None = None


@dataclass(frozen=True)
class Origin:
    """The file that predictions were read from, and what was done to them. Everything unknown is None.

    A calibrator or a rule that is fitted on the predictions records it.

    Attributes:
        path: The file; None for predictions made in memory, and for rows of a file that were picked by hand.
        part: The part of its rows; None for all of them.
        calibrated_by: Digest of the calibrator that computed the scores from those in the file; None if there is none.
    """

    path: Path | None = None
    part: RowsPart | None = None
    calibrated_by: str | None = None

    @cached_property
    def sha256(self) -> str | None:
        """Digest of the file, or of the digests of the files of a folder. It is computed on first use."""
        if self.path is None:
            return None
        if self.path.is_file():
            return sha256_of(self.path)
        digests = "".join(sha256_of(file) for file in prediction_files(self.path))
        return hashlib.sha256(digests.encode()).hexdigest()

    def is_file(self, digest: str | None) -> bool:
        """Whether these are all rows of the file with this digest. A part of it may be other rows than those meant."""
        return digest is not None and self.part is None and self.sha256 == digest


class Predictions:
    """Scores of a model for n rows and K classes, with the true classes.

    Use `from_logits`, `from_probabilities`, `from_binary`, `from_confidence`, `from_frame` or `load` to make one: what
    the scores are is never guessed. Scores are not copied and keep their type. Confidences are computed in float64,
    chunk by chunk.

    >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    >>> predictions.confidence.tolist(), predictions.correct.tolist()
    ([0.9, 0.6], [True, False])
    """

    kind: Kind
    """What the scores are: "logits", "probabilities", or of the predicted class alone "confidence" or "score"."""
    precision: Precision
    """Type of the scores as they were passed."""
    class_names: tuple[str, ...] | None
    """One name per class, or None."""
    n_classes: int
    """Number of classes K."""
    has_targets: bool = True
    """Whether the true classes are known."""
    _scores: NDArray[Any] | OnDisk
    _targets: NDArray[np.int64]
    _answers: NDArray[np.int64] | None = None  # the predicted classes, for a class and a score
    _ids: NDArray[Any] | Callable[[], NDArray[Any]] | None
    _extras: Mapping[str, NDArray[Any]]
    origin: Origin = Origin()
    """The file that these rows come from, as far as it is known."""

    def __init__(self, *_: object, **__: object) -> None:
        raise InvalidInput("Use Predictions.from_logits, from_probabilities or load: they say what the scores are.")

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        targets: Any,
        *,
        ids: Any = None,
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make predictions from scores before the softmax.

        Args:
            logits: Shape (n, K), finite; NumPy, torch or lists; float16, bfloat16, float32 or float64.
            targets: Shape (n,), integers in 0..K-1, or class names.
            ids: One distinct string or integer per row.
            class_names: One distinct name per class; or a mapping of numbers to names, such as `id2label`.
            extras: Other columns by name, one number or string per row, such as groups or weights.
        """
        return cls._make("logits", logits, targets, ids, class_names, extras)

    @classmethod
    def from_probabilities(
        cls,
        probabilities: Any,
        targets: Any,
        *,
        ids: Any = None,
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make predictions from scores after the softmax, shape (n, K). Other arguments are those of `from_logits`.

        Probabilities are not negative, and rows sum to 1 within 1e-4 (float16: 1e-3, bfloat16: 5e-3). They are used as
        they are, never renormalised.
        """
        return cls._make("probabilities", probabilities, targets, ids, class_names, extras)

    @classmethod
    def from_binary(
        cls,
        scores: Any,
        targets: Any,
        *,
        kind: Kind,
        ids: Any = None,
        class_names: Sequence[str] | Mapping[Any, str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make predictions of two classes from one score per row, that of class 1.

        `scores` have the shape (n,) or (n, 1). `kind` says whether they are logits (class 0 gets 0) or probabilities.
        Other arguments are those of `from_logits`.

        >>> Predictions.from_binary([0.2, 0.9], [0, 1], kind="probabilities").probabilities.round(1).tolist()
        [[0.8, 0.2], [0.1, 0.9]]
        """
        return cls._make(kind, both_classes(scores, kind), targets, ids, class_names, extras)

    @classmethod
    def from_confidence(
        cls,
        predicted: Any,
        confidence: Any,
        targets: Any = None,
        *,
        kind: Literal["confidence", "score"] = "confidence",
        classes: Sequence[str] | Mapping[Any, str] | None = None,
        ids: Any = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make predictions of a system that names a class and a score.

        Metrics of the predicted class, calibrators, rules, reports and the monitor work with them. What needs the
        scores of all classes (NLL, Brier score) raises an error; shortlists need further candidates in `extras`.

        Args:
            predicted: Shape (n,): the predicted classes, as names or numbers.
            confidence: Shape (n,): a number in 0..1; with `kind="score"` any finite number that is only ranked.
            targets: Shape (n,): the true classes; None if they are not known.
            kind: "confidence" or "score".
            classes: Names of the classes. Default: all names that occur.
            ids: As in `from_logits`.
            extras: As in `from_logits`.

        >>> answers = Predictions.from_confidence(["cat", "dog", "cat"], [0.9, 0.8, 0.4], ["cat", "dog", "dog"])
        >>> answers.correct.tolist(), answers.class_names
        ([True, True, False], ('cat', 'dog'))
        """
        if kind not in ("confidence", "score"):
            raise invalid("kind", "be 'confidence' or 'score'", repr(kind))
        answers = as_labels("predicted", predicted)
        labels = [answers]
        if targets is not None:
            labels.append(as_labels("targets", targets))
        names = None
        if classes is not None:
            names = as_class_names(classes, len(classes))
        elif all(column.dtype.kind in "USTO" for column in labels):
            names = tuple(sorted({str(label) for column in labels for label in column.tolist()}))
        if names is not None:
            count = len(names)
        elif all(column.dtype.kind in "iu" for column in labels):
            count = max(1, *(int(column.max(initial=0)) for column in labels)) + 1
        else:
            got = " and ".join(f"dtype {column.dtype}" for column in labels)
            raise invalid("predicted and targets", "be names of classes, or class numbers, in both", got)
        answers = as_targets(answers, len(answers), count, names, name="predicted")
        self = cls._make(kind, confidence, labels[-1], ids, names, extras, answers=answers, n_classes=count)
        self.has_targets = targets is not None
        return self

    def _with(self, **changed: Any) -> Self:
        """The same predictions with some parts changed, which the caller has checked."""
        same = {name: part for name, part in self.__dict__.items() if name not in ("_rows", "correct")}
        return self._of(**(same | changed))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        kind: Kind | None = None,
        columns: Mapping[str, str] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Make predictions from a data frame of pandas or polars, by the same rules as for a file.

        It has one row per case. The index of pandas is not read. Other arguments are those of `load`.
        """
        request = Request(kind, check_columns(columns), class_names)
        return cls.of_scan(opened_scan([FrameSource(arrow_table(frame), request)], class_names))

    @classmethod
    def _make(
        cls,
        kind: Kind,
        scores: Any,
        targets: Any,
        ids: Any,
        class_names: Any,
        extras: Any,
        *,
        precision: Precision | None = None,
        answers: NDArray[np.int64] | None = None,
        n_classes: int = 0,
    ) -> Self:
        """Check all parts and put them together.

        Pass `precision` if it is not that of the scores, and for a class and a score `answers`, the predicted classes,
        with the number of classes.
        """
        if answers is None:
            values, own_precision = as_scores(scores, kind)
            n_classes = values.shape[1]
        else:
            top, own_precision = as_top_scores(scores, kind, len(answers))
            values = top[:, None]
        rows, names = len(values), as_class_names(class_names, n_classes)
        values = columns_in_order(values, scores, names)
        self = cls._of(
            kind=kind,
            precision=precision or own_precision,
            class_names=names,
            n_classes=n_classes,
            _scores=values,
            _targets=as_targets(targets, rows, n_classes, names),
            _ids=as_ids(ids, rows),
            _extras=as_extras(extras, rows),
            _answers=answers,
        )
        _ = self._rows  # reads the scores, which checks their values
        if kind == "logits":
            warn_if_probabilities(values, stacklevel=4)
        return self

    @classmethod
    def _of(cls, **parts: Any) -> Self:
        """Put checked parts together."""
        self = cls.__new__(cls)
        self.__dict__.update(parts)
        return self

    @cached_property
    def _rows(self) -> Rows:
        if self._answers is not None:
            confidence = self._scores[:][:, 0].astype(np.float64)
            return Rows(self.kind, confidence, self._answers, np.full(len(self), np.nan)).frozen()
        return check_rows(self._scores, self._targets, self.kind, self.precision)

    def __len__(self) -> int:
        return int(self._scores.shape[0])

    def __repr__(self) -> str:
        return f"Predictions({len(self)} rows, {self.n_classes} classes, from {self.kind} in {self.precision})"

    @property
    def has_all_classes(self) -> bool:
        """Whether there is a score for every class; False for a class and a score."""
        return self._answers is None

    def require_all_classes(self, what: str) -> None:
        """Raise an error if there are scores of the predicted class alone."""
        if not self.has_all_classes:
            raise InvalidInput(
                f"{what} needs the scores of all classes, and these predictions have that of the predicted class alone."
            )

    @property
    def scores(self) -> NDArray[Any]:
        """The (n, K) scores as passed, read-only; bfloat16 is stored as float32.

        If the scores are on disk, all of them are read.
        """
        view = self._scores[:].view()
        view.flags.writeable = False
        return view

    @property
    def targets(self) -> NDArray[np.int64]:
        """True classes, shape (n,)."""
        if not self.has_targets:
            raise InvalidInput("These predictions have no targets. Pass targets to from_confidence.")
        return self._targets

    @property
    def ids(self) -> NDArray[Any] | None:
        """One name or number per row, or None."""
        if callable(self._ids):
            return self._ids()
        return self._ids

    @property
    def extras(self) -> Mapping[str, NDArray[Any]]:
        """Other columns by name, one number or string per row; read-only."""
        return MappingProxyType(self._extras)

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Top probability of each row, or the score of the predicted class, float64, read-only."""
        return self._rows.confidence

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The class with the top probability, the first one if several have it."""
        return self._rows.predicted

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the prediction is the target."""
        return np.asarray(self._rows.predicted == self.targets)

    @property
    def nll(self) -> NDArray[np.float64]:
        """Minus the log probability of the target of each row; infinite if that probability is 0."""
        self.require_all_classes("The NLL")
        return self._rows.nll

    @property
    def logits(self) -> NDArray[Any]:
        """The logits as passed. Predictions made from probabilities have none and raise an error."""
        if self.kind == "logits":
            return self.scores
        raise InvalidInput("These predictions were made from probabilities and have no logits. Use as_logits.")

    def as_logits(self) -> NDArray[Any]:
        """Return the logits, or the logarithm of the probabilities, with 0 replaced by the smallest positive number.

        >>> Predictions.from_probabilities([[1.0, 0.0]], [0]).as_logits().round(1).tolist()
        [[0.0, -744.4]]
        """
        self.require_all_classes("This")
        return logits_of(self.scores, self.kind, self.precision)

    def right_or_wrong_logits(self) -> NDArray[np.float64]:
        """For a class and a score: two logits per row, of "the prediction is wrong" and "it is right"."""
        top = self.confidence
        if self.kind == "score":
            # A softmax of large scores would be 1 for all of them. Beyond 10 only the logarithm grows.
            size = np.abs(top)
            top = np.where(size <= 10.0, top, np.sign(top) * (10.0 + np.log1p(np.maximum(size - 10.0, 0.0))))
            return np.stack([np.zeros_like(top), top], axis=1)
        return np.asarray(logits_of(np.stack([1.0 - top, top], axis=1), "probabilities", "float64"))

    def as_right_or_wrong(self) -> Self:
        """For a class and a score: the same rows with the classes "wrong" and "right", all predicted to be right.

        Rules and monitors that treat all classes alike need no more, and later cases may have any classes.
        Predictions with scores of all classes are returned as they are.
        """
        if self._answers is None or self.class_names == RIGHT_OR_WRONG:
            return self
        right = np.ones(len(self), np.int64)
        targets = right
        if self.has_targets:
            targets = self.correct.astype(np.int64)
        return self._with(_answers=right, _targets=targets, n_classes=2, class_names=RIGHT_OR_WRONG)

    def recoded(self, class_names: Sequence[str]) -> Self:
        """For a class and a score: the same rows with classes in the order of these names; others come after them."""
        old_names = names_or_numbers(self.class_names, self.n_classes)
        names = (*class_names, *(name for name in old_names if name not in class_names))
        places = np.asarray([names.index(name) for name in old_names])
        answers, targets = places[self.predicted], places[self._targets]
        return self._with(_answers=answers, _targets=targets, n_classes=len(names), class_names=names)

    def with_confidence(self, confidence: Any) -> Self:
        """Return the same rows with other confidences of the predicted classes."""
        scores, precision = as_top_scores(confidence, "confidence", len(self))
        return self._with(kind="confidence", _scores=scores[:, None], precision=precision)

    def with_logits(self, logits: Any) -> Self:
        """Return the same rows, targets, ids, class names and extras with other scores, which are logits."""
        return self.from_logits(logits, self._targets, ids=self.ids, class_names=self.class_names, extras=self._extras)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """All probabilities as a new float64 array of shape (n, K). Use `chunks` for sets too large for that."""
        self.require_all_classes("This")
        return probabilities_of(self._scores[:], self.kind)

    def chunks(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield a slice of row numbers and the float64 probabilities of these rows, until all rows are done.

        The arrays may be written to.
        """
        self.require_all_classes("This")
        for part, _, probabilities in self.walk():
            yield part, probabilities

    def walk(self) -> Iterator[tuple[slice, Rows, NDArray[np.float64]]]:
        """Yield what `chunks` yields, with the numbers of each row, and keep nothing.

        For sets so large that a few numbers per row are too many. Confidences have the type of the scores. A class and
        a score has no probabilities: their array is empty.
        """
        if self._answers is not None:
            yield slice(0, len(self)), self._rows, np.empty((len(self), 0))
            return
        known: Rows | None = self.__dict__.get("_rows")
        for part in chunks(len(self), self.n_classes):
            chunk = load_chunk(self._scores, part)
            if known is None:
                rows = read_chunk(chunk, self._targets, self.kind, self.precision, part)
            else:
                rows = known.subset(part)
            yield part, rows, probabilities_of(chunk, self.kind)

    def subset(self, mask: Any) -> Self:
        """Select rows by a boolean mask, or by row numbers in the order wanted.

        >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        >>> len(predictions.subset(predictions.confidence > 0.8))
        1
        """
        rows = as_rows(mask, len(self))
        ids = self.ids
        if ids is not None:
            ids = as_ids(ids[rows], len(rows))
        extras = as_extras({name: values[rows] for name, values in self._extras.items()}, len(rows))
        answers = self._answers
        if answers is not None:
            answers = answers[rows]
        part = self._with(
            _scores=self._scores[rows], _targets=self._targets[rows], _answers=answers, _ids=ids, _extras=extras
        )
        part.__dict__["_rows"] = self._rows.subset(rows)
        part.origin = Origin(calibrated_by=self.origin.calibrated_by)
        return part

    def split(self, share: float, *, seed: int = 0, clusters: str | None = None) -> tuple[Self, Self]:
        """Split the rows at random into two parts, each in the order of the rows.

        Args:
            share: The first part's share of the rows, above 0 and below 1. Each part gets at least one row.
            seed: Seed of the random choice.
            clusters: Name of an extra column whose equal values stay together, such as the patient of each image.

        >>> predictions = Predictions.from_probabilities([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]], [0, 1, 0])
        >>> [len(part) for part in predictions.split(0.5)]
        [1, 2]
        """
        fraction("share", share)
        whole("seed", seed, 0)
        if len(self) < 2:
            raise invalid("predictions", "have at least 2 cases to be split", len(self))
        # Rounded, halves down: half of seven cases is three.
        first = min(max(math.ceil(share * len(self) - 0.5), 1), len(self) - 1)
        rng = np.random.default_rng(seed)
        chosen = np.zeros(len(self), dtype=np.bool_)
        if clusters is None:
            chosen[rng.permutation(len(self))[:first]] = True
        else:
            chosen[self._rows_of_clusters(clusters, first, rng)] = True
        parts = self.subset(np.flatnonzero(chosen)), self.subset(np.flatnonzero(~chosen))
        if self.origin.path is not None and self.origin.part is None:
            for index, part in enumerate(parts):
                part.origin = replace(self.origin, part=RowsPart(share, seed, index, clusters))
        return parts

    def _rows_of_clusters(self, column: str, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of randomly chosen clusters, as near to `rows` as whole clusters allow. At least one is left."""
        if column not in self._extras:
            raise invalid(
                "clusters", "be a column of the predictions", repr(column), did_you_mean(column, self._extras)
            )
        numbers = np.unique(self._extras[column].astype(str), return_inverse=True)[1]
        sizes = np.bincount(numbers)
        if len(sizes) < 2:
            raise invalid("clusters", "have at least 2 different values to be split", len(sizes))
        order = rng.permutation(len(sizes))
        totals = np.cumsum(sizes[order])[:-1]
        count = int(np.argmin(np.abs(totals - rows))) + 1
        return np.flatnonzero(np.isin(numbers, order[:count]))

    def save(self, path: str | Path) -> None:
        """Write a file in the format of its ending: `.npz` (without pickle), `.csv` or `.parquet`. All or nothing."""
        suffix = as_path(path).suffix.lower()
        if suffix not in (".npz", ".csv", ".parquet"):
            raise invalid("path", "end in .npz, .csv or .parquet", str(path))
        if suffix == ".npz":
            self._save_npz(path)
            return
        if self.kind == "probabilities" and self.precision in ("float16", "bfloat16"):
            # Read back as float64 they would have to meet its tolerance, which rounding to half precision breaks.
            raise invalid("path", "end in .npz for half-precision probabilities", str(path))
        self._save_table(path, suffix)

    def _save_npz(self, path: str | Path) -> None:
        """Write uncompressed arrays, so that a reader can leave them on disk."""
        arrays: dict[str, Any] = {self.kind: self.scores, "targets": self.targets}
        if self._answers is not None:
            arrays |= {self.kind: self.scores[:, 0], "predicted": self._answers}
        ids = self.ids
        if ids is not None:
            arrays["ids"] = ids
        if self.class_names is not None:
            arrays["class_names"] = np.asarray(self.class_names)
        if self.precision == "bfloat16":
            arrays["precision"] = np.asarray("bfloat16")  # NumPy stores it as float32
        if self.origin.calibrated_by is not None:
            arrays[CALIBRATED_BY] = np.asarray(self.origin.calibrated_by)
        for name, column in self._extras.items():
            arrays[name] = column
            if column.dtype == object:
                arrays[name] = column.astype(np.str_)
        with atomic_write(path) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **arrays)

    def _save_table(self, path: str | Path, suffix: str) -> None:
        """Write one column per class. The target is the name of the class, or its number if classes have no names."""
        headings: list[str] = [self.kind]
        if self.has_all_classes:
            headings = [f"{_PREFIX[self.kind]}{name}" for name in names_or_numbers(self.class_names, self.n_classes)]
        targets = self._labels(self.targets)
        ids = self.ids
        parts = list(chunks(len(self), len(headings)))
        if suffix == ".parquet":  # written at once: row groups of many rows are read faster
            parts = [slice(0, len(self))]
        with (
            atomic_write(path) as temporary,
            temporary.open("wb") as handle,
            table_writer(handle, suffix) as write,
        ):
            for part in parts:
                columns: dict[str, Any] = {}
                if ids is not None:
                    columns["id"] = ids[part]
                columns["target"] = targets[part]
                if self._answers is not None:
                    columns["predicted"] = self._labels(self._answers[part])
                scores = self._scores[part]
                if scores.dtype == np.float16:
                    scores = scores.astype(np.float32)
                columns |= {heading: scores[:, index] for index, heading in enumerate(headings)}
                columns |= {name: column[part] for name, column in self._extras.items()}
                write(columns)

    def _labels(self, codes: NDArray[np.int64]) -> NDArray[Any]:
        """Names of classes, or their numbers if they have no names."""
        if self.class_names is None:
            return codes
        labels: NDArray[Any] = np.asarray(self.class_names, dtype=object)[codes]
        return labels

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        kind: Kind | None = None,
        columns: Mapping[str, str] | None = None,
        class_names: Sequence[str] | None = None,
        known_classes: Sequence[str] | None = None,
        mmap: bool | Literal["auto"] = False,
    ) -> Self:
        """Read what `save` wrote, or files made by other programs. Targets must be there.

        Args:
            source: `.npz`, `.csv`, `.jsonl` or `.parquet`, or a folder or pattern of such files. See `scan` for their
                content.
            kind: What the scores are, for a file that does not say it.
            columns: Other names of columns: `{"target": "label", "id": "case", "scores": "p_*", "positive": "yes"}`.
            class_names: Names of the classes, in the order wanted.
            known_classes: Names of the classes of a policy, for a table whose labels do not name all of them.
            mmap: Leave scores, ids and extras on disk, for files larger than memory; "auto" does so for large ones. An
                uncompressed `.npz` is read in place; everything else is unpacked into a temporary file first. Scores
                are then checked when they are first read.
        """
        with naming(source):
            opened = scan(source, kind=kind, columns=columns, class_names=class_names, known_classes=known_classes)
            if mmap == "auto":
                mmap = opened.is_large
            self = cls.of_scan(opened, mmap=mmap)
        self.origin = Origin(Path(source), calibrated_by=calibrated_by(Path(source)))
        return self

    @classmethod
    def of_scan(cls, opened: Scan, *, mmap: bool = False) -> Self:
        """Read all rows of an open file into memory; with `mmap`, leave them on disk."""
        content = load_content(opened, mmap=mmap)
        scores = content.scores
        if isinstance(scores, OnDisk):
            return cls._of(
                kind=opened.kind,
                precision=opened.precision,
                class_names=opened.class_names,
                n_classes=opened.n_classes,
                _scores=scores,
                _targets=content.targets,
                _ids=content.ids,
                _extras=content.extras,
            )
        rest = content.targets, content.ids, opened.class_names, content.extras
        if content.predicted is None:
            self = cls._make(opened.kind, scores, *rest, precision=opened.precision)
        else:
            self = cls._make(opened.kind, scores[:, 0], *rest, answers=content.predicted, n_classes=opened.n_classes)
        self._warn_if_classes_differ(opened.where)
        return self

    def _warn_if_classes_differ(self, where: str) -> None:
        """Warn if predictions and labels contradict each other, as if they named the classes differently."""
        rows = len(self)
        predicted, labelled = (np.bincount(each, minlength=self.n_classes) for each in (self.predicted, self.targets))
        chance = float(predicted @ labelled) / rows**2  # how often they would agree if they had nothing in common
        right = float(self.correct.mean())
        far_below = right < chance - _STANDARD_ERRORS * math.sqrt(chance * (1.0 - chance) / rows)
        strangers = chance == 0.0 and not self.has_all_classes  # columns are compared with the labels anyway
        if rows < _FEWEST_TO_DOUBT or not (far_below or strangers):
            return
        doubt = f"{100 * right:.1f} % of the predictions are right, and chance alone would give {100 * chance:.1f} %"
        if strangers:
            doubt = "no predicted class is a label"
        names = names_or_numbers(self.class_names, self.n_classes)
        numbered = [f"{number} is {name}" for number, name in enumerate(names)]
        hint = ""
        if names != names_or_numbers(None, self.n_classes):
            hint = f" Labels that are numbers count the columns from 0: {shortened(numbered)}."
        if not self.has_all_classes:
            said, true = ([names[k] for k in np.flatnonzero(counts)] for counts in (predicted, labelled))
            hint = f" Predicted: {shortened(said)}. Labels: {shortened(true)}."
        warnings.warn(
            f"{where}: {doubt}. Check that predictions and labels mean the same classes.{hint}",
            CalibrantWarning,
            stacklevel=4,
        )


def in_order_of(class_names: tuple[str, ...] | None, predictions: Predictions, *, where: str) -> Predictions:
    """Put columns and targets in the order of `class_names`, by the rules of `class_order`."""
    if not predictions.has_all_classes:  # there are no columns to order, and names decide
        return predictions
    order = class_order(class_names, predictions.class_names, predictions.n_classes, where=where)
    if order is None:
        return predictions
    ordered = Predictions._make(
        predictions.kind,
        predictions.scores[:, order],
        np.argsort(order)[predictions.targets],
        predictions.ids,
        names_or_numbers(class_names, predictions.n_classes),
        predictions.extras,
        precision=predictions.precision,
    )
    ordered.origin = predictions.origin
    return ordered


def same_targets(a: Predictions, b: Predictions) -> NDArray[np.bool_]:
    """Tell which rows have the same true class in both: by name if both name the same classes, otherwise by number.

    Systems that name a class and a score rarely name the same classes, so for them names always decide.
    """
    if a.class_names is None or b.class_names is None:
        return np.asarray(a.targets == b.targets)
    if a.has_all_classes and b.has_all_classes and set(a.class_names) != set(b.class_names):
        return np.asarray(a.targets == b.targets)
    places = {name: place for place, name in enumerate(a.class_names)}
    numbers = np.asarray([places.get(name, -1) for name in b.class_names])
    return np.asarray(a.targets == numbers[b.targets])


def as_predictions(
    predictions: Any,
    targets: Any = None,
    kind: Kind | None = None,
    class_names: Sequence[str] | Mapping[Any, str] | None = None,
) -> Predictions:
    """Return predictions as they are, or make them of arrays: then `kind` must say what the scores are."""
    if isinstance(predictions, Predictions):
        if targets is not None or kind is not None:
            raise invalid("targets and kind", "be left out with Predictions, which hold them", "both")
        return predictions
    if targets is None or kind not in ("logits", "probabilities"):
        raise _bare_array(predictions, "predictions")
    scores = as_array("predictions", predictions)
    if scores.ndim == 1 or scores.shape[1:] == (1,):
        return Predictions.from_binary(scores, targets, kind=kind, class_names=class_names)
    if kind == "logits":
        return Predictions.from_logits(predictions, targets, class_names=class_names)
    return Predictions.from_probabilities(predictions, targets, class_names=class_names)


def require_predictions(predictions: object, name: str = "predictions") -> None:
    """Refuse a bare array: whether it holds logits or probabilities is never guessed."""
    if not isinstance(predictions, Predictions):
        raise _bare_array(predictions, name)


def _bare_array(value: object, name: str) -> InvalidInput:
    hint = "Make them with Predictions.from_logits or Predictions.from_probabilities."
    return invalid(name, "be Predictions", type(value).__name__, hint)
