"""Plans at equal cost: each plan beside its control.

A plan saves compute: samples rest, or early epochs have smaller images. Its control has the same loss and schedule on
all data at full size, and as much compute in fewer epochs. A plan of both kinds is also compared with each alone.
"""

import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from calibrant.errors import CalibrantWarning, InvalidInput, naming
from calibrant.pruning import ConfidencePruner
from calibrant.studies.records import Record
from calibrant.studies.referee import Difference, Referee, values_of
from calibrant.studies.study_spec import PlannedRun, StudySpec, Variant
from calibrant.tables import ShownFields
from calibrant.training import Recipe, methods
from calibrant.training.default_recipes import data_extent
from calibrant.training.network import epoch_sizes
from calibrant.training.recipe import flatten

# Epochs are whole numbers, so the compute of a plan and its control may differ by this share, or by half an epoch.
TOLERANCE = 0.02
METRICS = ("scaled_nll", "test_error", "aurc")
"""Metrics by which a plan is judged. Lower is better in all of them."""


@dataclass(frozen=True)
class Controlled:
    """A plan, its control and, if there is one, the run with all the compute: records of the same seeds."""

    label: str
    control_label: str
    plan: tuple[Record, ...]
    control: tuple[Record, ...]
    full: tuple[Record, ...]

    @property
    def share(self) -> float:
        """Compute of the plan as a share of that of the whole run, mean over seeds."""
        spent = sum(record.compute for record in self.plan)
        if self.full:
            return spent / sum(record.compute for record in self.full)
        return spent / sum(record.compute / record.compute_share for record in self.plan)

    @property
    def updates(self) -> float:
        """Sample updates of the plan as a share of those of the whole run, mean over seeds."""
        seen = sum(record.samples_seen for record in self.plan)
        return seen / sum(record.samples_full for record in self.full or self.plan)


def find_controls(by_label: Mapping[str, Sequence[Record]]) -> list[Controlled]:
    """Return every plan of one data set and network whose control is among the records, seed by seed."""
    runs = [_Run(label, record, _settings(record)) for label, records in by_label.items() for record in records]
    controlled = []
    for label in by_label:
        plans = [run for run in runs if run.label == label and run.record.has_plan]
        # A control at full size first; then, for a plan of both kinds, each kind alone.
        for resolution, pruning in ((False, False), (True, False), (False, True)):
            seeds = [_control_of(plan, runs, resolution, pruning) for plan in plans]
            pairs = [pair for pair in seeds if pair is not None]
            if pairs:
                controlled.append(_joined(pairs))
    return controlled


def _joined(pairs: Sequence[Controlled]) -> Controlled:
    """Return the seeds of a plan together; without the whole run if one of them has none."""
    full = tuple(record for pair in pairs for record in pair.full)
    return Controlled(
        label=pairs[0].label,
        # If the cost of a plan differs from seed to seed, its controls may have several names.
        control_label=", ".join(dict.fromkeys(pair.control_label for pair in pairs)),
        plan=tuple(record for pair in pairs for record in pair.plan),
        control=tuple(record for pair in pairs for record in pair.control),
        full=full if len(full) == len(pairs) else (),
    )


class _Run(NamedTuple):
    label: str
    record: Record
    settings: dict[str, Any]


def _settings(record: Record) -> dict[str, Any]:
    """Return the settings that a plan and its control must share, other than those of the loss."""
    try:  # parsing fills in settings that an older record lacks
        recipe = Recipe.parse(record.recipe).model_dump(mode="json")
    except InvalidInput:  # a method or setting that no longer exists
        recipe = record.recipe
    settings = {part: recipe.get(part) for part in ("data", "model", "optimiser", "schedule", "balance")}
    settings["schedule"] = {**(settings["schedule"] or {}), "resolution": None}
    settings["precision"] = record.recipe["engine"]["precision"]
    settings["device"] = record.environment.get("device")
    settings["loss"] = record.method
    if record.has_pruning:
        settings["loss"] = record.method.rpartition("+")[0]
    return settings


