"""`calibrant calibrate`: fit on validation predictions, apply to test predictions, say what it changed."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from calibrant.cli._places import CALIBRATOR, refuse_overwriting, run_of
from calibrant.cli._say import say_json
from calibrant.errors import CalibrantWarning, invalid
from calibrant.files import sha256_of, write_with_digest
from calibrant.metrics import Evaluation, evaluate
from calibrant.posthoc import SMOOTH, Calibrator, Selection, make_calibrator, select_calibrator
from calibrant.predictions import Predictions, in_order_of

Method = Literal[
    "best",
    "none",
    "temperature",
    "isotonic-top",
    "histogram-top",
    "vector",
    "beta",
    "histogram",
    "isotonic",
    "dirichlet",
    "matrix",
]
_FROM_HELP = "What the scores are, for files that do not say."
From = Annotated[Literal["logits", "probabilities"] | None, Parameter(name="--from", help=_FROM_HELP)]


def calibrate(
    source: Path,
    /,
    *,
    apply: Path | None = None,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    method: Method = "temperature",
    folds: int = 5,
    seed: int = 0,
    from_: From = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Fit a calibrator on validation predictions and apply it to test predictions.

    Parameters
    ----------
    source:
        A run folder (its validation predictions are fitted on, its test predictions calibrated), or a predictions file.
    apply:
        Predictions to calibrate; needed where SOURCE is a file.
    out:
        Calibrated predictions (.npz). Default: beside the predictions they come from, as NAME.calibrated.npz. The
        calibrator lies beside them; where SOURCE belongs to a run and this is left out, in the run as calibrator.json.
    method:
        The calibrator; "best" compares all of them by cross-validated NLL on the validation predictions.
    folds:
        Folds of that comparison.
    seed:
        Seed of the folds.
    json:
        Print JSON, in fractions, instead of tables.
    """
    fit_on, test, paths = _inputs(source, apply, out, from_)
    with plain_warnings():
        logits = fit_on.as_logits()
        selection = select_calibrator(logits, fit_on.targets, folds=folds, seed=seed) if method == "best" else None
        calibrator = selection.calibrator if selection else make_calibrator(method).fit(logits, fit_on.targets)
        refuse_other_kind(calibrator, fit_on.kind, test.kind)
        calibrated = apply_calibrator(calibrator, test)
        _warn_if_worse(test, calibrated)
        if selection is not None and run_of(source) is not None:
            _warn_if_not_exported(calibrator)
    before, after = evaluate(test, thresholds=(0.95,)), evaluate(calibrated, thresholds=(0.95,))
    calibrated.save(paths.predictions)
    # The digests tell an export whether this calibrator belongs to the run, and whether a rule was chosen behind it.
    digests = {"fitted_on": paths.fitted_on, "applied_to": paths.applied_to, "made": paths.predictions}
    origin = {"kind": fit_on.kind, **{name: sha256_of(path) for name, path in digests.items()}}
    write_with_digest(paths.calibrator, {**calibrator.to_dict(), **origin})
    if json:
        content = _as_json(calibrator, selection, before, after, paths)
        say_json(content)
    else:
        _print(calibrator, selection, before, after, paths)


@dataclass(frozen=True)
class _Paths:
    fitted_on: Path
    applied_to: Path
    predictions: Path
    calibrator: Path


def _inputs(
    source: Path, apply: Path | None, out: Path | None, kind: Literal["logits", "probabilities"] | None
) -> tuple[Predictions, Predictions, _Paths]:
    fit_path = source
    if source.is_dir():
        fit_path = run_predictions(source, "val")
        apply = apply or run_predictions(source, "test")
    if apply is None:
        raise invalid("--apply", "name the predictions to calibrate where SOURCE is a file", "nothing")
    fit_on, test = Predictions.load(fit_path, kind=kind), Predictions.load(apply, kind=kind)
    test = same_classes(fit_on, test, fit_path, apply)
    predictions = out or apply.with_name(f"{apply.stem}.calibrated.npz")
    if predictions.suffix.lower() != ".npz":
        raise invalid("--out", "end in .npz", str(predictions))
    run = run_of(source)
    calibrator = predictions.with_name(f"{predictions.stem.removesuffix('.calibrated')}.calibrator.json")
    if run is not None and out is None:
        calibrator = run / CALIBRATOR
    own = [] if run is None else [run / "predictions" / f"{split}.npz" for split in ("val", "test")]
    refuse_overwriting((predictions, calibrator), (fit_path, apply, *own))
    return fit_on, test, _Paths(fit_path, apply, predictions, calibrator)


def run_predictions(run: Path, split: Literal["val", "test"]) -> Path:
    """Where a run folder keeps the predictions of a split; one line where it has none."""
    path = run / "predictions" / f"{split}.npz"
    if not path.is_file():
        raise invalid(str(run), f"be a finished run with predictions/{split}.npz", "a folder without it")
    return path


