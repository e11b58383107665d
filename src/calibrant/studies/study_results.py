"""The results of a study: mean and spread of each row over its seeds, and its differences from the baseline."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from calibrant.errors import invalid
from calibrant.studies.controls import AgainstControl, against_controls, plans_without_control
from calibrant.studies.records import Record, finite
from calibrant.studies.referee import (
    COMPARED,
    Decision,
    Difference,
    Over,
    PredictionsOf,
    Referee,
    check_deciding_metric,
    decide,
)
from calibrant.tables import ShownFields

DECIDES = "scaled_nll"
"""The metric that decides unless a study names another one: the log-score after temperature scaling."""


@dataclass(frozen=True)
class Estimate(ShownFields):
    """A number over seeds: its mean (None if it is not defined for one of them), its spread, and the values.

    The spread is the standard deviation over seeds. With one seed, it is the standard error over test images.
    """

    mean: float | None
    spread: float | None
    over: Over | None
    values: tuple[float | None, ...]


NOTHING = Estimate(None, None, None, ())


@dataclass(frozen=True)
class Row:
    """A method (or variant) over its seeds.

    `figures` are those of `Record.figures`, over the seeds. `concurrent_runs` is how many runs shared the machine, one
    number per seed, None if unknown.
    """

    label: str
    seeds: tuple[int, ...]
    concurrent_runs: tuple[int | None, ...]
    figures: dict[str, Estimate]

    def __getitem__(self, name: str) -> Estimate:
        """Return one of the figures, without a mean if it was not measured."""
        return self.figures.get(name, NOTHING)

    def mean(self, name: str) -> float:
        """Return the mean of a figure that every record has."""
        return self[name].mean or 0.0


@dataclass(frozen=True)
class Results:
    """All rows of one data set and network.

    `differences` are those of every method from the baseline in every metric. `decisions` are the verdicts in the one
    metric that was named beforehand, `decides`, corrected for the number of methods. `unfinished` are the seeds of each
    row that failed or were stopped; they are not in the rows. `controls` compares each plan with its control.
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
    controls: tuple[AgainstControl, ...] = ()
    uncontrolled: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, in fractions."""
        return asdict(self)


def estimate(values: Sequence[float | None], deviations: Sequence[float | None] = ()) -> Estimate:
    """Return mean and spread of one number over seeds.

    >>> round(estimate([0.1, 0.2, 0.3]).spread, 3)
    0.1
    """
    known = finite(values)
    if known is None:
        return Estimate(None, None, None, tuple(values))
    mean = statistics.fmean(known)
    if len(known) > 1:
        return Estimate(mean, statistics.stdev(known), "seeds", tuple(values))
    if deviations and deviations[0] is not None:
        return Estimate(mean, deviations[0], "images", tuple(values))
    return Estimate(mean, None, None, tuple(values))


def summarise_row(label: str, records: Sequence[Record]) -> Row:
    """Return one row from the records of its seeds."""
    ordered = sorted(records, key=lambda record: record.seed)
    figures = {}
    for name in dict.fromkeys(name for record in ordered for name in record.figures):
        deviations = [ordered[0].deviation(name)] if len(ordered) == 1 else []
        figures[name] = estimate([record.figures.get(name) for record in ordered], deviations)
    return Row(
        label=label,
        seeds=tuple(record.seed for record in ordered),
        concurrent_runs=tuple(record.concurrent_runs for record in ordered),
        figures=figures,
    )


def summarise(
    records: Mapping[str, Sequence[Record]],
    baseline: str,
    *,
    predictions_of: PredictionsOf | None = None,
    decides: str = DECIDES,
    unfinished: Mapping[str, tuple[int, ...]] | None = None,
) -> Results:
    """Return the results of one data set and network.

    Args:
        records: The records of each label, one per seed, in the order of the table.
        baseline: The label with which the others are compared. If it has no records, there are no differences.
        predictions_of: Returns the test predictions of a record, for the noise of the test images.
        decides: The metric that was named beforehand, such as `test_error` or `scaled_nll`.
        unfinished: Seeds of each label that have no record, because they failed or were stopped.
    """
    filled = {label: list(group) for label, group in records.items() if group}
    if not filled:
        raise invalid("records", "hold at least one run", "none")
    check_deciding_metric(decides)
    first = next(iter(filled.values()))[0]
    referee = Referee(filled, predictions_of)
    differences = []
    for label, group in filled.items():
        if baseline in filled and label != baseline:
            differences += [referee.compare(label, metric, group, filled[baseline]) for metric in COMPARED]
    controls = against_controls(filled, referee)
    return Results(
        data=first.data,
        model=first.model,
        baseline=baseline,
        rows=tuple(summarise_row(label, group) for label, group in filled.items()),
        differences=tuple(differences),
        decides=decides,
        decisions=decide([item for item in differences if item.metric == decides]),
        unfinished=dict(unfinished or {}),
        controls=controls,
        uncontrolled=plans_without_control(filled, controls),
    )
