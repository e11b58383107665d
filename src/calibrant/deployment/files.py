"""Decisions and labels from files: what `calibrant route apply` wrote, or predictions, and labels that came later."""

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy, RoutingRule
from calibrant.deployment.stream import Log, Stream, needed_columns
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import as_path
from calibrant.predictions import Kind, Predictions, Scan, names_or_numbers, prediction_files, read_table, scan
from calibrant.predictions.core import load_part
from calibrant.predictions.table_files import table_columns
from calibrant.scale import Executor, map_parts

_COLUMNS = ("id", "decision", "predicted", "confidence")
_TRUTH = ("target", "label")
# Columns of a file of decisions that are no groups.
_OWN = {*_COLUMNS, *_TRUTH, "class", "shortlist", "time", "labelled_at"}
# What `route apply` puts before an id that a spreadsheet would run.
_GUARDED = ("'=", "'+", "'-", "'@", "'\t", "'\r")


def is_log(source: str | Path) -> bool:
    """Whether a source is a decision log: a database URL, or a file that is no table, no predictions and no folder."""
    if "://" in str(source):
        return True
    path = as_path(source, "source")
    return path.suffix.lower() not in (".csv", ".parquet", ".npz") and not path.is_dir()


def stream_of_log(
    log: Log,
    policy: Policy | None = None,
    *,
    labels: str | Path | None = None,
    extras: Collection[str] | None = None,
) -> Stream:
    """The decisions of one policy in a log; a file of labels is refused, because the log holds them."""
    if labels is not None:
        way_out = "Add them with DecisionLog.label_all, or with calibrant serve's own address for labels."
        raise invalid("labels", "be left out for a log, which holds its labels", str(labels), way_out)
    return Stream.of_log(log, policy, extras=extras)


def read_stream(
    source: str | Path,
    policy: Policy | None,
    *,
    labels: str | Path | None = None,
    kind: Kind | None = None,
    columns: dict[str, str] | None = None,
    executor: Executor | None = None,
    extras: Collection[str] | None = None,
) -> Stream:
    """The cases of a file, in the order of its rows.

    Args:
        source: Decisions as `calibrant route apply` writes them (`.csv` or `.parquet`; a column `time` is shown, a
            column `target` or `label` holds labels, an empty cell standing for none, a column `labelled_at` the time or
            number of each label, all others may be groups), or labelled predictions with raw scores, which the policy
            decides. A folder of Parquet files is either of the two.
        policy: The policy that decided. Decisions that it would not have made are refused.
        labels: `.csv` or `.parquet` with columns `id` and `target` or `label`: class names or numbers. They count in
            the order of the rows, the order in which they came.
        kind: What the scores of predictions are, for a file that does not say.
        columns: Other names of the target and the id of predictions.
        executor: Where the parts of a folder are read and decided; None for this process, one after the other. The
            tests themselves go through the cases in their order, here.
        extras: For decisions: names of the other columns to read; None for all.
    """
    path = as_path(source, "source")
    if policy is None:
        raise InvalidInput(f"{path} does not hold the policy that decided. Name it: --policy policy.json.")
    wanted = None if extras is None else {*extras, *needed_columns([policy.rule])}
    table = _tables(path, executor, wanted)
    if "decision" not in table:
        if labels is not None:
            raise invalid("labels", "be left out for predictions, which hold their targets", str(labels))
        if not path.is_dir():
            return Stream.of_predictions(policy, Predictions.load(path, kind=kind, columns=columns))
        parts = [part for part in scan(path.absolute(), kind=kind, columns=columns).parts() if part.n_rows]
        if not parts:
            raise InvalidInput(f"{path} must hold at least one case, got none.")
        return Stream.joined(map_parts(partial(_decided, policy=policy), parts, executor))
    for name in extras or ():
        if name not in table:
            known = [each for each in _column_names(path) if each not in _OWN]
            way_out = did_you_mean(name, known) if known else "There are no other columns."
            raise invalid("groups", "be a column of the cases", repr(name), way_out)
    return replace(_decisions(policy.routing, table, str(path), labels), policy=policy)


