"""A plan beside its control: the same loss and schedule on all data, for as many updates in fewer epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.errors import InvalidInput
from calibrant.studies.images import ImageNoise
from calibrant.studies.record import Record
from calibrant.studies.summary import AgainstControl, PairedDifference, estimate, over_images, over_seeds
from calibrant.training import Recipe

# Epochs are whole: updates of a plan and of its control may differ by this share, or by half an epoch if that is more.
TOLERANCE = 0.015
METRICS = (("nll", True), ("test_error", False), ("aurc", False))
"""What a plan is judged by, and whether after temperature scaling; lower is better in all of them."""


@dataclass(frozen=True)
class Controlled:
    """A plan with its control and, where there is one, the run on all updates: records of the same seeds."""

    label: str
    control_label: str
    plan: tuple[Record, ...]
    control: tuple[Record, ...]
    full: tuple[Record, ...]

    @property
    def share(self) -> float:
        """The plan's part of all updates, mean over seeds."""
        return sum(each.samples_seen for each in self.plan) / sum(each.samples_full for each in self.plan)


def has_plan(record: Record) -> bool:
    """Whether samples rest in the run; every plan has this setting."""
    return "minimum_per_class" in record.settings


def find_controls(by_label: Mapping[str, Sequence[Record]]) -> list[Controlled]:
    """Every plan of one data set and network whose control is among the records, seed by seed."""
    recipes = _Recipes()
    others = {label: [r for r in records if not has_plan(r)] for label, records in by_label.items()}
    found = []
    for label, records in by_label.items():
        plans = [record for record in records if has_plan(record)]
        pairs: list[tuple[Record, Record, Record | None, str]] = []
        for plan in plans:
            fitting = [
                (abs(other.samples_seen - plan.samples_seen), name, other)
                for name, group in others.items()
                for other in group
                if other.seed == plan.seed and recipes.differ_in_plan_alone(plan, other)
            ]
            near = [each for each in fitting if each[0] <= _tolerance(plan)]
            full = next((other for _, _, other in fitting if other.samples_seen == plan.samples_full), None)
            if near and plan.samples_seen < plan.samples_full:
                _, name, control = min(near, key=lambda each: each[:2])
                pairs.append((plan, control, full, name))
        if pairs:
            own, controls, all_updates, names = zip(*pairs, strict=True)
            full_runs = () if None in all_updates else all_updates
            # Where the plan's updates differ from seed to seed, so may its control.
            found.append(Controlled(label, ", ".join(dict.fromkeys(names)), own, controls, full_runs))
    return found


def _tolerance(plan: Record) -> float:
    return max(TOLERANCE * plan.samples_seen, 0.5 * plan.samples_full / int(plan.recipe["epochs"]))


class _Recipes:
    """Compares the recipes of records; each is parsed once, so that settings of later versions have their defaults."""

    _PARTS = ("data", "model", "optimiser", "schedule", "balance")

    def __init__(self) -> None:
        self._parsed: dict[int, Any] = {}

    def _parts(self, record: Record) -> Any:
        if id(record) not in self._parsed:
            try:
                recipe = Recipe.parse(record.recipe).model_dump(mode="json")
            except InvalidInput:  # of a method or setting that is gone
                recipe = record.recipe
            self._parsed[id(record)] = [recipe.get(part) for part in self._PARTS]
        return self._parsed[id(record)]

    def differ_in_plan_alone(self, plan: Record, other: Record) -> bool:
        """Whether the loss, its settings, schedule, optimiser, data, class balance and precision agree."""
        if other.method != plan.method.rpartition("+")[0]:
            return False
        if any(plan.settings.get(key) != value for key, value in other.settings.items()):
            return False
        engines = [(each.recipe["engine"]["precision"], each.environment.get("device")) for each in (plan, other)]
        return engines[0] == engines[1] and self._parts(plan) == self._parts(other)


def against_controls(
    by_label: Mapping[str, Sequence[Record]], noise: ImageNoise | None = None
) -> tuple[AgainstControl, ...]:
    """All plans beside their controls, metric by metric.

    Args:
        by_label: Records of one data set and network.
        noise: Where the noise of the test images comes from; without it intervals are over seeds alone.
    """
    made = []
    for found in find_controls(by_label):
        for metric, scaled in METRICS:
            difference = _difference(found, metric, scaled, noise)
            full, control, plan = (
                estimate([each.value(metric, scaled=scaled) for each in runs]).mean if runs else None
                for runs in (found.full, found.control, found.plan)
            )
            scored = sum(each.samples_scored / each.samples_full for each in found.plan) / len(found.plan)
            made.append(
                AgainstControl(
                    found.label,
                    found.control_label,
                    found.share,
                    scored,
                    full,
                    control,
                    plan,
                    difference,
                    recovered_share(full, control, plan),
                )
            )
    return tuple(made)


def plans_without_control(
    by_label: Mapping[str, Sequence[Record]], controls: Sequence[AgainstControl]
) -> tuple[str, ...]:
    """Plans that saved updates and stand beside no control: a table must say that it leaves them out."""
    beside = {item.plan for item in controls}
    return tuple(
        label
        for label, records in by_label.items()
        if label not in beside and any(has_plan(r) and r.samples_seen < r.samples_full for r in records)
    )


def recovered_share(full: float | None, control: float | None, plan: float | None) -> float | None:
    """Which part of what fewer epochs lose the plan recovers, for a metric of which less is better.

    >>> recovered_share(1.0, 3.0, 2.5)
    0.25
    """
    if full is None or control is None or plan is None or control <= full:
        return None
    return (control - plan) / (control - full)


def _difference(found: Controlled, metric: str, scaled: bool, noise: ImageNoise | None) -> PairedDifference:
    ours, theirs = ([each.value(metric, scaled=scaled) for each in runs] for runs in (found.plan, found.control))
    if len(ours) > 1 or noise is None:
        least = 0.0 if noise is None else noise.half_width(metric, found.plan, found.control, scaled=scaled)
        return over_seeds(found.label, metric, ours, theirs, scaled=scaled, least=least)
    return over_images(found.label, metric, found.plan[0], found.control[0], noise, scaled=scaled)
