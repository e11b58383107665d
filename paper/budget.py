"""What a plan is worth: beside its control, which spends as many updates on all data in fewer epochs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t

from calibrant.studies import Record
from calibrant.studies.controls import find_controls
from calibrant.tables import Table

METRICS: dict[str, Callable[[Record], float]] = {
    "NLL +TS": lambda record: record.value("nll", scaled=True) or 0.0,
    "TE, %": lambda record: 100 * (record.value("test_error") or 0.0),
    "AURC, x 1000": lambda record: 1000 * (record.value("aurc") or 0.0),
}


@dataclass(frozen=True)
class Budget:
    """A plan, its control and the run on all updates, record by record for the same seeds."""

    label: str
    plan: list[Record]
    control: list[Record]
    full: list[Record]

    @property
    def share(self) -> float:
        """The plan's part of all updates."""
        return self.plan[0].samples_seen / self.full[0].samples_seen

    def difference(self, metric: str) -> tuple[float, float | None]:
        """Plan minus control: the mean over seeds and half of its 95 % interval, None with one seed."""
        of = METRICS[metric]
        found = [of(plan) - of(control) for plan, control in zip(self.plan, self.control, strict=True)]
        if len(found) < 2:
            return found[0], None
        half = t.ppf(0.975, len(found) - 1) * statistics.stdev(found) / len(found) ** 0.5
        return statistics.fmean(found), float(half)

    def recovered(self, metric: str) -> float | None:
        """Which part of what fewer epochs lose the plan recovers; None where they lose nothing."""
        full, control, plan = (
            statistics.fmean(map(METRICS[metric], runs)) for runs in (self.full, self.control, self.plan)
        )
        return (control - plan) / (control - full) if control > full else None


def budgets(by_label: Mapping[str, Sequence[Record]]) -> list[Budget]:
    """Every plan of one data set and network whose control and whose run on all updates were recorded too."""
    return [
        Budget(found.label, list(found.plan), list(found.control), list(found.full))
        for found in find_controls(by_label)
        if found.full
    ]


def budget_grid(groups: Mapping[tuple[str, str], Mapping[str, Sequence[Record]]]) -> Table:
    """Every plan beside its control, a row for each metric; plans without a control follow, and nothing is claimed."""
    rows: list[tuple[str, ...]] = []
    without: list[tuple[str, ...]] = []
    for (data, model), by_label in groups.items():
        place = f"{data}, {model}"
        found = budgets(by_label)
        rows += [line for budget in found for line in _lines(place, budget)]
        known = {budget.label for budget in found}
        for label, records in by_label.items():
            if records[0].has_plan and records[0].seen_share <= 0.999 and label not in known:
                share = f"{100 * records[0].seen_share:.1f}"
                without.append(
                    (place, label, share, str(len(records)), "", "", "not run", "", "", "nothing claimed", "")
                )
    runs = ("all updates", "control", "plan alone")
    verdicts = ("plan - control", "verdict", "recovered share")
    heads = ("data, network", "plan", "updates, %", "seeds", "metric", *runs, *verdicts)
    return Table("", (*rows, *without), heads)


def _lines(place: str, budget: Budget) -> list[tuple[str, ...]]:
    made = []
    for metric, of in METRICS.items():
        digits = 4 if metric.startswith("NLL") else 2
        means = [f"{statistics.fmean(map(of, runs)):.{digits}f}" for runs in (budget.full, budget.control, budget.plan)]
        difference, half = budget.difference(metric)
        spread = "" if half is None else f" ± {half:.{digits}f}"
        recovered = budget.recovered(metric)
        made.append(
            (
                *(place, budget.label, f"{100 * budget.share:.1f}", str(len(budget.plan)), metric, *means),
                f"{difference:+.{digits}f}{spread}",
                verdict(difference, half),
                "-" if recovered is None else f"{recovered:.2f}",
            )
        )
    return made


def verdict(difference: float, half: float | None) -> str:
    """In a word, for a metric of which less is better."""
    if half is None:
        return "one seed"
    if abs(difference) <= half:
        return "cannot tell"
    return "plan better" if difference < 0 else "plan worse"
