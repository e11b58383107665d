"""Freeze the numbers that the package computes, and compare a later version with them.

    python scripts/frozen_numbers.py write FILE
    python scripts/frozen_numbers.py compare FILE [--only CASE ...] [--ignore PATTERN ...]

The cases are the shipped samples and 50 random tables. For each case the script computes metrics, intervals,
comparisons, calibrators, rules, decisions and monitor statistics. `compare` prints every number that differs by more
than 1e-12 relative (1e-6 if a minimiser found it) and exits with 1 if there is any.

The random tables hold integers and quotients of integers only, so that every machine makes the same ones. A long
vector is stored as its length, sum, weighted sum, smallest and largest entry, and its first entries.
"""

import argparse
import gzip
import json
import math
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# ---------------------------------------------------------------------------------------------------------------------
# The adapter: everything that is imported from the package. If names move, edit this section only. Each function
# returns plain values (numbers, text, None, arrays, and lists and dicts of them) under names that must not change.
# ---------------------------------------------------------------------------------------------------------------------
from calibrant import calibration, decisions, deployment, metrics, samples
from calibrant.decisions.bounds import cases_at_rate, cluster_p_value, interval
from calibrant.decisions.certify import default_starts, default_thresholds
from calibrant.deployment import betting
from calibrant.errors import InvalidInput as Refused
from calibrant.predictions import Predictions

Values = dict[str, Any]


def sample_names() -> tuple[str, ...]:
    return samples.names()


def load_sample(name: str, split: Any) -> Predictions:
    """One split of a sample, with made-up columns for weights, groups and clusters."""
    loaded = samples.load(name, split)
    rows = np.arange(len(loaded))
    columns = {
        "weight": (loaded.targets + 1) / 4.0,
        "site": np.array(["a", "b", "c"])[rows * rows % 7 % 3],
        "patient": rows // 5,
    }
    return make_predictions("logits", loaded.scores, loaded.targets, columns, loaded.class_names)


def make_predictions(kind: str, scores: Any, targets: Any, columns: Values, class_names: Any = None) -> Predictions:
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probabilities
    return make(scores, targets, class_names=class_names, extras=columns)


def row_numbers(predictions: Predictions) -> Values:
    """What each row says by itself."""
    return {
        "confidence": predictions.confidence,
        "predicted": predictions.predicted,
        "nll": predictions.nll,
        "probabilities": predictions.probabilities,
        "halves": [part.targets for part in predictions.split(0.5, seed=3)],
    }


def calibrated_numbers(predictions: Predictions) -> Values:
    return {"probabilities": predictions.probabilities, "predicted": predictions.predicted}


def evaluation_numbers(evaluation: metrics.Evaluation) -> Values:
    return {
        **evaluation.values(),
        "noise_floor": evaluation.noise_floor,
        "noise_floor_95": evaluation.noise_floor_95,
        "balanced_error": evaluation.balanced_error,
        "intervals": dict(evaluation.intervals or {}),
    }


def evaluate_numbers(predictions: Predictions, **settings: Any) -> Values:
    return evaluation_numbers(metrics.evaluate(predictions, **settings))


def evaluate_group_numbers(predictions: Predictions, groups: str, **settings: Any) -> Values:
    grouped = metrics.evaluate_groups(predictions, groups, **settings)
    parts = {name: evaluation_numbers(evaluation) for name, evaluation in grouped.groups.items()}
    return {"groups": parts, "worst": grouped.worst(), "stand_out": grouped.stand_out()}


def evaluate_class_numbers(predictions: Predictions, **settings: Any) -> Values:
    found = metrics.evaluate_classes(predictions, **settings)
    columns = ("n", "error", "predicted", "gap", "ece")
    lines = {name: [getattr(line, name) for line in found.classes] for name in columns}
    return {"balanced_error": found.balanced_error, "worst": found.worst.name, **lines}


def single_metric_numbers(predictions: Predictions, weights: str | None) -> Values:
    """Metrics that have a function of their own, and the curves."""
    functions: dict[str, Callable[..., Any]] = {
        "accuracy": metrics.accuracy,
        "test_error": metrics.error_rate,
        "nll": metrics.negative_log_likelihood,
        "brier": metrics.brier_score,
        "ece_20": partial(metrics.expected_calibration_error, n_bins=20),
        "ece_equal_mass_20": partial(metrics.equal_mass_calibration_error, n_bins=20),
        "mce_20": partial(metrics.maximum_calibration_error, n_bins=20),
        "classwise_ece_20": partial(metrics.classwise_calibration_error, n_bins=20),
        "debiased_ece_20": partial(metrics.debiased_calibration_error, n_bins=20),
        "smooth_ece": metrics.smooth_calibration_error,
        "ks": metrics.ks_calibration_error,
        "auroc": metrics.auroc,
        "aurc": metrics.aurc,
    }
    found = {name: function(predictions, weights=weights) for name, function in functions.items()}
    for name, equal_mass in (("equal_width", False), ("equal_mass", True)):
        bins = metrics.reliability_bins(predictions, equal_mass=equal_mass, weights=weights)
        counts = bins.count.astype(float), bins.correct_sum.astype(float)
        found[f"bins_{name}"] = [bins.edges, bins.confidence_sum, *counts]
    curve = metrics.accuracy_coverage(predictions, weights=weights)
    found["accuracy_coverage"] = [curve.threshold, curve.coverage, curve.accuracy]
    found["confident_0.8"] = asdict(metrics.confident_set(predictions, 0.8, weights=weights))
    floor = metrics.noise_floor(predictions, draws=50, seed=1, weights=weights)
    found["noise_floor"] = [floor.mean, floor.upper]
    return found


