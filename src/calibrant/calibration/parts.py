"""Temperature scaling of folders of Parquet files that no machine has to hold: Newton's method needs only sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration._arrays import Integers, Matrix, log_softmax, mean_nll
from calibrant.calibration.base import Calibrator
from calibrant.calibration.provenance import Provenance
from calibrant.calibration.temperature import PILOT, ScalingProblem, TemperatureScaling, impossible_note, possible_rows
from calibrant.errors import InvalidInput, invalid
from calibrant.files import atomic_folder
from calibrant.predictions import Kind, Predictions, Scan, load_part, logits_of, scan
from calibrant.scale import Executor, map_parts


@dataclass(frozen=True)
class _Seen:
    """What the first pass finds out about a part; all but `rows` is of the cases that tell something."""

    rows: int
    cases: int
    nll: float
    classes: NDArray[np.bool_]
    separable: bool
    pilot: tuple[Matrix, Integers]


def fit_parts(
    source: str | Path,
    method: str = "temperature",
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> TemperatureScaling:
    """The temperature that `TemperatureScaling().fit` finds on all rows, from sums over parts in about five passes.

    Args:
        source: Labelled predictions; each file of a folder is a part.
        method: "temperature"; all others need all rows at once.
        kind: What the scores are, for files that do not say.
        columns: Where the target has another name.
        executor: Where parts are read; None for this process, one after the other.
    """
    if method != "temperature":
        raise invalid(
            "method", "be temperature for a folder that is read in parts", repr(method), "Fit it on a sample."
        )
    parts, opened = _parts(source, kind, columns, executor)
    step = max(1, (opened.n_rows or 0) // PILOT)
    firsts = accumulate((part.n_rows or 0 for part in parts), initial=0)
    seen = list(map_parts(partial(_look, step=step), list(zip(parts, firsts, strict=False)), executor))
    rows, cases = sum(one.rows for one in seen), sum(one.cases for one in seen)
    left_out = impossible_note(rows - cases, rows)
    classes = np.any([one.classes for one in seen], axis=0)
    if classes.sum() < 2:
        raise invalid("targets", "hold at least two classes", f"one class in all {cases} cases")
    scaling = TemperatureScaling()
    scaling.n_classes_, scaling.identity_ = opened.n_classes, False
    scaling.provenance_ = Provenance(opened.kind, opened.class_names or ())
    progress = scaling._solve(_Parts(parts, seen, executor))  # noqa: SLF001 (the same room)
    progress = replace(progress, notes=(*left_out, *progress.notes))
    before = sum(one.nll for one in seen) / cases
    after = before
    if not scaling.identity_:
        after = sum(map_parts(partial(_nll, scaling=scaling), parts, executor)) / cases
    return scaling._conclude(progress, cases, before, after)  # noqa: SLF001 (the same room)


def calibrate_parts(
    calibrator: Calibrator,
    source: str | Path,
    target: str | Path,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> None:
    """Write the calibrated rows of each part into a new folder, as `part-00000.parquet` and so on.

    Args:
        calibrator: The fitted calibrator.
        source: Predictions with targets; each file of a folder is a part.
        target: A folder that does not exist yet; it appears when all parts are written.
        kind: What the scores are, for files that do not say.
        columns: Where the target and the id have other names.
        executor: Where parts are calibrated; None for this process, one after the other.
    """
    parts, _ = _parts(source, kind, columns, executor)
    with atomic_folder(target) as draft:
        if executor is not None:
            executor.check_shared(draft)
        files = [draft / f"part-{number:05}.parquet" for number in range(len(parts))]
        for _ in map_parts(partial(_write, calibrator=calibrator), list(zip(parts, files, strict=True)), executor):
            pass


def _parts(
    source: str | Path, kind: Kind | None, columns: Mapping[str, str] | None, executor: Executor | None
) -> tuple[list[Scan], Scan]:
    opened = scan(Path(source).absolute(), kind=kind, columns=columns)
    parts = [part for part in opened.parts() if part.n_rows != 0]
    if not parts:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    if executor is not None:
        executor.check_shared(Path(parts[0].where), Path(parts[-1].where))
    return parts, opened


@dataclass(frozen=True)
class _Parts:
    """The mean NLL over all parts as a function of the inverse temperature."""

    parts: Sequence[Scan]
    seen: Sequence[_Seen]
    executor: Executor | None

    def is_separable(self) -> bool:
        return all(one.separable for one in self.seen)

    def pilot(self) -> "_Parts | ScalingProblem":
        rows = (np.concatenate([one.pilot[place] for one in self.seen]) for place in (0, 1))
        pilot = ScalingProblem.build(*rows)
        return self if pilot.is_separable() else pilot

    def derivatives(self, inverse: float) -> tuple[float, float]:
        sums = list(map_parts(partial(_derivatives, inverse=inverse), self.parts, self.executor))
        cases = sum(one.cases for one in self.seen)
        return sum(one for one, _ in sums) / cases, sum(other for _, other in sums) / cases


# What runs for each part, perhaps on another machine.


def _arrays(part: Scan) -> tuple[Matrix, Integers]:
    """Logits and targets, which the first pass has checked."""
    blocks = list(part.blocks(ids=False, extras=()))
    scores = np.concatenate([block.scores for block in blocks])
    targets = np.concatenate([block.targets for block in blocks if block.targets is not None])
    return _telling(logits_of(scores, part.kind, part.precision), targets)


def _telling(logits: Matrix, targets: Integers) -> tuple[Matrix, Integers]:
    possible = possible_rows(logits, targets)
    return (logits, targets) if possible.all() else (logits[possible], targets[possible])


def _look(item: tuple[Scan, int], *, step: int) -> _Seen:
    part, first = item
    predictions: Predictions = load_part(part)
    logits, targets = _telling(predictions.as_logits(), predictions.targets)
    if len(targets) == 0:
        return _Seen(len(predictions), 0, 0.0, np.zeros(predictions.n_classes, bool), True, (logits, targets))
    classes = np.bincount(targets, minlength=predictions.n_classes) > 0
    every = slice(-first % step, None, step)
    separable = ScalingProblem.build(logits, targets).is_separable()
    nll = float(mean_nll(log_softmax(logits), targets)) * len(targets)
    # Copies: views would keep the whole part in memory until the fit ends.
    pilot = logits[every].copy(), targets[every].copy()
    return _Seen(len(predictions), len(targets), nll, classes, separable, pilot)


def _derivatives(part: Scan, *, inverse: float) -> tuple[float, float]:
    logits, targets = _arrays(part)
    if len(targets) == 0:
        return 0.0, 0.0
    slope, curvature = ScalingProblem.build(logits, targets).derivatives(inverse)
    return slope * len(targets), curvature * len(targets)


def _nll(part: Scan, *, scaling: TemperatureScaling) -> float:
    logits, targets = _arrays(part)
    if len(targets) == 0:
        return 0.0
    return float(mean_nll(log_softmax(logits.astype(np.float64) / scaling.temperature_), targets)) * len(targets)


def _write(item: tuple[Scan, Path], *, calibrator: Calibrator) -> None:
    part, target = item
    calibrator(load_part(part)).save(target)
