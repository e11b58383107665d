"""The tables of a study: the paper's, costs, verdicts, plans beside their controls, and calibrated runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.metric import higher_is_better
from calibrant.metrics.metric import label as common_label
from calibrant.studies.records import CONFIDENCE
from calibrant.studies.referee import Difference, check_deciding_metric
from calibrant.studies.study_folder import Study
from calibrant.studies.study_results import Estimate, Results, Row, estimate
from calibrant.tables import Table, counted
from calibrant.training import Run


def paper_tables(results: Results, *, brief: bool = False) -> list[Table]:
    """Return the tables of a study: calibration and error, the high-confidence set, costs, differences, and so on.

    Args:
        results: The rows.
        brief: Show the differences in one line per method, without their intervals, for a terminal.
    """
    where = f"{results.data}, {results.model}"
    caption = _SPREAD + left_out(results)
    tables = [
        _table(results, f"{where}: calibration and test error", caption, _FIRST),
        _table(results, f"{where}: the high-confidence set", caption, _SECOND),
        _table(results, f"{where}: other metrics", _OTHER + left_out(results), _THIRD),
        _costs(results, where),
    ]
    if len(results.rows) > 1 and all(row.validation_nll_scaled.mean is not None for row in results.rows):
        tables.append(_candidates(results, where))
    if results.best:
        chosen = replace(results, rows=results.best)
        tables.append(_table(chosen, f"{where}: the best epoch by validation", _CHOSEN, _BOTH))
    if any(row.automation for row in results.rows):
        title = f"{where}: what may be left to the model"
        tables.append(_table(results, title, _PROMISED + left_out(results), _AUTOMATED))
    if results.controls:
        tables.append(control_table(results))
    if results.decisions:
        tables.append(_decisions(results, where))
    if results.differences:
        all_metrics = _brief_differences if brief else _differences
        tables.append(all_metrics(results, where))
    return tables


_SPREAD = (
    "In percent, test set, last epoch, 10 bins unless stated. TE: test error; S95: the cases with a confidence of "
    "0.95 or more, |S95|: their share; +TS: after temperature scaling on the validation set. "
    "± is the standard deviation over seeds; with one seed, the standard error over test images, "
    "which is the width of a 95 % interval divided by 3.92. "
    "Marked: the best mean, which may be so by chance."
)


def left_out(results: Results) -> str:
    """Return a sentence about runs that failed or were stopped. Empty if all have finished.

    A method whose training fails for some seeds must not look as if nobody had tried them.
    """
    if not results.unfinished:
        return ""
    rows = []
    for label, seeds in results.unfinished.items():
        word = "seed" if len(seeds) == 1 else "seeds"
        rows.append(f"{label}, {word} {', '.join(map(str, seeds))}")
    return f" Not finished (failed or stopped), so in none of these figures: {'; '.join(rows)}."


_Column = tuple[str, Callable[[Row], Estimate], str | None]
"""Heading, the estimate that it shows, and the metric that says which direction is better (None: neither)."""


def _test(metric: str) -> Callable[[Row], Estimate]:
    return lambda row: row.test[metric]


def _scaled(metric: str) -> Callable[[Row], Estimate]:
    return lambda row: row.scaled[metric]


_FIRST: tuple[_Column, ...] = (
    ("ECE", _test("ece"), "ece"),
    ("ECE +TS", _scaled("ece"), "ece"),
    ("ECE, 15 bins", lambda row: row.ece_15_bins, "ece"),
    ("TE", _test("test_error"), "test_error"),
    ("AUROC", _test("auroc"), "auroc"),
)
_SECOND: tuple[_Column, ...] = (
    ("ECE(S95)", _test("ece@0.95"), "ece"),
    ("ECE(S95) +TS", _scaled("ece@0.95"), "ece"),
    ("|S95|", _test("share@0.95"), "share@0.95"),
    ("|S95| +TS", _scaled("share@0.95"), "share@0.95"),
)


_OTHER = (
    "Test set, last epoch, 10 bins. NLL and Brier score (summed over classes) as they are, all else in percent. AURC: "
    "area under the risk-coverage curve; equal mass: ECE of bins that hold equally many cases; classwise: mean over "
    "classes. Lower is better. +TS, ± and marks as above."
)
_THIRD: tuple[_Column, ...] = (
    ("NLL", _test("nll"), "nll"),
    ("NLL +TS", _scaled("nll"), "nll"),
    ("Brier", _test("brier"), "brier"),
    ("Brier +TS", _scaled("brier"), "brier"),
    ("AURC", _test("aurc"), "aurc"),
    ("ECE, equal mass", _test("ece_equal_mass"), "ece"),
    ("ECE, classwise", _test("classwise_ece"), "ece"),
)
_BOTH: tuple[_Column, ...] = (
    *(_FIRST[0], _FIRST[1], _FIRST[3], _FIRST[4]),
    *(_SECOND[0], _SECOND[2]),
)
_CHOSEN = (
    "As in the first two tables, but of the epoch with the best validation figure (error, NLL, or NLL after scaling) "
    "instead of the last."
)
_PROMISED = (
    "In percent of the test images: those above the lowest threshold at which the validation set promises an accuracy "
    f"of 98 or 99 % with confidence {CONFIDENCE:g} (calibrant route fit). 0: nothing can be promised. +TS: a "
    "temperature from a random half of the validation set first, the threshold from the other half. "
    "Best score: temperature, ranking score and the thresholds to test from a tenth, the promise from the others. "
    "Right: accuracy of those at 99 %; -: a seed has none. ± as above; with one seed, the binomial "
    "standard error."
)


def _automated(key: str) -> Callable[[Row], Estimate]:
    return lambda row: row.automation.get(key, Estimate(None, None, None, ()))


_AUTOMATED: tuple[_Column, ...] = (
    ("at 98 %", _automated("share@0.98"), "share@0.95"),
    ("at 98 % +TS", _automated("scaled_share@0.98"), "share@0.95"),
    ("at 99 %", _automated("share@0.99"), "share@0.95"),
    ("at 99 % +TS", _automated("scaled_share@0.99"), "share@0.95"),
    ("at 99 %, best score", _automated("best_share@0.99"), "share@0.95"),
    ("right", _automated("accuracy@0.99"), None),
)


def _table(results: Results, title: str, caption: str, columns: Sequence[_Column]) -> Table:
    rows = tuple(
        (row.label, str(len(row.seeds)), *(_cell(read(row), metric) for _, read, metric in columns))
        for row in results.rows
    )
    best = tuple(_best([read(row).mean for row in results.rows], metric) for _, read, metric in columns)
    heads = ("method", "seeds", *(head for head, _, _ in columns))
    return Table(title, rows, heads, caption, (frozenset(), frozenset(), *best))


def _cell(estimate: Estimate, metric: str | None) -> str:
    if metric not in {"nll", "brier"} or estimate.mean is None:
        return percent(estimate)
    if estimate.spread is None:
        return f"{estimate.mean:.4f}"
    return f"{estimate.mean:.4f} ± {estimate.spread:.4f}"


def _best(values: Sequence[float | None], metric: str | None) -> frozenset[int]:
    known = [value for value in values if value is not None]
    if metric is None or len(set(known)) < 2:  # if all are equal, none is best
        return frozenset()
    top = max(known) if higher_is_better(metric) else min(known)
    return frozenset(index for index, value in enumerate(values) if value == top)


def _costs(results: Results, where: str) -> Table:
    base = next((row for row in results.rows if row.label == results.baseline), None)
    rows = tuple(
        (
            row.label,
            f"{row.samples_seen.mean or 0:,.0f}",
            f"{100 * (row.seen_share.mean or 0):.1f}",
            f"{100 * (row.compute_share.mean or 0):.1f}",
            _plain(row.train_seconds, "{:.1f}"),
            _relative_time(row, base),
            _plain(row.temperature, "{:.3f}"),
        )
        for row in results.rows
    )
    times = ("train time, s", f"vs {results.baseline}, %")
    heads = ("method", "samples seen", "of full, %", "computing, %", *times, "temperature")
    caption = (
        "Mean over seeds. Computing: floating-point operations in percent of those of the recipe without a plan. Times "
        "of runs that shared a machine say little; they are compared only if all of them shared it with equally many."
    )
    if results.uncontrolled:
        caption += f" No control cost as much, so nothing is said of the worth of: {', '.join(results.uncontrolled)}."
    return Table(f"{where}: what it cost", rows, heads, caption)


def _candidates(results: Results, where: str) -> Table:
    """Return the rows by validation alone, the best first: the table by which a row may be chosen."""
    ordered = sorted(results.rows, key=lambda row: row.validation_nll_scaled.mean or 0.0)
    rows = tuple(
        (
            row.label,
            str(len(row.seeds)),
            _plain(row.validation_nll_scaled, "{:.4f}"),
            f"{100 * (row.seen_share.mean or 0):.2f}",
        )
        for row in ordered
    )
    caption = (
        "For a choice: NLL of the validation set after temperature scaling, fitted on the same cases, the best first. "
        f"± is the standard deviation over seeds. The test set has no say.{left_out(results)}"
    )
    heads = ("method", "seeds", "validation NLL +TS", "of full, %")
    return Table(f"{where}: on validation", rows, heads, caption)


def _relative_time(row: Row, base: Row | None) -> str:
    """Return the time in percent of that of the baseline, if both machines were equally busy."""
    if base is None or row.train_seconds.mean is None or not base.train_seconds.mean:
        return "-"
    # None: it is unknown how many runs shared the machine. Such runs are compared with each other only.
    if len({*row.concurrent_runs, *base.concurrent_runs}) > 1:
        return "-"
    return f"{100 * row.train_seconds.mean / base.train_seconds.mean:.0f}"


def _decisions(results: Results, where: str) -> Table:
    """Return the verdict in the metric that was named beforehand."""
    metric = _name(*check_deciding_metric(results.decides))
    rows = []
    for decision in results.decisions:
        item = decision.difference
        p = "-" if decision.p is None else f"{decision.p:.3f}"
        rows.append(
            (item.label, *_difference_and_ends(item), p, _unsigned(decision.detectable, item.metric), decision.verdict)
        )
    heads = ("method", f"{metric} minus {results.baseline}", "95 % interval", "p", "could have seen", "verdict")
    caption = (
        f"{metric} was named before the runs; it alone decides. p is corrected for {counted(len(rows), 'comparison')} "
        "(Holm): the chance that any of these verdicts is wrong is about 5 %. Could have seen: the smallest true "
        "difference that such a study finds in 4 of 5 repetitions; a smaller one may exist."
    )
    if any(min(decision.difference.seeds) == 2 for decision in results.decisions):
        caption += " With two seeds, a verdict may be wrong in 10 % if one method varies far more than the others."
    return Table(f"{where}: the verdict", tuple(rows), heads, caption)


def _differences(results: Results, where: str) -> Table:
    rows = []
    for item in results.differences:
        basis = {None: "-", "seeds": f"{item.seeds[0]} and {item.seeds[1]} seeds", "images": "images"}[item.over]
        detectable = None
        if item.spread is not None:
            detectable = item.spread.detectable()
        rows.append(
            (
                *(item.label, _name(item.metric, item.scaled), *_difference_and_ends(item), basis),
                *(_unsigned(detectable, item.metric), item.verdict),
            )
        )
    difference = f"minus {results.baseline}"
    heads = ("method", "metric", difference, "95 % interval", "over", "could have seen", "verdict")
    return Table(f"{where}: against {results.baseline}", tuple(rows), heads, _EXPLORED)


def _difference_and_ends(item: Difference) -> tuple[str, str]:
    """Return a difference and its interval as text: in points, NLL as it is."""
    if item.difference is None:
        return "-", "-"
    values = (item.difference, *(item.interval or ()))
    if item.metric == "nll":
        words = [f"{value:+.4f}" for value in values]
    else:
        words = [f"{100 * value:+.2f}" for value in values]
    return words[0], " to ".join(words[1:]) or "-"


def _unsigned(value: float | None, metric: str) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    if metric == "nll":
        return f"{value:.4f}"
    return f"{100 * value:.2f}"


_EXPLORED = (
    "In points, NLL as it is. The interval is over seeds (the variance of a method leans on the others if they "
    "agree) and over test images, where test predictions are at hand. With one seed for every method it is that of "
    "`calibrant.compare`, which says nothing about another training. Not corrected for the number of comparisons: only "
    "the metric that was named beforehand decides. A larger |S95| counts as better, and an over-confident network has "
    "one, too: read it beside ECE(S95)."
)


def _brief_differences(results: Results, where: str) -> Table:
    columns = [("ece", False), ("ece", True), ("test_error", False), ("auroc", False)]
    columns += [("ece@0.95", False), ("share@0.95", False), ("nll", True), ("aurc", False)]
    cells = {(item.label, item.metric, item.scaled): item for item in results.differences}
    rows = []
    for label in dict.fromkeys(item.label for item in results.differences):
        items = [cells[label, metric, scaled] for metric, scaled in columns]
        seeds = items[0].seeds
        rows.append((label, f"{seeds[0]} and {seeds[1]}", *(_signed(item) for item in items)))
    heads = ("method", "seeds", *(_name(metric, scaled) for metric, scaled in columns))
    caption = f"{_EXPLORED} ? means: cannot tell. Intervals are in tables.md."
    return Table(f"{where}: minus {results.baseline}", tuple(rows), heads, caption)


_CONTROL = (
    "A plan lets samples rest, or trains on smaller images first. Fewer epochs save as much, so they are what a plan "
    "has to beat: its control has the same loss and schedule on all data at full size, and as much computing in fewer "
    "epochs. Recovered: (control - plan) / (control - whole run); 1 means that nothing was lost, 0 that the plan is "
    "worth no more than fewer epochs; -: the whole run was not made, or is no better than the control. It is a ratio "
    "of two differences and says little if fewer epochs lose little; whether it differs from 0 is what the verdict "
    "says. Computing (floating-point operations, forward passes for scores included) and updates in percent of the "
    "whole run. NLL after temperature scaling; error and AURC in percent; lower is better. Intervals as in the table "
    "of differences."
)


def control_table(results: Results) -> Table:
    """Return each plan beside its control: its cost, its figures, and the share of the loss that it recovers."""
    rows = []
    for item in results.controls:
        metric = item.difference.metric
        values = (item.whole_value, item.control_value, item.plan_value)
        recovered = "-"
        if item.recovered is not None:
            recovered = f"{item.recovered:.2f}"
            if item.recovered_interval is not None:
                recovered += " ({:.2f} to {:.2f})".format(*item.recovered_interval)
        seeds = str(item.difference.seeds[0])
        rows.append(
            (
                *(item.plan, item.control, seeds, f"{100 * item.share:.1f}", f"{100 * item.updates:.1f}"),
                *(f"{100 * item.scored_share:.1f}", _name(metric, item.difference.scaled)),
                *(_unsigned(value, metric) for value in values),
                *(*_difference_and_ends(item.difference), item.difference.verdict, recovered),
            )
        )
    heads = ("plan", "control", "seeds", "computing", "updates", "scored", "metric", "whole run", "control's", "plan's")
    verdicts = ("plan - control", "95 % interval", "plan is", "recovered")
    title = f"{results.data}, {results.model}: plans beside their controls"
    return Table(title, tuple(rows), (*heads, *verdicts), _CONTROL)


def _signed(item: Difference) -> str:
    if item.difference is None:
        return "-"
    verdict = {"cannot tell": "?"}.get(item.verdict, item.verdict)
    return f"{_difference_and_ends(item)[0]} {verdict}"


def metric_label(metric: str) -> str:
    """Return the name of a metric as the paper writes it.

    >>> metric_label("share@0.95"), metric_label("test_error")
    ('|S95|', 'TE')
    """
    name, _, threshold = metric.partition("@")
    if threshold:
        return _OF_A_SET[name].format(f"{(100 * Decimal(threshold)).normalize():f}")
    return {"test_error": "TE", "auroc": "AUROC"}.get(name) or common_label(name)


_OF_A_SET = {"share": "|S{}|", "accuracy": "accuracy(S{})", "ece": "ECE(S{})", "ece_inside": "ECE(S{}), own bins"}


def _name(metric: str, scaled: bool) -> str:
    return metric_label(metric) + (" +TS" if scaled else "")


def percent(estimate: Estimate) -> str:
    """Return mean and spread in percent.

    >>> percent(Estimate(0.0123, 0.001, "seeds", (0.0113, 0.0133)))
    '1.23 ± 0.10'
    """
    if estimate.mean is None:
        return "-"
    if estimate.spread is None:
        return f"{100 * estimate.mean:.2f}"
    return f"{100 * estimate.mean:.2f} ± {100 * estimate.spread:.2f}"


def _plain(estimate: Estimate, form: str) -> str:
    if estimate.mean is None or not math.isfinite(estimate.mean):
        return "-"
    text = form.format(estimate.mean)
    if estimate.over == "seeds":
        text += " ± " + form.format(estimate.spread)
    return text


_CALIBRATED_COLUMNS = (
    ("TE", "test_error"),
    ("ECE", "ece"),
    ("AUROC", "auroc"),
    ("ECE(S95)", "ece@0.95"),
    ("|S95|", "share@0.95"),
)
_CALIBRATED = (
    "In percent, test set, 10 bins: the test predictions after the calibrator of each run, which was fitted on a part "
    "of its validation cases; the other tables show raw figures (--raw leaves this one out). "
    "± is the standard deviation over seeds."
)


def calibrated_tables(study: Study) -> list[Table]:
    """Return a table for each data set and network: the runs after calibration by their own calibrators."""
    groups: dict[tuple[str, str], dict[str, list[Evaluation]]] = {}
    without: dict[tuple[str, str], list[str]] = {}
    unchanged: dict[tuple[str, str], list[str]] = {}
    for planned in study.finished():
        run = Run.open(study.folder(planned))
        policy = run.policy()
        if policy is None or policy.calibrator is None:
            without.setdefault(planned.place, []).append(planned.name)
            continue
        if policy.calibrator.identity_:
            unchanged.setdefault(planned.place, []).append(planned.name)
        calibrated = policy.calibrate(run.predictions("test"))
        groups.setdefault(planned.place, {}).setdefault(planned.label, []).append(evaluate(calibrated, n_bins=10))
    return [
        _calibrated_table(place, rows, without.get(place, []), unchanged.get(place, []))
        for place, rows in groups.items()
    ]


def _calibrated_table(
    place: tuple[str, str], rows: dict[str, list[Evaluation]], without: list[str], unchanged: list[str]
) -> Table:
    caption = _CALIBRATED
    if without:
        caption += f" Without a calibrator, so not here: {', '.join(without)}."
    if unchanged:
        caption += f" Raw here, too, because nothing could be fitted: {', '.join(unchanged)}."
    cells = []
    for label, evaluations in rows.items():
        values = [evaluation.values() for evaluation in evaluations]
        means = [percent(estimate([of_run[metric] for of_run in values])) for _, metric in _CALIBRATED_COLUMNS]
        cells.append((label, *means))
    title = f"{place[0]}, {place[1]}: with each run's own calibrator"
    columns = ("method", *(heading for heading, _ in _CALIBRATED_COLUMNS))
    return Table(title, cells, columns, caption)