def _comparison(comparison: metrics.Comparison) -> Values:
    return {row.name: {"difference": [row.difference, row.interval], "verdict": row.verdict} for row in comparison.rows}


def compare_numbers(a: Predictions, b: Predictions, **settings: Any) -> Values:
    return _comparison(metrics.compare(a, b, **settings))


def partitioned_numbers(predictions: Predictions) -> Values:
    """Metrics of predictions that lie in three Parquet files."""
    with tempfile.TemporaryDirectory() as folder:
        for part, rows in enumerate(np.array_split(np.arange(len(predictions)), 3)):
            predictions.subset(rows).save(Path(folder) / f"part-{part}.parquet")
        return {"evaluate": evaluation_numbers(metrics.evaluate_parts(folder, kind=predictions.kind))}


METHODS = tuple(calibration.METHODS)
CALIBRATORS: dict[str, Callable[[], calibration.Calibrator]] = {
    **{name: partial(calibration.make_calibrator, name) for name in METHODS},
    # Maximum likelihood, as it was frozen.
    "temperature": lambda: calibration.TemperatureScaling(prior_scale=None),
    "vector-fixed": lambda: calibration.VectorScaling(reg_lambda=0.01),
    "matrix-fixed": lambda: calibration.MatrixScaling(reg_lambda=0.01, reg_mu=0.1),
    "dirichlet-fixed": lambda: calibration.DirichletScaling(reg_lambda=0.01),
}
# Their parameters are found without a minimiser.
CLOSED_FORM = ("none", "isotonic", "isotonic-top", "histogram", "histogram-top")
# These choose the strength of their regulariser by cross-validation, which is slow.
SLOW = ("vector", "matrix", "dirichlet")


def fit_calibrator(name: str, predictions: Predictions) -> calibration.Calibrator:
    return CALIBRATORS[name]().fit(predictions)


def calibrator_numbers(calibrator: calibration.Calibrator) -> Values:
    """Parameters and summary of a fit; no parameters if the minimiser did not converge, as they mean nothing then."""
    summary = calibrator.summary_
    found: Values = {"identity": calibrator.identity_, "nll": [summary.nll_before, summary.nll_after]}
    found |= {"cases": summary.cases, "converged": summary.converged, "at_bound": summary.at_bound}
    if summary.converged:
        found["parameters"] = {name: _joined(values) for name, values in calibrator.to_dict()["fitted"].items()}
    return found


def _joined(values: Any) -> Any:
    """The numbers of nested lists in one list."""
    if not isinstance(values, list):
        return values
    joined: list[Any] = []
    for value in values:
        joined += _joined(value) if isinstance(value, list) else [value]
    return joined


def best_calibrator_numbers(predictions: Predictions, methods: tuple[str, ...] | None) -> Values:
    selection = calibration.select_calibrator(predictions, methods=methods, folds=3, seed=1)
    lines = {line.name: [line.nll, line.behind, line.standard_error] for line in selection.candidates}
    return {"name": selection.name, "candidates": lines, "fitted": calibrator_numbers(selection.calibrator)}


def prior_numbers(fit: Predictions, new: Predictions) -> Values:
    trained = np.bincount(fit.targets, minlength=fit.n_classes) + 1.0
    correction = calibration.PriorCorrection.estimate(new, trained)
    return {"shares": correction.shares, "probabilities": correction(new).probabilities}


@dataclass(frozen=True)
class Scaled:
    """A rule for logits that are divided by a temperature first."""

    rule: Any
    temperature: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def route(self, predictions: Predictions) -> Any:
        """Decide behind the temperature."""
        return self.rule.route(scaled_by(predictions, self.temperature))


def scaled_by(predictions: Predictions, temperature: float | None) -> Predictions:
    if temperature is None:
        return predictions
    if predictions.kind == "logits":
        logits = predictions.scores.astype(np.float64)
    else:
        with np.errstate(divide="ignore"):
            logits = np.maximum(np.log(predictions.probabilities), -1e30)
    shifted = (logits - logits.max(axis=1, keepdims=True)) / temperature
    return predictions.with_logits(shifted)


