"""What the records show: each method beside a control that cost as much, in rows, tables and curves."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibrant.studies import Record, Referee
from calibrant.studies.controls import Controlled, against_controls, find_controls, recovered_share
from calibrant.studies.result_tables import control_table
from calibrant.studies.study_results import Results
from calibrant.tables import Table
from paper.claims import one_run_each
from paper.numbers import BASELINE
from paper.runs import Groups, Place, in_words, short_names

# A control may cost this much less than what it is compared with; else the row is left out, and named.
_TOLERANCE = 0.1
# A screenful: of each kind those with the most seeds, and the default has what is left.
_ROWS, _RESOLUTIONS, _PLANS, _HUBER, _PRUNING = 16, 4, 2, 4, 2
_NOT_DEFAULT = {
    *("data.mixup", "data.mirror", "optimiser.nesterov", "schedule.resolution"),
    "budget",
}


@dataclass(frozen=True)
class Metric:
    """A figure of the table, lower is better; `scaled_...` is after a temperature from the validation set."""

    title: str
    name: str
    factor: float
    digits: int

    def of(self, record: Record) -> float:
        """Its value for one run, in the table's unit."""
        return self.factor * (record.value(self.name) or 0.0)

    def mean(self, records: Sequence[Record]) -> float:
        """Over seeds."""
        return statistics.fmean(map(self.of, records))


ERROR = Metric("error, %", "test_error", 100.0, 2)
NLL = Metric("NLL after a temperature", "scaled_nll", 1.0, 3)
ECE = Metric("ECE as trained, %", "ece", 100.0, 2)
METRICS = (ERROR, NLL, ECE)


@dataclass(frozen=True)
class Finding:
    """A method beside its control: runs of the same seeds.

    Attributes:
        kind: Which question it answers: "resolution", "default", "plan", "huber" or "pruning".
        place: Data set and network.
        name: Short name of the method.
        control_name: In words.
        ours: Runs of the method, by seed.
        control: Runs of its control, by seed.
        referee: Knows how much runs of this data set and network vary over seeds.
        whole: Of a plan: the runs with full compute.
        former: Of a resolution schedule: the default before it, with full compute.
    """

    kind: str
    place: Place
    name: str
    control_name: str
    ours: tuple[Record, ...]
    control: tuple[Record, ...]
    referee: Referee
    whole: tuple[Record, ...] = ()
    former: tuple[Record, ...] = ()

    @property
    def where(self) -> str:
        """Data set and network, as people write them."""
        return in_words(self.place)

    @property
    def seeds(self) -> int:
        """How many seeds both have at least."""
        return min(len(self.ours), len(self.control))

    @property
    def cost(self) -> tuple[float, float]:
        """Compute of the method and of its control, in millions of updates of an image of full size."""
        return self.ours[0].compute / 1e6, self.control[0].compute / 1e6

    def difference(self, metric: Metric) -> tuple[float, float | None]:
        """Method minus control: the difference of means, and half of its 95 % interval; None if none is known."""
        found = self.referee.compare(self.name, metric.name, self.ours, self.control)
        half = one_run_each(metric.name, self.ours, self.control)
        if found.spread is not None:
            half = found.spread.half_width()
        return metric.factor * (found.difference or 0.0), None if half is None else metric.factor * half

    def verdict(self, metric: Metric) -> str:
        """In a word or two."""
        difference, half = self.difference(metric)
        if half is None or abs(difference) <= half:
            return "inconclusive"
        return "better" if difference < 0 else "worse"

    @property
    def recovered(self) -> float | None:
        """Of a plan: which part of what fewer epochs lose in NLL it recovers; None if they lose nothing."""
        if not self.whole:
            return None
        return recovered_share(NLL.mean(self.whole), NLL.mean(self.control), NLL.mean(self.ours))

    @property
    def recovered_interval(self) -> tuple[float, float] | None:
        """Its 95 % interval over seeds (Fieller); None if it is not bounded."""
        return self.referee.recovered(NLL.name, self.ours, self.control, self.whole)

    def automated(self, part: str = "scaled_share") -> tuple[float, float] | None:
        """Share of the test images, in percent, that a rule with a promised 99 % decides; method and control."""
        shares = []
        for group in (self.ours, self.control):
            known = [(record.automation or {}).get("0.99", {}).get(part) for record in group]
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
    plans = all_plans(groups)
    # What `train --budget` does; smaller images alone are in the tables of all plans.
    budgets = [each for each in plans if each.kind == "resolution" and "optimiser.nesterov" in each.ours[0].changes]
    resolutions = _chosen(budgets, _RESOLUTIONS)
    others = [*_chosen([each for each in plans if each.kind == "plan"], _PLANS), *parts]
    return resolutions + _chosen(found["default"], _ROWS - len(others) - len(resolutions)) + others


