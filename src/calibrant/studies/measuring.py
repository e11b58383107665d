"""Measure finished runs: metrics with and without temperature scaling, costs, and what may be automated."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.calibration import TemperatureScaling
from calibrant.checks import whole
from calibrant.decisions import RoutingRule, choose_threshold
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.files import sha256_of
from calibrant.metrics import evaluate
from calibrant.predictions import Predictions
from calibrant.studies.records import N_BINS, TABLED, VERSION, Record, changes_of, write_record
from calibrant.training import Recipe, Run

_N_RESAMPLES = 400
TARGETS = (0.98, 0.99)
CONFIDENCE = 0.95

Automation = dict[str, float | None]
"""`share` of the test images that is automated, `accuracy` of that share (None if it is empty), and both `scaled_`."""


def automation(validation: Predictions, test: Predictions) -> dict[str, Automation]:
    """Return how many test images a rule with a promised accuracy automates, for each promised accuracy.

    ECE and |S95| describe confidence at fixed thresholds. Who deploys a model asks the opposite: for a given accuracy,
    how many cases can be left to the model? The rule is fitted on the validation set and applied to the test set.

    Scaled: the temperature is fitted on a random half of the validation set, the threshold on the other half, because
    a promise needs cases that nothing else was fitted on. `route fit --calibrate` now gives the threshold more than a
    half. Records keep the half, so that they can be compared.
    """
    if len(validation) < 2:
        return {}
    first, second = validation.split(0.5, seed=0)
    temperature, _ = fit_temperature(first)
    figures: dict[str, Automation] = {}
    for target in TARGETS:
        plain = choose_threshold(validation, target, confidence=CONFIDENCE)
        scaled = choose_threshold(scaled_by(second, temperature), target, confidence=CONFIDENCE)
        figures[f"{target:g}"] = _automated(plain, test) | _automated(scaled, scaled_by(test, temperature), "scaled_")
    return figures


def _automated(rule: RoutingRule, test: Predictions, prefix: str = "") -> Automation:
    chosen = rule.route(test).automate
    accuracy = None
    if chosen.any():
        accuracy = float(test.correct[chosen].mean())
    return {f"{prefix}share": float(chosen.mean()), f"{prefix}accuracy": accuracy}


def fit_temperature(validation: Predictions) -> tuple[float, tuple[str, ...]]:
    """Return the temperature of a run from its validation predictions, and the notes of the fit."""
    with warnings.catch_warnings():
        # Warnings become notes: a small validation set without mistakes must not stop a study.
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            scaling = TemperatureScaling().fit(validation.logits, validation.targets)
        except InvalidInput as error:
            # A single class, or a network with the same scores for every image: the run is recorded without scaling.
            return 1.0, (f"not fitted, the temperature stays 1: {error}",)
    return float(scaling.temperature_), tuple(scaling.summary_.notes)


def scaled_by(predictions: Predictions, temperature: float) -> Predictions:
    """Return the same rows with logits divided by the temperature, in float64."""
    return predictions.with_logits(predictions.logits.astype("float64") / temperature)


def record_run(run: Run, *, concurrent_runs: int | None = None) -> Record:
    """Measure a finished run: with and without temperature scaling, with 10 and 15 bins."""
    summary = run.summary
    validation, test = run.predictions("val"), run.predictions("test")
    temperature, notes = fit_temperature(validation)
    recipe = _without_paths(run.recipe)
    later = run.epochs()[1:]
    return Record(
        version=VERSION,
        data=recipe.data.name,
        model=recipe.model.name,
        method=recipe.method.name,
        seed=recipe.seed,
        changes=changes_of(recipe, summary["method"]["settings"]),
        recipe=recipe.model_dump(mode="json"),
        settings=summary["method"]["settings"],
        test=evaluations_of(test),
        test_scaled=evaluations_of(scaled_by(test, temperature)),
        validation=evaluate(validation, N_BINS[0]).to_dict(),
        temperature=temperature,
        temperature_notes=notes,
        best_validation=summary["best_validation"],
        samples_seen=summary["samples_seen"],
        samples_full=summary["samples_full"],
        seen_share=summary["seen_share"],
        samples_scored=summary.get("samples_scored", 0),
        train_seconds=summary["timing"]["train_seconds"],
        seconds=summary["timing"]["seconds"],
        later_seconds=sum(line["train_seconds"] for line in later),
        later_samples=sum(line["samples"] for line in later),
        concurrent_runs=concurrent_runs,
        steps_mode=summary.get("steps_mode"),
        environment=summary["environment"],
        predictions_sha256=digests(run),
        automation=automation(validation, test),
        validation_nll_scaled=evaluate(scaled_by(validation, temperature), N_BINS[0]).nll,
        best=_best_of(run),
    )


def _best_of(run: Run) -> dict[str, Any] | None:
    if run.recipe.select == "last":
        return None
    validation, test = run.predictions("val", best=True), run.predictions("test", best=True)
    temperature, _ = fit_temperature(validation)
    return {
        "select": run.recipe.select,
        "epoch": run.summary["best"]["epoch"],
        "test": evaluations_of(test),
        "test_scaled": evaluations_of(scaled_by(test, temperature)),
        "validation": evaluate(validation, N_BINS[0]).to_dict(),
        "temperature": temperature,
    }


def digests(run: Run) -> dict[str, str]:
    """Return the digests of the predictions, which identify the outcome of a run."""
    return {split: sha256_of(run.predictions_path(split)) for split in ("val", "test")}


def evaluations_of(predictions: Predictions) -> dict[str, dict[str, Any]]:
    """Return the metrics by number of bins, with intervals for the first number of bins."""
    evaluations = {}
    for n_bins in N_BINS:
        n_resamples = _N_RESAMPLES if n_bins == N_BINS[0] else 0
        content = evaluate(predictions, n_bins, n_resamples=n_resamples).to_dict()
        if "intervals" in content:
            content["intervals"] = {name: ends for name, ends in content["intervals"].items() if name in TABLED}
        evaluations[str(n_bins)] = content
    return evaluations


def _without_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with file names instead of paths: records must not show folders of a machine."""
    changed = {}
    for key, name in (("data.name", recipe.data.name), ("model.name", recipe.model.name)):
        kind, colon, rest = name.partition(":")
        if colon and "/" in rest:
            changed[key] = f"{kind}:{rest.rstrip('/').rsplit('/', 1)[-1]}"
    if recipe.model.weights is not None:
        changed["model.weights"] = recipe.model.weights.rsplit("/", 1)[-1]
    return recipe.changed(changed)