def seen_by(rule: Any, predictions: Predictions) -> tuple[Any, Predictions]:
    """The plain rule, and predictions as it sees them."""
    if isinstance(rule, Scaled):
        return rule.rule, scaled_by(predictions, rule.temperature)
    return rule, predictions


def choose_rule(predictions: Predictions, target: float, *, temperature: float | None = None, **settings: Any) -> Any:
    rule = decisions.choose_threshold(scaled_by(predictions, temperature), target, **settings)
    return rule if temperature is None else Scaled(rule, temperature)


def draw_by_weights(predictions: Predictions, weights: str) -> Predictions:
    return decisions.sample_by_weights(predictions, weights, seed=2)


def rule_numbers(rule: Any) -> Values:
    return {
        "threshold": rule.threshold,
        "class_thresholds": rule.class_thresholds,
        "automation_rate": rule.automation_rate,
        "evidence": {**asdict(rule.evidence), **_automation(rule.evidence)},
        "groups": _columns(rule.group_evidence or ()),
        "clusters": rule.clusters,
        "costs": None if rule.costs is None else [rule.costs.per_1000, rule.costs.per_1000_all_review],
    }


def _automation(evidence: decisions.Evidence) -> Values:
    low, high = interval(evidence.automated, evidence.cases)
    return {"automation_low": float(low), "automation_high": float(high)}


def decision_numbers(rule: Any, predictions: Predictions) -> Values:
    routed = rule.route(predictions)
    confidence = [math.fsum(routed.confidence), routed.confidence.min(), routed.confidence.max()]
    return {"decisions": np.where(routed.automate, routed.predicted, -1 - routed.predicted), "confidence": confidence}


def check_numbers(rule: Any, predictions: Predictions, shortlist: Any = None) -> Values:
    rule, predictions = seen_by(rule, predictions)
    policy = decisions.Policy(rule.n_classes, rule=rule, shortlist=shortlist)
    verdict = decisions.check_policy(policy, predictions)
    return {**verdict.to_dict(), "groups": _columns(verdict.promise.groups if verdict.promise else ())}


def _columns(lines: Iterable[Any]) -> Values:
    """The fields of several results of one kind."""
    table: Values = defaultdict(list)
    for line in lines:
        for name, value in asdict(line).items():
            table[name].append(value)
    return table


def choose_shortlist(predictions: Predictions, coverage: float, rule: Any = None) -> Any:
    rule, predictions = seen_by(rule, predictions)
    return decisions.choose_shortlist(predictions, coverage, confidence=0.9, rule=rule)


def shortlist_numbers(shortlist: Any, predictions: Predictions, rule: Any = None) -> Values:
    rule, predictions = seen_by(rule, predictions)
    names = ("least", "cases", "missed", "mean_length", "threshold", "class_thresholds")
    check = asdict(decisions.check_shortlist(shortlist, predictions, rule=rule))
    del check["coverage"]
    return {
        **{name: getattr(shortlist, name) for name in names},
        "listed": shortlist.listed(predictions),
        "check": check,
    }


def coverage_numbers(predictions: Predictions, **settings: Any) -> Values:
    rows = [asdict(row) for row in decisions.risk_coverage(predictions, **settings)]
    counts = [[row.pop("automated"), row.pop("errors")] for row in rows]
    return {"counts": np.array(counts), "shares": np.array([list(row.values()) for row in rows], dtype=float)}


def choose_binary(predictions: Predictions, **settings: Any) -> Any:
    return decisions.choose_binary_rule(predictions, **settings)


def one_against_rest(predictions: Predictions, positive: int) -> Predictions:
    """A question of two classes: is it this class?"""
    chance = np.minimum(predictions.probabilities[:, positive], 1.0)
    return Predictions.from_binary(chance, (predictions.targets == positive).astype(int), kind="probabilities")


def binary_numbers(rule: Any, predictions: Predictions) -> Values:
    return {
        "low": rule.low,
        "high": rule.high,
        "promised": [rule.sensitivity, rule.specificity],
        "evidence": asdict(rule.evidence),
        "decisions": np.array([("negative", "review", "positive").index(each) for each in rule.decide(predictions)]),
        "check": rule.check(predictions),
        "rates": asdict(decisions.binary_rates(predictions, 0.3, 0.6, positive=rule.positive)),
    }


def certify_numbers(predictions: Predictions) -> Values:
    table = decisions.certify(predictions.confidence, predictions.correct, target_accuracy=0.9, level=0.1)
    return asdict(table)


