"""Methods that a user brings: `module:function`, with any of the paper's other parts after it.

    calibrant compare --methods nll flsd+h mine:sharp mine:sharp+h+unbiased ...

`mine.py` lies where the command is run; `sharp` is a function that returns a `calibrant.losses.Loss`, or the class of
such a loss. Its parameters are the method's settings, their defaults the recommended values.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from calibrant.errors import did_you_mean, invalid
from calibrant.losses import Loss
from calibrant.methods.plan import RESERVED, Blueprint, Part, Setting, Value
from calibrant.methods.table import PRUNING, TERMS
from calibrant.own_code import load, own_code_at_work

_HUBER = "h"


def from_own_code(name: str) -> Blueprint:
    """The method `module:function`, then `+h` for the paper's Huber term, then one way to prune."""
    path, *additions = name.split("+")
    module = path.partition(":")[0]
    factory = load(path, kind="method")
    own = Part(path, _settings_of(factory, path), partial(_build, factory, path))
    huber, pruning = _additions(name, additions)
    blueprint = Blueprint((own, *huber), pruning, f"your own {module}")
    taken = [key for part in (*huber, pruning) if part for key in part.settings if key in own.settings]
    if taken:
        raise invalid(f"settings of {path}", "differ from those of what is added", repr(taken[0]), "Rename yours.")
    return blueprint


def _additions(name: str, additions: list[str]) -> tuple[tuple[Part[Loss], ...], Any]:
    known = [_HUBER, *PRUNING]
    for addition in additions:
        if addition not in known:
            raise invalid(f"what is added in {name}", "be known", repr(addition), did_you_mean(addition, known))
    huber = (TERMS["huber"],) if additions[:1] == [_HUBER] else ()
    left = additions[len(huber) :]
    if len(left) > 1 or left == [_HUBER]:
        raise invalid("method", "add h at most once and first, then one way to prune", repr(name))
    return huber, PRUNING[left[0]] if left else None


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


def _build(factory: Callable[..., Any], path: str, settings: Mapping[str, Any]) -> Loss:
    wanted = {key: settings[key] for key in _settings_of(factory, path)}
    with own_code_at_work(f"method {path} with {wanted} raised"):
        loss = factory(**wanted)
    if not isinstance(loss, Loss):
        way_out = "Subclass PerSampleLoss or Loss of calibrant.losses: docs/losses shows how."
        raise invalid(f"method {path}", "return a calibrant.losses.Loss", type(loss).__name__, way_out)
    return loss
