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
from calibrant.training import Recipe, flatten, methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Epochs are whole: updates of a plan and of its control may differ by this share, or by half an epoch if that is more.
TOLERANCE = 0.015
METRICS = (("nll", True), ("test_error", False), ("aurc", False))
"""What a plan is judged by, and whether after temperature scaling; lower is better in all of them."""


@dataclass(frozen=True)
class Controlled:
    """A plan with its control and, where there is one, the run on all updates: records of the same seeds."""

    label: str
    control_label: str
    plan: tuple[Record, ...]
    control: tuple[Record, ...]
    full: tuple[Record, ...]

    @property
    def share(self) -> float:
        """The plan's part of all updates, mean over seeds."""
        return sum(each.samples_seen for each in self.plan) / sum(each.samples_full for each in self.plan)


def has_plan(record: Record) -> bool:
    """Whether samples rest in the run; every plan has this setting."""
    return "minimum_per_class" in record.settings


def find_controls(by_label: Mapping[str, Sequence[Record]]) -> list[Controlled]:
    """Every plan of one data set and network whose control is among the records, seed by seed."""
    recipes = _Recipes()
    others = {label: [r for r in records if not has_plan(r)] for label, records in by_label.items()}
    found = []
    for label, records in by_label.items():
        plans = [record for record in records if has_plan(record)]
        pairs: list[tuple[Record, Record, Record | None, str]] = []
        for plan in plans:
            fitting = [
                (abs(other.samples_seen - plan.samples_seen), name, other)
                for name, group in others.items()
                for other in group
                if other.seed == plan.seed and recipes.differ_in_plan_alone(plan, other)
            ]
            near = [each for each in fitting if each[0] <= _tolerance(plan)]
            full = next((other for _, _, other in fitting if other.samples_seen == plan.samples_full), None)
            if near and plan.samples_seen < plan.samples_full:
                _, name, control = min(near, key=lambda each: each[:2])
                pairs.append((plan, control, full, name))
        if pairs:
            own, controls, all_updates, names = zip(*pairs, strict=True)
            full_runs = () if None in all_updates else all_updates
            # Where the plan's updates differ from seed to seed, so may its control.
            found.append(Controlled(label, ", ".join(dict.fromkeys(names)), own, controls, full_runs))
    return found


def _tolerance(plan: Record) -> float:
    return max(TOLERANCE * plan.samples_seen, 0.5 * plan.samples_full / int(plan.recipe["epochs"]))


class _Recipes:
    """Compares the recipes of records; each is parsed once, so that settings of later versions have their defaults."""

    _PARTS = ("data", "model", "optimiser", "schedule", "balance")

    def __init__(self) -> None:
        self._parsed: dict[int, Any] = {}

    def _parts(self, record: Record) -> Any:
        if id(record) not in self._parsed:
            try:
                recipe = Recipe.parse(record.recipe).model_dump(mode="json")
            except InvalidInput:  # of a method or setting that is gone
                recipe = record.recipe
            self._parsed[id(record)] = [recipe.get(part) for part in self._PARTS]
        return self._parsed[id(record)]

    def differ_in_plan_alone(self, plan: Record, other: Record) -> bool:
        """Whether the loss, its settings, schedule, optimiser, data, class balance and precision agree."""
        if other.method != plan.method.rpartition("+")[0]:
            return False
        if any(plan.settings.get(key) != value for key, value in other.settings.items()):
            return False
        engines = [(each.recipe["engine"]["precision"], each.environment.get("device")) for each in (plan, other)]
        return engines[0] == engines[1] and self._parts(plan) == self._parts(other)


def against_controls(
    by_label: Mapping[str, Sequence[Record]], noise: ImageNoise | None = None
) -> tuple[AgainstControl, ...]:
    """All plans beside their controls, metric by metric.

    Args:
        by_label: Records of one data set and network.
        noise: Where the noise of the test images comes from; without it intervals are over seeds alone.
    """
    made = []
    for found in find_controls(by_label):
        for metric, scaled in METRICS:
            difference = _difference(found, metric, scaled, noise)
            full, control, plan = (
                estimate([each.value(metric, scaled=scaled) for each in runs]).mean if runs else None
                for runs in (found.full, found.control, found.plan)
            )
            scored = sum(each.samples_scored / each.samples_full for each in found.plan) / len(found.plan)
            made.append(
                AgainstControl(
                    found.label,
                    found.control_label,
                    found.share,
                    scored,
                    full,
                    control,
                    plan,
                    difference,
                    recovered_share(full, control, plan),
                )
            )
    return tuple(made)


def plans_without_control(
    by_label: Mapping[str, Sequence[Record]], controls: Sequence[AgainstControl]
) -> tuple[str, ...]:
    """Plans that saved updates and stand beside no control: a table must say that it leaves them out."""
    beside = {item.plan for item in controls}
    return tuple(
        label
        for label, records in by_label.items()
        if label not in beside and any(has_plan(r) and r.samples_seen < r.samples_full for r in records)
    )


