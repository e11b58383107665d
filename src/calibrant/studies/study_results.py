"""The results of a study: mean and spread of each row over its seeds, and its differences from the baseline."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from calibrant.errors import invalid
from calibrant.studies.records import TABLED, Record
from calibrant.studies.referee import (
    COMPARED,
    COMPARED_SCALED,
    Decision,
    Difference,
    Over,
    PredictionsOf,
    Referee,
    check_deciding_metric,
    decide,
)
from calibrant.tables import Displayed, ShownFields, Table

# Metrics of a row. Records have intervals over test images only for those in TABLED.
SHOWN = (*TABLED, "aurc", "ece_equal_mass", "classwise_ece")
DECIDES = "scaled_nll"
"""The metric that decides unless a study names another one: the log-score after temperature scaling."""


@dataclass(frozen=True)
class Estimate(ShownFields):
    """A number with its spread.

    Attributes:
        mean: Mean over seeds. None if it is not defined for one of them.
        spread: Standard deviation over seeds. With one seed, the standard error over test images.
        over: What the spread is over. None without a spread.
        values: One value per seed.
    """

    mean: float | None
    spread: float | None
    over: Over | None
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Row:
    """A method (or variant) over its seeds, all metrics as fractions.

    `automation` is what can be automated: "share@0.99" at a promised accuracy of 0.99, "accuracy@0.99" of that share on
    the test set, and both as "scaled_...". `method` is the name in `calibrant.training.methods`. `concurrent_runs` is
    how many runs shared the machine, one number per seed, None if unknown.
    """

    label: str
    seeds: tuple[int, ...]
    test: dict[str, Estimate]
    scaled: dict[str, Estimate]
    ece_15_bins: Estimate
    scaled_ece_15_bins: Estimate
    validation_ece: Estimate
    temperature: Estimate
    samples_seen: Estimate
    seen_share: Estimate
    compute_share: Estimate
    train_seconds: Estimate
    concurrent_runs: tuple[int | None, ...]
    automation: dict[str, Estimate]
    validation_nll_scaled: Estimate
    method: str


@dataclass(frozen=True)
class AgainstControl(ShownFields):
    """One metric of a plan, its control and the whole run, as means over seeds.

    Attributes:
        plan: Row of the plan.
        control: Row of the control.
        share: Computing of the plan as a share of that of the whole run.
        updates: Sample updates of the plan as a share of those of the whole run.
        scored_share: Forward passes for scores alone, in the unit of `updates`; they are part of `share`.
        whole_value: The metric of the whole run: without a plan and with all epochs. None if that was not run.
        control_value: The metric of the control.
        plan_value: The metric of the plan.
        difference: Plan minus control, with interval and verdict.
        recovered: (control - plan) / (control - whole run). 1: nothing was lost. 0: the plan is worth no more than
            fewer epochs. None if the whole run was not made, or is no better than the control.
        recovered_interval: Its 95 % interval over seeds (Fieller). None if it is not bounded.
    """

    plan: str
    control: str
    share: float
    updates: float
    scored_share: float
    whole_value: float | None
    control_value: float | None
    plan_value: float | None
    difference: Difference
    recovered: float | None
    recovered_interval: tuple[float, float] | None


@dataclass(frozen=True, repr=False)
class Results(Displayed):
    """All rows of one data set and network.

    `differences` are those of every method from the baseline in every metric. `decisions` are the verdicts in the one
    metric that was named beforehand, `decides`, corrected for the number of methods. `unfinished` are the seeds of each
    row that failed or were stopped; they are not in the rows. `best` are rows of the best epoch by a validation figure,
    if runs kept it. All other rows are of the last epoch. `controls` compares each plan with its control.
    `uncontrolled` are the plans that have no control of equal cost.
    """

    data: str
    model: str
    baseline: str
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    decides: str = DECIDES
    decisions: tuple[Decision, ...] = ()
    unfinished: dict[str, tuple[int, ...]] = field(default_factory=dict)
    best: tuple[Row, ...] = ()
    controls: tuple[AgainstControl, ...] = ()
    uncontrolled: tuple[str, ...] = ()

    def _overview(self) -> Table:
        from calibrant.studies.result_tables import paper_tables

        table = paper_tables(self)[0]
        return Table(table.title, table.rows, table.columns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in fractions."""
        content = asdict(self)
        for row in (*content["rows"], *content["best"]):
            row["takeover"] = row.pop("automation")  # the name of the key in the files
        return content


