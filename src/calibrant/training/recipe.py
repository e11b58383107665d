"""A recipe holds all settings of a run; the same recipe and seed give the same run."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import read_toml, write_text
from calibrant.own_code import digest, in_words, own_parts, require
from calibrant.training.data.spec import own_data
from calibrant.training.methods import Plan, resolve
from calibrant.training.methods.method_table import RESERVED

if TYPE_CHECKING:
    # Type checkers cannot follow `type(BaseModel)`. Nothing private is imported at run time.
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMetaclass
else:
    _ModelMetaclass = type(BaseModel)


class _OneLineErrors(_ModelMetaclass):
    """A metaclass: a model that is built from wrong values raises one line about the first broken rule.

    An `__init__` cannot do this: pydantic calls it for nested sections too, and the error would no longer say where in
    the recipe they stand.
    """

    def __call__(self, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise self._explain(error) from error  # type: ignore[attr-defined]  # that of Settings


class Settings(BaseModel, metaclass=_OneLineErrors):
    """A table of settings; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key_name: ClassVar[str]
    """What messages call a key of the table, for example "recipe key"."""

    @classmethod
    def suggest(cls, key: str) -> str:
        """A sentence about known keys for somebody who wrote an unknown one."""
        return did_you_mean(key, cls.model_fields)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Build from plain values; the first broken rule is one clear line."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise cls._explain(error) from error

    @classmethod
    def _explain(cls, error: ValidationError) -> InvalidInput:
        """The first broken rule."""
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        key = f"{cls.key_name} '{place}'"
        if first["type"] == "extra_forbidden":
            return InvalidInput(f"{key} is unknown. {cls.suggest(place)}")
        if first["type"] == "literal_error":
            return invalid(key, f"be one of {first['ctx']['expected']}", repr(first["input"]))
        if first["type"] == "value_error":
            reason = str(first["ctx"]["error"])
            if not reason.endswith((".", "?")):
                reason += "."
            return InvalidInput(reason)
        if first["type"] == "model_type":
            hint = f"In TOML: [{place}], its keys below it."
            return invalid(key, "be a table of settings", repr(first["input"]), hint)
        rule = first["msg"].removeprefix("Input should ").partition(", ")[0]
        if first["type"] == "missing":
            rule = "be given"
        return invalid(key, rule, repr(first["input"]))


class RecipeSection(Settings):
    """A table of a recipe."""

    key_name = "recipe key"

    @classmethod
    def suggest(cls, key: str) -> str:
        """The closest key of the whole recipe."""
        return suggest_key(key)


