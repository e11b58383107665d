"""The tables of a study: the paper's, costs, verdicts, plans beside their controls, and calibrated runs."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

from calibrant.metrics.metric import label as common_label
from calibrant.studies.records import CONFIDENCE, without_scaled
from calibrant.studies.referee import Difference
from calibrant.studies.study_results import Estimate, Results, Row
from calibrant.tables import Table, counted


def paper_tables(results: Results) -> list[Table]:
    """Return the tables of a study: calibration and error, the high-confidence set, costs, differences, and so on."""
    where = f"{results.data}, {results.model}"
    tables = [
        _table(results, f"{where}: calibration and test error", _MAIN_CAPTION, _ERROR_COLUMNS),
        _table(results, f"{where}: the high-confidence set", _MAIN_CAPTION, _SET_COLUMNS),
        _table(results, f"{where}: other metrics", _OTHER_CAPTION, _OTHER_COLUMNS),
        _costs(results, where),
    ]
    if any(row["automated_share@0.98"].mean is not None for row in results.rows):
        title = f"{where}: what may be left to the model"
        tables.append(_table(results, title, _AUTOMATED_CAPTION, _AUTOMATED_COLUMNS))
    if results.controls:
        tables.append(control_table(results))
    if results.decisions:
        tables.append(_decisions(results, where))
    if results.differences:
        tables.append(_differences(results, where))
    return tables


_MAIN_CAPTION = (
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


# Heading to the figure of a row.
_ERROR_COLUMNS = {
    "ECE": "ece",
    "ECE +TS": "scaled_ece",
    "ECE, 15 bins": "ece_15_bins",
    "TE": "test_error",
    "AUROC": "auroc",
}
_SET_COLUMNS = {
    "ECE(S95)": "ece@0.95",
    "ECE(S95) +TS": "scaled_ece@0.95",
    "|S95|": "share@0.95",
    "|S95| +TS": "scaled_share@0.95",
}
_OTHER_CAPTION = (
    "Test set, last epoch, 10 bins. NLL and Brier score (summed over classes) as they are, all else in percent. AURC: "
    "area under the risk-coverage curve; equal mass: ECE of bins that hold equally many cases; classwise: mean over "
    "classes. Lower is better. +TS, ± and marks as above. Choose by the validation set, not by the test set."
)
_OTHER_COLUMNS = {
    "NLL": "nll",
    "NLL +TS": "scaled_nll",
    "NLL +TS, validation": "validation_nll_scaled",
    "Brier": "brier",
    "Brier +TS": "scaled_brier",
    "AURC": "aurc",
    "ECE, equal mass": "ece_equal_mass",
    "ECE, classwise": "classwise_ece",
}
_AUTOMATED_CAPTION = (
    "In percent of the test images: those above the lowest threshold at which the validation set promises an accuracy "
    f"of 98 or 99 % with confidence {CONFIDENCE:g} (calibrant route fit). 0: nothing can be promised. +TS: a "
    "temperature from a random half of the validation set first, the threshold from the other half. "
    "Best score: temperature, ranking score and the thresholds to test from a tenth, the promise from the others. "
    "Right: accuracy of those at 99 %; -: a seed has none. ± as above; with one seed, the binomial "
    "standard error."
)
_AUTOMATED_COLUMNS = {
    "at 98 %": "automated_share@0.98",
    "at 98 % +TS": "automated_scaled_share@0.98",
    "at 99 %": "automated_share@0.99",
    "at 99 % +TS": "automated_scaled_share@0.99",
    "at 99 %, best score": "automated_best_share@0.99",
    "right": "automated_accuracy@0.99",
}


def _table(results: Results, title: str, caption: str, columns: Mapping[str, str]) -> Table:
    rows = [
        (row.label, str(len(row.seeds)), *(_with_spread(row[figure], figure) for figure in columns.values()))
        for row in results.rows
    ]
    best = [_best([row[figure].mean for row in results.rows], figure) for figure in columns.values()]
    heads = ("method", "seeds", *columns)
    return Table(title, tuple(rows), heads, caption + left_out(results), (frozenset(), frozenset(), *best))


def _best(values: Sequence[float | None], figure: str) -> frozenset[int]:
    known = [value for value in values if value is not None]
    # If all are equal, none is best. The accuracy at a promised one is a check, not a competition.
    if figure == "automated_accuracy@0.99" or len(set(known)) < 2:
        return frozenset()
    higher = figure.startswith("automated_") or figure.partition("@")[0].endswith(("auroc", "share"))
    top = max(known) if higher else min(known)
    return frozenset(index for index, value in enumerate(values) if value == top)


def _costs(results: Results, where: str) -> Table:
    base = next((row for row in results.rows if row.label == results.baseline), None)
    rows = tuple(
        (
            row.label,
            f"{row.mean('samples_seen'):,.0f}",
            f"{100 * row.mean('seen_share'):.1f}",
            f"{100 * row.mean('compute_share'):.1f}",
            _with_spread(row["train_seconds"], "train_seconds"),
            _relative_time(row, base),
            _with_spread(row["temperature"], "temperature"),
        )
        for row in results.rows
    )
    times = ("train time, s", f"vs {results.baseline}, %")
    heads = ("method", "samples seen", "of full, %", "compute, %", *times, "temperature")
    caption = (
        "Mean over seeds. Compute: floating-point operations in percent of those of the recipe without a plan. Times "
        "of runs that shared a machine say little; they are compared only if all of them shared it with equally many."
    )
    if results.uncontrolled:
        caption += f" No control cost as much, so nothing is said of the worth of: {', '.join(results.uncontrolled)}."
    return Table(f"{where}: what it cost", rows, heads, caption)


def _relative_time(row: Row, base: Row | None) -> str:
    """Return the time in percent of that of the baseline, if both machines were equally busy."""
    if base is None or not base.mean("train_seconds"):
        return "-"
    # None: it is unknown how many runs shared the machine. Such runs are compared with each other only.
    if len({*row.concurrent_runs, *base.concurrent_runs}) > 1:
        return "-"
    return f"{100 * row.mean('train_seconds') / base.mean('train_seconds'):.0f}"


def _decisions(results: Results, where: str) -> Table:
    """Return the verdict in the metric that was named beforehand."""
    metric = metric_label(results.decides)
    rows = []
    for decision in results.decisions:
        item = decision.difference
        p = "-" if decision.p is None else f"{decision.p:.3f}"
        seen = _figure(decision.detectable, item.metric)
        rows.append((item.label, *_difference_and_ends(item), p, seen, decision.verdict))
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
        shown = (item.label, metric_label(item.metric), *_difference_and_ends(item), basis)
        rows.append((*shown, _figure(item.detectable(), item.metric), item.verdict))
    difference = f"minus {results.baseline}"
    heads = ("method", "metric", difference, "95 % interval", "over", "could have seen", "verdict")
    return Table(f"{where}: against {results.baseline}", tuple(rows), heads, _DIFFERENCES_CAPTION)


def _difference_and_ends(item: Difference) -> tuple[str, str]:
    """Return a difference and its interval as text: in points, NLL as it is."""
    if item.difference is None:
        return "-", "-"
    ends = [_figure(end, item.metric, "+") for end in item.interval or ()]
    return _figure(item.difference, item.metric, "+"), " to ".join(ends) or "-"


def _figure(value: float | None, name: str, sign: str = "") -> str:
    """Return a figure as text: NLL, Brier score, temperature and seconds as they are, all else in percent."""
    if value is None or not math.isfinite(value):
        return "-"
    if "nll" in name or "brier" in name:
        return f"{value:{sign}.4f}"
    if name in _DIGITS:
        return f"{value:.{_DIGITS[name]}f}"
    return f"{100 * value:{sign}.2f}"


_DIGITS = {"train_seconds": 1, "temperature": 3}


_DIFFERENCES_CAPTION = (
    "In points, NLL as it is. The interval is over seeds (the variance of a method leans on the others if they "
    "agree) and over test images, where test predictions are at hand. With one seed for every method it is that of "
    "`calibrant.compare`, which says nothing about another training. Not corrected for the number of comparisons: only "
    "the metric that was named beforehand decides. A larger |S95| counts as better, and an over-confident network has "
    "one, too: read it beside ECE(S95)."
)


_CONTROL_CAPTION = (
    "A plan lets samples rest, or trains on smaller images first. Fewer epochs save as much, so they are what a plan "
    "has to beat: its control has the same loss and schedule on all data at full size, and as much compute in fewer "
    "epochs. Recovered: (control - plan) / (control - whole run); 1 means that nothing was lost, 0 that the plan is "
    "worth no more than fewer epochs; -: the whole run was not made, or is no better than the control. It is a ratio "
    "of two differences and says little if fewer epochs lose little; whether it differs from 0 is what the verdict "
    "says. Compute (floating-point operations, forward passes for scores included) and updates in percent of the "
    "whole run. NLL after temperature scaling; error and AURC in percent; lower is better. Intervals as in the table "
    "of differences."
)


def control_table(results: Results) -> Table:
    """Return each plan beside its control: its cost, its figures, and the share of the loss that it recovers."""
    rows = []
    for item in results.controls:
        metric = item.difference.metric
        recovered = "-"
        if item.recovered is not None:
            recovered = f"{item.recovered:.2f}"
            if item.recovered_interval is not None:
                recovered += " ({:.2f} to {:.2f})".format(*item.recovered_interval)
        costs = [f"{100 * share:.1f}" for share in (item.share, item.updates, item.scored_share)]
        values = [_figure(value, metric) for value in (item.whole_value, item.control_value, item.plan_value)]
        names = (item.plan, item.control, str(item.difference.seeds[0]))
        verdict = (*_difference_and_ends(item.difference), item.difference.verdict, recovered)
        rows.append((*names, *costs, metric_label(metric), *values, *verdict))
    heads = ("plan", "control", "seeds", "compute", "updates", "scored", "metric", "whole run", "control's", "plan's")
    verdicts = ("plan - control", "95 % interval", "plan is", "recovered")
    title = f"{results.data}, {results.model}: plans beside their controls"
    return Table(title, tuple(rows), (*heads, *verdicts), _CONTROL_CAPTION)


def metric_label(figure: str) -> str:
    """Return the name of a metric as the paper writes it.

    >>> metric_label("share@0.95"), metric_label("scaled_test_error")
    ('|S95|', 'TE +TS')
    """
    metric, scaled = without_scaled(figure)
    name, _, threshold = metric.partition("@")
    if threshold:
        label = _OF_A_SET[name].format(f"{(100 * Decimal(threshold)).normalize():f}")
    else:
        label = {"test_error": "TE", "auroc": "AUROC"}.get(name) or common_label(name)
    return f"{label} +TS" if scaled else label


_OF_A_SET = {"share": "|S{}|", "accuracy": "accuracy(S{})", "ece": "ECE(S{})", "ece_inside": "ECE(S{}), own bins"}


def percent(estimate: Estimate) -> str:
    """Return mean and spread in percent.

    >>> percent(Estimate(0.0123, 0.001, "seeds", (0.0113, 0.0133)))
    '1.23 ± 0.10'
    """
    return _with_spread(estimate, "a share")


def _with_spread(estimate: Estimate, name: str) -> str:
    text = _figure(estimate.mean, name)
    if estimate.mean is not None and estimate.spread is not None:
        text += f" ± {_figure(estimate.spread, name)}"
    return text