def estimate(values: Sequence[float | None], deviations: Sequence[float | None] = ()) -> Estimate:
    """Return mean and spread of one number over seeds.

    >>> round(estimate([0.1, 0.2, 0.3]).spread, 3)
    0.1
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) != len(values) or not known:
        return Estimate(None, None, None, tuple(values))
    mean = statistics.fmean(known)
    if len(known) > 1:
        return Estimate(mean, statistics.stdev(known), "seeds", tuple(values))
    if not deviations or deviations[0] is None:
        return Estimate(mean, None, None, tuple(values))
    return Estimate(mean, deviations[0], "images", tuple(values))


def or_nan(values: Iterable[float | None]) -> list[float]:
    """Return the values for a plot, in which NaN is a gap."""
    return [math.nan if value is None else value for value in values]


def summarise_row(label: str, records: Sequence[Record]) -> Row:
    """Return one row from the records of its seeds."""
    ordered = sorted(records, key=lambda record: record.seed)

    def metrics(*, scaled: bool) -> dict[str, Estimate]:
        return {
            name: estimate(
                [record.value(name, scaled=scaled) for record in ordered],
                [record.deviation(name, scaled=scaled) for record in ordered],
            )
            for name in SHOWN
        }

    figures = ("validation_ece", "temperature", "samples_seen", "seen_share", "compute_share", "train_seconds")
    return Row(
        label=label,
        seeds=tuple(record.seed for record in ordered),
        test=metrics(scaled=False),
        scaled=metrics(scaled=True),
        ece_15_bins=estimate([record.value("ece", n_bins=15) for record in ordered]),
        scaled_ece_15_bins=estimate([record.value("ece", n_bins=15, scaled=True) for record in ordered]),
        concurrent_runs=tuple(record.concurrent_runs for record in ordered),
        automation=_automation(ordered),
        validation_nll_scaled=estimate([record.validation_nll_scaled for record in ordered]),
        method=ordered[0].method,
        **{name: estimate([float(getattr(record, name)) for record in ordered]) for name in figures},
    )


def _automation(records: Sequence[Record]) -> dict[str, Estimate]:
    """Return the figures that all records have."""
    figures = [record.automation or {} for record in records]
    estimates = {}
    for target in figures[0]:
        for name in figures[0][target]:
            if not all(name in of_record.get(target, {}) for of_record in figures):
                continue
            values = [of_record[target][name] for of_record in figures]
            errors = [
                _binomial_error(name, of_record[target], record)
                for of_record, record in zip(figures, records, strict=True)
            ]
            estimates[f"{name}@{target}"] = estimate(values, errors)
    return estimates


def _binomial_error(name: str, figures: dict[str, float | None], record: Record) -> float | None:
    """Return the standard error over test images, for a fixed threshold.

    None for an accuracy of 0 or 1: a few cases that are all right would look certain.
    """
    value = figures[name]
    if value is None:
        return None
    cases = float(record.test["10"]["n"])
    if "accuracy" in name:
        if value in {0.0, 1.0}:
            return None
        cases *= figures[name.replace("accuracy", "share")] or 0.0
    return math.sqrt(value * (1.0 - value) / cases)


def summarise(
    records: Mapping[str, Sequence[Record]],
    baseline: str,
    *,
    predictions_of: PredictionsOf | None = None,
    decides: str = DECIDES,
) -> Results:
    """Return rows and differences of one data set and network.

    Args:
        records: The records of each label, one per seed, in the order of the table.
        baseline: The label with which the others are compared. If it has no records, there are no differences.
        predictions_of: Returns the test predictions of a record, for the noise of the test images.
        decides: The metric that was named beforehand, such as `test_error` or `scaled_nll`.
    """
    filled = {label: list(group) for label, group in records.items() if group}
    if not filled:
        raise invalid("records", "hold at least one run", "none")
    first = next(iter(filled.values()))[0]
    rows = tuple(summarise_row(label, group) for label, group in filled.items())
    deciding = check_deciding_metric(decides)
    differences: list[Difference] = []
    if baseline in filled:
        referee = Referee(filled, predictions_of)
        compared = [(metric, False) for metric in COMPARED] + [(metric, True) for metric in COMPARED_SCALED]
        for label, group in filled.items():
            if label != baseline:
                differences += [
                    referee.compare(label, metric, group, filled[baseline], scaled=scaled)
                    for metric, scaled in compared
                ]
    decisions = decide([item for item in differences if (item.metric, item.scaled) == deciding])
    best = tuple(row for label, group in filled.items() if (row := _best_row(label, group)) is not None)
    return Results(first.data, first.model, baseline, rows, tuple(differences), decides, decisions, best=best)


def _best_row(label: str, records: Sequence[Record]) -> Row | None:
    """Return the row of the best epoch. None unless all seeds kept it and chose it by the same figure."""
    chosen = {record.best["select"] for record in records if record.best is not None}
    found = [best for record in records if (best := record.at_best()) is not None]
    if len(found) != len(records) or len(chosen) != 1:
        return None
    epochs = ", ".join(str(record.best["epoch"]) for record in records if record.best is not None)
    return summarise_row(f"{label}: {chosen.pop()}, epoch {epochs}", found)
