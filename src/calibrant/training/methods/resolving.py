"""From a name to a loss and a pruning plan.

Names compose: `LOSS[+TERM...][+PLAN]`. Each part comes from the table of methods or is `module:name`, your own: the
class of a `calibrant.losses.Loss` or of a `calibrant.pruning.PruningPolicy`, or a function that returns one. Its
parameters are settings of the method, and their defaults the recommended values.

    calibrant compare --methods nll brier+unbiased ls+h+random mine:Hinge+mine:MyPlan ...

A row of the table keeps its own settings, also at the beginning of a longer name: `fl+mdca+unbiased` has the gamma of
`fl+mdca`.
"""

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal

from calibrant.errors import did_you_mean, invalid
from calibrant.losses import Loss
from calibrant.own_code import load, own_code_at_work, own_parts
from calibrant.pruning import Every, PruningPolicy
from calibrant.training.methods.method_table import (
    ADDED,
    FIRST_DROP,
    METHODS,
    OTHER_EPOCHS,
    PRUNING,
    RESERVED,
    TERMS,
    USUAL_DROP,
    USUAL_EPOCHS,
    Method,
    Part,
    Plan,
    Setting,
    Value,
    is_plain,
    plan_settings,
)

_FORM = "A name is LOSS[+TERM...][+PLAN], for example brier+h+unbiased."


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
        name: One of `names()`, or `LOSS[+TERM...][+PLAN]`.
        data: Data set, as in `calibrant.training.data`; one that the paper does not use gets the general values.
        model: Network, as in `calibrant.training.models`.
        epochs: Length of the training. The pruning epochs are chosen for the data set's usual length (160 on CIFAR-10,
            200 on CIFAR-100, 100 elsewhere in the paper, 160 for any other data) and scaled in proportion for another.
        first_drop: The epoch after which the learning rate first drops, for `start = "first-drop"`; None for a schedule
            without a drop. By default that of the paper's schedule for the data set.
        budget: Share of all sample updates that the plan may make. Below 1 it replaces the plan's rate, which is no
            setting then. A method without a plan is not changed: `Recipe.within_budget` gives it fewer
            epochs.
        **overrides: Any of the method's settings.

    >>> resolve("flsd+h+p", data="cifar10", epochs=16).settings["start"]
    8
    """
    method = describe(name)
    if epochs is not None and epochs < 1:
        raise invalid("epochs", "be at least 1", epochs)
    _check_budget(name, method, budget, overrides)
    settings: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for key, setting in method.settings.items():
        settings[key], sources[key] = setting.look_up(data, model)
    for key, value in overrides.items():
        if key not in method.settings:
            hint = "It has none."
            if method.settings:
                hint = did_you_mean(key, method.settings)
            raise invalid("override", f"be a setting of the method {name!r}", repr(key), hint)
        settings[key], sources[key] = _like(key, value, method.settings[key].value), "given"
    loss = reduce(operator.add, (term.build(settings) for term in method.terms))
    pruning = None
    if method.plan is not None:
        _place_epochs(settings, sources, data, epochs, first_drop, fixed=overrides)
        pruning = _build_pruning(method.plan, settings, budget)
        if budget != 1:
            for found in (settings, sources):
                found.pop(method.plan.free, None)
    return Plan(name, loss, pruning, settings, sources)


def _check_budget(name: str, method: Method, budget: float, overrides: Mapping[str, Value]) -> None:
    """Refuse a budget for a plan that has a rate of its own, by itself or because it was given."""
    if budget == 1 or method.plan is None:
        return
    free = method.plan.free
    if not free:
        hint = "Use a plan with a free rate, such as unbiased or random."
        raise invalid("budget", f"be 1 with {name}, whose plan has a rate of its own", budget, hint)
    if free in overrides:
        raise invalid(free, "be left out with a budget, which replaces it", overrides[free])


def _like(key: str, value: Any, example: Value) -> Value:
    """The value with the type of the default; TOML writes 1 for 1.0."""
    if key == "start" and isinstance(value, str) and isinstance(example, int):
        if value == FIRST_DROP:
            return value
        raise invalid(key, f"be an epoch or {FIRST_DROP!r}", repr(value))
    if isinstance(example, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(example):
        raise invalid(key, f"be of type {type(example).__name__}", repr(value), f"The default is {example!r}.")
    result: Value = value
    return result


def _place_epochs(
    settings: dict[str, Value],
    sources: dict[str, str],
    data: str | None,
    epochs: int | None,
    first_drop: int | str | None,
    fixed: Mapping[str, Value],
) -> None:
    """Choose `start` and `interval`: by the first drop, and in proportion to the length of the training."""
    usual = USUAL_EPOCHS.get(data or "", OTHER_EPOCHS)
    scalable = [key for key in ("start", "interval") if key in settings and key not in fixed]
    if "start" in scalable and settings["start"] == 1:
        return  # a plan that draws every epoch, in a training of any length
    if settings["start"] == FIRST_DROP:
        if "start" in fixed:
            sources["start"] = "given: the first drop of the learning rate"
            if not isinstance(first_drop, int) and (first_drop is None or data not in USUAL_DROP):
                hint = "Give an epoch, or schedule.kind = step with milestones."
                raise invalid("start", "be an epoch if the learning rate has no drop", repr(FIRST_DROP), hint)
        if isinstance(first_drop, int):  # the schedule says so: nothing to scale
            settings["start"] = first_drop
            scalable = [key for key in scalable if key != "start"]
        else:
            settings["start"] = USUAL_DROP[data or ""]
            scalable = list(dict.fromkeys(["start", *scalable]))
            if first_drop is None:
                sources["start"] += "; the paper's drop: here the rate has none"
    if epochs is None or epochs == usual or not scalable:
        return
    for key in scalable:
        old = settings[key]
        assert isinstance(old, int)
        # Half away from zero: Python's round() would send 0.5 to 0 and 1.5 to 2.
        settings[key] = max(1, (2 * old * epochs + usual) // (2 * usual))
        sources[key] += f"; {old} of {usual} epochs scaled to {epochs}"
    settings["scaled_from_epochs"], sources["scaled_from_epochs"] = usual, f"usual length for {data or 'other data'}"


def _build_pruning(plan: Part, settings: Mapping[str, Any], budget: float) -> dict[str, Any]:
    readmit, scoring = settings.get("readmit", False), settings.get("scoring", "batches")
    if (readmit, scoring) not in ((False, "batches"), (True, "resting")):
        rule = "be false with scoring 'batches', or true with scoring 'resting'"
        raise invalid("readmit", rule, f"{readmit} with {scoring!r}", "What rests returns only if it is scored again.")
    # Policies that draw every epoch have no interval.
    schedule = Every(settings.get("interval", 1), start=settings["start"])
    always = {key: settings[key] for key in ("ema", "anneal", "minimum_per_class")}
    return {"policy": plan.build(settings), "schedule": schedule, "budget": budget, **always}


# composing a name from its parts --------------------------------------------------------------------------------------


def describe(name: str) -> Method:
    """The row of that name, or what its parts compose: formula, pruning, source and settings.

    >>> describe("flsd+h").formula
    'FLSD-53 + huber_weight * Huber(mean confidence - accuracy)'
    """
    if name in METHODS:
        return METHODS[name]
    begin, additions = _beginning(name, name.split("+"))
    terms = list(begin.terms)
    plan: Part | None = None
    for addition in additions:
        part = _addition(name, addition)
        if plan is not None:
            raise invalid("method", "end with its one plan", repr(name), _FORM)
        if part.is_plan:
            plan = part
        elif part.text in [known.text for known in terms]:
            raise invalid("method", f"add {addition} once", repr(name), _FORM)
        else:
            terms.append(part)
    source = f"composed; loss: {begin.source}"
    if modules := dict.fromkeys(part.partition(":")[0] for part in own_parts(name)):
        source = f"your own {', '.join(modules)}"
    method = Method(tuple(terms), plan, source, begin.differs)
    _refuse_shared_settings(method)
    return method


def without_plan(name: str) -> str | None:
    """The same method on all samples; None if it has no plan.

    >>> without_plan("brier+h+unbiased"), without_plan("brier+h")
    ('brier+h', None)
    """
    if describe(name).plan is None:
        return None
    return name.rpartition("+")[0]  # a plan is always the last part


def _beginning(name: str, parts: Sequence[str]) -> tuple[Method, Sequence[str]]:
    """The loss that a name begins with, your own or the longest row without a plan; and the parts after it."""
    if ":" in parts[0]:
        own = _own_part(parts[0])
        if own.is_plan:
            raise invalid("method", "begin with a loss", repr(name), _FORM)
        return Method((own,), None, ""), parts[1:]
    for count in range(len(parts), 0, -1):
        row = "+".join(parts[:count])
        if is_plain(row):
            return METHODS[row], parts[count:]
    if parts[0] in (*ADDED, *PRUNING):
        raise invalid("method", "begin with a loss", repr(name), _FORM)
    raise invalid("method", "be one of the known methods", repr(name), did_you_mean(name, [*METHODS, "module:name"]))


def _addition(name: str, addition: str) -> Part:
    """A term or a plan."""
    if ":" in addition:
        return _own_part(addition)
    if addition in ADDED:
        return TERMS[ADDED[addition]]
    if addition in PRUNING:
        return PRUNING[addition]
    if is_plain(addition):
        raise invalid("method", "have one loss, at the beginning", repr(name), _FORM)
    known = [*ADDED, *PRUNING, "module:name"]
    raise invalid(f"what is added in {name}", "be known", repr(addition), did_you_mean(addition, known))


def _refuse_shared_settings(method: Method) -> None:
    """Refuse two parts that have a setting of the same name: one value cannot be meant for both."""
    owner: dict[str, str] = {}
    for part in method.parts:
        for key in part.settings:
            if key in owner:
                found = f"one of {owner[key]} and one of {part.text}"
                raise invalid(f"setting {key!r}", "belong to one part of the method", found, "Rename yours.")
            owner[key] = part.text


# losses, terms and plans of the user ----------------------------------------------------------------------------------


def _own_part(path: str) -> Part:
    """A loss, a term or a plan of the user's, whichever it makes from its defaults."""
    factory = load(path, kind="method")
    settings = _settings_of(factory, path)

    def build(values: Mapping[str, Any]) -> Loss | PruningPolicy:
        arguments = {key: values[key] for key in settings}
        with own_code_at_work(f"method {path} with {arguments} raised"):
            made = factory(**arguments)
        if isinstance(made, Loss | PruningPolicy):
            return made
        hint = "docs/losses shows how to write a loss, docs/pruning.md a policy."
        rule = "return a calibrant.losses.Loss or a calibrant.pruning.PruningPolicy"
        raise invalid(f"method {path}", rule, type(made).__name__, hint)

    by_default = build({key: setting.value for key, setting in settings.items()})
    if isinstance(by_default, Loss):
        return Part(path, settings, build)
    always = plan_settings(redraws=by_default.redraws)
    if taken := [key for key in settings if key in always]:
        raise invalid(f"settings of {path}", "differ from those that every plan has", repr(taken[0]), "Rename yours.")
    return Part(path, settings | always, build, is_plan=True, free=by_default.free)


def _settings_of(factory: Callable[..., Any], path: str) -> dict[str, Setting]:
    settings = {}
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError as error:  # such as int, which is written in C
        raise invalid(f"method {path}", "be a function or class with a signature", repr(factory)) from error
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        if not isinstance(parameter.default, float | int | str | bool) or parameter.kind is parameter.POSITIONAL_ONLY:
            rule = "be given by name and have a number, a text or true/false as default"
            raise invalid(f"parameter {parameter.name} of method {path}", rule, str(parameter))
        if parameter.name in RESERVED:
            rule = "have another name than what a run has itself"
            raise invalid(f"a parameter of method {path}", rule, repr(parameter.name), "Rename it.")
        default: Value = parameter.default
        # `weight: float = 1` means 1.0. With `from __future__ import annotations` the annotation is a text.
        if parameter.annotation in (float, "float") and type(default) is int:
            default = float(default)
        settings[parameter.name] = Setting(default, f"default in {path}")
    return settings