def same_classes(first: Predictions, second: Predictions, first_path: Path, second_path: Path) -> Predictions:
    """`second` in the class order of `first`; refused where the two do not talk about the same classes."""
    if first.n_classes != second.n_classes:
        rule = f"have the {first.n_classes} classes of {first_path}"
        raise invalid(str(second_path), rule, f"{second.n_classes} classes", "Use predictions of the same model.")
    return in_order_of(first.class_names, second, where=str(second_path))


def refuse_other_kind(calibrator: Calibrator, fitted_on: str | None, kind: str) -> None:
    """Refuse logits for a map fitted on probabilities, and the other way round, where it is another map there.

    Vector and matrix scaling depend on the level of a row of logits, which its probabilities have lost.
    """
    if calibrator.method in ("vector", "matrix") and not calibrator.identity_ and fitted_on not in (None, kind):
        way_out = "Use predictions of that kind, or temperature, beta or dirichlet, which do not depend on it."
        raise invalid("predictions", f"be {fitted_on}, as {calibrator.method} scaling was fitted on", kind, way_out)


def apply_calibrator(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Calibrated predictions, kept as log-probabilities (which are logits): small probabilities do not become 0."""
    return predictions.with_logits(calibrator.transform_logits(predictions.as_logits()))


def _warn_if_worse(before: Predictions, after: Predictions) -> None:
    """Warn where calibrated test predictions have a larger NLL than raw ones by more than chance (two errors)."""
    change = np.minimum(after.nll, 1e6) - np.minimum(before.nll, 1e6)
    if change.mean() > 2.0 * change.std() / len(change) ** 0.5:
        warnings.warn(
            f"calibration made the NLL of the predictions it was applied to larger: {before.nll.mean():.4g} before, "
            f"{after.nll.mean():.4g} after. Fit on more cases, or use --method temperature or best.",
            CalibrantWarning,
            stacklevel=2,
        )


def _warn_if_not_exported(calibrator: Calibrator) -> None:
    """Say at once what `calibrant export` would say later; who asked for a map with steps by name knows it."""
    if calibrator.method not in SMOOTH:
        smooth = ", ".join(name for name in SMOOTH if name != "none")
        warnings.warn(
            f"{calibrator.method} is a map with steps, which calibrant export does not put into an ONNX file. "
            f"For that use --method with one of {smooth}.",
            CalibrantWarning,
            stacklevel=2,
        )


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show this package's warnings as one line on standard error, without file and line number."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrantWarning)
        yield
    for warning in caught:
        sys.stderr.write(f"calibrant: warning: {warning.message}\n")


def _as_json(
    calibrator: Calibrator, selection: Selection | None, before: Evaluation, after: Evaluation, paths: _Paths
) -> dict[str, Any]:
    return {
        "method": selection.name if selection else calibrator.method,
        "parameters": calibrator.get_params(),
        "fit": asdict(calibrator.summary_),
        "before": before.to_dict(),
        "after": after.to_dict(),
        "selection": None
        if selection is None
        else {"reason": selection.reason, "candidates": [asdict(candidate) for candidate in selection.candidates]},
        "predictions": str(paths.predictions),
        "calibrator": str(paths.calibrator),
    }


def _print(
    calibrator: Calibrator, selection: Selection | None, before: Evaluation, after: Evaluation, paths: _Paths
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if selection is not None:
        candidates = Table("method", "held-out NLL", "behind the best", title="Cross-validation on the fit set")
        for line in selection.candidates:
            behind = "" if line.name == selection.name else f"{line.behind:.4f} ± {line.standard_error:.4f}"
            candidates.add_row(line.name, f"{line.nll:.4f}", behind)
        console.print(candidates)
        console.print(f"Chosen: {selection.reason}")
    temperature = getattr(calibrator, "temperature_", None)
    found = "" if temperature is None else f", temperature {temperature:.4f}"
    console.print(f"Fitted {calibrator} on {calibrator.summary_.cases:,} cases{found}.", markup=False)
    if calibrator.identity_ and calibrator.method != "none":
        console.print("No map was kept: the probabilities stay as they are.")
    table = Table("test predictions", "before", "after")
    for name, key in (("test error %", "test_error"), ("ECE %", "ece"), ("NLL", "nll"), ("Brier", "brier")):
        scale = 100.0 if name.endswith("%") else 1.0
        table.add_row(name, *(f"{scale * getattr(result, key):.4f}" for result in (before, after)))
    sets = [result.thresholds[0] for result in (before, after)]
    table.add_row("S95 share %", *(f"{100 * each.share:.2f}" for each in sets))
    table.add_row("S95 ECE %", *("-" if each.ece is None else f"{100 * each.ece:.4f}" for each in sets))
    console.print(table)
    console.print(f"Wrote {paths.predictions} and {paths.calibrator}", markup=False)