def all_plans(groups: Groups) -> list[Finding]:
    """Every plan whose control was recorded."""
    names = short_names(record for by_label in groups.values() for group in by_label.values() for record in group)
    return [
        _plan(place, controlled, names, by_label)
        for place, by_label in groups.items()
        for controlled in find_controls(by_label)
        if controlled.full or controlled.plan[0].resolution
    ]


def unfair(groups: Groups) -> list[Finding]:
    """Runs of the default that saw many more samples than what they could be compared with."""
    found = [each for place, by_label in groups.items() for each in _default(place, by_label)]
    return [each for each in found if not _fair(each)]


def _fair(each: Finding) -> bool:
    ours, control = each.cost
    return ours <= (1 + _TOLERANCE) * control


def _chosen(found: Sequence[Finding], most: int) -> list[Finding]:
    """Those with the most seeds, by turns from each data set; among equals the best by validation, not by test."""
    places: dict[Place, list[Finding]] = {}
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
    score = float("inf")
    if len(known) == len(scores):
        score = statistics.fmean(known)
    return -each.seeds, round(distance, 1), score


def _default(place: Place, by_label: Mapping[str, Sequence[Record]]) -> list[Finding]:
    """The default: plain cross-entropy with averaged weights, in its longest runs; beside the paper's recipe."""
    longest = _longest_default(by_label)
    if not longest or BASELINE not in by_label:
        return []
    runs = (tuple(longest), tuple(by_label[BASELINE]))
    return [Finding("default", place, "the default", "the paper's `nll` recipe", *runs, Referee(by_label))]


def _longest_default(by_label: Mapping[str, Sequence[Record]]) -> Sequence[Record]:
    """Return the runs of the default with the most compute."""
    averaged = [
        records
        for records in by_label.values()
        if records[0].method == BASELINE
        and records[0].recipe["schedule"].get("average")
        and not _NOT_DEFAULT & records[0].changes.keys()
    ]
    return max(averaged, key=lambda records: (records[0].samples_seen, len(records)), default=())


def _plan(
    place: Place, controlled: Controlled, names: Mapping[str, str], by_label: Mapping[str, Sequence[Record]]
) -> Finding:
    if controlled.plan[0].resolution:
        return _smaller_images(place, controlled, by_label)
    share = f"{100 * controlled.share:.0f} %"
    # The row says how much compute; the length of the training is a setting, which the legend has.
    short = ", ".join(part for part in names[controlled.label].split(", ") if not part.endswith(("%", "epochs")))
    control = f"all data, {share} of the epochs"
    if controlled.control[0].has_plan:
        control = f"`{names[controlled.control[0].label]}`"
    name = f"`{short}`, {share} of the compute"
    runs = (controlled.plan, controlled.control)
    return Finding("plan", place, name, control, *runs, Referee(by_label), controlled.full)


def _smaller_images(place: Place, controlled: Controlled, by_label: Mapping[str, Sequence[Record]]) -> Finding:
    """A resolution schedule beside fewer epochs; its compute is a share of that of the former default."""
    former = tuple(_longest_default(by_label))
    share = controlled.share
    if former:
        share = controlled.plan[0].compute / former[0].compute
    name = f"smaller images first, {100 * share:.0f} % of the compute"
    control = f"{100 * share:.0f} % of the epochs at full size"
    runs = (controlled.plan, controlled.control)
    whole = _whole_runs(controlled, former)
    return Finding("resolution", place, name, control, *runs, Referee(by_label), whole, former)


def _has_whole(controlled: Controlled, by_label: Mapping[str, Sequence[Record]]) -> bool:
    if not controlled.plan[0].resolution:
        return True
    return bool(_whole_runs(controlled, _longest_default(by_label)))


def _whole_runs(controlled: Controlled, former: Sequence[Record]) -> tuple[Record, ...]:
    """Return the runs with full compute; none if the longest recorded ones had less than the former default."""
    enough = controlled.full and (not former or controlled.full[0].compute > 0.99 * former[0].compute)
    return controlled.full if enough else ()