def recovered_share(full: float | None, control: float | None, plan: float | None) -> float | None:
    """Which part of what fewer epochs lose the plan recovers, for a metric of which less is better.

    >>> recovered_share(1.0, 3.0, 2.5)
    0.25
    """
    if full is None or control is None or plan is None or control <= full:
        return None
    return (control - plan) / (control - full)


def _difference(found: Controlled, metric: str, scaled: bool, noise: ImageNoise | None) -> PairedDifference:
    ours, theirs = ([each.value(metric, scaled=scaled) for each in runs] for runs in (found.plan, found.control))
    if len(ours) > 1 or noise is None:
        least = 0.0 if noise is None else noise.half_width(metric, found.plan, found.control, scaled=scaled)
        return over_seeds(found.label, metric, ours, theirs, scaled=scaled, least=least)
    return over_images(found.label, metric, found.plan[0], found.control[0], noise, scaled=scaled)


# The rows of a study at budgets.

# One class of this size tells the share of a plan that has a rate of its own; rounding by class does not matter here.
_SAMPLES = 10_000


def at_budgets(spec: StudySpec, budgets: Sequence[float] = (), *, control: bool = True) -> StudySpec:
    """The study with each method at each budget, and with controls; all of it as plain rows that `study.toml` holds.

    At a budget below 1, a method without a plan is the control of its plans, and its label says for how many epochs it
    trains. At a budget of 1 there is nothing for a plan to save: there its loss alone is trained on all data.

    Args:
        spec: What to compare.
        budgets: Shares of all updates; none leaves every method as it is.
        control: Whether to add, for each plan, the same loss and schedule on all data for as many updates.
    """
    shared = dict(spec.recipe)
    given = tuple(budgets) or tuple([shared["budget"]] if shared.get("budget", 1) != 1 else ())
    shared.pop("budget", None)
    plain = spec.model_copy(update={"recipe": shared, "baseline": None})
    rows = list(plain.rows())
    if set(given) == {1}:
        _refuse_plans(rows)
    if given:
        rows = [at for budget in given for row in rows for at in _at(plain, row, budget, alone=len(given) == 1)]
    for row in rows:
        _check_budget(plain, row)
    controls = [found for row in rows for found in _controls(plain, row, given)] if control else []
    rows = _joined(plain, rows, controls)
    if rows == list(plain.rows()):
        return spec
    return StudySpec.parse(
        {**spec.model_dump(exclude_unset=True), "recipe": shared, "methods": (), "variants": tuple(rows)}
    )


def _refuse_plans(rows: Sequence[Variant]) -> None:
    """At a budget of 1 alone no plan would be run, and its row would be missing without a word."""
    for row in rows:
        if _loss_of(row) is not None:
            way_out = "Leave it out for the rate that the plan has itself."
            raise invalid("budgets", f"have one below 1 for {row.label}", "1 alone", way_out)


def _at(spec: StudySpec, row: Variant, budget: float, *, alone: bool) -> Iterator[Variant]:
    """A row at a budget; none for a plan at a budget of 1."""
    base = _loss_of(row)
    recipe = {**row.recipe, **({} if budget == 1 else {"budget": budget})}
    if base is None:
        label = row.label if budget == 1 else _control_label(spec, row, row.label, budget, {})
        yield row.model_copy(update={"label": label, "recipe": recipe})
    elif budget != 1:
        label = row.label if alone else f"{row.label} at {budget:g}"
        yield row.model_copy(update={"label": label, "recipe": recipe})


def _controls(spec: StudySpec, row: Variant, budgets: Sequence[float]) -> Iterator[Variant]:
    """The control of a row with a plan, and its loss on all data where a budget of 1 asks for it."""
    base = _loss_of(row)
    if base is None:
        return
    options = _loss_options(spec, row, base)
    shares = [_share(spec, row)] + ([1.0] if 1.0 in budgets else [])
    for share in shares:
        if share is None:
            continue
        recipe = {key: value for key, value in row.recipe.items() if key != "budget"}
        label = base if share == 1 else _control_label(spec, row, base, share, options)
        added = {} if share == 1 else {"budget": share}
        yield Variant(label=label, method=base, options=options, recipe={**recipe, **added})


def _loss_of(row: Variant) -> str | None:
    try:
        return methods.without_plan(row.method)
    except InvalidInput:  # your own code that is not trusted yet: running the study says so
        return None


def _recipe(spec: StudySpec, row: Variant) -> Recipe:
    """The row's recipe on the first data set and network."""
    only = spec.model_copy(update={"methods": (), "variants": (row,), "baseline": None})
    return only.runs()[0].recipe


def _loss_options(spec: StudySpec, row: Variant, base: str) -> dict[str, Any]:
    """What the loss must be told to be that of the plan: settings that were given, or that the plan's row changes."""
    with_plan = _recipe(spec, row).plan().settings
    alone: Mapping[str, Any] = _recipe(spec, Variant(label="alone", method=base)).plan().settings
    return {key: with_plan[key] for key, value in alone.items() if with_plan.get(key, value) != value}


