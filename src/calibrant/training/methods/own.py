"""Losses, terms and plans that a user brings as `module:name`.

`mine.py` lies where the command is run; `mine:Hinge` is the class of a `calibrant.losses.Loss`, `mine:MyPlan` that of a
`calibrant.pruning.PruningPolicy`, or a function that returns one. Its parameters are the method's settings, their
defaults the recommended values.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from calibrant.errors import invalid
from calibrant.losses import Loss
from calibrant.own_code import load, own_code_at_work
from calibrant.pruning import PruningPolicy
from calibrant.training.methods.plan import RESERVED, Part, Setting, Value
from calibrant.training.methods.table import plan_settings


def own_loss(path: str) -> Part[Loss]:
    """The loss `module:name` that a method begins with."""
    factory = load(path, kind="method")
    return Part(path, _settings_of(factory, path), partial(_build_loss, factory, path))


def own_addition(path: str) -> tuple[Part[Loss] | None, Part[PruningPolicy] | None]:
    """A term or a plan, whichever it makes from its defaults; the other is None."""
    factory = load(path, kind="method")
    settings = _settings_of(factory, path)
    made = _call(factory, path, {key: setting.value for key, setting in settings.items()})
    if isinstance(made, PruningPolicy):
        always = plan_settings(redraws=made.redraws)
        if taken := [key for key in settings if key in always]:
            rule = "differ from those that every plan has"
            raise invalid(f"settings of {path}", rule, repr(taken[0]), "Rename yours.")
        return None, Part(path, settings | always, partial(_build_policy, factory, path), free=made.free)
    if isinstance(made, Loss):
        return Part(path, settings, partial(_build_loss, factory, path)), None
    way_out = "docs/losses shows how to write a loss, docs/pruning.md a policy."
    rule = "return a calibrant.losses.Loss or a calibrant.pruning.PruningPolicy"
    raise invalid(f"method {path}", rule, type(made).__name__, way_out)


def _settings_of(factory: Callable[..., Any], path: str) -> dict[str, Setting]:
    settings = {}
    for parameter in _parameters_of(factory, path):
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        if not isinstance(parameter.default, float | int | str | bool) or parameter.kind is parameter.POSITIONAL_ONLY:
            rule = "be given by name and have a number, a text or true/false as default"
            raise invalid(f"parameter {parameter.name} of method {path}", rule, str(parameter))
        if parameter.name in RESERVED:
            rule = "have another name than what a run has itself"
            raise invalid(f"a parameter of method {path}", rule, repr(parameter.name), "Rename it.")
        settings[parameter.name] = Setting(_default_of(parameter), f"default in {path}")
    return settings


def _parameters_of(factory: Callable[..., Any], path: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(factory).parameters.values())
    except ValueError as error:  # such as int, which is written in C
        raise invalid(f"method {path}", "be a function or class with a signature", repr(factory)) from error


def _default_of(parameter: inspect.Parameter) -> Value:
    """`weight: float = 1` means 1.0: it must take 0.5 too."""
    value: Value = parameter.default
    # With `from __future__ import annotations` it is a text.
    return float(value) if parameter.annotation in (float, "float") and type(value) is int else value


def _call(factory: Callable[..., Any], path: str, settings: Mapping[str, Any]) -> Any:
    wanted = {key: settings[key] for key in _settings_of(factory, path)}
    with own_code_at_work(f"method {path} with {wanted} raised"):
        return factory(**wanted)


def _build_loss(factory: Callable[..., Any], path: str, settings: Mapping[str, Any]) -> Loss:
    made = _call(factory, path, settings)
    if isinstance(made, Loss):
        return made
    if isinstance(made, PruningPolicy):
        raise invalid("method", "begin with a loss", repr(path), "A plan comes last: nll+module:name.")
    way_out = "Subclass PerSampleLoss or Loss of calibrant.losses: docs/losses shows how."
    raise invalid(f"method {path}", "return a calibrant.losses.Loss", type(made).__name__, way_out)


def _build_policy(factory: Callable[..., Any], path: str, settings: Mapping[str, Any]) -> PruningPolicy:
    made = _call(factory, path, settings)
    if not isinstance(made, PruningPolicy):
        raise invalid(
            f"method {path}", "return a calibrant.pruning.PruningPolicy with all settings", type(made).__name__
        )
    return made