def _tables(path: Path, executor: Executor | None, extras: Collection[str] | None) -> dict[str, list[Any]]:
    """A file of decisions, or all those of a folder, one after the other; of predictions nothing."""
    if path.is_file():
        return read_table(path, _wanted(extras)) if path.suffix.lower() in (".csv", ".parquet") else {}
    parts = [part.absolute() for part in prediction_files(path)] if path.is_dir() else []
    if executor is not None and parts:
        executor.check_shared(parts[0], parts[-1])
    if not parts or parts[0].suffix.lower() == ".npz" or "decision" not in table_columns(parts[0]):
        return {}
    whole: dict[str, list[Any]] = {}
    for number, table in enumerate(map_parts(partial(read_table, wanted=_wanted(extras)), parts, executor)):
        if number and table.keys() != whole.keys():
            raise invalid(str(parts[number]), f"have the columns {', '.join(whole)}", ", ".join(table))
        for name, column in table.items():
            whole.setdefault(name, []).extend(column)
    return whole


def _wanted(extras: Collection[str] | None) -> set[str] | None:
    """The columns that we know and the extras that are wanted, None for all."""
    return None if extras is None else _OWN | set(extras)


def _column_names(path: Path) -> list[str]:
    return table_columns(prediction_files(path)[0])


def _decided(part: Scan, *, policy: Policy) -> Stream:
    """The cases of one part of a folder of predictions."""
    return Stream.of_predictions(policy, load_part(part))


def _decisions(rule: RoutingRule, table: dict[str, list[Any]], where: str, labels: str | Path | None) -> Stream:
    for name in _COLUMNS:
        if name not in table:
            raise invalid(where, "have the columns id, decision, predicted and confidence", f"no column {name}")
    words = [str(word) for word in table["decision"]]
    other = next((row for row, word in enumerate(words) if word not in ("auto", "review")), None)
    if other is not None:
        raise invalid(f"{where}: decision", "be auto or review", f"{words[other]!r} in row {other}")
    ids = [_plain(value) for value in table["id"]]
    names = names_or_numbers(rule.class_names, rule.n_classes)
    truth = _own_labels(table, names, where)
    order = _own_order(table, truth, where)
    if labels is not None:
        if (truth >= 0).any():
            raise invalid("labels", f"be left out where {where} has labels of its own", str(labels))
        truth, order = _joined(ids, _labels(as_path(labels, "labels"), names), str(labels))
    return Stream.of_decisions(
        rule,
        [word == "auto" for word in words],
        _whole_numbers(table["predicted"], f"{where}: predicted"),
        _numbers(table["confidence"], f"{where}: confidence"),
        targets=truth,
        ids=ids,
        times=None if "time" not in table else [str(value) for value in table["time"]],
        label_order=order,
        extras={name: [_plain(value) for value in column] for name, column in table.items() if name not in _OWN},
    )


def _numbers(values: list[Any], where: str) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise invalid(where, "be numbers", str(error)) from error


def _whole_numbers(values: list[Any], where: str) -> NDArray[np.int64]:
    numbers = _numbers(values, where)
    whole = np.isfinite(numbers) & (numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)
    if not whole.all():
        row = int(np.argmin(whole))
        raise invalid(where, "be numbers of classes", f"{numbers[row]:g} in row {row}")
    return numbers.astype(np.int64)


def _own_labels(table: dict[str, list[Any]], names: tuple[str, ...], where: str) -> NDArray[np.int64]:
    column = next((name for name in _TRUTH if name in table), None)
    if column is None:
        return np.full(len(table["id"]), -1)
    return np.array([_class(value, names, where, row) for row, value in enumerate(table[column])], dtype=np.int64)


