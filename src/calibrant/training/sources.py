"""Run folders and files of predictions alike: what a path holds, and where what is made from it is kept."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from calibrant.calibration import Calibrator, Provenance, warn_if_in_sample
from calibrant.decisions import RoutingRule, chosen_behind
from calibrant.errors import InvalidInput, invalid
from calibrant.files import refuse_overwriting
from calibrant.predictions import Kind, Predictions
from calibrant.training.run import Run, Split


def source_path(source: str | Path, split: Split = "test") -> Path:
    """The predictions of a run where `source` is its folder, else `source` itself."""
    path = Path(source)
    run = Run.of(path) if path.is_dir() else None
    return path if run is None else run.existing_predictions(split)


def load_predictions(
    source: str | Path, split: Split = "test", *, kind: Kind | None = None, columns: Mapping[str, str] | None = None
) -> Predictions:
    """Read predictions: those of a run, or what `Predictions.load` reads; large ones stay on disk.

    Args:
        source: A run folder, a file, or a folder or pattern of Parquet files.
        split: Of a run: which predictions.
        kind: What the scores are, for files that do not say.
        columns: Where the target and the id have other names: `{"target": "label", "id": "case"}`.
    """
    return Predictions.load(source_path(source, split), kind=kind, columns=columns, mmap="auto")


def calibration_sources(source: str | Path, apply: str | Path | None = None) -> tuple[Path, Path]:
    """What a calibrator is fitted on and applied to: validation and test predictions of a run, or two files.

    Args:
        source: A run folder, or predictions to fit on.
        apply: Predictions to calibrate, or a run folder; by default those of `source`, where it is a run folder.
    """
    fitted_on = source_path(source, "val")
    if apply is None and fitted_on == Path(source):
        raise invalid("apply", "name the predictions to calibrate where the source is no run folder", "nothing")
    return fitted_on, source_path(source if apply is None else apply, "test")


def rule_path(source: str | Path) -> Path:
    """Where the rule that is chosen on `source` is kept: in the run that it belongs to, else beside it."""
    run = Run.of(source)
    return Path(source).with_name("rule.json") if run is None else run.rule_path


def shortlist_path(rule: str | Path) -> Path:
    """Where the shortlist of a rule is kept: beside the rule."""
    return Path(rule).with_name("shortlist.json")


def run_calibrator(source: str | Path) -> Path | None:
    """The calibrator of the run that `source` belongs to, where there is one."""
    run = Run.of(source)
    return run.calibrator_path if run is not None and run.calibrator_path.is_file() else None


def own_calibrator(source: str | Path, *, rule: RoutingRule | None = None) -> Path | None:
    """The calibrator that is used by itself where `source` is a run folder; None where there is none to use.

    Args:
        source: A run folder; other sources have no calibrator of their own.
        rule: The rule that decides behind it: it must have been chosen behind this very calibrator. None: a rule is to
            be chosen, so the calibrator must have left some validation cases unseen.
    """
    path = run_calibrator(source) if Path(source).is_dir() else None
    if path is None:
        return None
    calibrator = Calibrator.load(path)
    fits = calibrator.provenance_.part is not None if rule is None else chosen_behind(rule, calibrator)
    return path if fits else None


def load_judged(
    source: str | Path,
    *,
    raw: bool = False,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
) -> dict[str, Predictions]:
    """The predictions to evaluate, by name: a run gives its calibrated test predictions first, then the raw ones.

    A warning says where numbers are in-sample: where the calibrator that made the scores was fitted on these cases.

    Args:
        source: A run folder, a file, or a folder or pattern of Parquet files.
        raw: Leave out the run's calibrator.
        kind: What the scores are, for files that do not say.
        columns: Where the target and the id have other names.
    """
    predictions = load_predictions(source, "test", kind=kind, columns=columns)
    name = str(predictions.origin.path)
    path = None if raw or not Path(source).is_dir() else run_calibrator(source)
    if path is None:
        for known in _makers(predictions):
            warn_if_in_sample(known, predictions.origin)
        return {name: predictions}
    calibrator = Calibrator.load(path)
    warn_if_in_sample(calibrator.provenance_, predictions.origin)
    return {f"{name}, calibrated by {path.name}": calibrator(predictions), f"{name}, raw": predictions}


def _makers(predictions: Predictions) -> list[Provenance]:
    """Of the calibrators nearby, as far as they can be read, those that made these predictions."""
    known = []
    for path in calibrators_near(predictions.origin.path):
        with suppress(InvalidInput):
            known.append(Calibrator.load(path).provenance_)
    return [each for each in known if each.made is not None and each.made == predictions.origin.sha256]


def calibrators_near(*paths: str | Path | None) -> list[Path]:
    """The calibrators that lie beside these files, also as NAME.calibrator.json, or in the runs that they belong to."""
    found = []
    for given in (Path(path) for path in paths if path is not None):
        run = Run.of(given)
        # Not with_name, which refuses the working directory.
        place = given.parent / "calibrator.json" if run is None else run.calibrator_path
        beside = _calibrator_beside(given)
        found += [each for each in (place, beside) if each.is_file() and each not in found]
    return found


class CalibratedPaths(NamedTuple):
    """Where calibrated predictions and their calibrator are kept."""

    predictions: Path
    calibrator: Path


def calibrated_paths(fitted_on: str | Path, applied_to: str | Path, out: str | Path | None = None) -> CalibratedPaths:
    """Where the output of a calibrator is kept: beside its input as NAME.calibrated.npz, or as `out` says.

    Args:
        fitted_on: What the calibrator is fitted on. Where that belongs to a run and `out` is None, the calibrator is
            the run's; else it lies beside the calibrated predictions.
        applied_to: The predictions that are calibrated.
        out: Where the calibrated predictions are to lie; neither on what is read nor on predictions of the run.
    """
    given = Path(applied_to)
    predictions = given.with_name(f"{given.stem}.calibrated.npz") if out is None else Path(out)
    if predictions.suffix.lower() != ".npz":
        raise invalid("out", "end in .npz", str(predictions))
    run = Run.of(fitted_on)
    calibrator = run.calibrator_path if run is not None and out is None else _calibrator_beside(predictions)
    own = [] if run is None else [run.predictions_path("val"), run.predictions_path("test")]
    refuse_overwriting((predictions, calibrator), (fitted_on, applied_to, *own))
    return CalibratedPaths(predictions, calibrator)


def _calibrator_beside(predictions: Path) -> Path:
    return predictions.parent / f"{predictions.stem.removesuffix('.calibrated')}.calibrator.json"
