"""What one run measured, as one JSON file without machine names: the unit of `results/` and of every table.

`record_run` measures a finished run; `Record` is the content of the file.
"""

import dataclasses
import glob
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from calibrant.decisions import Policy, Routed, choose_threshold, fit_policy
from calibrant.errors import CalibrantWarning, InvalidInput, invalid, printable
from calibrant.files import as_path, content_digest, read_json, sha256_of, write_json
from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.model_comparison import rests_on_few
from calibrant.own_code import is_own
from calibrant.predictions import Predictions
from calibrant.runs import Count, Epoch, NotNegative, Number, Scalar, Text
from calibrant.studies.study_spec import file_word
from calibrant.training import Recipe, Run, paper_recipe
from calibrant.training.final_weights import fit_temperature, scaled_by
from calibrant.training.recipe import flatten

N_BINS = (10, 15)
# Records keep the intervals of these metrics only; all of them would make the files long.
TABLED = ("ece", "test_error", "auroc", "ece@0.95", "share@0.95", "share@0.99", "nll", "brier")

# Types and bounds of the JSON. Anybody may have written a file, so it is checked as a whole before it is used.

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Digest = Annotated[Text, Field(max_length=100)]
Setting = Scalar | list[Scalar] | list[list[Scalar]]
Automation = dict[Annotated[str, Field(pattern="^(scaled_|best_)?(share|accuracy)$")], Fraction | None]
"""`share` of the test images that is automated, `accuracy` of that share (None if it is empty); both `scaled_`; and
both by the `best_` score."""


class _Recipe(BaseModel):
    """The parts of a recipe that tables need."""

    seed: Count
    epochs: Epoch
    data: Annotated[Text, Field(validation_alias=AliasPath("data", "name"))]
    model: Annotated[Text, Field(validation_alias=AliasPath("model", "name"))]
    method: Annotated[Text, Field(validation_alias=AliasPath("method", "name"))]
    precision: Annotated[Text, Field(validation_alias=AliasPath("engine", "precision"))]
    schedule: dict[str, Any] = {}
    own_code: dict[Text, Digest] = {}


def _evaluation(content: Any) -> Evaluation:
    """Read what `Evaluation.to_dict` gave."""
    evaluation = content if isinstance(content, Evaluation) else Evaluation.from_dict(content)
    missing = {"share@0.95", "share@0.99"} - evaluation.values().keys()
    if missing:
        raise ValueError(f"an evaluation with {missing.pop()}")
    return evaluation


Measured = Annotated[Evaluation, PlainValidator(_evaluation), PlainSerializer(Evaluation.to_dict)]
Evaluations = Annotated[dict[Annotated[str, Field(pattern="^1[05]$")], Measured], Field(min_length=2)]
"""The evaluation for each number of bins; the number is the key, as text."""
PredictionDigests = Annotated[dict[Annotated[str, Field(pattern="^(val|test)$")], Digest], Field(min_length=2)]
"""SHA-256 of a run's predictions on its validation and test parts."""


