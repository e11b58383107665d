"""`watch`: does the promise of a rule still hold, and do its cases still look like the calibration cases?"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction
from calibrant.decisions import BinaryRule, Policy, RoutingRule
from calibrant.decisions.multilabel import LabelCases, MultiLabel
from calibrant.deployment.betting import labels_to_notice
from calibrant.deployment.monitor_stream import Stream
from calibrant.deployment.signals import (
    PROMISED,
    About,
    Clusters,
    GroupShare,
    Labelling,
    Signal,
    compare_labelled,
    group_share,
    promise_signal,
    sameness_signal,
)
from calibrant.errors import InvalidInput, invalid, naming
from calibrant.predictions import Predictions, names_or_numbers
from calibrant.predictions.readings import RIGHT_OR_WRONG
from calibrant.tables import Displayed, Table


@dataclass(frozen=True, repr=False)
class Watched(Displayed):
    """Result of `watch`.

    Attributes:
        stream: The cases, and the rule that decided them.
        level: Probability that any of the tests ever raises a false alarm.
        groups: Name of the column whose groups are tested or described too; None for none.
        signals: One for each test.
        labels_to_notice: Number of labels that show, in 9 of 10 streams, that errors are twice as frequent as promised,
            if they were so from the first label on; None without a promise.
        labels_to_notice_from_now: The same if errors become so now: a change after many good labels takes longer.
        described: Groups of `groups` without a promise of their own. They are not tested and never raise an alarm.
        labelling: Whether the labelled cases look like the unlabelled ones in confidence; None if that cannot be seen,
            or if the rule was chosen on clusters.
    """

    stream: Stream
    level: float
    groups: str | None
    signals: tuple[Signal, ...]
    labels_to_notice: int | None
    labels_to_notice_from_now: int | None
    described: tuple[GroupShare, ...] = ()
    labelling: Labelling | None = None

    @property
    def rule(self) -> RoutingRule | BinaryRule:
        """The rule that decided."""
        return self.stream.rule

    @property
    def alarms(self) -> tuple[Signal, ...]:
        """The tests that raised an alarm, the earliest first."""
        raised = [signal for signal in self.signals if signal.alarm is not None]
        return tuple(sorted(raised, key=lambda signal: signal.alarm or 0))

    @property
    def broken(self) -> bool:
        """Whether the labels contradict a promise."""
        return any(signal.about in PROMISED for signal in self.alarms)

    @property
    def since(self) -> int | None:
        """The case at which the drift began, by the alarm with the most evidence; None without an alarm."""
        if not self.alarms:
            return None
        return max(self.alarms, key=lambda signal: (signal.about in PROMISED, signal.evidence)).since

    @property
    def labelled_since(self) -> int:
        """Number of labelled cases from there on. A new threshold can be chosen on them."""
        if self.since is None:
            return 0
        return int(self.stream.labelled[self.since - 1 :].sum())

    def place(self, case: int | None) -> dict[str, Any] | None:
        """Number, id and time of a case, as far as they are known; None of none."""
        if case is None:
            return None
        place: dict[str, Any] = {"case": case, "id": None, "time": None}
        for name, column in (("id", self.stream.ids), ("time", self.stream.times)):
            if column is not None:
                place[name] = str(column[case - 1])
        return place

    def _overview(self) -> Table:
        from calibrant.deployment.monitor_text import SIGNAL_HEADINGS, headline, signal_row

        return Table(headline(self), [signal_row(signal) for signal in self.signals], SIGNAL_HEADINGS)

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Plain JSON values."""
        automated = self.stream.automate
        signals = [signal.to_dict(curves=curves) for signal in self.signals]
        for signal in signals:
            signal |= {"alarm": self.place(signal["alarm"]), "since": self.place(signal["since"])}
        return {
            "format": "calibrant-monitor",
            "version": 1,
            "level": self.level,
            "alarm": bool(self.alarms),
            "promise_broken": self.broken,
            "cases": len(self.stream),
            "automated": int(automated.sum()),
            "labelled": int(self.stream.labelled.sum()),
            "labelled_automated": int((automated & self.stream.labelled).sum()),
            "left_out": self.stream.left_out,
            "groups": self.groups,
            "described": [asdict(share) for share in self.described],
            "labelling": self.labelling and asdict(self.labelling),
            "signals": signals,
            "since": self.place(self.since),
            "labelled_since": self.labelled_since,
            "labels_to_notice": self.labels_to_notice,
            "labels_to_notice_from_now": self.labels_to_notice_from_now,
        }


