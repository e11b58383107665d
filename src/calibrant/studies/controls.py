"""Plans at equal cost: the rows of a study at budgets, each plan beside its control, and the budget curve.

A plan rests some samples. Its control has the same loss and schedule on all data, for as many updates in fewer epochs.
"""

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.errors import CalibrantWarning, InvalidInput, invalid
from calibrant.pruning import ConfidencePruner
from calibrant.report import BudgetLine, budget_curves
from calibrant.studies.records import Record
from calibrant.studies.study_spec import StudySpec, Variant
from calibrant.studies.summaries import (
    AgainstControl,
    Estimate,
    ImageNoise,
    PairedDifference,
    Results,
    Row,
    estimate,
    over_images,
    over_seeds,
)
from calibrant.training import Recipe, methods
from calibrant.training.recipe import flatten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Epochs are whole numbers, so the updates of a plan and its control may differ by this share, or by half an epoch.
TOLERANCE = 0.015
METRICS = (("nll", True), ("test_error", False), ("aurc", False))
"""Metrics by which a plan is judged, and whether after temperature scaling. Lower is better in all of them."""


@dataclass(frozen=True)
class Controlled:
    """A plan, its control and, if there is one, the run on all updates: records of the same seeds."""

    label: str
    control_label: str
    plan: tuple[Record, ...]
    control: tuple[Record, ...]
    full: tuple[Record, ...]

    @property
    def share(self) -> float:
        """Updates of the plan as a share of all updates, mean over seeds."""
        seen = sum(record.samples_seen for record in self.plan)
        return seen / sum(record.samples_full for record in self.plan)


def has_plan(record: Record) -> bool:
    """Return whether the run has a plan that rests samples. Every plan has this setting."""
    return "minimum_per_class" in record.settings


def find_controls(by_label: Mapping[str, Sequence[Record]]) -> list[Controlled]:
    """Return every plan of one data set and network whose control is among the records, seed by seed."""
    recipes = _Recipes()
    without_plan = [
        (label, record) for label, records in by_label.items() for record in records if not has_plan(record)
    ]
    controlled = []
    for label, records in by_label.items():
        searched = [_control_of(record, without_plan, recipes) for record in records if has_plan(record)]
        pairs = [pair for pair in searched if pair is not None]
        if not pairs:
            continue
        plans = tuple(plan for plan, _, _, _ in pairs)
        controls = tuple(control for _, _, control, _ in pairs)
        full_runs = tuple(full for _, _, _, full in pairs if full is not None)
        if len(full_runs) < len(plans):
            full_runs = ()
        # If the updates of a plan differ from seed to seed, its controls may have several names.
        control_label = ", ".join(dict.fromkeys(name for _, name, _, _ in pairs))
        controlled.append(Controlled(label, control_label, plans, controls, full_runs))
    return controlled


def _control_of(
    plan: Record, others: Sequence[tuple[str, Record]], recipes: "_Recipes"
) -> tuple[Record, str, Record, Record | None] | None:
    """Return a plan, the label of its control, the control and the run on all updates. None without a control."""
    candidates = []
    full = None
    for label, other in others:
        if other.seed == plan.seed and recipes.differ_in_plan_alone(plan, other):
            distance = abs(other.samples_seen - plan.samples_seen)
            if distance <= _tolerance(plan):
                candidates.append((distance, label, other))
            if full is None and other.samples_seen == plan.samples_full:
                full = other
    if not candidates or plan.samples_seen >= plan.samples_full:
        return None
    _, label, control = min(candidates, key=lambda candidate: candidate[:2])
    return plan, label, control, full


def _tolerance(plan: Record) -> float:
    return max(TOLERANCE * plan.samples_seen, 0.5 * plan.samples_full / int(plan.recipe["epochs"]))


class _Recipes:
    """Compares the recipes of records. Each is parsed once, which fills in settings that an older record lacks."""

    _PARTS = ("data", "model", "optimiser", "schedule", "balance")

    def __init__(self) -> None:
        self._parsed: dict[int, Any] = {}

    def _parts(self, record: Record) -> Any:
        if id(record) not in self._parsed:
            try:
                recipe = Recipe.parse(record.recipe).model_dump(mode="json")
            except InvalidInput:  # a method or setting that no longer exists
                recipe = record.recipe
            self._parsed[id(record)] = [recipe.get(part) for part in self._PARTS]
        return self._parsed[id(record)]

    def differ_in_plan_alone(self, plan: Record, other: Record) -> bool:
        """Return whether the loss, its settings, schedule, optimiser, data, class balance and precision agree."""
        if other.method != plan.method.rpartition("+")[0]:
            return False
        if any(plan.settings.get(key) != value for key, value in other.settings.items()):
            return False
        if plan.recipe["engine"]["precision"] != other.recipe["engine"]["precision"]:
            return False
        if plan.environment.get("device") != other.environment.get("device"):
            return False
        return bool(self._parts(plan) == self._parts(other))