def _check_budget(spec: StudySpec, row: Variant) -> None:
    """Refuse a budget that its plan cannot meet before the first run starts: the last run may begin days later."""
    if _loss_of(row) is not None:
        recipe = _recipe(spec, row)
        if recipe.budget != 1:
            try:
                _pruner(recipe)
            except InvalidInput as error:
                raise InvalidInput(f"{row.label}: {error}") from error


def _pruner(recipe: Recipe) -> ConfidencePruner:
    """The recipe's plan on a set of one class."""
    plan = recipe.plan().pruning
    assert plan is not None
    settings = {**plan.options(), "epochs": recipe.epochs, "batch_size": recipe.optimiser.batch_size}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return ConfidencePruner(np.zeros(_SAMPLES, dtype=np.int64), **settings)


def _share(spec: StudySpec, row: Variant) -> float | None:
    """The updates of a plan, in whole epochs, as a share; None where they are not known before training."""
    recipe = _recipe(spec, row)
    plan = recipe.plan().pruning
    assert plan is not None
    if recipe.budget != 1:
        share = Fraction(recipe.budget).limit_denominator(1_000_000)
    else:
        try:
            share = Fraction(sum(_pruner(recipe).samples_by_epoch(recipe.epochs)), _SAMPLES * recipe.epochs)
        except InvalidInput as error:
            way_out = " With a budget its updates are known." if plan.policy.free else ""
            told = f"{row.label} gets no control: {error}{way_out}"
            warnings.warn(told, CalibrantWarning, stacklevel=4)
            return None
    # To the nearest epoch: a control with fewer updates would flatter the plan.
    epochs = max(int(share * recipe.epochs + Fraction(1, 2)), 1)
    return None if epochs == recipe.epochs else epochs / recipe.epochs


def _control_label(spec: StudySpec, row: Variant, base: str, share: float, options: Mapping[str, Any]) -> str:
    """`nll@96`, by epochs; by share where the data sets have different numbers of epochs."""
    only = spec.model_copy(update={"methods": (), "variants": (row,), "baseline": None})
    lengths = {planned.recipe.epochs for planned in only.runs()}
    given = f" ({', '.join(f'{key} {value}' for key, value in options.items())})" if options else ""
    if len(lengths) > 1:
        return f"{base}@{100 * share:g}%{given}"
    return f"{base}@{int(Fraction(share).limit_denominator(1_000_000) * lengths.pop())}{given}"


def _joined(spec: StudySpec, rows: Sequence[Variant], controls: Sequence[Variant]) -> list[Variant]:
    """The rows and then the controls, each training once: several plans may share a control.

    Plans whose variants have recipes of their own need controls of their own. Where the usual label is taken by another
    training, the control's label names what its recipe sets.
    """
    joined: dict[str, Variant] = {}
    for row in rows:
        joined.setdefault(row.label, row)  # two budgets may come to as many epochs
    for control in controls:
        trained = [_recipe(spec, row).within_budget() for row in joined.values() if row.method == control.method]
        if _recipe(spec, control).within_budget() in trained:
            continue
        label = control.label
        if label in joined:
            own = [f"{key} {value}" for key, value in flatten(control.recipe).items() if key != "budget"]
            label = f"{label} ({', '.join(own) or 'shared recipe'})"
        joined[label] = control.model_copy(update={"label": label})
    return list(joined.values())


# The budget curve.


def budget_lines(results: Results) -> list[BudgetLine]:
    """A line for each method, or variant of it, that was run at several costs; plans end where all updates are made.

    The control of a plan is the line of its loss on all data. A plan at a budget of 1 is its loss on all data, so that
    run is the last point of both. A method that was run at one cost alone gives no line, but for a plan beside a curve.
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
    """The rows of each line: those of a method, or of a variant where several variants of it have the same cost."""
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
    """The budget curve; None where no method was run at several costs."""
    lines = budget_lines(results)
    if not lines:
        return None
    seeds = max(len(row.seeds) for row in results.rows)
    bars = " (bars: standard deviation over seeds)" if seeds > 1 else " (one seed)"
    return budget_curves(lines, title=f"{results.data}, {results.model}: what a budget of updates buys{bars}")


def curve_line(method: str, points: Mapping[float, Row], *, control: bool) -> BudgetLine:
    """A line through rows by their share of all updates."""
    none = Estimate(None, None, None, ())
    updates = sorted(points)
    rows = [points[share] for share in updates]
    found = {
        "error": [row.test["test_error"] for row in rows],
        "nll": [row.scaled["nll"] for row in rows],
        "automated": [row.automation.get("scaled_share@0.99", none) for row in rows],
    }
    values = {panel: [math.nan if each.mean is None else each.mean for each in line] for panel, line in found.items()}
    spreads = {
        panel: [each.spread if each.over == "seeds" and each.spread is not None else math.nan for each in line]
        for panel, line in found.items()
    }
    name = f"{method}, fewer epochs (to beat)" if control else method
    return BudgetLine(name, updates, values, spreads, control=control)
