"""What a sweep varies, and when it stops a trial early."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrant.errors import InvalidInput, invalid
from calibrant.training import Reporter, Run, methods
from calibrant.training.recipe import recipe_keys, suggest_key

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: integers if both ends are, on a logarithmic scale with `log`."""

    low: float
    high: float
    log: bool = False

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Let Optuna choose a value."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Categorical:
    """One of a few values."""

    values: tuple[Any, ...]

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Let Optuna choose a value."""
        return trial.suggest_categorical(name, self.values)


Space = dict[str, Range | Categorical]

# Ranges for settings of methods: the paper's grids, and values around our own measurements.
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
    """Return the settings that a sweep varies.

    Args:
        method: The method.
        asked: Words such as `huber_weight` (its usual range), `drop=0.3:0.8`, `optimiser.lr=0.01:0.3:log`,
            `schedule.kind=step,cosine`. Empty: every setting of the method that has a usual range.

    >>> search_space("flsd+h+unbiased", ["drop=0.3:0.8", "share"])
    {'drop': Range(low=0.3, high=0.8, log=False), 'share': Range(low=0.3, high=0.9, log=False)}
    """
    settings = methods.describe(method).settings
    if asked:
        return dict(_parse(word, settings) for word in asked)
    space = {name: values for name, values in _USUAL.items() if name in settings}
    if not space:
        raise InvalidInput(
            f"method {method!r} has no setting with a usual range. Say what to vary: --search optimiser.lr=0.01:0.3:log"
        )
    return space


def recipe_key(name: str) -> str:
    """Return the recipe key of a searched setting. A name that is no recipe key is a setting of the method."""
    return name if name in recipe_keys() else f"method.options.{name}"


def _parse(word: str, settings: Any) -> tuple[str, Range | Categorical]:
    name, sign, text = word.partition("=")
    if name not in [*settings, *recipe_keys()]:
        raise invalid(
            "search", "name a setting of the method or a recipe key", repr(name), suggest_key(name, *settings)
        )
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


# Early stopping. Optuna's pruners support one objective only; this rule uses all three.
#
# At each rung (a quarter, half and three quarters of the epochs) the rule looks at a trial's validation error, its
# validation ECE and the samples seen so far. A trial is stopped if at least `dominators` finished trials had, at the
# same rung, a lower error and a lower ECE after no more samples. One better trial is not enough: figures in the middle
# of a training are noisy, and error and ECE still move when the learning rate falls.

Figures = tuple[float, float, float]
"""Validation error, validation ECE, samples seen so far: lower is better in each."""


def rungs(epochs: int) -> tuple[int, ...]:
    """Return the epochs after which a trial is judged.

    >>> rungs(160), rungs(3), rungs(1)
    ((40, 80, 120), (1, 2), ())
    """
    return tuple(sorted({share * epochs // 4 for share in (1, 2, 3)} - {0, epochs}))


def is_dominated(figures: Figures, finished: Iterable[Figures], *, dominators: int = 3) -> bool:
    """Return whether `dominators` finished trials had a lower error and ECE at this rung after no more samples.

    >>> is_dominated((0.2, 0.1, 1000), [(0.1, 0.05, 900)] * 3)
    True
    >>> is_dominated((0.2, 0.01, 1000), [(0.1, 0.05, 900)] * 3)
    False
    """
    error, ece, seen = figures
    better = 0
    for other_error, other_ece, other_seen in finished:
        if other_error < error and other_ece < ece and other_seen <= seen:
            better += 1
    return better >= dominators


def figures_at_rungs(log: Iterable[dict[str, Any]], epochs: int) -> dict[int, Figures]:
    """Return the figures of a run at the rungs, from its log."""
    figures: dict[int, Figures] = {}
    seen = 0
    for line in log:
        seen += line["samples"]
        if line["epoch"] in rungs(epochs) and "validation" in line:
            figures[line["epoch"]] = _figures(line, seen)
    return figures


def _figures(line: dict[str, Any], seen: int) -> Figures:
    return 1.0 - line["validation"]["accuracy"], line["validation"]["ece"], float(seen)


class TrialStopped(Exception):
    """Raised inside a training to stop it. The run folder stays and could be continued."""

    _MESSAGE = "stopped after epoch"

    def __init__(self, epoch: int) -> None:
        super().__init__(f"{self._MESSAGE} {epoch}")
        self.epoch = epoch

    @classmethod
    def is_reason(cls, reason: str) -> bool:
        """Return whether this exception stopped a trial. A storage keeps only its text."""
        return reason.startswith(cls._MESSAGE)


class RungReporter(Reporter):
    """Passes the figures of a trial at each rung to `judge(epoch, figures)`, and stops the training if it says so."""

    def __init__(self, judge: Callable[[int, Figures], bool], inner: Reporter) -> None:
        super().__init__(inner)
        self._judge = judge
        self._seen = 0
        self._rungs: tuple[int, ...] = ()

    def start(self, run: Run, done: int) -> None:
        """Count the samples that a continued run has already seen."""
        self._rungs = rungs(run.recipe.epochs)
        self._seen = sum(line["samples"] for line in run.epochs() if line["epoch"] <= done)
        super().start(run, done)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """At a rung, pass the figures to `judge`."""
        self._seen += line["samples"]
        super().end_epoch(line)
        at_rung = line["epoch"] in self._rungs and "validation" in line
        if at_rung and self._judge(line["epoch"], _figures(line, self._seen)):
            raise TrialStopped(line["epoch"])