def _control_of(run: _Run, others: Sequence[_Run], resolution: bool, pruning: bool) -> Controlled | None:
    """Return one seed of a plan with its control, which shares its resolution schedule or its pruning, or neither."""
    plan = run.record
    both = plan.resolution and plan.has_pruning
    if plan.compute_share > 0.999 or ((resolution or pruning) and not both):
        return None
    candidates = []
    longer = []
    for label, other, settings in others:
        if other.seed != plan.seed or settings != run.settings or not _same_loss_settings(plan, other):
            continue
        distance = abs(other.compute - plan.compute)
        same_kind = bool(other.resolution) == resolution and other.has_pruning == pruning
        if same_kind and distance <= _tolerance(plan) and _shares_plan(plan, other):
            candidates.append((distance, label, other))
        if not other.has_plan and other.compute > plan.compute + _tolerance(plan):
            longer.append(other)
    if not candidates:
        return None
    _, label, control = min(candidates, key=lambda candidate: candidate[:2])
    return Controlled(run.label, label, (plan,), (control,), _whole_run(plan, longer))


def _same_loss_settings(plan: Record, other: Record) -> bool:
    if other.has_pruning:  # then `_shares_plan` compares all settings
        return True
    return all(plan.settings.get(key) == value for key, value in other.settings.items())


def _shares_plan(plan: Record, other: Record) -> bool:
    """Return whether the resolution schedule or the pruning of the other run, if it has one, is the plan's."""
    if other.resolution and other.resolution != plan.resolution:
        return False
    return not other.has_pruning or (other.method, other.settings) == (plan.method, plan.settings)


def _whole_run(plan: Record, longer: Sequence[Record]) -> tuple[Record, ...]:
    """Return the run with all the compute: of the plan's own recipe, or the longest if that has no budget."""
    whole = plan.compute / plan.compute_share
    for record in longer:
        if abs(record.compute - whole) <= _tolerance(plan):
            return (record,)
    if plan.has_pruning or not longer:
        return ()
    return (max(longer, key=lambda record: record.compute),)


def _tolerance(plan: Record) -> float:
    return max(TOLERANCE * plan.compute, 0.5 * plan.samples_full / int(plan.recipe["epochs"]))


@dataclass(frozen=True)
class AgainstControl(ShownFields):
    """One metric of a plan, its control and the whole run, as means over seeds.

    `share` is the compute and `updates` the sample updates of the plan as shares of those of the whole run, without a
    plan and with all epochs. `scored_share` are forward passes for scores alone, in the unit of `updates`; they are
    part of `share`. `recovered` is (control - plan) / (control - whole run), with its 95 % interval over seeds
    (Fieller): 1 if nothing was lost, 0 if the plan is worth no more than fewer epochs, None if the whole run was not
    made or is no better than the control.
    """

    plan: str
    control: str
    share: float
    updates: float
    scored_share: float
    whole_value: float | None
    control_value: float | None
    plan_value: float | None
    difference: Difference  # plan minus control
    recovered: float | None
    recovered_interval: tuple[float, float] | None


def against_controls(
    by_label: Mapping[str, Sequence[Record]], referee: Referee | None = None
) -> tuple[AgainstControl, ...]:
    """Compare all plans of one data set and network with their controls, metric by metric.

    Args:
        by_label: The records of each label, one per seed.
        referee: Knows how much all these runs vary. None: they vary over seeds alone.
    """
    rows = []
    referee = referee or Referee(by_label)
    for controlled in find_controls(by_label):
        plans = controlled.plan
        scored = sum(record.samples_scored / record.samples_full for record in plans) / len(plans)
        for metric in METRICS:
            parts = (controlled.full, controlled.control, plans)
            full, control, plan = (_mean(records, metric) for records in parts)
            rows.append(
                AgainstControl(
                    plan=controlled.label,
                    control=controlled.control_label,
                    share=controlled.share,
                    updates=controlled.updates,
                    scored_share=scored,
                    whole_value=full,
                    control_value=control,
                    plan_value=plan,
                    difference=referee.compare(controlled.label, metric, plans, controlled.control),
                    recovered=recovered_share(full, control, plan),
                    recovered_interval=referee.recovered(metric, plans, controlled.control, controlled.full),
                )
            )
    return tuple(rows)