def bound_numbers() -> Values:
    """Intervals of shares and numbers of cases, which depend on no predictions."""
    shares = [(0, 1), (1, 1), (0, 50), (49, 50), (93, 100), (5, 1000), (998, 1000), (70_000, 100_000)]
    rates = [(0.0, 0.99, 0.05), (0.002, 0.99, 0.05), (0.04, 0.95, 0.01), (0.0494, 0.95, 0.05), (0.2, 0.9, 0.05)]
    sizes, errors = np.arange(1, 41) % 6 + 1, (np.arange(40) % 13 == 0).astype(int)
    return {
        "clopper_pearson": [interval(hits, cases, confidence=0.9) for hits, cases in shares],
        "cases_at_rate": [cases_at_rate(*rate) for rate in rates],
        "cluster_p_value": [cluster_p_value(sizes, errors, most, 6) for most in (0.02, 0.1, 0.3)],
        "default_thresholds": default_thresholds(),
        "default_starts": [list(default_starts(target).items()) for target in (0.5, 0.9, 0.99, 0.999)],
    }


def watch_numbers(rule: Any, stream: Predictions, **settings: Any) -> Values:
    """The monitor's tests on labelled predictions."""
    policy = decisions.Policy(stream.n_classes, rule=rule, shortlist=settings.pop("shortlist", None))
    watched = deployment.Stream.of_predictions(policy, stream)
    return _watched(deployment.watch(watched, **settings))


def watch_decision_numbers(rule: Any, stream: Predictions, **settings: Any) -> Values:
    """The same for logged decisions, two thirds of them labelled, the labels in another order."""
    routed, rows = rule.route(stream), np.arange(len(stream))
    targets = np.where(rows % 3 == 0, -1, stream.targets)
    decided = routed.automate, routed.predicted, routed.confidence
    order = rows * 7919 % 104_729
    logged = deployment.Stream.of_decisions(rule, *decided, targets=targets, label_order=order, extras=stream.extras)
    return _watched(deployment.watch(logged, **settings))


def _watched(watched: deployment.Watched) -> Values:
    content = watched.to_dict(curves=True)
    for name in ("format", "version"):
        del content[name]
    signals = {}
    for signal in content["signals"]:
        # Words are not frozen.
        del signal["detail"]
        curve = signal.pop("curve")
        signal["curve cases"] = curve.pop("case")
        signal["curve"] = np.concatenate(list(curve.values()))
        signals[f"{signal.pop('about')}, {signal.pop('group')}"] = signal
    return {**content, "signals": signals}


def capital_numbers(predictions: Predictions, reference: Predictions) -> Values:
    ranks = betting.conformal_ranks(reference.confidence, predictions.confidence, seed=5)
    return {"promise": deployment.promise_capital(~predictions.correct, 0.1), "ranks": ranks}


