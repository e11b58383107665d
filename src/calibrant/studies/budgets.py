"""The rows of a study at equal costs: every method at every budget, and for every plan its control."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from calibrant.errors import CalibrantWarning, InvalidInput, invalid
from calibrant.pruning import ConfidencePruner
from calibrant.studies.spec import StudySpec, Variant
from calibrant.training import Recipe, flatten, methods

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