def _mean(records: Sequence[Record], metric: str) -> float | None:
    values = values_of(records, metric)
    return None if values is None else statistics.fmean(values)


def plans_without_control(
    by_label: Mapping[str, Sequence[Record]], controls: Sequence[AgainstControl]
) -> tuple[str, ...]:
    """Return the plans that saved compute and have no control: a table must say that it leaves them out."""
    controlled = {item.plan for item in controls}
    return tuple(
        label
        for label, records in by_label.items()
        if label not in controlled and any(record.has_plan and record.compute_share < 0.999 for record in records)
    )


def recovered_share(full: float | None, control: float | None, plan: float | None) -> float | None:
    """Return the share of the loss by fewer epochs that the plan recovers, for a metric of which less is better.

    >>> recovered_share(1.0, 3.0, 2.5)
    0.25
    """
    if full is None or control is None or plan is None or control <= full:
        return None
    return (control - plan) / (control - full)


# The controls that a study adds to its plans.

# Size of the one class on which the share of a plan with its own rate is computed. Rounding by class is negligible.
_SAMPLES = 10_000


def check_plans(spec: StudySpec) -> None:
    """Raise if a plan has a wrong setting or cannot meet its budget. The run itself may begin days later."""
    for row in spec.rows():
        if _loss_of(row) is not None:
            with naming(row.label):
                check_plan(_recipe(spec, row))


def check_plan(recipe: Recipe) -> None:
    """Raise if the recipe has a plan with a wrong setting or a budget that it cannot meet."""
    if recipe.plan().pruning is None:
        return
    if recipe.schedule.resolution:  # then only the network says what the budget pays for
        recipe = recipe.changed({"budget": 1.0})
    _pruner(recipe)


def with_controls(spec: StudySpec) -> StudySpec:
    """Return the study with a control for each plan: the same loss and schedule on all data at full size.

    A control has as many epochs as cost as much as its plan. At a budget below 1, a method without a plan is the
    control of its plans, and its label says for how many epochs it trains. A plan that prunes and trains on smaller
    images has a second control, which has smaller images alone.
    """
    rows = [_named(spec, row) for row in spec.rows()]
    joined = {row.label: row for row in rows}
    for control in [control for row in rows for control in _controls(spec, row)]:
        trained = [_recipe(spec, row).within_budget() for row in joined.values() if row.method == control.method]
        if _recipe(spec, control).within_budget() in trained:
            continue  # several plans may share a control
        label = control.label
        if label in joined:  # of a plan with a recipe of its own
            settings = [f"{key} {value}" for key, value in flatten(control.recipe).items() if key != "budget"]
            label = f"{label} ({', '.join(settings) or 'shared recipe'})"
        joined[label] = control.model_copy(update={"label": label})
    if list(joined.values()) == list(spec.rows()):
        return spec
    content = spec.model_dump(exclude_unset=True)
    return StudySpec.parse({**content, "methods": (), "variants": tuple(joined.values())})


def _named(spec: StudySpec, row: Variant) -> Variant:
    """Return a row without a plan under the label of a control, if all runs share a budget."""
    budget = _recipe(spec, row).budget
    if budget == 1 or "budget" in row.recipe or _without_plan(spec, row) is not None:
        return row
    label = _control_label(spec, row, row.label, budget, {})
    return row.model_copy(update={"label": label, "recipe": {**row.recipe, "budget": budget}})


def _controls(spec: StudySpec, row: Variant) -> Iterator[Variant]:
    """Yield the controls of a row with a plan."""
    base = _without_plan(spec, row)
    if base is None:
        return
    share = _share(spec, row)
    if share is not None:
        label = _control_label(spec, row, base.method, share, base.options)
        yield base.model_copy(update={"label": label, "recipe": {**base.recipe, "budget": share}})
    recipe = _recipe(spec, row)
    if recipe.schedule.resolution and _loss_of(row) is not None and share is not None:
        # Does pruning add anything to smaller images?
        settings = dict(row.recipe)
        if recipe.budget == 1:
            settings["budget"] = share
        yield base.model_copy(update={"label": f"{base.method}, smaller images", "recipe": settings})