# ---------------------------------------------------------------------------------------------------------------------
# The cases.
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Predictions to compute numbers from.

    Attributes:
        fit: For calibrators, rules and the monitor's reference.
        new: For metrics, decisions and the monitor's stream.
        other: Another model on the rows of `new`.
        resamples: Draws behind each interval.
        slow_rows: Rows of `fit` for calibrators that take long.
        stream_rows: Rows of `new` for the monitor.
        group_intervals: Whether metrics of groups get intervals, which takes long.
    """

    fit: Predictions
    new: Predictions
    other: Predictions
    resamples: int
    slow_rows: int
    stream_rows: int
    group_intervals: bool


N_TABLES = 50
CLASSES = (2, 3, 5, 10, 2, 4, 20, 7)
ROWS = (160, 500, 1000, 2400, 44)
# One label in so many is random.
NOISE = (8, 40, 200)
STYLES = ("plain", "ties", "saturated", "overconfident", "imbalanced", "all right", "one class")
TYPES = (np.float64, np.float32, np.float64, np.float16, np.float32)


def sample_case(name: str) -> Case:
    names = sample_names()
    following = names[(names.index(name) + 1) % len(names)]
    fit, new, other = load_sample(name, "val"), load_sample(name, "test"), load_sample(following, "test")
    return Case(fit, new, other, resamples=25, slow_rows=500, stream_rows=1500, group_intervals=True)


def table_case(index: int) -> Case:
    """A random table: even rows to fit on, odd rows to apply to."""
    generator = np.random.default_rng([20_30, index])
    n_classes, rows = CLASSES[index % len(CLASSES)], ROWS[index % len(ROWS)]
    style, dtype = STYLES[index % len(STYLES)], TYPES[index // 3 % len(TYPES)]
    kind = ("logits", "probabilities")[index // len(CLASSES) % 2]
    believed = generator.integers(0, n_classes, rows)
    if style == "imbalanced":
        believed = np.minimum(believed, generator.integers(0, n_classes, rows))
    is_random = generator.integers(0, NOISE[index % len(NOISE)], rows) == 0
    targets = np.where(is_random, generator.integers(0, n_classes, rows), believed)
    if style == "one class":
        targets[:] = 1
    columns = {
        "weight": generator.integers(0, 9, rows) / 4.0,
        "site": np.array(["a", "a", "a", "b", "b", "c"])[generator.integers(0, 6, rows)],
        "patient": generator.integers(0, max(2, rows // 4), rows),
    }
    class_names = [f"class {k}" for k in range(n_classes)] if index % 4 == 1 else None
    models = []
    for other_kind in (kind, "logits"):
        make = _make_logits if other_kind == "logits" else _make_probabilities
        scores = make(generator, believed, n_classes, style).astype(dtype)
        if style == "all right" and not models:
            targets = scores.argmax(axis=1)
        models.append(make_predictions(other_kind, scores, targets, columns, class_names))
    first, second = models
    even, odd = np.arange(0, rows, 2), np.arange(1, rows, 2)
    return Case(
        fit=first.subset(even),
        new=first.subset(odd),
        other=second.subset(odd),
        resamples=20,
        slow_rows=300,
        stream_rows=800,
        group_intervals=index % 3 == 0,
    )


def _make_logits(generator: np.random.Generator, believed: Any, n_classes: int, style: str) -> Any:
    rows = len(believed)
    # Sums of three uniform numbers, in steps of 1/256: exact in float16 up to 8.
    noise = generator.integers(-256, 257, (3, rows, n_classes)).sum(axis=0)
    noise[np.arange(rows), believed] += generator.integers(0, 2049, rows)
    scale = {"ties": 1.0, "saturated": 64.0, "overconfident": 4.0}.get(style, 2.0)
    logits = noise / 256.0 * scale
    return np.round(logits) if style == "ties" else logits


def _make_probabilities(generator: np.random.Generator, believed: Any, n_classes: int, style: str) -> Any:
    rows = len(believed)
    shares = generator.integers(1, 4 if style == "ties" else 1001, (rows, n_classes))
    bonus = {"ties": 8, "overconfident": 60_000}.get(style, 8000)
    if style == "saturated":
        shares[generator.integers(0, 3, rows) > 0] = 0
    shares[np.arange(rows), believed] += generator.integers(1, bonus, rows)
    return shares / shares.sum(axis=1, keepdims=True)


def case_names() -> list[str]:
    return [*sample_names(), *(f"table-{index:02d}" for index in range(N_TABLES))]


def make_case(name: str) -> Case:
    if name.startswith("table-"):
        return table_case(int(name.removeprefix("table-")))
    return sample_case(name)


# ---------------------------------------------------------------------------------------------------------------------
# The numbers of a case.
# ---------------------------------------------------------------------------------------------------------------------


class Record:
    """Numbers by key, those of minimisers apart; what matches a pattern of `ignore` is not computed."""

    def __init__(self, ignore: Iterable[str] = ()) -> None:
        self.ignore = tuple(ignore)
        self.exact: dict[str, Any] = {}
        self.minimised: dict[str, Any] = {}

    def add(self, key: str, compute: Callable[[], Values], *, minimised: bool = False) -> None:
        """Compute some values and store them; if the package refuses the input, store that."""
        if any(fnmatchcase(f"{key}/", pattern) for pattern in self.ignore):
            return
        try:
            values = compute()
        except Refused:
            values = {"refused": True}
        self._store(key, values, minimised=minimised)

    def _store(self, key: str, value: Any, *, minimised: bool) -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                self._store(f"{key}/{name}", part, minimised=minimised or name == "minimised")
        elif isinstance(value, list | tuple) and any(isinstance(part, _PARTS) for part in value):
            for place, part in enumerate(value):
                self._store(f"{key}/{place}", part, minimised=minimised)
        elif isinstance(value, list | tuple | np.ndarray) and np.size(value) > INLINE:
            self._store(key, _summary(np.asarray(value).ravel().tolist()), minimised=minimised)
        else:
            target = self.minimised if minimised else self.exact
            if key in target:
                raise ValueError(f"two values have the key {key}")
            target[key] = _plain(value)


_PARTS = (Mapping, list, tuple, np.ndarray)
INLINE = 6
MODULUS = 2**61 - 1


def _plain(value: Any) -> Any:
    """A JSON value: a scalar or a short list."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(entry) for entry in np.asarray(value).ravel().tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _summary(entries: list[Any]) -> dict[str, Any]:
    first = [_plain(entry) for entry in entries[:2]]
    if not any(isinstance(entry, float) for entry in entries) or any(isinstance(entry, str) for entry in entries):
        numbers = [entry if isinstance(entry, int) else sum(str(entry).encode()) for entry in entries]
        checksum = sum(place * (number + 2) for place, number in enumerate(numbers, start=1)) % MODULUS
        return {"n": len(entries), "sum": sum(numbers), "checksum": checksum, "first": first}
    finite = np.array([entry is not None and math.isfinite(entry) for entry in entries])
    known = np.array([entry for entry, is_finite in zip(entries, finite, strict=True) if is_finite])
    factors = (np.random.default_rng(7).random(len(entries)) + 0.5)[finite]
    return {
        "n": len(entries),
        "finite": int(np.flatnonzero(finite).sum()),
        "sum": math.fsum(known),
        "weighted": math.fsum(known * factors),
        "ends": [float(known.min()), float(known.max())] if len(known) else [],
        "first": first,
    }


