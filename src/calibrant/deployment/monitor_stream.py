"""`Stream`: the cases that a rule decided, in their order, from predictions, files of decisions or a log."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import labels as check_labels
from calibrant.decisions import BinaryRule, Policy, RoutingRule, Shortlist, sample_by_weights
from calibrant.decisions.route_files import unguarded
from calibrant.deployment.decision import LoggedDecisions, check_names
from calibrant.deployment.log import DecisionLog
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.files import as_path
from calibrant.predictions import Kind, Predictions, names_or_numbers, prediction_files, read_table, scan
from calibrant.predictions.columns import Labels, check_distinct, group_name
from calibrant.predictions.reader import FORMATS
from calibrant.predictions.readings import RIGHT_OR_WRONG
from calibrant.predictions.table_files import TABLE_FORMATS, table_columns

Ints = NDArray[np.int64]
_COLUMNS = ("id", "decision", "predicted", "confidence")
_TRUTH = ("target", "label")
# Columns of a file of decisions that are not groups.
_RESERVED = {*_COLUMNS, *_TRUTH, "class", "shortlist", "time", "labelled_at"}


@dataclass(frozen=True)
class Stream:
    """Cases in the order in which they were decided.

    Attributes:
        policy: The policy that decided.
        automate: Whether the model decided alone.
        predicted: Number of the predicted class.
        confidence: Its probability, as the rule saw it.
        targets: Number of the true class; -1 if no label has come.
        label_order: Order in which labels came. None: the order of the cases.
        ids: Names of the cases. None: their numbers.
        times: When each was decided, as text, if that is known. Only shown: the order is that of the rows.
        extras: Other columns by name, for groups and clusters.
        left_out: Number of cases of other policies that were left out.
        listed: 1 if the true class was on the list that a person saw, 0 if not, -1 if the list or the true class is not
            known; None if no lists are known.
        part: Column and value that all cases have, if they were selected by it; see `select`.
    """

    policy: Policy
    automate: NDArray[np.bool_]
    predicted: Ints
    confidence: NDArray[np.float64]
    targets: Ints
    label_order: Ints | None = None
    ids: NDArray[Any] | None = None
    times: NDArray[Any] | None = None
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    left_out: int = 0
    listed: NDArray[np.int8] | None = None
    part: tuple[str, str] | None = None

    def __len__(self) -> int:
        return len(self.automate)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether a label has come."""
        return np.asarray(self.targets >= 0)

    @property
    def rule(self) -> RoutingRule | BinaryRule:
        """The rule of the policy."""
        return self.policy.rule or self.policy.routing

    @property
    def shortlist(self) -> Shortlist | None:
        """The shortlist of the policy, if it has one."""
        return self.policy.shortlist

    def select(
        self, *, since: datetime | None = None, until: datetime | None = None, where: tuple[str, str] | None = None
    ) -> Self:
        """The cases of a period, or those with one value of a column.

        The level of a test holds for a period whose beginning was chosen without looking at the cases.

        Args:
            since: Time of the first case. A time without a zone is in UTC.
            until: Time after the last case.
            where: Name of a column and the value of all chosen cases. The promise is tested if the rule makes it for
                this group; otherwise the cases are described.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        if since is not None or until is not None:
            if self.times is None:
                raise InvalidInput("The cases have no times, so no period can be chosen. Add a column time.")
            moments = np.array([_seconds(str(time)) for time in self.times])
            if np.isnan(moments).any():
                row = int(np.argmax(np.isnan(moments)))
                raise invalid("time", "be a time like 2026-01-31T12:00:00", f"{self.times[row]!r} in row {row}")
            if since is not None:
                chosen &= moments >= _seconds(since)
            if until is not None:
                chosen &= moments < _seconds(until)
        if where is not None:
            where = where[0], group_name(where[1])
            chosen &= self.text_column(where[0]) == where[1]
        if not chosen.any():
            raise InvalidInput(f"None of the {len(self):,} cases is selected. Choose another period or group.")
        columns: dict[str, Any] = {name: column[chosen] for name, column in self._columns().items()}
        columns["extras"] = {name: column[chosen] for name, column in self.extras.items()}
        return replace(self, **columns, part=where or self.part)

    def _columns(self) -> dict[str, NDArray[Any]]:
        """What is known of each case besides its extras."""
        names = ("automate", "predicted", "confidence", "targets", "label_order", "ids", "times", "listed")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def text_column(self, name: str) -> NDArray[Any]:
        """An extra column as text; refused if the cases do not have it."""
        if name not in self.extras:
            raise _unknown_column(name, self.extras)
        return np.asarray([group_name(value) for value in self.extras[name]], dtype=object)

    @classmethod
    def of_predictions(cls, policy: Policy, predictions: Predictions) -> Self:
        """Decide labelled predictions with raw scores by a policy."""
        rule, shortlist = policy.rule, policy.shortlist
        if rule is None:
            raise InvalidInput("This policy has no rule, so there is nothing to watch. Fit one: calibrant route fit.")
        known: dict[str, Any] = {"ids": predictions.ids, "extras": predictions.extras}
        calibrated = policy.calibrate(predictions)
        if shortlist is not None:
            known["listed"] = shortlist.holds_true(calibrated).astype(np.int8)
        if isinstance(rule, RoutingRule) and rule.class_thresholds is None:
            calibrated = calibrated.as_right_or_wrong()
        if isinstance(rule, BinaryRule):
            called = np.asarray(rule.decide(calibrated))
            decided = np.where(called == "positive", rule.positive, 1 - rule.positive)
            predicted = np.where(called == "review", calibrated.predicted, decided)
            return cls(policy, called != "review", predicted, calibrated.confidence, calibrated.targets, **known)
        routed = rule.route(calibrated)
        return cls(policy, routed.automate, routed.predicted, routed.confidence, calibrated.targets, **known)

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Join the cases of several parts of predictions. Ids must be distinct over all of them."""
        streams = list(parts)
        columns = [stream._columns() for stream in streams]  # noqa: SLF001 (the same class)
        joined: dict[str, Any] = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
        names = streams[0].extras
        joined["extras"] = {name: np.concatenate([stream.extras[name] for stream in streams]) for name in names}
        if "ids" in joined:
            check_distinct(joined["ids"])
        return replace(streams[0], **joined)

    @classmethod
    def of_decisions(
        cls,
        rule: RoutingRule | Policy,
        automate: Any,
        predicted: Any,
        confidence: Any,
        *,
        targets: Any = None,
        ids: Any = None,
        times: Any = None,
        label_order: Any = None,
        lists: Sequence[Collection[int]] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Self:
        """Take decisions that a rule or a policy made elsewhere. Raise if its rule would have decided otherwise.

        `lists` are the numbers of the classes that a person saw, empty if they are not known. The other arguments are
        columns with an entry per case: see the attributes of `Stream`.
        """
        policy = rule if isinstance(rule, Policy) else Policy(rule.n_classes, rule=rule)
        rule = policy.routing
        made, rows = np.asarray(automate, dtype=np.bool_), len(automate)
        if rows == 0:
            raise InvalidInput("decisions must hold at least one case, got none.")
        true = np.full(rows, -1) if targets is None else np.asarray(targets, dtype=np.int64)
        columns: dict[str, Any] = {"ids": ids, "times": times}
        columns = {name: _values(column) for name, column in columns.items() if column is not None}
        if policy.shortlist is not None and lists is not None:
            columns["listed"] = _listed(lists, true)
        if label_order is not None:
            columns["label_order"] = np.asarray(label_order, dtype=np.int64)
        if ids is not None:
            check_distinct(columns["ids"])
        if rule.class_names == RIGHT_OR_WRONG:  # the class matters only as far as it is right; -1: not known
            predicted, true = np.ones(rows, np.int64), np.where(true < 0, -1, true == predicted)
        classes = check_labels("predicted", predicted, rows=rows, n_classes=rule.n_classes).astype(np.int64)
        if ((true < -1) | (true >= rule.n_classes)).any():
            raise invalid("targets", f"lie in 0..{rule.n_classes - 1}, or be -1 for none", true.min())
        sure = np.asarray(confidence, dtype=np.float64)
        possible = (sure >= 0) & (sure <= 1)
        if not possible.all():
            raise invalid("confidence", "lie in 0..1", sure[np.argmin(possible)])
        _check_decisions(rule, made, classes, sure)
        columns["extras"] = {name: _values(column) for name, column in (extras or {}).items()}
        return cls(policy, made, classes, sure, true, **columns)

    @classmethod
    def of_log(
        cls,
        log: DecisionLog,
        policy: Policy | None = None,
        *,
        extras: Collection[str] | None = None,
        labelled: bool = False,
    ) -> Self:
        """Read the decisions of one policy in a log, by default that of the last decision; others are left out.

        Args:
            log: The log.
            policy: The policy; None for that of the last decision.
            extras: Names of those to read; None for all. Columns that the rule needs are always read.
            labelled: Read only the cases with a label, and the last one. Promises are tested on them alone.
        """
        policies = log.policies()
        wanted = None
        if extras is not None:
            wanted = set(extras).union(*(each.columns for each in policies.values()), policy.columns if policy else ())
        blocks = list(log.decisions(labelled=labelled or None, extras=wanted))
        if labelled:
            blocks += log.decisions(since=len(log) - 1, labelled=False, extras=wanted)
        if not blocks:
            raise InvalidInput("the log must hold at least one decision, got none.")
        names = list(dict.fromkeys(name for block in blocks for name in block.extras))
        check_names(names)
        for name in extras or ():
            if name not in names:
                raise _unknown_column(name, next(iter(log.decisions(block=1))).extras)
        policy = policy or policies.get(str(blocks[-1].policy[-1]))
        if policy is None:
            raise InvalidInput("The log does not name the policy of its last decision. Pass it: --policy FILE.")
        if policy.rule is None:
            raise InvalidInput("The policy of the last decision has no rule, so it promised nothing to watch.")
        chosen = np.concatenate([block.policy for block in blocks]) == policy.digest
        if not chosen.any():
            raise invalid("log", "hold decisions of this policy", "decisions of other policies only")

        def column(name: str) -> NDArray[Any]:
            return np.asarray(np.concatenate([getattr(block, name) for block in blocks])[chosen])

        lists = [classes for block in blocks for classes in block.shortlists]
        stream = cls.of_decisions(
            policy,
            column("automate"),
            column("predicted"),
            column("confidence"),
            targets=column("target"),
            ids=column("ids"),
            times=np.datetime_as_string(column("time"), unit="s"),
            label_order=column("label_sequence"),
            lists=[lists[row] for row in np.flatnonzero(chosen)],
            extras={name: np.concatenate([_texts(block, name) for block in blocks])[chosen] for name in names},
        )
        return replace(stream, left_out=int((~chosen).sum()))


def _check_decisions(
    rule: RoutingRule, automate: NDArray[np.bool_], predicted: Ints, confidence: NDArray[np.float64]
) -> None:
    if rule.group_thresholds is not None or rule.score != "probability":
        return  # a file of decisions has neither the groups nor the scores that decided
    differing = np.flatnonzero(automate != (confidence >= rule.thresholds[predicted]))
    if len(differing):
        row = int(differing[0])
        word = "auto" if automate[row] else "review"
        hint = f"{len(differing):,} of {len(automate):,} differ: name the rule that decided."
        got = f"{word} at confidence {confidence[row]:.6g} in row {row}"
        raise invalid("decisions", "be those of this rule", got, hint)


def _values(column: Any) -> NDArray[Any]:
    """A column as an array; text as objects, because each cell of an array of text is as large as the longest."""
    if isinstance(column, np.ndarray):
        return column
    return np.array(list(column), dtype=object)


def _listed(lists: Sequence[Collection[int]], targets: Ints) -> NDArray[np.int8]:
    """`Stream.listed` of the classes that were listed for each case; an empty list is not known."""
    listed = np.full(len(targets), -1, dtype=np.int8)
    for row, (classes, target) in enumerate(zip(lists, targets.tolist(), strict=True)):
        if classes and target >= 0:
            listed[row] = target in classes
    return listed


def _texts(block: LoggedDecisions, name: str) -> NDArray[Any]:
    """One extra of a block as text; empty for a case without it."""
    column = np.full(len(block.ids), "", dtype=object)
    for row, value in enumerate(block.extras.get(name, ())):
        if value is not None:
            column[row] = str(value)
    return column


def _unknown_column(name: str, columns: Iterable[str]) -> InvalidInput:
    known = list(columns)
    hint = did_you_mean(name, known) if known else "There are no other columns."
    return invalid("groups", "be a column of the cases", repr(name), hint)


def is_log(source: str | Path) -> bool:
    """Whether a source is a decision log: a file that is no table, no predictions and no folder."""
    path = as_path(source, "source")
    return path.suffix.lower() not in FORMATS and not path.is_dir()


def read_stream(
    source: str | Path,
    policy: Policy | None = None,
    *,
    labels: str | Path | None = None,
    kind: Kind | None = None,
    columns: dict[str, str] | None = None,
    extras: Collection[str] | None = None,
) -> Stream:
    """Read the cases of a file, in the order of its rows, or of a decision log.

    Args:
        source: Decisions as `calibrant route apply` writes them (`.csv` or `.parquet`), labelled predictions with raw
            scores, which the policy decides, or a folder of Parquet files of either; or a decision log. Decisions may
            have a column `target` or `label` (empty: no label), a column `labelled_at` (time or number of each label),
            a column `time`, and groups.
        policy: The policy that decided. Decisions that it would not have made are refused. None for a log: the policy
            of its last decision.
        labels: `.csv` or `.parquet` with columns `id` and `target` or `label`: class names or numbers, in the order in
            which they came.
        kind: What the scores of predictions are, if the file does not say.
        columns: Other names of the target and the id of predictions.
        extras: Names of the other columns of decisions to read. None: all.
    """
    if is_log(source):
        if labels is not None:
            hint = "Add them with DecisionLog.label_all, or with calibrant serve's own address for labels."
            raise invalid("labels", "be left out for a log, which holds its labels", str(labels), hint)
        with DecisionLog(source) as log:
            return Stream.of_log(log, policy, extras=extras)
    path = as_path(source, "source")
    if policy is None:
        raise InvalidInput(f"{path} does not hold the policy that decided. Name it: --policy policy.json.")
    wanted = None
    if extras is not None:
        wanted = _RESERVED | policy.columns | set(extras)
    table = _read_decisions(path, wanted)
    if not table:
        if labels is not None:
            raise invalid("labels", "be left out for predictions, which hold their targets", str(labels))
        return _decide_predictions(path, policy, kind, columns)
    for name in extras or ():
        if name not in table:
            names = table_columns(prediction_files(path)[0])
            raise _unknown_column(name, [known for known in names if known not in _RESERVED])
    return _decisions(policy, table, str(path), labels)


def _read_decisions(path: Path, wanted: set[str] | None) -> dict[str, list[Any]]:
    """The columns of a file of decisions, or of all files of a folder; empty for predictions."""
    parts = prediction_files(path)
    if parts[0].suffix.lower() not in TABLE_FORMATS or "decision" not in table_columns(parts[0]):
        return {}
    whole: dict[str, list[Any]] = {}
    for part in parts:
        table = read_table(part, wanted=wanted)
        if whole and table.keys() != whole.keys():
            raise invalid(str(part), f"have the columns {', '.join(whole)}", ", ".join(table))
        for name, column in table.items():
            whole.setdefault(name, []).extend(column)
    return whole


def _decide_predictions(path: Path, policy: Policy, kind: Kind | None, columns: dict[str, str] | None) -> Stream:
    reading: dict[str, Any] = {"kind": kind, "columns": columns, "known_classes": policy.class_names}
    if not path.is_dir():
        return Stream.of_predictions(policy, Predictions.load(path, **reading))
    parts = [part for part in scan(path, **reading).parts() if part.n_rows]
    if not parts:
        raise InvalidInput(f"{path} must hold at least one case, got none.")
    return Stream.joined(Stream.of_predictions(policy, Predictions.of_scan(part)) for part in parts)


def _decisions(policy: Policy, table: dict[str, list[Any]], where: str, labels: str | Path | None) -> Stream:
    rule = policy.routing
    automate = _read_automate(table, where)
    ids = [unguarded(str(value)) for value in table["id"]]
    class_names = names_or_numbers(rule.class_names, rule.n_classes)
    column, classes = "predicted", names_or_numbers(None, rule.n_classes)
    given = {} if labels is None else read_table(as_path(labels, "labels"))
    free = rule.class_names == RIGHT_OR_WRONG and "class" in table  # a class and a score: any classes
    if free:
        column, classes = "class", _all_classes(table, given)
        class_names = classes
    predicted = _classes(table[column], classes, f"{where}: {column}", only_names=free)
    truth = np.full(len(ids), -1)
    for column in _TRUTH:
        if column in table:
            truth = _classes(table[column], class_names, f"{where}: label", only_names=free)
            break
    order = _label_order(table, truth, where)
    if labels is not None:
        if (truth >= 0).any():
            raise invalid("labels", f"be left out where {where} has labels of its own", str(labels))
        came = _labels_by_id(given, class_names, str(labels), only_names=free)
        truth, order = _join_labels(ids, came, str(labels))
    try:
        confidence = np.asarray(table["confidence"], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise invalid(f"{where}: confidence", "be numbers", str(error)) from error
    lists = times = None
    if policy.shortlist is not None and "shortlist" in table:
        lists = _read_lists(table["shortlist"], class_names, rule, f"{where}: shortlist")
    if "time" in table:
        times = [str(value) for value in table["time"]]
    others = table.keys() - _RESERVED
    return Stream.of_decisions(
        policy,
        automate,
        predicted,
        confidence,
        targets=truth,
        ids=ids,
        times=times,
        label_order=order,
        lists=lists,
        extras={name: [unguarded(str(cell)) for cell in table[name]] for name in table if name in others},
    )


def _all_classes(table: dict[str, list[Any]], labels: dict[str, list[Any]]) -> tuple[str, ...]:
    """All classes that decisions and labels name."""
    columns = [table["class"], *(each[name] for each in (table, labels) for name in _TRUTH if name in each)]
    named = {_text(value) for column in columns for value in column}
    return tuple(sorted(named - {"", "-1"}))


def _read_automate(table: dict[str, list[Any]], where: str) -> list[bool]:
    if not set(_COLUMNS) <= table.keys():
        missing = ", ".join(name for name in _COLUMNS if name not in table)
        raise invalid(where, f"have the columns {', '.join(_COLUMNS)}", f"no column {missing}")
    words = [str(word) for word in table["decision"]]
    for row, word in enumerate(words):
        if word not in ("auto", "review"):
            raise invalid(f"{where}: decision", "be auto or review", f"{word!r} in row {row}")
    return [word == "auto" for word in words]


def _read_lists(cells: list[Any], class_names: tuple[str, ...], rule: RoutingRule, where: str) -> list[list[int]]:
    """Numbers of the classes that were listed for each case: cells are JSON lists or empty.

    Candidates of a class and a score may be classes that no case has; these are left out.
    """
    numbers = {name: number for number, name in enumerate(class_names)}
    lists = []
    for row, cell in enumerate(cells):
        names: Any = cell or []
        with suppress(ValueError):
            names = json.loads(cell or "[]")
        known = isinstance(names, list) and [numbers[str(name)] for name in names if str(name) in numbers]
        if not isinstance(known, list) or (len(known) < len(names) and rule.class_names != RIGHT_OR_WRONG):
            raise invalid(where, "be lists of class names of the rule", f"{str(cell)[:40]!r} in row {row}")
        lists.append(known)
    return lists


def _label_order(table: dict[str, list[Any]], truth: Ints, where: str) -> Ints | None:
    """Place of each label in the order of the column `labelled_at`, 0 without a label; None without that column.

    Labels of the same time count in the order of the rows.
    """
    if "labelled_at" not in table:
        return None
    rows = np.flatnonzero(truth >= 0)
    texts = [_text(table["labelled_at"][row]) for row in rows]
    try:
        moments = np.array([float(text) for text in texts])
    except ValueError:
        moments = np.array([_seconds(text) for text in texts])
    known = np.isfinite(moments)
    if not known.all():
        first = int(np.argmin(known))
        wanted = "be a number or a time like 2026-01-31T12:00:00 for each label, all of one kind"
        raise invalid(f"{where}: labelled_at", wanted, f"{texts[first][:40]!r} in row {rows[first]}")
    order = np.zeros(len(truth), dtype=np.int64)
    order[rows[np.argsort(moments, kind="stable")]] = np.arange(1, len(rows) + 1)
    return order


def _seconds(moment: datetime | str) -> float:
    """Seconds since 1970, in UTC if the time names no zone; NaN for text that is no time."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            return math.nan
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _classes(cells: Iterable[Any], names: tuple[str, ...], where: str, *, only_names: bool = False) -> Ints:
    """Numbers of classes, by the rules of `Labels`; -1 for an empty cell."""
    texts = [_text(cell) for cell in cells]
    empty = {"", "-1"}.difference(names)
    distinct = list(dict.fromkeys(text for text in texts if text not in empty))
    if not distinct:
        return np.full(len(texts), -1)
    place = {text: number for number, text in enumerate(distinct)}
    places = np.array([place.get(text, 0) for text in texts])
    classes = Labels(where, names, lambda: distinct, only_names=only_names).codes((distinct, places), 0)
    return np.where([text in empty for text in texts], -1, classes)


def _labels_by_id(
    table: dict[str, list[Any]], names: tuple[str, ...], where: str, *, only_names: bool
) -> dict[str, int]:
    """Id to class, in the order of the rows. The same label twice counts once; two different ones are refused."""
    column = next((name for name in _TRUTH if name in table), None)
    if column is None or "id" not in table:
        raise invalid(where, "have the columns id and target", ", ".join(table) or "none")
    labels: dict[str, int] = {}
    classes = _classes(table[column], names, f"{where}: label", only_names=only_names).tolist()
    for cell, label in zip(table["id"], classes, strict=True):
        if label < 0:
            continue
        identity = unguarded(str(cell))
        first = labels.setdefault(identity, label)
        if first != label:
            got = f"{names[first]} and {names[label]} for {identity[:40]!r}"
            raise invalid(f"{where}: labels", "not contradict each other", got, "Decide which one is true.")
    return labels


def _join_labels(ids: list[str], labels: dict[str, int], where: str) -> tuple[Ints, Ints]:
    """The label of each case, -1 for none, and its place among the labels."""
    places = {identity: place for place, identity in enumerate(labels, start=1)}
    if labels and not any(identity in labels for identity in ids):
        raise InvalidInput(
            f"{where}: none of its {len(labels):,} labels is of a case that was decided. The first id of the labels is "
            f"{next(iter(labels))[:40]!r}, that of the decisions {ids[0][:40]!r}."
        )
    truth = np.array([labels.get(identity, -1) for identity in ids], dtype=np.int64)
    return truth, np.array([places.get(identity, 0) for identity in ids], dtype=np.int64)


def _text(cell: Any) -> str:
    return "" if cell is None else unguarded(str(cell).strip())


def read_reference(
    source: str | Path,
    policy: Policy,
    *,
    kind: Kind | None = None,
    columns: dict[str, str] | None = None,
) -> Predictions:
    """Read the cases that the rule of a policy was chosen on and calibrate them. Raise if it was chosen on others.

    If they were drawn by weights, the same cases are drawn again: the file has another mix than the stream. The source
    is a file of predictions with raw scores; other arguments are those of `read_stream`.
    """
    predictions = Predictions.load(source, kind=kind, columns=columns)
    if policy.rule is not None and policy.rule.fitted_on not in (None, predictions.origin.sha256):
        raise invalid("reference", "be the file that the rule was chosen on", str(source))
    # The cases that fitted the calibrator look better calibrated than new ones.
    cases = policy.calibrate(policy.unseen(predictions))
    if policy.rule is None or policy.rule.weight_column is None:
        return cases
    return sample_by_weights(cases, policy.rule.weight_column, seed=policy.rule.weight_seed or 0)