class _Best(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    select: Text
    epoch: Epoch
    test: Evaluations
    test_scaled: Evaluations
    validation: Measured
    temperature: Positive


SCALED = "scaled_"
"""Before the name of a metric: after temperature scaling."""
_FIELDS = (
    *("samples_seen", "seen_share", "samples_scored", "compute_share", "flops", "train_seconds", "temperature"),
    "validation_nll_scaled",
)


def without_scaled(name: str) -> tuple[str, bool]:
    """Return the name of a metric, and whether it is taken after temperature scaling.

    >>> without_scaled("scaled_nll")
    ('nll', True)
    """
    return name.removeprefix(SCALED), name.startswith(SCALED)


def finite(values: Sequence[float | None]) -> list[float] | None:
    """Return the values if there are any and all of them are finite numbers, else None."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return None
    return known


# Parts of a recipe that change neither the training nor the record of its last epoch.
_NOT_TRAINING = ("engine.", "calibration.", "own_code.")
_LONGEST = 120


class Record(BaseModel):
    """One run.

    Attributes:
        version: Of this format.
        data: Data set.
        model: Network.
        method: Name in `calibrant.training.methods`.
        seed: Of the run.
        changes: Dotted recipe keys in which the run differs from the recommended recipe of its data set. Engine,
            model, method name and seed do not count. `read_records` computes them again, because a recommendation
            may have changed.
        recipe: All settings.
        settings: Hyperparameters of the method as they were used.
        test: Number of bins ("10", "15") to the evaluation of the test set.
        test_scaled: The same after temperature scaling fitted on the validation set of the same run.
        validation: Evaluation of the validation set, 10 bins.
        temperature: The fitted temperature; `temperature_notes` are the warnings of the fit.
        best_validation: Epoch of the best validation accuracy, for information. The last epoch counts.
        samples_seen: Sample updates; `samples_full` are those of a run on all data, `seen_share` is their ratio.
        samples_scored: Forward passes for scores alone, at the cuts of a plan with `scoring`.
        train_seconds: Time of the training epochs; `seconds` with validation and checkpoints.
        later_seconds, later_samples: Time and updates without the first epoch, in which steps are compiled.
        concurrent_runs: How many runs shared the machine, this one included. None: not known.
        steps_mode: How steps were executed.
        environment: Versions, device, commit.
        predictions_sha256: Digests of the predictions from which all figures were computed.
        automation: What can be automated at each promised accuracy ("0.99"); `takeover` in the files. Records of runs
            whose predictions were not kept have no `best_share`.
        validation_nll_scaled: NLL of the validation set after temperature scaling, fitted on the same cases. Plans are
            chosen by it.
        flops: Floating-point operations of the training, forward passes for scores included; `flops_full` are those of
            the recipe without pruning and with every epoch at full size.
        best: The same figures for the best epoch by `recipe.select`. None if only the last epoch was kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    version: Literal[1]
    data: Text
    model: Text
    method: Text
    seed: Count
    changes: dict[Text, Setting]
    recipe: dict[str, Any]
    settings: dict[Text, Setting]
    test: Evaluations
    test_scaled: Evaluations
    validation: Measured
    temperature: Positive
    temperature_notes: tuple[str, ...]
    best_validation: dict[Text, Number] | None
    samples_seen: Count
    samples_full: Annotated[int, Field(ge=1, lt=2**53)]
    seen_share: NotNegative
    samples_scored: Count = 0
    train_seconds: NotNegative
    seconds: NotNegative
    later_seconds: NotNegative | None = None
    later_samples: Count | None = None
    concurrent_runs: Count | None
    steps_mode: Text | None = None
    environment: dict[Text, Scalar]
    predictions_sha256: PredictionDigests
    automation: dict[Text, Automation] | None = Field(default=None, alias="takeover")
    validation_nll_scaled: NotNegative | None = None
    flops: NotNegative | None = None
    flops_full: Positive | None = None
    best: _Best | None = None

    @model_validator(mode="after")
    def _one_run(self) -> Self:
        """Check that the fields that tables show are those of the recipe."""
        recipe = _Recipe.model_validate(self.recipe)
        for key in ("data", "model", "method", "seed"):
            if getattr(self, key) != getattr(recipe, key):
                raise ValueError(f"the same {key} as in its recipe")
        return self

    def evaluation(self, *, n_bins: int = 10, scaled: bool = False) -> Evaluation:
        """Return the metrics of the test set."""
        group = self.test_scaled if scaled else self.test
        return group[str(n_bins)]

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """Everything that was measured, by flat name: costs, validation figures and metrics of the test set.

        Shares are fractions. Metrics have 10 bins, `ece_15_bins` has 15; `scaled_nll` is after temperature scaling, and
        `automated_share@0.99` is the share that is automated at a promised accuracy of 0.99.
        """
        figures: dict[str, float | None] = {name: getattr(self, name) for name in _FIELDS}
        figures["validation_ece"] = self.validation.ece
        for scaled, prefix in ((False, ""), (True, SCALED)):
            figures |= {f"{prefix}{name}": value for name, value in self.evaluation(scaled=scaled).values().items()}
            figures[f"{prefix}ece_15_bins"] = self.evaluation(n_bins=15, scaled=scaled).ece
        for target, parts in (self.automation or {}).items():
            figures |= {f"automated_{name}@{target}": value for name, value in parts.items()}
        return figures

    def value(self, name: str) -> float | None:
        """Return one of `figures`."""
        return self.figures[name]

    def deviation(self, name: str) -> float | None:
        """Return the standard error of a figure over test images.

        That of a metric follows from the width of its 95 % interval. None if there is no interval, or if the metric
        depends on a few images: one image, drawn again and again, has no spread. The position of the interval is not
        used: in older records, those of calibration errors are too high.
        """
        if name.startswith("automated_"):
            return self._binomial_error(name)
        metric, scaled = without_scaled(name)
        evaluation = self.evaluation(scaled=scaled)
        ends = (evaluation.intervals or {}).get(metric)
        values = evaluation.values()
        if ends is None or rests_on_few(metric, values, values, evaluation.n):
            return None
        if not all(map(math.isfinite, ends)):
            return None
        return (ends[1] - ends[0]) / (2 * 1.96)

    def _binomial_error(self, name: str) -> float | None:
        """None for an accuracy of 0 or 1: a few cases that are all right would look certain."""
        value = self.value(name)
        if value is None:
            return None
        cases = float(self.evaluation().n)
        if "accuracy" in name:
            cases *= self.figures.get(name.replace("accuracy", "share")) or 0.0
            if value in {0.0, 1.0} or not cases:
                return None
        return math.sqrt(value * (1.0 - value) / cases)

    def at_best(self) -> Self | None:
        """Return the record as if the best epoch were the last. None if the best epoch was not kept."""
        if self.best is None:
            return None
        content = {name: getattr(self, name) for name in type(self).model_fields}
        content |= {key: getattr(self.best, key) for key in ("test", "test_scaled", "validation", "temperature")}
        content |= dict.fromkeys(("automation", "validation_nll_scaled", "best"))
        return type(self)(**content)

    @property
    def compute_share(self) -> float:
        """Floating-point operations as a share of those of the whole recipe; if unknown, the share of the updates.

        Records from before operations were counted have images of one size. A forward pass for a score counts as a
        third of an update in them.
        """
        if self.flops is not None and self.flops_full is not None:
            return self.flops / self.flops_full
        return (self.samples_seen + self.samples_scored / 3) / self.samples_full

    @property
    def compute(self) -> float:
        """Cost of the training, in updates of one image of full size."""
        return self.compute_share * self.samples_full

    @property
    def has_pruning(self) -> bool:
        """Whether samples may rest. Every such plan has this setting."""
        return "minimum_per_class" in self.settings

    @property
    def resolution(self) -> Any:
        """The resolution schedule; empty if all epochs have full size."""
        return self.recipe.get("schedule", {}).get("resolution") or ()

    @property
    def has_plan(self) -> bool:
        """Whether the run saves compute: by samples that rest, or by smaller images."""
        return self.has_pruning or bool(self.resolution)

    @property
    def variant(self) -> str:
        """The changed settings, as text for a table. Empty for a run with the recommended settings."""
        return ", ".join(f"{key.rsplit('.', 1)[-1]} {_word(value)}" for key, value in sorted(self.changes.items()))

    @property
    def label(self) -> str:
        """The method, with the changed settings in brackets."""
        if not self.variant:
            return self.method
        return f"{self.method} ({self.variant})"

    @property
    def code(self) -> str:
        """The versions of your own modules, as text. Empty if there are none."""
        known: dict[str, str] = self.recipe.get("own_code", {})
        return ", ".join(f"{module} {digest[:8] or 'without a file'}" for module, digest in sorted(known.items()))

    @property
    def file_name(self) -> str:
        """Name of the file: data, network, method, changes, seed."""
        changes = [file_word(f"{k.rsplit('.', 1)[-1]}={_word(v)}") for k, v in sorted(self.changes.items())]
        middle = "-".join(changes)
        if len(middle) > _LONGEST:
            middle = f"changed-{content_digest(self.changes)[:10]}"
        words = [file_word(self.data), file_word(self.model), file_word(self.method), middle, f"seed{self.seed}"]
        return "-".join(word for word in words if word) + ".json"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as in the file."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part)[:40] for part in first["loc"][:4])
            raise invalid(str(path), "be a record of a run", f"a fault at '{place}': {first['msg'][:200]}") from error


def write_record(record: Record, folder: str | Path, *, replace: bool = False) -> Path:
    """Write a record under its own name. Raise if there is another outcome of the same settings, unless `replace`."""
    path = as_path(folder, "folder") / record.file_name
    if path.exists() and not replace:
        existing = Record.load(path)
        if existing.predictions_sha256 != record.predictions_sha256:
            raise InvalidInput(
                f"{path} holds another outcome of the same settings and seed. Keep it, or replace it with --replace."
            )
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # of a process that was killed
        draft.unlink(missing_ok=True)
    write_json(path, record.to_dict())
    return path


def read_records(folder: str | Path) -> list[Record]:
    """Return all records of a folder, sorted by file name. A folder that does not exist has none.

    The changes of a record are those from the current recommendation, not from that of the day it was written.
    """
    records = []
    for path in sorted(as_path(folder, "folder").glob("*.json")):
        record = Record.load(path)
        with suppress(InvalidInput):  # of a method or setting that no longer exists, so there is no recommendation
            changes = changes_of(Recipe.parse(record.recipe), record.settings)
            record = record.model_copy(update={"changes": changes})
        records.append(record)
    return records


def changes_of(recipe: Recipe, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the dotted keys in which a run differs from the recommended recipe of its data set, network and method.

    Args:
        recipe: The run's recipe.
        settings: Hyperparameters of the method as they were used. None: those that the recipe names.
    """
    settings = settings or {}
    if is_own(recipe.method.name):  # recording imports no code of a run, so every option counts as changed
        defaults = {key: value for key, value in settings.items() if key not in recipe.method.options}
    else:
        defaults = dict(recipe.changed({"method.options": {}}).plan().settings)
    usual = flatten(paper_recipe(recipe.data.name).model_dump(mode="json"))
    usual |= {f"method.options.{key}": value for key, value in defaults.items()}
    ours = flatten(recipe.model_dump(mode="json"))
    ours |= {f"method.options.{key}": value for key, value in settings.items()}
    # `select` does not change the training: the last epoch is always recorded.
    left_out = {"seed", "select", "model.name", "method.name"}
    if recipe.schedule.kind != "step":
        left_out.add("schedule.milestones")  # no other schedule reads them
    return {
        key: value
        for key, value in ours.items()
        if key not in left_out and not key.startswith(_NOT_TRAINING) and usual.get(key) != value
    }


def _word(value: Any) -> str:
    """Return a setting as text; a resolution schedule `[[24, 0.6]]` becomes `24x0.6`."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        joint = "x" if not any(isinstance(part, list | tuple) for part in value) else "+"
        return joint.join(map(_word, value))
    return printable(str(value))


# Measuring finished runs.

_N_RESAMPLES = 400
TARGETS = (0.98, 0.99)
CONFIDENCE = 0.95


def automation(validation: Predictions, test: Predictions) -> dict[str, Automation]:
    """Return how many test images a rule automates that is fitted on the validation set, for each promised accuracy.

    Scaled: the temperature is fitted on a random half of the validation set, the threshold on the other half, because
    a promise needs cases that nothing else was fitted on. Best: `fit_policy(validation, target, score="auto")`.
    """
    if len(validation) < 2:
        return {}
    first, second = validation.split(0.5, seed=0)
    temperature, _ = fit_temperature(first)
    figures: dict[str, Automation] = {}
    for target in TARGETS:
        plain = choose_threshold(validation, target, confidence=CONFIDENCE)
        scaled = choose_threshold(scaled_by(second, temperature), target, confidence=CONFIDENCE)
        figure = _automated(plain.route(test), test)
        figure |= _automated(scaled.route(scaled_by(test, temperature)), test, "scaled_")
        figures[f"{target:g}"] = figure | _automated(_best_policy(validation, target).decide(test), test, "best_")
    return figures


def _best_policy(validation: Predictions, target: float) -> Policy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            return fit_policy(validation, target, confidence=CONFIDENCE, score="auto")
        except InvalidInput:  # the cases that fit the temperature have one class, or the same scores
            return Policy(validation.n_classes)


def _automated(routed: Routed, test: Predictions, prefix: str = "") -> Automation:
    chosen = routed.automate
    accuracy = None
    if chosen.any():
        accuracy = float(test.correct[chosen].mean())
    return {f"{prefix}share": float(chosen.mean()), f"{prefix}accuracy": accuracy}


# What a record takes from the summary of its run as it is.
_OF_SUMMARY = (
    *("best_validation", "samples_seen", "samples_full", "seen_share", "samples_scored", "flops", "flops_full"),
    *("steps_mode", "environment"),
)


def record_run(run: Run, *, concurrent_runs: int | None = None) -> Record:
    """Measure a finished run: with and without temperature scaling, with 10 and 15 bins.

    Args:
        run: The run.
        concurrent_runs: How many runs shared the machine. None: the number that its study noted, if any.
    """
    summary = run.summary
    validation, test = run.predictions("val"), run.predictions("test")
    measured, notes = _measured(validation, test)
    best = None
    if run.recipe.select != "last":
        of_best, _ = _measured(run.predictions("val", best=True), run.predictions("test", best=True))
        best = {"select": run.recipe.select, "epoch": summary["best"]["epoch"], **of_best}
    recipe = _without_paths(run.recipe)
    later = run.epochs()[1:]
    return Record(
        version=1,
        data=recipe.data.name,
        model=recipe.model.name,
        method=recipe.method.name,
        seed=recipe.seed,
        changes=changes_of(recipe, summary["method"]["settings"]),
        recipe=recipe.model_dump(mode="json"),
        settings=summary["method"]["settings"],
        temperature_notes=notes,
        train_seconds=summary["timing"]["train_seconds"],
        seconds=summary["timing"]["seconds"],
        later_seconds=sum(line["train_seconds"] for line in later),
        later_samples=sum(line["samples"] for line in later),
        concurrent_runs=concurrent_runs or summary.get("concurrent_runs"),
        predictions_sha256=digests(run),
        automation=automation(validation, test),
        validation_nll_scaled=evaluate(scaled_by(validation, measured["temperature"]), n_bins=N_BINS[0]).nll,
        best=best,
        **measured,
        **{name: summary[name] for name in _OF_SUMMARY if name in summary},
    )


def _measured(validation: Predictions, test: Predictions) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the figures of one epoch, with and without a temperature from its validation set, and notes of the fit."""
    temperature, notes = fit_temperature(validation)
    figures = {
        "test": evaluations_of(test),
        "test_scaled": evaluations_of(scaled_by(test, temperature)),
        "validation": evaluate(validation, n_bins=N_BINS[0]),
        "temperature": temperature,
    }
    return figures, notes


def digests(run: Run) -> dict[str, str]:
    """Return the digests of the predictions, which identify the outcome of a run."""
    return {split: sha256_of(run.predictions_path(split)) for split in ("val", "test")}


def evaluations_of(predictions: Predictions) -> dict[str, Evaluation]:
    """Return the metrics by number of bins, with intervals for the first number of bins."""
    first = evaluate(predictions, n_bins=N_BINS[0], n_resamples=_N_RESAMPLES)
    assert first.intervals is not None
    tabled = {name: ends for name, ends in first.intervals.items() if name in TABLED}
    first = dataclasses.replace(first, intervals=tabled)
    return {str(N_BINS[0]): first, str(N_BINS[1]): evaluate(predictions, n_bins=N_BINS[1])}


def _without_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with file names instead of paths: records must not show folders of a machine."""
    changed = {}
    for key, name in (("data.name", recipe.data.name), ("model.name", recipe.model.name)):
        kind, _, path = name.partition(":")
        if "/" in path:
            changed[key] = f"{kind}:{Path(path).name}"
    if recipe.model.weights is not None:
        changed["model.weights"] = Path(recipe.model.weights).name
    return recipe.changed(changed)