def record_case(name: str, record: Record) -> None:
    case = make_case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        add = Prefixed(record, name)
        record_metrics(case, add)
        record_calibrators(case, add)
        record_rules(case, add)
        record_binary(case, add)
        record_monitor(case, add)


@dataclass(frozen=True)
class Prefixed:
    """Adds to a record under the name of a case."""

    record: Record
    case: str

    def __call__(
        self, key: str, compute: Callable[..., Values], *arguments: Any, minimised: bool = False, **settings: Any
    ) -> None:
        """Store what `compute` returns under a key."""
        self.record.add(f"{self.case}/{key}", partial(compute, *arguments, **settings), minimised=minimised)


WEIGHTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "weights": {"weights": "weight"},
    "clusters": {"clusters": "patient"},
    "weights and clusters": {"weights": "weight", "clusters": "patient"},
}


def record_metrics(case: Case, add: Prefixed) -> None:
    add("rows/fit", row_numbers, case.fit)
    add("rows/new", row_numbers, case.new)
    add("evaluate/fit", evaluate_numbers, case.fit)
    settings: Values = {"n_bins": 10, "thresholds": (0.5, 0.9), "level": 0.8, "seed": 4}
    add("evaluate/other settings", evaluate_numbers, case.new, n_resamples=case.resamples, **settings)
    for name, weighting in WEIGHTINGS.items():
        add(f"evaluate/{name}", evaluate_numbers, case.new, n_resamples=case.resamples, **weighting)
        add(f"compare/{name}", compare_numbers, case.new, case.other, n_resamples=case.resamples, **weighting)
    resamples = 20 if case.group_intervals else 0
    for name in ("plain", "weights"):
        weighting = WEIGHTINGS[name]
        add(f"groups/{name}", evaluate_group_numbers, case.new, "site", n_resamples=resamples, **weighting)
        add(f"classes/{name}", evaluate_class_numbers, case.new, **weighting)
        add(f"functions/{name}", single_metric_numbers, case.new, weighting.get("weights"))
    if case.group_intervals:
        add("groups/clusters", evaluate_group_numbers, case.new, "site", n_resamples=20, clusters="patient")
    add("partitioned", partitioned_numbers, case.new)


def record_calibrators(case: Case, add: Prefixed) -> None:
    some = case.fit.subset(np.arange(min(case.slow_rows, len(case.fit))))
    for name in CALIBRATORS:
        if name.removesuffix("-fixed") in SLOW and case.fit.n_classes > 10:
            continue
        rows = some if name.removesuffix("-fixed") in SLOW else case.fit
        minimised = name not in CLOSED_FORM
        try:
            calibrator = fit_calibrator(name, rows)
        except Refused:
            add(f"calibrators/{name}", lambda: {"refused": True}, minimised=minimised)
            continue
        add(f"calibrators/{name}/fitted", calibrator_numbers, calibrator, minimised=minimised)
        calibrated = calibrator(case.new)
        add(f"calibrators/{name}/rows", calibrated_numbers, calibrated, minimised=minimised)
        add(f"calibrators/{name}/evaluate", evaluate_numbers, calibrated, thresholds=(0.9,), minimised=minimised)
    fast = tuple(name for name in METHODS if name not in SLOW)
    add("best/fast methods", best_calibrator_numbers, some, fast, minimised=True)
    if case.fit.n_classes <= 3:
        add("best/all methods", best_calibrator_numbers, some, None, minimised=True)
    add("prior/em", prior_numbers, case.fit, case.new, minimised=True)


def record_rules(case: Case, add: Prefixed) -> None:
    n_classes = case.fit.n_classes
    distance = np.abs(np.subtract.outer(np.arange(n_classes), np.arange(n_classes)))
    costs: Values = {"cost_error": 20.0, "cost_review": 1.0}
    matrix: Values = {"cost_matrix": 3.0 * distance, "cost_review": 1.0}
    variants: dict[str, tuple[float, Values]] = {
        "target 0.7": (0.7, {}),
        "target 0.9": (0.9, {"confidence": 0.9}),
        "target 0.97": (0.97, {}),
        "per class": (0.7, {"per_class": True}),
        "groups": (0.75, {"groups": "site"}),
        "clusters": (0.7, {"clusters": "patient", "confidence": 0.8}),
        "groups and clusters": (0.6, {"groups": "site", "clusters": "patient", "confidence": 0.8}),
        "costs": (0.85, costs),
        "cost matrix": (0.85, matrix),
        "costs per class": (0.7, {"per_class": True, **costs}),
        "own thresholds": (0.75, {"thresholds": (0.3, 0.6, 0.7, 0.8, 0.9, 0.97), "starts": {0.9: 0.7, 0.6: 0.3}}),
        "temperature": (0.75, {"temperature": 1.75}),
    }
    for name, (target, settings) in variants.items():
        _record_rule(add, f"rules/{name}", case, partial(choose_rule, case.fit, target, **settings))
    _record_rule(add, "rules/by weights", case, lambda: choose_rule(draw_by_weights(case.fit, "weight"), 0.75))
    add("coverage/plain", coverage_numbers, case.fit)
    add("coverage/costs", coverage_numbers, case.fit, coverages=(0.9, 0.5, 0.25))
    add("certify", certify_numbers, case.fit)
    _record_shortlists(case, add)
    _record_behind_calibrator(case, add)