def _pruning(place: Place, by_label: Mapping[str, Sequence[Record]]) -> list[Finding]:
    """The paper's pruning beside resting a random part, for as many updates."""
    ours = by_label.get("flsd+h+p-ema")
    for label, records in by_label.items():
        if ours and records[0].method == "flsd+h+random":
            near = abs(records[0].samples_seen / ours[0].samples_seen - 1) < 0.015
            control = "`flsd+h+random`, as many updates"
            if near:
                return _pair("pruning", place, by_label, "flsd+h+p-ema", label, control)
            return []
    return []


def _pair(
    kind: str, place: Place, by_label: Mapping[str, Sequence[Record]], ours: str, control: str, words: str
) -> list[Finding]:
    if ours not in by_label or control not in by_label:
        return []
    name = {"huber": "the paper's loss: `flsd+h`", "pruning": "the paper's pruning: `flsd+h+p-ema`"}[kind]
    return [Finding(kind, place, name, words, tuple(by_label[ours]), tuple(by_label[control]), Referee(by_label))]


def controls_table(groups: Groups) -> Table:
    """Return every plan beside its control, a row for each metric. Plans without a control follow without a claim."""
    rows: list[tuple[str, ...]] = []
    without: list[tuple[str, ...]] = []
    columns: tuple[str, ...] = ()
    for (data, model), by_label in groups.items():
        short = {each.label for each in find_controls(by_label) if not _has_whole(each, by_label)}
        controls = tuple(
            replace(item, whole_value=None, recovered=None, recovered_interval=None) if item.plan in short else item
            for item in against_controls(by_label)
        )
        table = control_table(Results(data, model, BASELINE, (), (), controls=controls))
        columns = ("data, network", *table.columns)
        rows += [(f"{data}, {model}", *map(str, row)) for row in table.rows]
        known = {item.plan for item in controls}
        for label, records in by_label.items():
            first = records[0]
            if first.has_plan and first.compute_share <= 0.999 and label not in known:
                share = f"{100 * first.compute_share:.1f}"
                line = (f"{data}, {model}", label, "not run", str(len(records)), share)
                without.append((*line, *[""] * (len(columns) - len(line) - 1), "nothing claimed"))
    return Table("", (*rows, *without), columns)


@dataclass(frozen=True)
class ComputeCurve:
    """One way to spend less compute: a point per length of the training.

    Attributes:
        name: In words.
        shares: Compute as a share of that of the former default.
        runs: The runs of each point, one per seed.
    """

    name: str
    shares: tuple[float, ...]
    runs: tuple[tuple[Record, ...], ...]


_SHORTEST = 0.25  # of the compute; shorter trainings are another question
FEWER, SMALLER = "fewer epochs", "smaller images first"
FORMER, PRUNED = "former default, fewer epochs", "former default, best pruning plan (selective)"


def compute_curves(by_label: Mapping[str, Sequence[Record]]) -> list[ComputeCurve]:
    """Return smaller images first, fewer epochs, and the same of the former default with its best pruning plan."""
    former = _longest_default(by_label)
    if not former:
        return []
    points: dict[str, dict[float, tuple[Record, ...]]] = {}
    for records in by_label.values():
        name = _way_of_saving(records[0])
        share = round(records[0].compute / former[0].compute, 2)
        if name and _SHORTEST <= share <= 1:
            known = points.setdefault(name, {})
            # Of two settings at the same cost, those with more seeds.
            if len(records) > len(known.get(share, ())):
                known[share] = tuple(records)
    whole = points.get(FORMER, {}).get(1.0)
    if whole and PRUNED in points:
        points[PRUNED][1.0] = whole
    curves = []
    for name in (SMALLER, FEWER, FORMER, PRUNED):
        found = sorted(points.get(name, {}).items())
        if len(found) > 1:
            curves.append(ComputeCurve(name, tuple(share for share, _ in found), tuple(runs for _, runs in found)))
    return curves


def _way_of_saving(record: Record) -> str | None:
    """Return which curve a run with averaged weights belongs to; None for other losses, steps and plans."""
    changes = record.changes
    if not record.recipe["schedule"].get("average") or changes.keys() & {"data.mixup"}:
        return None
    free_gains = changes.get("data.mirror") == "alternate" and changes.get("optimiser.nesterov")
    if record.method == BASELINE and free_gains:
        return SMALLER if record.resolution else FEWER
    if record.method == BASELINE and not record.resolution:
        return FORMER
    if record.method == "nll+selective" and not record.resolution:
        return PRUNED
    return None