Precision = Literal["auto", "bf16-mixed", "32-true", "64-true"]
StepMode = Literal["auto", "eager", "compiled", "graphed"]
DataPath = Literal["auto", "resident", "loader", "stream"]
Select = Literal["last", "best:error", "best:nll", "best:scaled-nll"]
Balance = Literal["none", "loss", "sampler", "logit-adjustment"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def _as_list(value: Any) -> Any:
    """Accept one name for a list of one."""
    if isinstance(value, str):
        return (value,)
    return value


def _stages(value: Any) -> Any:
    """Check stages of a resolution schedule: pairs of a side in pixels and a share of the epochs, sides growing."""
    if value == "auto":
        return value
    try:
        stages = tuple((int(side), float(share)) for side, share in value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"schedule.resolution must be auto or a list such as [[24, 0.6]], got {value!r}") from None
    sides = [0, *(side for side, _ in stages)]
    shares = [share for _, share in stages]
    whole = all(side == int(side) for side, _ in value)
    if not whole or sides != sorted(set(sides)) or not all(0 < share < 1 for share in shares):
        raise ValueError(
            f"schedule.resolution must have whole sides that grow and shares between 0 and 1, got {value!r}"
        )
    return stages


class DataSection(RecipeSection):
    """Where images come from, how they are split and augmented.

    `crop` (black pixels on each side, before a crop of the original size) and `mirror` are the data set's own if
    they are left out; without `augment` nothing is done. A mirror that is `alternate` shows each image on one side in
    odd epochs and on the other side in even ones.
    """

    name: str = "digits"
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    split_seed: int = 0
    augment: bool = True
    crop: Annotated[int, Field(ge=0)] | None = None
    mirror: bool | Literal["alternate"] | None = None


class ModelSection(RecipeSection):
    """The network, its first weights, and the parts of it that are trained.

    `weights` is a safetensors file. `input` says whose size and normalisation images get: `auto` takes the network's
    for timm:, the data set's for all others. Parts in `freeze`, by the beginning of their names, keep their weights;
    `backbone` is everything but the last layer. Predictions and the exported file average the logits of these `views`
    of a picture.
    """

    name: str = "tiny"
    weights: str | None = None
    input: Literal["auto", "data", "model"] = "auto"
    freeze: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    views: Literal["none", "mirror", "mirror+shift"] = "none"


class MethodSection(RecipeSection):
    """A row of `calibrant.training.methods` and what is changed in it (loss and pruning alike)."""

    name: str = "nll"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_keys_of_the_recipe(self) -> Self:
        for key in RESERVED:
            if key in self.options:
                raise invalid("method.options", "hold settings of the method", repr(key), "The recipe has its own.")
        return self


class OptimiserSection(RecipeSection):
    """The optimiser; `nesterov` looks ahead along the momentum of `sgd`."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 5e-4
    batch_size: Count = 128

    @model_validator(mode="after")
    def _momentum_for_nesterov(self) -> Self:
        if self.nesterov and not (self.name == "sgd" and self.momentum):
            raise ValueError("optimiser.nesterov must be false unless optimiser.name is sgd and momentum is above 0.")
        return self


class ScheduleSection(RecipeSection):
    """The learning rate over the run.

    `step` multiplies by `factor` at each milestone (below 1: a share of the run, else an epoch), `exponential` after
    each epoch; `cosine` falls to `floor` times the first rate. `warmup` is in epochs. `average` is the share of the
    epochs, at the end, whose weights are averaged (stochastic weight averaging); a cosine has its floor there.

    `resolution` trains on smaller images first: `[[24, 0.6]]` has a shorter side of 24 pixels in the first 60 % of the
    epochs and full size after that. Several stages follow each other. `auto` takes three quarters of the side, rounded
    to a multiple of 8, or of 32 from 96 pixels on. The last epoch always has full size.
    """

    kind: Literal["step", "cosine", "exponential", "constant"] = "step"
    milestones: tuple[Positive, ...] = (0.5, 0.75)
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    warmup: NonNegative = 0.0
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    resolution: Annotated[Literal["auto"] | tuple[tuple[int, float], ...], BeforeValidator(_stages)] = ()


class CalibrationSection(RecipeSection):
    """The temperature that is fitted at the end and kept in the run.

    `share` is its part of the validation cases; it gets more if they are few (`calibration.temperature_share`).
    """

    method: Literal["temperature", "none"] = "temperature"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.1


class EngineSection(RecipeSection):
    """How the run is executed; changes speed, not the method."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Count = 1
    precision: Precision = "auto"
    data_path: DataPath = "auto"
    mode: StepMode = "auto"
    workers: Annotated[int, Field(ge=0)] = 0
    evaluate_every: Count = 1
    checkpoint_every: Count = 1


class Recipe(RecipeSection):
    """All settings of one run.

    `budget` is the share of `epochs` times the number of samples that may be trained on: it replaces the rate of a
    plan, and a method without a plan gets fewer epochs.

    `balance` says how to make up for rare classes; docs/imbalance.md explains what each way does to confidence.

    `own_code` is filled in when a run begins: the SHA-256 of the file of each module that a network or method
    `module:name` of yours comes from. `reasons` explains settings that were derived from the data. With `select` a run
    also keeps the predictions of its best epoch by a validation figure, beside those of the last epoch.

    >>> Recipe(epochs=3).optimiser.batch_size
    128
    """

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    epochs: Count = 30
    budget: Annotated[float, Field(gt=0, le=1)] = 1.0
    select: Select = "last"
    balance: Balance = "none"
    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    method: MethodSection = MethodSection()
    optimiser: OptimiserSection = OptimiserSection()
    schedule: ScheduleSection = ScheduleSection()
    calibration: CalibrationSection = CalibrationSection()
    engine: EngineSection = EngineSection()
    own_code: dict[str, str] = Field(default_factory=dict)
    # Left out of every dump but the file: a reason is for people and changes nothing.
    reasons: dict[str, str] = Field(default_factory=dict, exclude=True)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        schedule, evaluate_every = self.schedule, self.engine.evaluate_every
        before_the_end = f"end before the last of the {self.epochs} epochs"
        if schedule.kind == "step" and max(schedule.milestones, default=0) >= self.epochs:
            raise invalid("schedule.milestones", before_the_end, f"{max(schedule.milestones):g}")
        if schedule.floor and schedule.kind != "cosine":
            rule = f"be 0 unless schedule.kind is cosine (it is {schedule.kind})"
            raise invalid("schedule.floor", rule, f"{schedule.floor:g}")
        if schedule.warmup >= self.epochs:
            raise invalid("schedule.warmup", before_the_end, f"{schedule.warmup:g}")
        if schedule.average and not self.averaged_epochs:
            raise invalid("schedule.average", f"cover at least one of the {self.epochs} epochs", schedule.average)
        if schedule.resolution != "auto":
            small = sum(share for _, share in schedule.resolution)
            if small >= 1 or small > 1 - schedule.average + 1e-9:
                rule = f"leave the end of the run and its averaged part ({schedule.average:g}) at full size"
                raise invalid("schedule.resolution", rule, f"shares that add up to {small:g}")
        if self.select != "last" and evaluate_every > 1:
            rule = f"be last unless every epoch is evaluated (engine.evaluate_every is {evaluate_every})"
            raise invalid("select", rule, self.select)
        return self

    @property
    def averaged_epochs(self) -> int:
        """How many epochs at the end have their weights averaged."""
        return int(self.epochs * self.schedule.average + 1e-9)

    def plan(self) -> Plan:
        """The loss and the pruning of the method; settings that are unknown or do not fit the rest are refused."""
        plan = resolve(
            self.method.name,
            data=self.data.name,
            model=self.model.name,
            epochs=self.epochs,
            first_drop=self.first_drop,
            budget=self.budget,
            **self.method.options,
        )
        every = self.engine.evaluate_every
        if plan.loss.follows_validation and every > 1:
            raise invalid("engine.evaluate_every", f"be 1 with {plan.name}, which follows validation", every)
        return plan

    def within_budget(self, epochs: int | None = None) -> Self:
        """The recipe that is trained: a method without a plan spends its budget on fewer epochs.

        The schedule is stretched over them: milestones and warm-up keep their shares of the run. The budget pays for
        `epochs`; None is its share of them, as if all images had full size.

        >>> Recipe(epochs=160, budget=0.6).within_budget().epochs
        96
        """
        if self.budget == 1 or self.plan().pruning is not None:
            return self
        if epochs is None:
            epochs = int(Fraction(self.budget).limit_denominator(1_000_000) * self.epochs)
        if epochs < 1:
            raise invalid("budget", f"pay for at least one of the {self.epochs} epochs", self.budget)
        schedule = self.schedule
        stretched: dict[str, Any] = {
            "schedule.milestones": tuple(m / self.epochs if m >= 1 else m for m in schedule.milestones),
            "schedule.warmup": schedule.warmup * epochs / self.epochs,
        }
        if schedule.kind == "exponential":
            stretched["schedule.factor"] = schedule.factor ** (self.epochs / epochs)
        return self.changed({"epochs": epochs, "budget": 1.0, **stretched})

    @property
    def first_drop(self) -> int | None:
        """Number of epochs after which the learning rate first drops; None for a schedule without a drop.

        >>> Recipe(epochs=160).first_drop
        80
        """
        if self.schedule.kind != "step" or not self.schedule.milestones:
            return None
        first = min(map(self._milestone, self.schedule.milestones))
        return max(1, math.ceil(first - 1e-9))

    def learning_rate(self, progress: float) -> float:
        """Learning rate after `progress` epochs (fractions count: the warm-up and the cosine move at every step)."""
        schedule, base = self.schedule, self.optimiser.lr
        if schedule.warmup and progress < schedule.warmup:
            return base * (progress + 1e-8) / schedule.warmup
        if schedule.kind == "cosine":
            end = self.epochs - self.averaged_epochs
            share = min((progress - schedule.warmup) / max(end - schedule.warmup, 1e-8), 1.0)
            return base * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * share)))
        if schedule.kind == "constant":
            return base
        if schedule.kind == "exponential":
            return float(base * schedule.factor ** int(progress))
        passed = sum(progress >= self._milestone(given) for given in schedule.milestones)
        return float(base * schedule.factor**passed)

    def _milestone(self, given: float) -> float:
        """A milestone in epochs; below 1 it is given as a share of the run."""
        if given < 1:
            return given * self.epochs
        return given

    def with_code_digests(self) -> Self:
        """The recipe with the digests of your own code; code that has changed since is refused."""
        found = {name.partition(":")[0]: digest(name) for name in self.own_names()}
        for module, recorded in self.own_code.items():
            if found.get(module) != recorded:
                now = in_words(found[module]) if module in found else "not used"
                hint = "Bring that code back, or begin a new run (leave own_code out of its recipe)."
                raise invalid(f"your own {module}", f"be {in_words(recorded)}", now, hint)
        return self.changed({"own_code": found})

    def compared(self) -> dict[str, Any]:
        """The settings, by dotted key, that two recipes of one run must share: all but the engine, which is speed."""
        return flatten(self.model_dump(mode="json", exclude={"engine"}))

    def kept(self) -> dict[str, Any]:
        """The settings, by dotted key, that must not change while a run is stopped.

        Files may be moved (the data are compared themselves), and what follows the training may change.
        """
        free = {"data.name", "model.weights", "model.views", "calibration.method", "calibration.share"}
        return {key: value for key, value in self.compared().items() if key not in free}

    def own_names(self) -> tuple[str, ...]:
        """The parts of the method, the network and the data that are the user's own code."""
        parts = [*own_parts(self.method.name), *own_parts(self.model.name)]
        data = own_data(self.data.name)
        if data:
            parts.append(data)
        return tuple(dict.fromkeys(parts))

    def with_trusted_code(self, *, trust_code: bool = False) -> Self:
        """`with_code_digests`; code that the user does not vouch for is refused. Nothing is imported."""
        recipe = self.with_code_digests()
        for name in self.own_names():
            require(name, trusted=trust_code)
        return recipe

    def to_toml(self) -> str:
        """The recipe as TOML, every setting spelled out."""
        content = self.model_dump(mode="json", exclude_none=True)
        if not self.own_code:
            del content["own_code"]
        if self.reasons:
            content["reasons"] = self.reasons
        return tomli_w.dumps(content)

    def save(self, path: str | Path) -> None:
        """Write the recipe as TOML."""
        write_text(path, self.to_toml())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a TOML recipe; unknown keys are refused by name."""
        return cls.parse(read_toml(path, "recipe"))

    def changed(self, changes: dict[str, Any]) -> Self:
        """A copy with dotted keys replaced: `recipe.changed({"optimiser.lr": 0.05})`."""
        content = self.model_dump()
        content["reasons"] = {key: reason for key, reason in self.reasons.items() if key not in changes}
        for key, value in changes.items():
            *sections, last = key.split(".")
            place = content
            for section in sections:
                if not isinstance(place.get(section), dict):
                    raise invalid("setting", "name a section and a key of the recipe", key, suggest_key(key))
                place = place[section]
            place[last] = value
        return self.parse(content)


def recipe_keys() -> list[str]:
    """Every dotted key that a user may set; `own_code` and `reasons` are filled in by `train`."""
    found = []
    for name, value in Recipe().model_dump(exclude={"own_code"}).items():
        if isinstance(value, dict):
            found += [f"{name}.{inner}" for inner in value]
        else:
            found.append(name)
    return found


def suggest_key(key: str, *also: str) -> str:
    """A sentence that names the closest key of a recipe or of `also`; if none is close it lists the sections."""
    if get_close_matches(key, [*also, *recipe_keys()], n=1):
        return did_you_mean(key, [*also, *recipe_keys()])
    plain = [name for name in recipe_keys() if "." not in name]
    sections = dict.fromkeys(name.split(".")[0] for name in recipe_keys() if "." in name)
    listed = ", ".join([*also, *plain, *(f"{section}.*" for section in sections)])
    return f"Known: {listed}; a run's recipe.toml shows all."


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys.

    >>> flatten({"epochs": 3, "optimiser": {"lr": 0.1}})
    {'epochs': 3, 'optimiser.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The alphabetically first key whose values differ between the tables; None if they are equal."""
    return next((key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)), None)