def _record_rule(add: Prefixed, key: str, case: Case, choose: Callable[[], Any], *, minimised: bool = False) -> None:
    try:
        rule = choose()
    except Refused:
        add(key, lambda: {"refused": True}, minimised=minimised)
        return
    add(f"{key}/rule", rule_numbers, rule, minimised=minimised)
    add(f"{key}/decisions", decision_numbers, rule, case.new, minimised=minimised)
    add(f"{key}/check", check_numbers, rule, case.new, minimised=minimised)


def _record_shortlists(case: Case, add: Prefixed) -> None:
    add("shortlists/all cases", lambda: shortlist_numbers(choose_shortlist(case.fit, 0.8), case.new))
    rules = {"threshold": {}, "per class": {"per_class": True}, "temperature": {"temperature": 1.75}}
    for name, settings in rules.items():

        def behind_rule(settings: Values = settings) -> Values:
            rule = choose_rule(case.fit, 0.85, **settings)
            shortlist = choose_shortlist(case.fit, 0.9, rule)
            checked = check_numbers(rule, case.new, shortlist)
            return {"shortlist": shortlist_numbers(shortlist, case.new, rule), "check": checked}

        add(f"shortlists/{name}", behind_rule)


def _record_behind_calibrator(case: Case, add: Prefixed) -> None:
    """Rules chosen on calibrated scores: the first half of the rows fits the calibrator, the second the rule."""
    half = len(case.fit) // 2
    first, second = case.fit.subset(np.arange(half)), case.fit.subset(np.arange(half, len(case.fit)))
    for name in ("temperature", "beta", "isotonic", "histogram-top"):
        minimised = name not in CLOSED_FORM
        key = f"rules behind {name}"
        try:
            calibrator = fit_calibrator(name, first)
        except Refused:
            add(key, lambda: {"refused": True}, minimised=minimised)
            continue
        calibrated = Case(calibrator(second), calibrator(case.new), case.other, 0, 0, 0, group_intervals=False)
        choose = partial(choose_rule, calibrated.fit, 0.9)
        _record_rule(add, key, calibrated, choose, minimised=minimised)


def record_binary(case: Case, add: Prefixed) -> None:
    fit, new = case.fit, case.new
    if fit.n_classes > 2:
        fit, new = one_against_rest(fit, 1), one_against_rest(new, 1)
    variants: dict[str, Values] = {
        "sensitivity": {"sensitivity": 0.8},
        "specificity": {"sensitivity": None, "specificity": 0.8},
        "both": {"sensitivity": 0.9, "specificity": 0.85, "confidence": 0.9},
        "other positive": {"sensitivity": 0.8, "specificity": 0.7, "positive": 0},
    }
    for name, settings in variants.items():

        def numbers(settings: Values = settings) -> Values:
            return binary_numbers(choose_binary(fit, **settings), new)

        add(f"binary/{name}", numbers)

    def watched() -> Values:
        rows = np.arange(min(case.stream_rows, len(new)))
        return watch_numbers(choose_binary(fit, sensitivity=0.9, specificity=0.85), new.subset(rows))

    add("monitor/binary", watched)


def record_monitor(case: Case, add: Prefixed) -> None:
    rows = np.arange(min(case.stream_rows, len(case.new)))
    stream, reference = case.new.subset(rows), case.fit
    # In the second half of this stream the classes come one after the other, which every test should notice.
    half = len(rows) // 2
    drifting = case.new.subset(np.concatenate([rows[:half], half + np.argsort(stream.targets[half:], kind="stable")]))

    def watched(stream: Predictions, watch: Callable[..., Values] = watch_numbers, **settings: Any) -> Values:
        chosen = {"per_class": settings.pop("per_class", False)}
        rule = choose_rule(reference, 0.7, confidence=0.8, **chosen)
        if settings.pop("with_shortlist", False):
            settings["shortlist"] = choose_shortlist(reference, 0.8, rule)
        return watch(rule, stream, **settings)

    add("monitor/promise", watched, stream)
    add("monitor/reference", watched, stream, reference=reference, seed=3)
    add("monitor/groups", watched, stream, groups="site", level=0.2)
    add("monitor/per class", watched, stream, per_class=True)
    add("monitor/shortlist", watched, stream, with_shortlist=True)
    add("monitor/decisions", watched, stream, watch_decision_numbers, reference=reference)
    add("monitor/drift", watched, drifting, reference=reference, groups="site")
    add("monitor/other model", watched, case.other.subset(rows), reference=reference)
    add("monitor/capital", capital_numbers, stream, reference)


