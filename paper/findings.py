"""What the records show, in a few rows: each figure beside a control that cost as much."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calibrant.studies import Record
from paper.budget import Budget, budgets
from paper.claims import half_width, one_seed
from paper.groups import Groups
from paper.names import short_names
from paper.numbers import BASELINE

# A control may cost this much less than what it is compared with; else the row is left out, and named.
_TOLERANCE = 0.1
# A screenful: of each kind those with the most seeds, and the default has what is left.
_ROWS, _PLANS, _HUBER, _PRUNING = 12, 2, 4, 2
_NOT_DEFAULT = {"data.mixup", "optimiser.sam", "budget"}
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "fashion-mnist": "Fashion-MNIST"}
TITLES |= {"mendeley-v2": "Mendeley V2", "tiny-imagenet": "Tiny-ImageNet", "resnet32": "ResNet-32"}
TITLES |= {"resnet50": "ResNet-50", "torchvision:resnet50": "ResNet-50"}


@dataclass(frozen=True)
class Metric:
    """A figure of the table, lower is better; `scaled`: after a temperature from the validation set."""

    title: str
    name: str
    scaled: bool
    factor: float
    digits: int

    def of(self, record: Record) -> float:
        """Its value for one run, in the table's unit."""
        return self.factor * (record.value(self.name, scaled=self.scaled) or 0.0)

    def mean(self, records: Sequence[Record]) -> float:
        """Over seeds."""
        return statistics.fmean(map(self.of, records))


ERROR = Metric("error, %", "test_error", False, 100.0, 2)
NLL = Metric("NLL after a temperature", "nll", True, 1.0, 3)
ECE = Metric("ECE as trained, %", "ece", False, 100.0, 2)
METRICS = (ERROR, NLL, ECE)


@dataclass(frozen=True)
class Finding:
    """A method beside its control: runs of the same seeds.

    Attributes:
        kind: Which question it answers: "default", "plan", "huber" or "pruning".
        place: Data set and network.
        name: Short name of the method.
        control_name: In words.
        ours: Runs of the method, by seed.
        control: Runs of its control, by seed.
        groups: All runs of both, which tell how much a run varies.
        recovered: Of a plan: which part of what fewer epochs lose in NLL it recovers; None where they lose nothing.
    """

    kind: str
    place: tuple[str, str]
    name: str
    control_name: str
    ours: tuple[Record, ...]
    control: tuple[Record, ...]
    groups: tuple[Sequence[Record], Sequence[Record]]
    recovered: float | None = None

    @property
    def where(self) -> str:
        """Data set and network, as people write them."""
        return ", ".join(TITLES.get(part, part) for part in self.place)

    @property
    def seeds(self) -> int:
        """How many seeds both have."""
        return len(self.ours)

    @property
    def cost(self) -> tuple[float, float]:
        """Samples seen by the method and by its control, in millions."""
        return self.ours[0].samples_seen / 1e6, self.control[0].samples_seen / 1e6

    def difference(self, metric: Metric) -> tuple[float, float | None]:
        """Method minus control: the mean over seeds, and half of its 95 % interval; None where none is known."""
        found = [metric.of(ours) - metric.of(control) for ours, control in zip(self.ours, self.control, strict=True)]
        if len(found) > 1:
            return statistics.fmean(found), half_width(found)
        half = one_seed(metric.name, *self.groups, scaled=metric.scaled)
        return found[0], None if half is None else metric.factor * half

    def verdict(self, metric: Metric) -> str:
        """In a word or two."""
        difference, half = self.difference(metric)
        if half is None or abs(difference) <= half:
            return "cannot tell"
        return "better" if difference < 0 else "worse"

    def automated(self) -> tuple[float, float] | None:
        """Share of the test images, in percent, that a rule with a promised 99 % decides; method and control."""
        shares = []
        for group in (self.ours, self.control):
            known = [(record.automation or {}).get("0.99", {}).get("scaled_share") for record in group]
            if any(share is None for share in known):
                return None
            shares.append(100 * statistics.fmean(share for share in known if share is not None))
        return shares[0], shares[1]


def findings(groups: Groups) -> list[Finding]:
    """At most `_ROWS` rows: the default, plans, and the two parts of the paper's method."""
    found: dict[str, list[Finding]] = {kind: [] for kind in ("default", "huber", "pruning")}
    for place, by_label in groups.items():
        found["default"] += [each for each in _default(place, by_label) if _fair(each)]
        found["huber"] += _pair("huber", place, by_label, "flsd+h", "flsd", "`flsd`, without the Huber term")
        found["pruning"] += _pruning(place, by_label)
    parts = [*_chosen(found["huber"], _HUBER), *_chosen(found["pruning"], _PRUNING)]
    others = [*_chosen(all_plans(groups), _PLANS), *parts]
    return _chosen(found["default"], _ROWS - len(others)) + others


