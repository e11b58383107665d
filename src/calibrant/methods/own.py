"""Methods that a user brings: `module:function`, with any of the paper's other parts after it.

    calibrant compare --methods nll flsd+h mine:sharp mine:sharp+h+unbiased ...

`mine.py` lies where the command is run; `sharp` is a function that returns a `calibrant.losses.Loss`, or the class of
such a loss. Its parameters are the method's settings, their defaults the recommended values.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from calibrant.errors import CalibrantError, InvalidInput, did_you_mean, invalid
from calibrant.losses import Loss
from calibrant.methods.plan import Blueprint, Part, Setting
from calibrant.methods.table import PRUNING, TERMS
from calibrant.own_code import load_callable

_HUBER = "h"


def from_own_code(name: str) -> Blueprint:
    """The method `module:function`, then `+h` for the paper's Huber term, then one way to prune."""
    path, *additions = name.split("+")
    module, _, attribute = path.partition(":")
    factory = load_callable(module, attribute, kind="method")
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
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        if not isinstance(parameter.default, float | int | str | bool) or parameter.kind is parameter.POSITIONAL_ONLY:
            rule = "be given by name and have a number, a text or true/false as default"
            raise invalid(f"parameter {parameter.name} of method {path}", rule, str(parameter))
        settings[parameter.name] = Setting(parameter.default, f"default in {path}")
    return settings


def _build(factory: Callable[..., Any], path: str, settings: Mapping[str, Any]) -> Loss:
    wanted = {key: settings[key] for key in _settings_of(factory, path)}
    try:
        loss = factory(**wanted)
    except CalibrantError:
        raise
    except Exception as error:  # whatever the user's own code raises becomes one line
        raise InvalidInput(f"method {path} with {wanted} raised {type(error).__name__}: {error}.") from error
    if not isinstance(loss, Loss):
        way_out = "Subclass PerSampleLoss or Loss of calibrant.losses: docs/losses shows how."
        raise invalid(f"method {path}", "return a calibrant.losses.Loss", type(loss).__name__, way_out)
    return loss