def against_controls(
    by_label: Mapping[str, Sequence[Record]], noise: ImageNoise | None = None
) -> tuple[AgainstControl, ...]:
    """Compare all plans with their controls, metric by metric.

    Args:
        by_label: Records of one data set and network.
        noise: The noise of the test images. None: intervals are over seeds alone.
    """
    rows = []
    for controlled in find_controls(by_label):
        plans = controlled.plan
        scored = sum(record.samples_scored / record.samples_full for record in plans) / len(plans)
        for metric, scaled in METRICS:
            full = _mean(controlled.full, metric, scaled)
            control = _mean(controlled.control, metric, scaled)
            plan = _mean(plans, metric, scaled)
            rows.append(
                AgainstControl(
                    plan=controlled.label,
                    control=controlled.control_label,
                    share=controlled.share,
                    scored_share=scored,
                    all_updates=full,
                    control_value=control,
                    plan_value=plan,
                    difference=_difference(controlled, metric, scaled, noise),
                    recovered=recovered_share(full, control, plan),
                )
            )
    return tuple(rows)


def _mean(records: Sequence[Record], metric: str, scaled: bool) -> float | None:
    """Return the mean of a metric over records; None without records."""
    return estimate([record.value(metric, scaled=scaled) for record in records]).mean


def plans_without_control(
    by_label: Mapping[str, Sequence[Record]], controls: Sequence[AgainstControl]
) -> tuple[str, ...]:
    """Return the plans that saved updates and have no control: a table must say that it leaves them out."""
    controlled = {item.plan for item in controls}
    return tuple(
        label
        for label, records in by_label.items()
        if label not in controlled and any(has_plan(r) and r.samples_seen < r.samples_full for r in records)
    )


def recovered_share(full: float | None, control: float | None, plan: float | None) -> float | None:
    """Return the share of the loss by fewer epochs that the plan recovers, for a metric of which less is better.

    >>> recovered_share(1.0, 3.0, 2.5)
    0.25
    """
    if full is None or control is None or plan is None or control <= full:
        return None
    return (control - plan) / (control - full)


def _difference(pair: Controlled, metric: str, scaled: bool, noise: ImageNoise | None) -> PairedDifference:
    if len(pair.plan) == 1 and noise is not None:
        return over_images(pair.label, metric, pair.plan[0], pair.control[0], noise, scaled=scaled)
    ours = [record.value(metric, scaled=scaled) for record in pair.plan]
    theirs = [record.value(metric, scaled=scaled) for record in pair.control]
    least = 0.0
    if noise is not None:
        least = noise.half_width(metric, pair.plan, pair.control, scaled=scaled)
    return over_seeds(pair.label, metric, ours, theirs, scaled=scaled, least=least)


# The rows of a study at budgets.

# Size of the one class on which the share of a plan with its own rate is computed. Rounding by class is negligible.
_SAMPLES = 10_000


def at_budgets(spec: StudySpec, budgets: Sequence[float] = (), *, control: bool = True) -> StudySpec:
    """Return the study with each method at each budget, and with controls, as plain rows for `study.toml`.

    At a budget below 1, a method without a plan is the control of its plans, and its label says for how many epochs it
    trains. At a budget of 1 a plan has nothing to save, so its loss alone is trained on all data.

    Args:
        spec: What to compare.
        budgets: Shares of all updates. Empty: every method stays as it is.
        control: Whether to add, for each plan, the same loss and schedule on all data for as many updates.
    """
    shared = dict(spec.recipe)
    budgets = tuple(budgets)
    shared_budget = shared.pop("budget", 1)
    if not budgets and shared_budget != 1:
        budgets = (shared_budget,)
    plain = spec.model_copy(update={"recipe": shared, "baseline": None})
    rows = list(plain.rows())
    if set(budgets) == {1}:
        _refuse_plans(rows)
    if budgets:
        alone = len(budgets) == 1
        rows = [changed for budget in budgets for row in rows for changed in _at(plain, row, budget, alone=alone)]
    for row in rows:
        _check_budget(plain, row)
    controls = []
    if control:
        controls = [added for row in rows for added in _controls(plain, row, budgets)]
    rows = _joined(plain, rows, controls)
    if rows == list(plain.rows()):
        return spec
    return StudySpec.parse(
        {**spec.model_dump(exclude_unset=True), "recipe": shared, "methods": (), "variants": tuple(rows)}
    )