def watch(
    stream: Stream,
    *,
    reference: Predictions | None = None,
    groups: str | None = None,
    level: float = 0.05,
    seed: int = 0,
) -> Watched:
    """Test whether a rule keeps its promise and whether its cases still look like the calibration cases.

    While the promise holds and nothing changes, the probability that this function ever reports an alarm, however often
    it is called on the growing stream, is at most `level`. Half of it is for the promises and half for the comparison
    with the reference. If there is only one of the two, it gets everything.

    Promises get equal parts. If the rule promises its accuracy for groups, half of that part is for all cases and the
    promised groups share the other half; a rule with a threshold per class is tested class by class. The labelled cases
    must be a fair draw of those that a promise is about. Labels count in the order in which they came, clusters when a
    label of the next one has come. Labels whose order is not known, or that do not come cluster by cluster, are
    refused. The share automated, the confidence and the predicted classes get equal parts of the comparison.

    Args:
        stream: The cases of a rule, in their order.
        reference: The calibration cases that the rule was chosen on, calibrated by its policy; targets are not used.
        groups: Name of an extra column of the stream. The promise is tested in each group that the rule makes it for;
            other groups are described. None: the column of a rule that promises for groups, if the stream has it.
        level: Probability of a false alarm.
        seed: Seed of the random choice between equal confidences.
    """
    fraction("level", level)
    rule = stream.rule
    promises = _promises(stream)
    if not promises and reference is None:
        hint = "Pass the cases that it was chosen on: then the stream can be compared with them."
        raise invalid("rule", "promise something if no reference is given", "one without a promise", hint)
    if groups is None and stream.part is not None:
        groups = stream.part[0]
    elif groups is None and rule.groups in stream.extras:
        groups = rule.groups
    if groups is not None and not promises:
        raise invalid("groups", "be left out for a rule that promises nothing", groups)
    part = level
    if promises and reference is not None:
        part = level / 2.0
    signals: list[Signal] = []
    described: list[GroupShare] = []
    to_notice = from_now = labelling = None
    for promise in promises:
        tests, shares = _test_promise(stream, promise, groups, part / len(promises))
        signals += tests
        described += shares
    if promises and signals:
        first, largest = signals[0], rule.largest_cluster or 1
        to_notice = labels_to_notice(1.0 - first.expected, first.level, largest=largest)
        from_now = labels_to_notice(1.0 - first.expected, first.level, after=first.cases, largest=largest)
        if rule.cluster_column is None:  # cases of clusters depend on each other
            order = np.arange(1, len(stream) + 1) if stream.label_order is None else stream.label_order
            order = np.where(stream.labelled, order, 0)
            eligible = promises[0].eligible
            labelling = compare_labelled(stream.confidence[eligible], order[eligible], seed=seed)
    if reference is not None:
        signals += _compare(stream, reference, part, seed)
    return Watched(stream, level, groups, tuple(signals), to_notice, from_now, tuple(described), labelling)


def watch_labels(rules: MultiLabel, cases: LabelCases, *, level: float = 0.05) -> dict[str, Watched]:
    """Watch every label that something is promised for, on labelled cases in the order in which they came; see `watch`.

    While all promises hold, the probability that any label ever raises an alarm is at most `level`; the labels have
    equal parts of it.
    """
    fraction("level", level)
    rules.refuse_other_labels(cases)
    promised = rules.promised
    watched = {}
    for label, policy in promised.items():
        watched[label] = watch(Stream.of_predictions(policy, cases[label]), level=level / len(promised))
    return watched


@dataclass(frozen=True)
class _Promise:
    """A share of right cases that was promised."""

    about: About
    target: float
    eligible: NDArray[np.bool_]  # which cases need labels for this promise
    members: NDArray[np.bool_]  # which labelled cases it is about
    right: NDArray[np.bool_]  # which of all cases are right


