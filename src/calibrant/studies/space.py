"""The settings that a sweep varies, each with its range: a usual one, or one that is given as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrant.errors import InvalidInput, invalid
from calibrant.training import methods, recipe_keys, suggest_key

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: whole ones where both ends are, on a logarithmic scale with `log`."""

    low: float
    high: float
    log: bool = False

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Let Optuna pick."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Categorical:
    """One of a few values."""

    values: tuple[Any, ...]

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Let Optuna pick."""
        return trial.suggest_categorical(name, self.values)


Space = dict[str, Range | Categorical]

# Ranges for settings of methods: the paper's grids and what lies around our own measurements.
_USUAL: Space = {
    "huber_weight": Range(0.1, 50.0, log=True),
    "gamma": Range(0.5, 5.0),
    "dca_weight": Range(0.05, 10.0, log=True),
    "mdca_weight": Range(0.5, 10.0, log=True),
    "mmce_weight": Range(0.005, 1.0, log=True),
    "entropy_weight": Range(0.01, 1.0, log=True),
    "margin_weight": Range(0.01, 1.0, log=True),
    "label_smoothing": Range(0.01, 0.2, log=True),
    "fraction": Range(0.02, 0.3),
    "rest": Range(0.1, 0.8),
    "share": Range(0.3, 0.9),
    "drop": Range(0.2, 0.9),
    "ratio": Range(0.2, 0.8),
    "easy": Range(0.3, 0.95),
    "pool": Range(0.6, 1.0),
}


def search_space(method: str, asked: Sequence[str] = ()) -> Space:
    """The settings that a sweep varies.

    Args:
        method: The method.
        asked: Words such as `huber_weight` (its usual range), `drop=0.3:0.8`, `optimiser.lr=0.01:0.3:log`,
            `schedule.kind=step,cosine`. None: every setting of the method that has a usual range.

    >>> search_space("flsd+h+unbiased", ["drop=0.3:0.8", "share"])
    {'drop': Range(low=0.3, high=0.8, log=False), 'share': Range(low=0.3, high=0.9, log=False)}
    """
    own = methods.describe(method).settings
    if asked:
        return dict(_parse(word, own) for word in asked)
    found = {name: where for name, where in _USUAL.items() if name in own}
    if not found:
        raise InvalidInput(
            f"method {method!r} has no setting with a usual range. Say what to vary: --search optimiser.lr=0.01:0.3:log"
        )
    return found


def recipe_key(name: str) -> str:
    """Where a searched setting goes in the recipe: names without a section are settings of the method."""
    return name if name in recipe_keys() else f"method.options.{name}"


def _parse(word: str, own: Any) -> tuple[str, Range | Categorical]:
    name, sign, text = word.partition("=")
    if name not in [*own, *recipe_keys()]:
        raise invalid("search", "name a setting of the method or a recipe key", repr(name), suggest_key(name, *own))
    if not sign:
        if name not in _USUAL:
            raise invalid("search", f"give a range for {name}, which has no usual one", repr(word), f"{name}=LOW:HIGH")
        return name, _USUAL[name]
    if ":" in text:
        return name, _range(word, text)
    values = tuple(_number(part) for part in text.split(","))
    if len(values) < 2:
        raise invalid("search", "offer at least two values", repr(word), f"For example {name}=LOW:HIGH or {name}=A,B.")
    return name, Categorical(values)


def _range(word: str, text: str) -> Range:
    low, high, *rest = text.split(":")
    ends = [_number(low), _number(high)]
    if rest not in ([], ["log"]) or not all(isinstance(end, int | float) for end in ends) or not ends[0] < ends[1]:
        raise invalid("search", "be NAME=LOW:HIGH or NAME=LOW:HIGH:log with LOW < HIGH", repr(word))
    if rest and ends[0] <= 0:
        raise invalid("search", "begin above 0 on a logarithmic scale", repr(word))
    if not all(isinstance(end, int) for end in ends):
        ends = [float(end) for end in ends]
    return Range(ends[0], ends[1], log=bool(rest))


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)
