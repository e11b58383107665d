"""From a name to a loss and a pruning plan."""

from collections.abc import Mapping
from typing import Any, Literal

from calibrant.errors import did_you_mean, invalid
from calibrant.losses import Loss
from calibrant.pruning import Every, OnPlateau
from calibrant.pruning.pruner import check_scoring
from calibrant.pruning.timetable import Schedule
from calibrant.training.methods.composing import find
from calibrant.training.methods.plan import Blueprint, Method, Plan, PruningPlan, Value
from calibrant.training.methods.table import FIRST_DROP, OTHER_EPOCHS, PLATEAU, USUAL_DROP, USUAL_EPOCHS


def describe(name: str) -> Method:
    """Formula, pruning, source and settings of a method.

    >>> describe("flsd+h").formula
    'FLSD-53 + huber_weight * Huber(mean confidence - accuracy)'
    """
    blueprint = find(name)
    formula = " + ".join(term.text for term in blueprint.terms)
    pruning = blueprint.pruning.text if blueprint.pruning else "none"
    return Method(name, formula, pruning, blueprint.source, blueprint.settings)


def resolve(
    name: str,
    *,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    first_drop: int | Literal["usual"] | None = "usual",
    budget: float = 1.0,
    **overrides: Value,
) -> Plan:
    """Turn a name into a loss and a pruning plan.

    Args:
        name: One of `names()`, or `LOSS[+TERM...][+PLAN]`; see `calibrant.training.methods.composing`.
        data: Data set, as in `calibrant.training.data`; one that the paper does not use gets the general values.
        model: Network, as in `calibrant.training.models`.
        epochs: Length of the training. The pruning epochs are chosen for the data set's usual length (160 on CIFAR-10,
            200 on CIFAR-100, 100 elsewhere in the paper, 160 for any other data) and scaled in proportion for another.
        first_drop: The epoch after which the learning rate first drops, for `start = "first-drop"`; None for a schedule
            without a drop. Unless told, that of the paper's schedule for the data set.
        budget: Share of all sample updates that the plan may make. Below 1 the pruner solves for the plan's free rate,
            which is no setting then. A method without a plan is not changed: `Recipe.within_budget` gives it fewer
            epochs.
        **overrides: Any of the method's settings.

    >>> resolve("flsd+h+p", data="cifar10", epochs=16).settings["start"]
    8
    """
    blueprint = find(name)
    if epochs is not None and epochs < 1:
        raise invalid("epochs", "be at least 1", epochs)
    _check_budget(name, blueprint, budget, overrides)
    settings: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for key, setting in blueprint.settings.items():
        settings[key], sources[key] = setting.look_up(data, model)
    if blueprint.pruning is not None:
        _scale_epochs(settings, sources, data, epochs, first_drop, fixed=overrides)
    for key, value in overrides.items():
        if key not in blueprint.settings:
            rule = f"be a setting of the method {name!r}"
            raise invalid(
                "override", rule, repr(key), did_you_mean(key, blueprint.settings) if settings else "It has none."
            )
        settings[key], sources[key] = _like(key, value, blueprint.settings[key].value), "given"
    if blueprint.pruning is not None and settings["start"] == FIRST_DROP:
        settings["start"] = _given_drop(data, epochs, first_drop)
        sources["start"] = "given: the first drop of the learning rate"
    loss, pruning = _build_loss(blueprint, settings), _build_pruning(blueprint, settings, budget)
    if budget != 1 and blueprint.pruning is not None:
        for found in (settings, sources):
            found.pop(blueprint.pruning.free, None)
    return Plan(name, loss, pruning, settings, sources)


def _check_budget(name: str, blueprint: Blueprint, budget: float, overrides: Mapping[str, Value]) -> None:
    """Refuse a budget for a plan that has a rate of its own, by itself or because it was given."""
    if budget == 1 or blueprint.pruning is None:
        return
    free = blueprint.pruning.free
    if not free:
        way_out = "Use a plan with a free rate, such as unbiased or random."
        raise invalid("budget", f"be 1 with {name}, whose plan has a rate of its own", budget, way_out)
    if free in overrides:
        raise invalid(free, "be left out with a budget, which solves for it", overrides[free])