@dataclass
class Recorded:
    """The result of `record_runs`.

    Attributes:
        records: What was measured.
        lines: One line per record, with the run and the file.
        unfinished: Runs that were not recorded.
    """

    records: list[Record] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def raise_unfinished(self) -> None:
        """Raise if a run was not recorded."""
        if self.unfinished:
            way_out = "Continue them with: calibrant train --resume RUN"
            raise InvalidInput(f"not finished, so not recorded: {', '.join(self.unfinished)}. {way_out}")


def record_runs(
    runs: Sequence[str | Path], folder: Path, *, concurrent: int | None = None, replace: bool = False
) -> Recorded:
    """Measure finished runs and write one JSON file each.

    Args:
        runs: Run folders.
        folder: Folder of the records.
        concurrent: How many runs shared the machine, these included. Only runs with equal numbers are compared in time.
        replace: Whether to replace a record of the same settings and seed whose outcome differs.
    """
    if not runs:
        raise InvalidInput("record needs at least one run folder. For example: calibrant record runs/* --out results")
    if concurrent is not None:
        whole("concurrent", concurrent, 1, "It counts the runs themselves.")
    recorded = Recorded()
    for path in runs:
        run = Run.open(path)
        if not run.finished:
            recorded.unfinished.append(str(path))
            continue
        recorded.records.append(record_run(run, concurrent_runs=concurrent))
        file = write_record(recorded.records[-1], folder, replace=replace)
        recorded.lines.append(f"{path} -> {file}")
    return recorded