# ---------------------------------------------------------------------------------------------------------------------
# Files and comparison.
# ---------------------------------------------------------------------------------------------------------------------

Numbers = dict[str, dict[str, Any]]
BOUNDS = "bounds"
# Relative tolerance, and the size below which it becomes absolute: differences of larger numbers are rounded.
TOLERANCES = {"exact": (1e-12, 1e-3), "minimised": (1e-6, 1.0)}


def collect(names: Iterable[str], ignore: Iterable[str] = (), *, progress: bool = False) -> Numbers:
    """The numbers of some cases, by kind and key."""
    record = Record(ignore)
    for name in names:
        if progress:
            print(name, file=sys.stderr, flush=True)
        if name == BOUNDS:
            record.add(BOUNDS, bound_numbers)
        else:
            record_case(name, record)
    # Through JSON and back, so that both sides of a comparison have the same types.
    content: Numbers = json.loads(json.dumps({"exact": record.exact, "minimised": record.minimised}, allow_nan=False))
    return content


def write(path: Path, numbers: Numbers) -> None:
    text = json.dumps(numbers, separators=(",", ":"), sort_keys=True)
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
        packed.write(text.encode())


def read(path: Path) -> Numbers:
    with gzip.open(path, "rt", encoding="utf-8") as packed:
        content: Numbers = json.load(packed)
    return content


def count(numbers: Numbers) -> int:
    """How many single values there are."""
    total = 0
    for values in numbers.values():
        total += sum(len(value) if isinstance(value, list) else 1 for value in values.values())
    return total


def differences(frozen: Numbers, current: Numbers, ignore: Iterable[str] = ()) -> dict[str, str]:
    """Keys whose values differ, each with both values in words; keys that match a pattern of `ignore` are left out."""
    patterns = tuple(ignore)
    found = {}
    for kind, (tolerance, floor) in TOLERANCES.items():
        for key in sorted({*frozen[kind], *current[kind]}):
            if any(fnmatchcase(key, pattern) for pattern in patterns):
                continue
            if key not in current[kind]:
                found[key] = f"frozen {frozen[kind][key]}, now missing"
            elif key not in frozen[kind]:
                found[key] = f"now {current[kind][key]}, not in the frozen file"
            else:
                before, after = frozen[kind][key], current[kind][key]
                distance = _distance(before, after, floor)
                if distance > tolerance:
                    found[key] = f"frozen {before}, now {after} (relative {distance:.1e}, {kind})"
    return found


def _distance(before: Any, after: Any, floor: float) -> float:
    """Relative difference of two values, the largest one of lists; infinite if they are of different kinds."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return max((_distance(*pair, floor) for pair in zip(before, after, strict=True)), default=0.0)
    if float in (type(before), type(after)) and {type(before), type(after)} <= {float, int}:
        return abs(before - after) / max(abs(before), abs(after), floor)
    return 0.0 if type(before) is type(after) and before == after else math.inf


def select(numbers: Numbers, names: Iterable[str]) -> Numbers:
    """The numbers of some cases."""
    wanted = set(names)
    return {
        kind: {key: value for key, value in values.items() if key.partition("/")[0] in wanted}
        for kind, values in numbers.items()
    }


def report(found: Mapping[str, str]) -> None:
    """Print differences by what was computed, then by case."""
    groups = defaultdict(list)
    for key in found:
        _, _, rest = key.partition("/")
        groups["/".join(rest.split("/")[:2])].append(key)
    for group, keys in sorted(groups.items()):
        cases = {key.partition("/")[0] for key in keys}
        print(f"\n{group}: {len(keys)} values in {len(cases)} cases")
        for key in keys:
            print(f"  {key}: {found[key]}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Freeze the numbers of the package, or compare with frozen ones.")
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", metavar="CASE", help="cases to compare; all if left out")
    parser.add_argument("--ignore", nargs="+", default=[], metavar="PATTERN", help="keys that may differ")
    arguments = parser.parse_args()
    names = [BOUNDS, *case_names()]
    if arguments.only:
        unknown = sorted({*arguments.only} - {*names})
        if unknown or arguments.action == "write":
            parser.error(f"--only takes cases to compare, got {unknown or 'it with write'}")
        names = arguments.only
    if arguments.action == "write":
        numbers = collect(names, progress=True)
        write(arguments.file, numbers)
        print(f"{count(numbers):,} numbers under {sum(map(len, numbers.values())):,} keys")
        return 0
    frozen = select(read(arguments.file), names)
    found = differences(frozen, collect(names, arguments.ignore, progress=True), arguments.ignore)
    report(found)
    print(f"{len(found):,} of {sum(map(len, frozen.values())):,} frozen values differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