def _without_plan(spec: StudySpec, row: Variant) -> Variant | None:
    """Return the row without pruning and without smaller images, on all its budget. None if it has neither."""
    base = _loss_of(row)
    resolution = bool(_recipe(spec, row).schedule.resolution)
    if base is None and not resolution:
        return None
    recipe = {key: value for key, value in flatten(row.recipe).items() if key != "budget"}
    if resolution:
        recipe["schedule.resolution"] = []
    if base is None:
        return Variant(label=row.method, method=row.method, options=row.options, recipe=recipe)
    # The settings that make the loss alone the same as the loss of the plan.
    with_plan = _recipe(spec, row).plan().settings
    alone = _recipe(spec, Variant(label="alone", method=base)).plan().settings
    options = {key: with_plan[key] for key, value in alone.items() if with_plan.get(key, value) != value}
    return Variant(label=base, method=base, options=options, recipe=recipe)


def _loss_of(row: Variant) -> str | None:
    """Return the method without its pruning. None if it has none."""
    try:
        return methods.without_plan(row.method)
    except InvalidInput:  # your own code that is not trusted yet; running the study says so
        return None


def _recipe(spec: StudySpec, row: Variant) -> Recipe:
    """Return the recipe of a row on the first data set and network."""
    return _runs(spec, row)[0].recipe


def _runs(spec: StudySpec, row: Variant) -> tuple[PlannedRun, ...]:
    return spec.model_copy(update={"methods": (), "variants": (row,), "baseline": None}).runs()


def _pruner(recipe: Recipe) -> ConfidencePruner:
    """Return the plan of a recipe on a data set of one class."""
    plan = recipe.plan().pruning
    assert plan is not None
    settings = {**plan, "epochs": recipe.epochs, "batch_size": recipe.optimiser.batch_size}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return ConfidencePruner(np.zeros(_SAMPLES, dtype=np.int64), **settings)


def _share(spec: StudySpec, row: Variant) -> float | None:
    """Return the cost of a plan, in whole epochs, as a share. None if unknown before training, or if it is 1."""
    recipe = _recipe(spec, row)
    if recipe.budget != 1:
        share = Fraction(recipe.budget).limit_denominator(1_000_000)
    else:
        try:
            share = _own_share(recipe)
        except InvalidInput as error:
            warnings.warn(f"{row.label} gets no control: {error}", CalibrantWarning, stacklevel=4)
            return None
    # Rounded to the nearest epoch: a control with fewer updates would favour the plan.
    epochs = max(int(share * recipe.epochs + Fraction(1, 2)), 1)
    if epochs == recipe.epochs:
        return None
    return epochs / recipe.epochs


def _own_share(recipe: Recipe) -> Fraction:
    """Return the cost of a plan without a budget. Smaller images are taken to cost in proportion to their pixels."""
    samples = [_SAMPLES] * recipe.epochs
    if recipe.plan().pruning is not None:
        samples = list(_pruner(recipe).samples_by_epoch(recipe.epochs))
    pixels = [Fraction(1)] * recipe.epochs
    if recipe.schedule.resolution:
        side = data_extent(recipe.data.name).side
        pixels = [Fraction(height * width, side**2) for height, width in epoch_sizes(recipe, (1, side, side))]
    spent = sum(count * share for count, share in zip(samples, pixels, strict=True))
    return Fraction(spent, _SAMPLES * recipe.epochs)


def _control_label(spec: StudySpec, row: Variant, base: str, share: float, options: Mapping[str, Any]) -> str:
    """Return a label such as `nll@96`: by epochs, or by share if the data sets have different numbers of epochs."""
    lengths = {planned.recipe.epochs for planned in _runs(spec, row)}
    label = f"{base}@{100 * share:g}%"
    if len(lengths) == 1:
        label = f"{base}@{int(Fraction(share).limit_denominator(1_000_000) * lengths.pop())}"
    if options:
        label += f" ({', '.join(f'{key} {value}' for key, value in options.items())})"
    return label