def _refuse_plans(rows: Sequence[Variant]) -> None:
    """Raise if there is a plan: at a budget of 1 alone it would not be run, and its row would silently be missing."""
    for row in rows:
        if _loss_of(row) is not None:
            way_out = "Leave --budgets out to use the rate of the plan."
            raise invalid("budgets", f"have one below 1 for {row.label}", "1 alone", way_out)


def _at(spec: StudySpec, row: Variant, budget: float, *, alone: bool) -> Iterator[Variant]:
    """Yield a row at a budget; nothing for a plan at a budget of 1."""
    base = _loss_of(row)
    recipe = dict(row.recipe)
    if budget != 1:
        recipe["budget"] = budget
    if base is None:
        label = row.label if budget == 1 else _control_label(spec, row, row.label, budget, {})
        yield row.model_copy(update={"label": label, "recipe": recipe})
    elif budget != 1:
        label = row.label if alone else f"{row.label} at {budget:g}"
        yield row.model_copy(update={"label": label, "recipe": recipe})


def _controls(spec: StudySpec, row: Variant, budgets: Sequence[float]) -> Iterator[Variant]:
    """Yield the control of a row with a plan, and its loss on all data if a budget of 1 is given."""
    base = _loss_of(row)
    if base is None:
        return
    options = _loss_options(spec, row, base)
    recipe = {key: value for key, value in row.recipe.items() if key != "budget"}
    share = _share(spec, row)
    if share is not None:
        label = _control_label(spec, row, base, share, options)
        yield Variant(label=label, method=base, options=options, recipe={**recipe, "budget": share})
    if 1.0 in budgets:
        yield Variant(label=base, method=base, options=options, recipe=recipe)


def _loss_of(row: Variant) -> str | None:
    try:
        return methods.without_plan(row.method)
    except InvalidInput:  # your own code that is not trusted yet; running the study says so
        return None


def _recipe(spec: StudySpec, row: Variant) -> Recipe:
    """Return the recipe of a row on the first data set and network."""
    only = spec.model_copy(update={"methods": (), "variants": (row,), "baseline": None})
    return only.runs()[0].recipe


def _loss_options(spec: StudySpec, row: Variant, base: str) -> dict[str, Any]:
    """Return the settings that make the loss alone the same as the loss of the plan."""
    with_plan = _recipe(spec, row).plan().settings
    alone: Mapping[str, Any] = _recipe(spec, Variant(label="alone", method=base)).plan().settings
    return {key: with_plan[key] for key, value in alone.items() if with_plan.get(key, value) != value}


def _check_budget(spec: StudySpec, row: Variant) -> None:
    """Raise if a plan cannot meet its budget. The run itself may begin days later."""
    if _loss_of(row) is not None:
        recipe = _recipe(spec, row)
        if recipe.budget != 1:
            try:
                _pruner(recipe)
            except InvalidInput as error:
                raise InvalidInput(f"{row.label}: {error}") from error


def _pruner(recipe: Recipe) -> ConfidencePruner:
    """Return the plan of a recipe on a data set of one class."""
    plan = recipe.plan().pruning
    assert plan is not None
    settings = {**plan.options(), "epochs": recipe.epochs, "batch_size": recipe.optimiser.batch_size}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return ConfidencePruner(np.zeros(_SAMPLES, dtype=np.int64), **settings)


def _share(spec: StudySpec, row: Variant) -> float | None:
    """Return the updates of a plan, in whole epochs, as a share. None if unknown before training, or if it is 1."""
    recipe = _recipe(spec, row)
    plan = recipe.plan().pruning
    assert plan is not None
    if recipe.budget != 1:
        share = Fraction(recipe.budget).limit_denominator(1_000_000)
    else:
        try:
            share = Fraction(sum(_pruner(recipe).samples_by_epoch(recipe.epochs)), _SAMPLES * recipe.epochs)
        except InvalidInput as error:
            message = f"{row.label} gets no control: {error}"
            if plan.policy.free:
                message += " With a budget its updates are known."
            warnings.warn(message, CalibrantWarning, stacklevel=4)
            return None
    # Rounded to the nearest epoch: a control with fewer updates would favour the plan.
    epochs = max(int(share * recipe.epochs + Fraction(1, 2)), 1)
    if epochs == recipe.epochs:
        return None
    return epochs / recipe.epochs