def _own_order(table: dict[str, list[Any]], truth: NDArray[np.int64], where: str) -> NDArray[np.int64] | None:
    """The place of each label in the order of the column `labelled_at`, 0 for cases without one; None without it.

    Labels of the same time count in the order of the rows.
    """
    if "labelled_at" not in table:
        return None
    rows = np.flatnonzero(truth >= 0)
    texts = ["" if table["labelled_at"][row] is None else str(table["labelled_at"][row]).strip() for row in rows]
    moments: NDArray[Any]
    try:
        moments = np.array([float(text) for text in texts])
        known = np.isfinite(moments)
    except ValueError:
        moments = np.array([_moment(text) for text in texts])
        known = ~np.isnan(moments)
    if not known.all():
        at = int(np.argmin(known))
        wanted = "be a number or a time like 2026-01-31T12:00:00 for each label, all of one kind"
        raise invalid(f"{where}: labelled_at", wanted, f"{texts[at][:40]!r} in row {rows[at]}")
    order = np.zeros(len(truth), dtype=np.int64)
    order[rows[np.argsort(moments, kind="stable")]] = np.arange(1, len(rows) + 1)
    return order


def _moment(text: str) -> float:
    """Seconds of an ISO 8601 time, in UTC if it names no zone; NaN for other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _class(value: Any, names: tuple[str, ...], where: str, row: int) -> int:
    """The number of a class that is named or numbered; -1 for nothing."""
    text = "" if value is None else str(value).strip()
    if text in ("", "-1"):
        return -1
    if text in names:
        return names.index(text)
    number = text.removesuffix(".0")
    if number.isascii() and number.isdigit() and int(number) < len(names):
        return int(number)
    raise invalid(f"{where}: label", "be a class of the rule", f"{text[:40]!r} in row {row}", did_you_mean(text, names))


def _labels(path: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Id to class, in the order of the rows; the same label twice is one, two different ones are refused."""
    table = read_table(path)
    column = next((name for name in _TRUTH if name in table), None)
    if column is None or "id" not in table:
        raise invalid(str(path), "have the columns id and target", ", ".join(table) or "none")
    found: dict[str, int] = {}
    for row, (identity, value) in enumerate(zip(table["id"], table[column], strict=True)):
        known, label = _plain(identity), _class(value, names, str(path), row)
        if label < 0:
            continue
        if found.setdefault(known, label) != label:
            said = f"{names[found[known]]} and {names[label]} for {known[:40]!r}"
            raise invalid(f"{path}: labels", "not contradict each other", said, "Decide which one is true.")
    return found


def _joined(ids: list[str], labels: dict[str, int], where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The label of each case, -1 for none, and its place among the labels."""
    places = {identity: place for place, identity in enumerate(labels, start=1)}
    if labels and not any(identity in labels for identity in ids):
        raise InvalidInput(f"{where}: none of its {len(labels):,} labels is of a case that was decided.")
    truth = np.array([labels.get(identity, -1) for identity in ids], dtype=np.int64)
    return truth, np.array([places.get(identity, 0) for identity in ids], dtype=np.int64)


def _plain(value: Any) -> str:
    text = str(value)
    return text[1:] if text.startswith(_GUARDED) else text


def read_reference(
    source: str | Path,
    policy: Policy,
    *,
    kind: Kind | None = None,
    columns: dict[str, str] | None = None,
) -> Predictions:
    """The cases that the rule of a policy was chosen on, calibrated; refused if it was chosen on others.

    Args:
        source: The file with their predictions, raw scores.
        policy: The policy.
        kind: What the scores are, for a file that does not say.
        columns: Other names of the target and the id.
    """
    predictions = Predictions.load(source, kind=kind, columns=columns)
    if policy.rule is not None and policy.rule.fitted_on not in (None, predictions.origin.sha256):
        raise invalid("reference", "be the file that the rule was chosen on", str(source))
    # Those that fitted the calibrator look better calibrated than new cases do.
    return policy.calibrate(policy.unseen(predictions))
