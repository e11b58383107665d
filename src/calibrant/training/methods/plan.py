"""What a method is made of: its settings with their sources, its loss, its pruning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from calibrant.losses import Loss
from calibrant.pruning import PruningPolicy
from calibrant.pruning.pruner import Scoring
from calibrant.pruning.timetable import Schedule

T = TypeVar("T")
Value = float | int | str | bool
RESERVED = ("name", "data", "model", "epochs", "budget", "first_drop", "scaled_from_epochs")
"""No setting has these names: they are arguments of `resolve`, or added by it."""
Where = tuple[str, str | None]
"""A data set, and a model or None for any."""


@dataclass(frozen=True)
class Setting:
    """One hyperparameter: its value, where that comes from, and what differs by data set and model."""

    value: Value
    source: str
    elsewhere: Mapping[Where, tuple[Value, str]] = field(default_factory=dict)

    def look_up(self, data: str | None, model: str | None) -> tuple[Value, str]:
        """Value and source: for this data set and model, else for the data set, else for all."""
        for where in ((data, model), (data, None)):
            if where in self.elsewhere:
                return self.elsewhere[where]  # type: ignore[index]  # None is in no key, so `where` is one
        return self.value, self.source


@dataclass(frozen=True)
class Method:
    """What a row of the table says."""

    name: str
    formula: str
    pruning: str
    source: str
    settings: Mapping[str, Setting]


@dataclass(frozen=True)
class PruningPlan:
    """What `calibrant.pruning.ConfidencePruner` needs to know beyond the data and the seed."""

    policy: PruningPolicy
    schedule: Schedule
    ema: float
    anneal: float
    minimum_per_class: int
    scoring: Scoring = "batches"
    budget: float = 1.0

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `ConfidencePruner`."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(frozen=True)
class Plan:
    """A method with all its numbers filled in.

    Attributes:
        name: The method's name.
        loss: What is minimised, a fresh module.
        pruning: Which samples rest and when; None trains on all of them.
        settings: The hyperparameters finally used, ready for JSON.
        sources: Where each of them comes from.
    """

    name: str
    loss: Loss
    pruning: PruningPlan | None
    settings: dict[str, Value]
    sources: dict[str, str]


@dataclass(frozen=True)
class Part(Generic[T]):
    """A summand of a loss or a way to prune: in words, the settings it reads, how it is made from them.

    `free` is the setting that a budget solves for; empty where there is none.
    """

    text: str
    settings: Mapping[str, Setting]
    build: Callable[[Mapping[str, Any]], T]
    free: str = ""


@dataclass(frozen=True)
class Blueprint:
    """A method before its numbers are filled in: from the table, or from the user's own code."""

    terms: tuple[Part[Loss], ...]
    pruning: Part[PruningPolicy] | None
    source: str
    differs: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Part[Any], ...]:
        """The terms, then the pruning if there is any."""
        if self.pruning is None:
            return self.terms
        return (*self.terms, self.pruning)

    @property
    def settings(self) -> dict[str, Setting]:
        """All settings: those of the parts, and in their place those in which this method differs."""
        return {key: setting for part in self.parts for key, setting in part.settings.items()} | dict(self.differs)