def _control_label(spec: StudySpec, row: Variant, base: str, share: float, options: Mapping[str, Any]) -> str:
    """Return a label such as `nll@96`: by epochs, or by share if the data sets have different numbers of epochs."""
    only = spec.model_copy(update={"methods": (), "variants": (row,), "baseline": None})
    lengths = {planned.recipe.epochs for planned in only.runs()}
    suffix = ""
    if options:
        suffix = f" ({', '.join(f'{key} {value}' for key, value in options.items())})"
    if len(lengths) > 1:
        return f"{base}@{100 * share:g}%{suffix}"
    return f"{base}@{int(Fraction(share).limit_denominator(1_000_000) * lengths.pop())}{suffix}"


def _joined(spec: StudySpec, rows: Sequence[Variant], controls: Sequence[Variant]) -> list[Variant]:
    """Return the rows and then the controls, each training once: several plans may share a control.

    Variants with recipes of their own need controls of their own. If another training already has the label of a
    control, the label also names the settings of its recipe.
    """
    joined: dict[str, Variant] = {}
    for row in rows:
        joined.setdefault(row.label, row)  # two budgets may round to the same number of epochs
    for control in controls:
        trained = [_recipe(spec, row).within_budget() for row in joined.values() if row.method == control.method]
        if _recipe(spec, control).within_budget() in trained:
            continue
        label = control.label
        if label in joined:
            settings = [f"{key} {value}" for key, value in flatten(control.recipe).items() if key != "budget"]
            label = f"{label} ({', '.join(settings) or 'shared recipe'})"
        joined[label] = control.model_copy(update={"label": label})
    return list(joined.values())


# The budget curve.


def budget_lines(results: Results) -> list[BudgetLine]:
    """Return a line for each method, or variant of it, that was run at several costs.

    The control of a plan is the line of its loss on all data. A plan at a budget of 1 is its loss on all data, so that
    run is the last point of both lines. A method that was run at one cost has no line, except a plan beside a curve.
    """
    controls = {item.plan: item.control for item in results.controls}
    groups = _groups(results.rows)
    lines = []
    for name, rows in groups.items():
        own = {controls[row.label] for row in rows if row.label in controls}
        full = [row for line in groups.values() if own & {each.label for each in line} for row in line]
        points = {row.seen_share.mean or 0.0: row for row in (*rows, *(r for r in full if r.seen_share.mean == 1.0))}
        if len(points) > 1:
            lines.append(curve_line(name, points, control=any(row.label in controls.values() for row in rows)))
    return lines


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each line: those of a method, or of a variant if several variants have the same cost."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    groups: dict[str, list[Row]] = {}
    for method, members in by_method.items():
        one_line = len({row.seen_share.mean for row in members}) == len(members)
        for row in members:
            groups.setdefault(method if one_line else _COST.sub("", row.label, count=1), []).append(row)
    return groups


_COST = re.compile(r" at [\d.e-]+$|@[\d.]+%?")
"""What `at_budgets` adds to a label: `unbiased at 0.6`, `nll@96`."""


def budget_figure(results: Results) -> "Figure | None":
    """Return the budget curve. None if no method was run at several costs."""
    lines = budget_lines(results)
    if not lines:
        return None
    seeds = max(len(row.seeds) for row in results.rows)
    bars = " (bars: standard deviation over seeds)" if seeds > 1 else " (one seed)"
    return budget_curves(lines, title=f"{results.data}, {results.model}: what a budget of updates buys{bars}")


def curve_line(method: str, points: Mapping[float, Row], *, control: bool) -> BudgetLine:
    """Return a line through rows by their share of all updates."""
    none = Estimate(None, None, None, ())
    updates = sorted(points)
    rows = [points[share] for share in updates]
    panels = {
        "error": [row.test["test_error"] for row in rows],
        "nll": [row.scaled["nll"] for row in rows],
        "automated": [row.automation.get("scaled_share@0.99", none) for row in rows],
    }
    values = {}
    spreads = {}
    for panel, estimates in panels.items():
        values[panel] = [_number(point.mean) for point in estimates]
        spreads[panel] = [math.nan] * len(estimates)
        for place, point in enumerate(estimates):
            if point.over == "seeds":
                spreads[panel][place] = _number(point.spread)
    name = f"{method}, fewer epochs (to beat)" if control else method
    return BudgetLine(name, updates, values, spreads, control=control)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