def _promises(stream: Stream) -> list[_Promise]:
    rule, labelled, shortlist = stream.rule, stream.labelled, stream.shortlist
    promises = []
    if isinstance(rule, BinaryRule):
        everyone = np.ones(len(stream), dtype=np.bool_)
        positive = stream.targets == rule.positive
        right = ~(stream.automate & (stream.predicted != stream.targets))
        if rule.sensitivity is not None:
            promises.append(_Promise("sensitivity", rule.sensitivity, everyone, labelled & positive, right))
        if rule.specificity is not None:
            promises.append(_Promise("specificity", rule.specificity, everyone, labelled & ~positive, right))
        return promises
    if not rule.automates and shortlist is None:
        raise InvalidInput("the rule automates nothing, so there is no promise to watch.")
    if rule.target_accuracy is not None and rule.automates:
        right = stream.predicted == stream.targets
        promises.append(_Promise("promise", rule.target_accuracy, stream.automate, stream.automate & labelled, right))
    if shortlist is not None and stream.listed is not None:
        reviewed, known = ~stream.automate, stream.listed >= 0
        members = reviewed & labelled & known
        promises.append(_Promise("shortlist", shortlist.coverage, reviewed, members, stream.listed == 1))
    return promises


def _test_promise(
    stream: Stream, promise: _Promise, groups: str | None, level: float
) -> tuple[list[Signal], list[GroupShare]]:
    """Test one promise for all its cases or class by class, and in each group it is made for. Describe other groups."""
    rule = stream.rule
    rows = np.flatnonzero(promise.members)
    if stream.label_order is None:
        # If the first cases have labels and no later one has, the order of the cases serves: every look sees the
        # beginning of the same sequence. If an unlabelled case comes before a labelled one, its label will come later
        # and would change what an earlier look has seen.
        labelled = stream.labelled[promise.eligible]
        if (np.diff(labelled.astype(np.int8)) > 0).any():
            raise InvalidInput(
                "The labels need the order in which they came, because cases without a label stand before labelled "
                "ones. Add a column labelled_at with a time or a number for each label, or give the labels in their "
                "order as a file of their own (--labels; in Python: label_order)."
            )
    else:
        # Labels may come in another order than the cases. A look after each label sees them in theirs.
        rows = rows[np.argsort(stream.label_order[rows], kind="stable")]
    rows, clusters = _closed_clusters(stream, rows)
    right = promise.right[rows]
    promised: list[str] = []
    column = np.empty(0, dtype=object)
    if groups is not None:
        column = stream.text_column(groups)[rows]
        promised = _promised_groups(stream, promise, groups)
    part = level
    if promised and stream.part is None:
        part = level / 2.0
    # Name, members and level of each test.
    tests: list[tuple[str, NDArray[np.bool_], float]] = []
    if stream.part is not None:
        pass  # the promise for all cases says nothing about a part of them
    elif promise.about == "promise" and rule.class_thresholds is not None:
        names = names_or_numbers(rule.class_names, rule.n_classes)
        able = [k for k, threshold in enumerate(rule.class_thresholds) if threshold is not None]
        tests += [(names[k], stream.predicted[rows] == k, part / len(able)) for k in able]
    else:
        tests.append(("all", np.ones(len(rows), dtype=np.bool_), part))
    tests += [(f"{groups} {name}", column == name, part / len(promised)) for name in promised]
    signals = []
    for name, members, share in tests:
        subset = clusters.among(members)
        kept = {"group": name, "target": promise.target, "level": share, "about": promise.about}
        signals.append(promise_signal(rows[members], right[members], subset, **kept))  # type: ignore[arg-type]
    described = []
    for name in dict.fromkeys(column.tolist()):
        if name not in promised:
            members = column == name
            subset = clusters.among(members)
            described.append(group_share(right[members], subset, group=f"{groups} {name}", about=promise.about))
    return signals, described