def _like(key: str, value: Any, example: Value) -> Value:
    """The value with the type of the default; TOML writes 1 for 1.0."""
    if key == "start" and isinstance(value, str) and isinstance(example, int):
        if value in (FIRST_DROP, PLATEAU):
            return value
        raise invalid(key, f"be an epoch, {FIRST_DROP!r} or {PLATEAU!r}", repr(value))
    if isinstance(example, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(example):
        raise invalid(key, f"be of type {type(example).__name__}", repr(value), f"The default is {example!r}.")
    result: Value = value
    return result


def _scale_epochs(
    settings: dict[str, Value],
    sources: dict[str, str],
    data: str | None,
    epochs: int | None,
    first_drop: int | str | None,
    fixed: Mapping[str, Value],
) -> None:
    """Move the pruning epochs in proportion to the length of the training, and say so."""
    usual = USUAL_EPOCHS.get(data or "", OTHER_EPOCHS)
    if settings.get("start") == FIRST_DROP and "start" not in fixed:
        if isinstance(first_drop, int):  # the schedule says so: nothing to scale
            settings["start"], fixed = first_drop, {**fixed, "start": first_drop}
        else:
            settings["start"] = USUAL_DROP[data or ""]
            sources["start"] += "; the paper's drop: here the rate has none" if first_drop is None else ""
    scalable = [key for key in ("start", "interval") if key in settings and key not in fixed]
    from_the_first = settings["start"] == 1  # of a plan that draws every epoch, in a training of any length
    if epochs is None or epochs == usual or from_the_first or not scalable:
        return
    for key in scalable:
        old = settings[key]
        assert isinstance(old, int)
        settings[key] = _scaled(old, usual, epochs)
        sources[key] += f"; {old} of {usual} epochs scaled to {epochs}"
    settings["scaled_from_epochs"], sources["scaled_from_epochs"] = usual, f"usual length for {data or 'other data'}"


def _scaled(epoch: int, usual: int, epochs: int) -> int:
    # Half away from zero: Python's round() would send 0.5 to 0 and 1.5 to 2.
    return max(1, (2 * epoch * epochs + usual) // (2 * usual))


def _given_drop(data: str | None, epochs: int | None, first_drop: int | str | None) -> int:
    """The epoch that a user means with `start = "first-drop"`."""
    if isinstance(first_drop, int):
        return first_drop
    if first_drop is None or data not in USUAL_DROP:
        way_out = "Give an epoch, or schedule.kind = step with milestones."
        raise invalid("start", "be an epoch where the learning rate has no drop", repr(FIRST_DROP), way_out)
    usual = USUAL_EPOCHS[data]
    return _scaled(USUAL_DROP[data], usual, epochs or usual)


def _build_loss(blueprint: Blueprint, settings: Mapping[str, Any]) -> Loss:
    total, *others = (term.build(settings) for term in blueprint.terms)
    for other in others:
        total = total + other
    return total


def _build_pruning(blueprint: Blueprint, settings: Mapping[str, Any], budget: float) -> PruningPlan | None:
    if blueprint.pruning is None:
        return None
    policy = blueprint.pruning.build(settings)
    # Policies that draw every epoch have no interval.
    schedule: Schedule
    interval = settings.get("interval", 1)
    if settings["start"] == PLATEAU:
        schedule = OnPlateau(interval=interval)
    else:
        schedule = Every(interval, start=settings["start"])
    scoring = settings.get("scoring", "batches")
    if settings.get("readmit") and scoring == "batches":
        way_out = "Set scoring to 'resting' or 'all': a sample that rests keeps its last score, and hardly any returns."
        raise invalid("readmit", "be false without scoring", True, way_out)
    check_scoring(scoring, policy)
    fixed = (settings["ema"], settings["anneal"], settings["minimum_per_class"])
    return PruningPlan(policy, schedule, *fixed, scoring=scoring, budget=budget)