def all_plans(groups: Groups) -> list[Finding]:
    """Every plan whose control was recorded."""
    names = short_names(record for by_label in groups.values() for group in by_label.values() for record in group)
    return [_plan(place, budget, names, by_label) for place, by_label in groups.items() for budget in budgets(by_label)]


def unfair(groups: Groups) -> list[Finding]:
    """Runs of the default that saw many more samples than what they could be compared with."""
    found = [each for place, by_label in groups.items() for each in _default(place, by_label)]
    return [each for each in found if not _fair(each)]


def _fair(each: Finding) -> bool:
    ours, control = each.cost
    return ours <= (1 + _TOLERANCE) * control


def _chosen(found: Sequence[Finding], most: int) -> list[Finding]:
    """Those with the most seeds, by turns from each data set; among equals the best by validation, not by test."""
    places: dict[tuple[str, str], list[Finding]] = {}
    for each in sorted(found, key=_rank):
        places.setdefault(each.place, []).append(each)
    turns = [(turn, -each.seeds, each) for group in places.values() for turn, each in enumerate(group)]
    chosen = [each for *_, each in sorted(turns, key=lambda item: item[:2])[:most]]
    return [each for each in found if any(each is other for other in chosen)]


def _rank(each: Finding) -> tuple[int, float, float]:
    # The budget that our studies are about.
    distance = abs(each.ours[0].samples_seen / each.ours[0].samples_full - 0.6)
    scores = [record.validation_nll_scaled for record in each.ours]
    known = [score for score in scores if score is not None]
    score = statistics.fmean(known) if len(known) == len(scores) else float("inf")
    return -each.seeds, round(distance, 1), score


def _default(place: tuple[str, str], by_label: Mapping[str, Sequence[Record]]) -> list[Finding]:
    """The default: plain cross-entropy with averaged weights, in its longest runs; beside the paper's recipe."""
    averaged = [
        records
        for records in by_label.values()
        if records[0].method == BASELINE
        and records[0].recipe["schedule"].get("average")
        and not _NOT_DEFAULT & records[0].changes.keys()
    ]
    if not averaged or BASELINE not in by_label:
        return []
    longest = max(averaged, key=lambda records: (records[0].samples_seen, len(records)))
    found = _paired("default", place, "the default", "the paper's `nll` recipe", longest, by_label[BASELINE])
    return [found] if found else []


def _plan(
    place: tuple[str, str], budget: Budget, names: Mapping[str, str], by_label: Mapping[str, Sequence[Record]]
) -> Finding:
    share = f"{100 * budget.share:.0f} %"
    # The row says how many updates; the length of the training is a setting, which the legend has.
    short = ", ".join(part for part in names[budget.label].split(", ") if not part.endswith(("%", "epochs")))
    name = f"`{short}`, {share} of the updates"
    control = f"all data, {share} of the epochs"
    groups = (by_label[budget.label], budget.control)
    runs = (tuple(budget.plan), tuple(budget.control))
    return Finding("plan", place, name, control, *runs, groups, budget.recovered("NLL +TS"))


def _pruning(place: tuple[str, str], by_label: Mapping[str, Sequence[Record]]) -> list[Finding]:
    """The paper's pruning beside resting a random part, for as many updates."""
    ours = by_label.get("flsd+h+p-ema")
    for label, records in by_label.items():
        if ours and records[0].method == "flsd+h+random":
            near = abs(records[0].samples_seen / ours[0].samples_seen - 1) < 0.015
            control = "`flsd+h+random`, as many updates"
            return _pair("pruning", place, by_label, "flsd+h+p-ema", label, control) if near else []
    return []


def _pair(
    kind: str, place: tuple[str, str], by_label: Mapping[str, Sequence[Record]], ours: str, control: str, words: str
) -> list[Finding]:
    if ours not in by_label or control not in by_label:
        return []
    name = {"huber": "the paper's loss: `flsd+h`", "pruning": "the paper's pruning: `flsd+h+p-ema`"}[kind]
    found = _paired(kind, place, name, words, by_label[ours], by_label[control])
    return [found] if found else []


def _paired(
    kind: str, place: tuple[str, str], name: str, words: str, ours: Sequence[Record], control: Sequence[Record]
) -> Finding | None:
    mine, theirs = ({record.seed: record for record in group} for group in (ours, control))
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return None
    pairs = (tuple(mine[seed] for seed in common), tuple(theirs[seed] for seed in common))
    return Finding(kind, place, name, words, *pairs, (ours, control))