def _closed_clusters(stream: Stream, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Clusters]:
    """Labelled cases of closed clusters, and their clusters. Without clusters, each case is one by itself.

    A cluster is closed when a label of another one comes. From then on its bet never changes, so that a later look sees
    the same capital up to here. The last cluster may still get labels and does not count yet. `rows` are in the order
    in which their labels came.
    """
    rule = stream.rule
    if rule.cluster_column is None or rule.largest_cluster is None:
        return rows, Clusters(np.arange(len(rows)), 1)
    column = rule.cluster_column
    names = _cluster_names(stream, column, "the stream")[rows]
    # Numbered in the order of first labels, clusters are consecutive exactly if the numbers never fall.
    places = {name: place for place, name in enumerate(dict.fromkeys(names.tolist()))}
    numbers = np.array([places[name] for name in names.tolist()], dtype=np.int64)
    falls = np.flatnonzero(np.diff(numbers) < 0)
    if len(falls):
        late = names[falls[0] + 1]
        raise InvalidInput(
            f"Labels must come {column} by {column}, but one of {column} {late} came after labels of others. "
            f"Label all chosen cases of a {column} before those of the next, and give the labels in that order."
        )
    sizes = np.bincount(numbers, minlength=1)
    if sizes.max() > rule.largest_cluster:
        large = int(sizes.argmax())
        raise InvalidInput(
            f"{column} {list(places)[large]} has {sizes[large]:,} labelled cases, but the rule was chosen on at most "
            f"{rule.largest_cluster:,} for each {column}, and its promise covers no larger ones. Choose a rule on "
            f"cases with {column}s as large as these."
        )
    closed = numbers < numbers.max(initial=0)
    return rows[closed], Clusters(numbers[closed], rule.largest_cluster)


def _cluster_names(stream: Stream, column: str, where: str) -> NDArray[Any]:
    if column not in stream.extras:
        raise InvalidInput(
            f"The rule was chosen on clusters of the column {column!r}, which {where} does not have. "
            f"Keep it: calibrant route apply --keep {column}, or extras of the decision log."
        )
    return stream.text_column(column)


def _promised_groups(stream: Stream, promise: _Promise, groups: str) -> list[str]:
    """Groups of a column that the promise is made for, each by itself."""
    rule = stream.rule
    if isinstance(rule, BinaryRule) or promise.about != "promise" or groups != rule.groups:
        return []
    names = [evidence.name for evidence in rule.group_evidence or () if evidence.promised]
    if stream.part is not None:
        # Nothing was promised for groups within another part of the cases.
        names = [name for name in names if (groups, name) == stream.part]
    return names


def _compare(stream: Stream, reference: Predictions, level: float, seed: int) -> list[Signal]:
    """Test whether the stream still looks like the calibration cases."""
    rule = stream.rule
    if rule.weight_column is not None and rule.evidence is not None and len(reference) != rule.evidence.cases:
        raise InvalidInput(
            f"The rule was chosen on {rule.evidence.cases:,} cases drawn by the column {rule.weight_column!r}, but the "
            f"reference has {len(reference):,} cases. Read it with read_reference, which draws the same cases again."
        )
    cases = Stream.of_predictions(Policy(rule.n_classes, rule=rule), rule.in_own_order(reference, where="reference"))
    if stream.part is not None:
        with naming("reference"):
            cases = cases.select(where=stream.part)
    before, after = np.arange(len(cases)), np.arange(len(stream))
    column = rule.cluster_column
    if column is not None:
        # Ranks are independent only for independent cases, so we compare the first case of each cluster.
        before = _first_of_each(_cluster_names(cases, column, "the reference"))
        after = _first_of_each(_cluster_names(stream, column, "the stream"))
    names = names_or_numbers(rule.class_names, rule.n_classes)
    settings: dict[str, Any] = {"level": level / 3.0, "rows": after, "seed": seed}
    signals = [
        sameness_signal("share automated", cases.automate[before], stream.automate[after], **settings),
        sameness_signal("confidence", cases.confidence[before], stream.confidence[after], **settings),
    ]
    if names != RIGHT_OR_WRONG:  # of a class and a score only "right" and "wrong" are kept
        predicted = cases.predicted[before], stream.predicted[after]
        signals.append(sameness_signal("predicted classes", *predicted, names=names, **settings))
    return signals


def _first_of_each(names: NDArray[Any]) -> NDArray[np.int64]:
    """Places of the first case of each cluster."""
    return np.sort(np.unique(names, return_index=True)[1])
