"""Mean and spread of records over seeds, and paired differences over seeds or test images."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from calibrant.errors import invalid
from calibrant.metrics import Comparison, compare, evaluate
from calibrant.metrics.intervals import Resampled, percentiles, resample_models
from calibrant.metrics.metric import higher_is_better
from calibrant.metrics.model_comparison import Verdict, rests_on_few
from calibrant.predictions import Predictions
from calibrant.studies.records import TABLED, Record
from calibrant.tables import Displayed, ShownFields, Table

COMPARED = ("ece", "test_error", "auroc", "ece@0.95", "share@0.95", "nll", "aurc")
# A temperature never changes the predicted class.
COMPARED_SCALED = tuple(metric for metric in COMPARED if metric != "test_error")
# Metrics of a row. Records have intervals over test images only for those in TABLED.
SHOWN = (*TABLED, "aurc", "ece_equal_mass", "classwise_ece")
# A smaller spread of differences is rounding.
_NO_SPREAD = 1e-9
Over = Literal["seeds", "images"]


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
    train_seconds: Estimate
    concurrent_runs: tuple[int | None, ...]
    automation: dict[str, Estimate]
    validation_nll_scaled: Estimate
    method: str


@dataclass(frozen=True)
class PairedDifference:
    """A method minus the baseline, paired.

    Attributes:
        label: The method.
        metric: Flat name.
        scaled: Whether both are temperature-scaled.
        difference: Mean over pairs.
        interval: 95 % interval. Over seeds: Student's t, not narrower than the noise of the test images. With one
            seed: over test images. None if neither is possible, and for calibration errors over images.
        over: What was paired.
        pairs: Number of seeds that both have.
        verdict: Whether the method is better or worse than the baseline.
    """

    label: str
    metric: str
    scaled: bool
    difference: float | None
    interval: tuple[float, float] | None
    over: Over | None
    pairs: int
    verdict: Verdict


@dataclass(frozen=True)
class AgainstControl(ShownFields):
    """One metric of a plan, its control and the run on all updates, as means over seeds.

    Attributes:
        plan: Row of the plan.
        control: Row of the control.
        share: Updates of the plan as a share of all updates.
        scored_share: Additional forward passes for scores alone, in the same unit.
        all_updates: The metric without a plan and with all epochs. None if that was not run.
        control_value: The metric of the control.
        plan_value: The metric of the plan.
        difference: Plan minus control, with interval and verdict, paired by seed and over test images.
        recovered: (control - plan) / (control - all updates). 1: nothing was lost. 0: the plan is worth no more than
            fewer epochs. None if all updates were not run, or are no better than the control.
    """

    plan: str
    control: str
    share: float
    scored_share: float
    all_updates: float | None
    control_value: float | None
    plan_value: float | None
    difference: PairedDifference
    recovered: float | None


@dataclass(frozen=True, repr=False)
class Results(Displayed):
    """All rows of one data set and network.

    `unfinished` are the seeds of each row that failed or were stopped; they are not in the rows. `best` are rows of the
    best epoch by a validation figure, if runs kept it. All other rows are of the last epoch. `controls` compares each
    plan with its control. `uncontrolled` are the plans that have no control with as many updates.
    """

    data: str
    model: str
    baseline: str
    rows: tuple[Row, ...]
    differences: tuple[PairedDifference, ...]
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


PredictionsOf = Callable[[Record, bool], Predictions]
"""Returns the test predictions of a record, temperature-scaled or not."""
N_RESAMPLES = 400


class ImageNoise:
    """How much of a difference the choice of test images explains. Each run is resampled once, all by the same draws.

    Args:
        predictions_of: Returns the test predictions of a record.
    """

    def __init__(self, predictions_of: PredictionsOf) -> None:
        self._predictions_of = predictions_of
        self._resampled: dict[tuple[str, bool], Resampled] = {}
        self._compared: dict[tuple[str, str, bool], Comparison] = {}

    def comparison(self, ours: Record, theirs: Record, *, scaled: bool) -> Comparison:
        """Return the result of `compare` for two runs. It is computed once for all metrics."""
        key = (ours.predictions_sha256["test"], theirs.predictions_sha256["test"], scaled)
        if key not in self._compared:
            both = (self._predictions_of(each, scaled) for each in (theirs, ours))
            self._compared[key] = compare(*both, n_bins=10, n_resamples=N_RESAMPLES)
        return self._compared[key]

    def half_width(self, metric: str, ours: Sequence[Record], theirs: Sequence[Record], *, scaled: bool) -> float:
        """Return how far chance can move the mean difference over pairs of runs to either side. 0 if undefined.

        For calibration errors and high-confidence sets, draws cannot be trusted. There it is the average over pairs of
        what one pair allows, as if the noise of the images were the same in every seed.
        """
        pairs = [(self._of(b, scaled), self._of(a, scaled)) for b, a in zip(ours, theirs, strict=True)]
        if all(model.range(metric) is None for pair in pairs for model in pair):
            ends = percentiles(np.mean([b.draws[metric] - a.draws[metric] for b, a in pairs], axis=0), 0.95)
            if ends is None:
                return 0.0
            return (ends[1] - ends[0]) / 2
        distances = []
        for b, a in pairs:
            own = b.evaluation.values()[metric]
            base = a.evaluation.values()[metric]
            ends = b.difference(a, metric)
            if ends is None or own is None or base is None:
                return 0.0
            distances.append(max(own - base - ends[0], ends[1] - (own - base)))
        return float(np.mean(distances))

    def _of(self, record: Record, scaled: bool) -> Resampled:
        key = (record.predictions_sha256["test"], scaled)
        if key not in self._resampled:
            predictions = self._predictions_of(record, scaled)
            evaluation = evaluate(predictions, 10, thresholds=(0.95,))
            (self._resampled[key],) = resample_models([predictions], [evaluation], n_resamples=N_RESAMPLES)
        return self._resampled[key]


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

    return Row(
        label=label,
        seeds=tuple(record.seed for record in ordered),
        test=metrics(scaled=False),
        scaled=metrics(scaled=True),
        ece_15_bins=estimate([record.value("ece", n_bins=15) for record in ordered]),
        scaled_ece_15_bins=estimate([record.value("ece", n_bins=15, scaled=True) for record in ordered]),
        validation_ece=estimate([record.validation_ece for record in ordered]),
        temperature=estimate([record.temperature for record in ordered]),
        samples_seen=estimate([float(record.samples_seen) for record in ordered]),
        seen_share=estimate([record.seen_share for record in ordered]),
        train_seconds=estimate([record.train_seconds for record in ordered]),
        concurrent_runs=tuple(record.concurrent_runs for record in ordered),
        automation=_automation(ordered),
        validation_nll_scaled=estimate([record.validation_nll_scaled for record in ordered]),
        method=ordered[0].method,
    )


def _automation(records: Sequence[Record]) -> dict[str, Estimate]:
    """Return the figures that all records have."""
    figures = [record.automation or {} for record in records]
    estimates = {}
    for target in figures[0]:
        if not all(target in of_record for of_record in figures):
            continue
        for name in figures[0][target]:
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
    cases = float(record.test_cases)
    if "accuracy" in name:
        if value in {0.0, 1.0}:
            return None
        cases *= figures[name.replace("accuracy", "share")] or 0.0
    return math.sqrt(value * (1.0 - value) / cases)


def summarise(
    records: Mapping[str, Sequence[Record]], baseline: str, *, predictions_of: PredictionsOf | None = None
) -> Results:
    """Return rows and differences of one data set and network.

    Args:
        records: The records of each label, one per seed, in the order of the table.
        baseline: The label with which the others are compared. If it has no records, there are no differences.
        predictions_of: Returns the test predictions of a record, for a paired bootstrap over test images.
    """
    filled = {label: list(group) for label, group in records.items() if group}
    if not filled:
        raise invalid("records", "hold at least one run", "none")
    first = next(iter(filled.values()))[0]
    rows = tuple(summarise_row(label, group) for label, group in filled.items())
    differences: list[PairedDifference] = []
    noise = None if predictions_of is None else ImageNoise(predictions_of)
    if baseline in filled:
        for label, group in filled.items():
            if label != baseline:
                differences += _differences(label, group, filled[baseline], noise)
    best = tuple(row for label, group in filled.items() if (row := _best_row(label, group)) is not None)
    return Results(first.data, first.model, baseline, rows, tuple(differences), best=best)


def _best_row(label: str, records: Sequence[Record]) -> Row | None:
    """Return the row of the best epoch. None unless all seeds kept it and chose it by the same figure."""
    chosen = {record.best["select"] for record in records if record.best is not None}
    found = [best for record in records if (best := record.at_best()) is not None]
    if len(found) != len(records) or len(chosen) != 1:
        return None
    epochs = ", ".join(str(record.best["epoch"]) for record in records if record.best is not None)
    return summarise_row(f"{label}: {chosen.pop()}, epoch {epochs}", found)


def _differences(
    label: str, group: list[Record], baseline: list[Record], noise: ImageNoise | None
) -> list[PairedDifference]:
    our_seeds = {record.seed: record for record in group}
    their_seeds = {record.seed: record for record in baseline}
    common = sorted(our_seeds.keys() & their_seeds.keys())
    if not common:
        return []
    ours = [our_seeds[seed] for seed in common]
    theirs = [their_seeds[seed] for seed in common]
    compared = [(metric, False) for metric in COMPARED] + [(metric, True) for metric in COMPARED_SCALED]
    if len(common) == 1 and noise is not None:
        return [over_images(label, metric, ours[0], theirs[0], noise, scaled=scaled) for metric, scaled in compared]
    return [
        over_seeds(
            label,
            metric,
            [record.value(metric, scaled=scaled) for record in ours],
            [record.value(metric, scaled=scaled) for record in theirs],
            scaled=scaled,
            least=0.0 if noise is None else noise.half_width(metric, ours, theirs, scaled=scaled),
            few=any(_few(metric, *pair, scaled=scaled) for pair in zip(theirs, ours, strict=True)),
        )
        for metric, scaled in compared
    ]


def over_seeds(
    label: str,
    metric: str,
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    *,
    scaled: bool = False,
    least: float = 0.0,
    few: bool = False,
) -> PairedDifference:
    """Return the mean difference over seeds with Student's t interval, which is wide for few seeds.

    A test set is finite, so two or three seeds may agree by luck, even exactly. The interval therefore extends at least
    `least` to either side, which is the noise of the test images. Without any spread there is no interval. If a metric
    depends on a `few` images there is no verdict: three images that are right in every seed prove nothing.
    """
    pairs = [b - a for a, b in zip(theirs, ours, strict=True) if a is not None and b is not None]
    if len(pairs) != len(ours):
        return PairedDifference(label, metric, scaled, None, None, None, len(ours), "cannot tell")
    mean = statistics.fmean(pairs)
    half = 0.0
    if len(pairs) > 1:
        half = max(_t_half_width(pairs), least)
    if half < _NO_SPREAD:
        return PairedDifference(label, metric, scaled, mean, None, None, len(pairs), "cannot tell")
    interval = (mean - half, mean + half)
    verdict: Verdict = "cannot tell" if few else _verdict(metric, interval)
    return PairedDifference(label, metric, scaled, mean, interval, "seeds", len(pairs), verdict)


def _few(metric: str, theirs: Record, ours: Record, *, scaled: bool) -> bool:
    first = theirs.evaluation(scaled=scaled)
    second = ours.evaluation(scaled=scaled)
    return rests_on_few(metric, first.values(), second.values(), first.n)


def _t_half_width(values: Sequence[float]) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def over_images(
    label: str, metric: str, ours: Record, theirs: Record, noise: ImageNoise, *, scaled: bool
) -> PairedDifference:
    """Return the paired difference of one run and another over test images."""
    row = noise.comparison(ours, theirs, scaled=scaled)[metric]
    over: Over | None = None if row.difference is None else "images"
    return PairedDifference(label, metric, scaled, row.difference, row.interval, over, 1, row.verdict)


def _verdict(metric: str, interval: tuple[float, float]) -> Verdict:
    if interval[0] <= 0.0 <= interval[1]:
        return "cannot tell"
    rises = interval[0] > 0.0
    return "better" if rises == higher_is_better(metric) else "worse"
