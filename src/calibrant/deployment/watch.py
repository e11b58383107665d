"""`watch`: does the promise of a rule still hold, and does the stream still look like its calibration cases?"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction
from calibrant.decisions import BinaryRule, Policy, RoutingRule
from calibrant.decisions.bounds import cases_at_rate
from calibrant.deployment.signals import (
    PROMISED,
    About,
    Clusters,
    GroupShare,
    Signal,
    group_share,
    promise_signal,
    sameness_signal,
)
from calibrant.deployment.stream import Stream
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.predictions import Predictions, names_or_numbers
from calibrant.tables import Displayed, Table


@dataclass(frozen=True, repr=False)
class Watched(Displayed):
    """What a stream says about a rule.

    Attributes:
        stream: The cases, and the rule that decided them.
        level: Probability that any of the tests ever raises a false alarm.
        groups: Name of the column whose groups are tested or described too; None for none.
        signals: One for each test.
        labels_to_notice: About how many labels of automated cases show that errors are twice as frequent as promised.
        labels_to_refit: About how many labelled cases a new rule takes, if the model is as good on them as it was on
            the calibration cases; None where that is not known.
        described: Groups of `groups` that nothing was promised for. They are not tested, and never an alarm.
    """

    stream: Stream
    level: float
    groups: str | None
    signals: tuple[Signal, ...]
    labels_to_notice: int | None
    labels_to_refit: int | None
    described: tuple[GroupShare, ...] = ()

    @property
    def rule(self) -> RoutingRule | BinaryRule:
        """The rule that decided."""
        return self.stream.rule

    @property
    def alarms(self) -> tuple[Signal, ...]:
        """The tests that raised an alarm, the earliest first."""
        return tuple(sorted((each for each in self.signals if each.alarm), key=lambda each: each.alarm or 0))

    @property
    def broken(self) -> bool:
        """Whether the labels contradict the promise."""
        return any(each.about in PROMISED for each in self.alarms)

    @property
    def since(self) -> int | None:
        """The case from which on it drifts, as the alarm with the most evidence has it; None without an alarm."""
        clearest = max(self.alarms, key=lambda each: (each.about in PROMISED, each.evidence), default=None)
        return None if clearest is None else clearest.since

    @property
    def labelled_since(self) -> int:
        """Labelled cases from there on: those that a new threshold can be chosen on."""
        return 0 if self.since is None else int(self.stream.labelled[self.since - 1 :].sum())

    def place(self, case: int) -> dict[str, Any]:
        """Number, id and time of a case, as far as they are known."""
        stream = self.stream
        identity = None if stream.ids is None else str(stream.ids[case - 1])
        return {"case": case, "id": identity, "time": None if stream.times is None else str(stream.times[case - 1])}

    def _overview(self) -> Table:
        from calibrant.deployment.describe import watched_overview

        return watched_overview(self)

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Plain JSON values."""
        automated = self.stream.automate
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
            "clock_went_back": self.stream.clock_went_back,
            "groups": self.groups,
            "described": [asdict(each) for each in self.described],
            "signals": [self._placed(each, curves=curves) for each in self.signals],
            "since": None if self.since is None else self.place(self.since),
            "labelled_since": self.labelled_since,
            "labels_to_notice": self.labels_to_notice,
            "labels_to_refit": self.labels_to_refit,
        }

    def _placed(self, signal: Signal, *, curves: bool) -> dict[str, Any]:
        content = signal.to_dict(curves=curves)
        for name in ("alarm", "since"):
            content[name] = None if content[name] is None else self.place(content[name])
        return content


def watch(
    stream: Stream,
    *,
    reference: Predictions | None = None,
    groups: str | None = None,
    level: float = 0.05,
    seed: int = 0,
) -> Watched:
    """Test a rule's promise and the sameness of its stream; the tests may be repeated after every case.

    While the promise holds and nothing changes, the probability that this function ever reports an alarm, however often
    it is called on the growing stream, is at most `level`. Of this, one half is for the promise, where labels came for
    automated cases; one half is for the sameness of all cases with the reference, labelled or not. Where one of the two
    cannot be tested, the other has all.

    - The promises: that of the accuracy, and that of a shortlist, or those of a rule of two classes (sensitivity and
      specificity), have equal parts. If the rule promises its accuracy for groups, half of that part is for all cases
      and the groups it is promised for share the other half equally. Other groups are described in
      `Watched.described`, and no promise is tested in them: a rule that keeps its promise for all cases together may be
      worse than that in a group. A rule with a threshold per class is tested class by class with equal parts. The
      labelled cases must be a fair draw of those that a promise is about: of the automated ones, for a shortlist of
      those that a person saw, for a rule of two classes of all.
    - Clusters: if the rule was chosen on clusters, each cluster is one bet, which counts when a label of the next
      cluster has come. Labels must come cluster by cluster, and no cluster may have more labelled cases than the
      largest that the rule was chosen on; otherwise the stream is refused.
    - Order: labels count in the order in which they came, `Stream.label_order`. Without it they count in the order of
      the cases, and a stream in which an unlabelled case stands before a labelled one is refused.
    - Sameness: equal parts for the share automated, the confidence and the predicted classes. Of a cluster, the first
      case is compared.

    Args:
        stream: The cases of a rule, in their order.
        reference: The calibration cases that the rule was chosen on, calibrated by its policy; targets are not used.
        groups: Name of an extra column of the stream. The promise is tested in each group that the rule makes it for;
            other groups are described. None: the column of a rule that promises for groups, if the stream has it.
        level: Probability of a false alarm.
        seed: Of the random choice between equal confidences.
    """
    fraction("level", level)
    promises = _promises(stream)
    if not promises and reference is None:
        way_out = "Name the cases that it was chosen on: then their sameness can be tested."
        raise invalid("rule", "promise something where no reference is given", "one without a promise", way_out)
    if groups is None and getattr(stream.rule, "groups", None) in stream.extras:
        groups = getattr(stream.rule, "groups", None)
    if groups is not None and not promises:
        raise invalid("groups", "be left out for a rule that promises nothing", groups)
    part = level / 2.0 if promises and reference is not None else level
    signals: list[Signal] = []
    described: list[GroupShare] = []
    for promise in promises:
        tests, shares = _kept(stream, promise, groups, part / len(promises))
        signals += tests
        described += shares
    if reference is not None:
        signals += _samenesses(stream, reference, part, seed)
    first = promises[0].target if promises else None
    return Watched(
        stream,
        level,
        groups,
        tuple(signals),
        _to_notice(first, part / max(len(promises), 1), getattr(stream.rule, "largest_cluster", None) or 1),
        _to_refit(stream.rule),
        tuple(described),
    )


@dataclass(frozen=True)
class _Promise:
    """A share of cases that was promised.

    Attributes:
        about: Which promise.
        target: The promised share.
        eligible: Cases whose labels the promise waits for.
        members: Labelled cases that it is about.
        right: Which of all cases are right.
    """

    about: About
    target: float
    eligible: NDArray[np.bool_]
    members: NDArray[np.bool_]
    right: NDArray[np.bool_]


def _promises(stream: Stream) -> list[_Promise]:
    rule, labelled, shortlist = stream.rule, stream.labelled, stream.shortlist
    if isinstance(rule, BinaryRule):
        ill = stream.targets == rule.positive
        wrong = stream.automate & (stream.predicted != stream.targets)
        both = (("sensitivity", rule.sensitivity, ill), ("specificity", rule.specificity, ~ill))
        all_cases = np.ones(len(stream), dtype=np.bool_)
        return [
            _Promise(name, share, all_cases, labelled & own, ~wrong)  # type: ignore[arg-type] # the two names are literals
            for name, share, own in both
            if share is not None
        ]
    if not rule.automates and shortlist is None:
        raise InvalidInput("the rule automates nothing, so there is no promise to watch.")
    found = []
    if rule.target_accuracy is not None and rule.automates:
        right = stream.predicted == stream.targets
        found.append(_Promise("promise", rule.target_accuracy, stream.automate, stream.automate & labelled, right))
    if shortlist is not None and stream.listed is not None:
        reviewed = ~stream.automate
        found.append(_Promise("shortlist", shortlist.coverage, reviewed, reviewed & labelled, stream.listed))
    return found


def _kept(stream: Stream, promise: _Promise, groups: str | None, part: float) -> tuple[list[Signal], list[GroupShare]]:
    """Whether one promise is kept: for all its cases or class by class, and in each group that it is made for.

    Groups that it is not made for are described.
    """
    rule = stream.rule
    rows = np.flatnonzero(promise.members)
    if stream.label_order is not None:
        # Labels may come in another order than the cases. A look after each label sees them in theirs.
        rows = rows[np.argsort(stream.label_order[rows], kind="stable")]
    else:
        _require_order(stream, promise)
    rows, clusters = _closed_clusters(stream, rows)
    promised = _promised_groups(rule, promise, groups)
    overall = part / 2.0 if promised else part
    lines: list[tuple[str, NDArray[np.bool_], float]] = []
    if promise.about != "promise" or isinstance(rule, BinaryRule) or rule.class_thresholds is None:
        lines.append(("all", np.ones(len(rows), dtype=np.bool_), overall))
    else:
        names = names_or_numbers(rule.class_names, rule.n_classes)
        able = [k for k, threshold in enumerate(rule.class_thresholds) if threshold is not None]
        lines += [(names[k], stream.predicted[rows] == k, overall / len(able)) for k in able]
    right = promise.right[rows]
    described: list[GroupShare] = []
    if groups is not None:
        column = _group_column(stream, groups)[rows]
        for name in promised:
            lines.append((f"{groups} {name}", column == name, part / 2.0 / len(promised)))
        for name in dict.fromkeys(column.tolist()):
            if name in promised:
                continue
            own = column == name
            members = None if clusters is None else clusters.among(own)
            share = group_share(right[own], group=f"{groups} {name}", about=promise.about, clusters=members)
            described.append(share)
    signals = [
        promise_signal(
            rows[own],
            right[own],
            group=name,
            target_accuracy=promise.target,
            level=level,
            about=promise.about,
            clusters=None if clusters is None else clusters.among(own),
        )
        for name, own, level in lines
    ]
    return signals, described


def _require_order(stream: Stream, promise: _Promise) -> None:
    """Refuse labels of which nobody knows in which order they came.

    If the first cases have labels and no later one has, the order of the cases serves: every look sees the beginning
    of one and the same sequence. If a case without a label stands before one with a label, its label will come later
    and would change what an earlier look has seen.
    """
    labelled = stream.labelled[promise.eligible]
    if (np.diff(labelled.astype(np.int8)) > 0).any() or (labelled.any() and not labelled[0]):
        raise InvalidInput(
            "The labels need the order in which they came, because cases without a label stand before labelled ones. "
            "Add a column labelled_at with a time or a number for each label, or give the labels in their order as a "
            "file of their own (--labels; in Python: label_order)."
        )


def _closed_clusters(stream: Stream, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Clusters | None]:
    """Labelled cases of the clusters that are closed, and their clusters, for a rule that was chosen on clusters.

    A cluster is closed when a label of another one comes. From then on its bet is settled and never changes, so that a
    later look sees the same capital up to here. The last cluster may still get labels and does not count yet.

    Args:
        stream: The cases.
        rows: Labelled cases of a promise, in the order in which their labels came.
    """
    rule = stream.rule
    if isinstance(rule, BinaryRule) or rule.cluster_column is None or rule.largest_cluster is None:
        return rows, None
    column = rule.cluster_column
    names = _cluster_names(stream.extras, column, "the stream")[rows]
    # Numbers in the order of first labels: then clusters stand together exactly if the numbers never fall.
    places = {name: place for place, name in enumerate(dict.fromkeys(names.tolist()))}
    numbers = np.array([places[name] for name in names.tolist()], dtype=np.int64)
    if (np.diff(numbers) < 0).any():
        late = names[1:][np.diff(numbers) < 0][0]
        raise InvalidInput(
            f"Labels must come {column} by {column}, but one of {column} {late} came after labels of others. "
            f"Label all chosen cases of a {column} before those of the next, and give the labels in that order."
        )
    sizes = np.bincount(numbers)
    if len(rows) and sizes.max() > rule.largest_cluster:
        large = int(sizes.argmax())
        raise InvalidInput(
            f"{column} {list(places)[large]} has {sizes[large]:,} labelled cases, but the rule was chosen on at most "
            f"{rule.largest_cluster:,} for each {column}, and its promise covers no larger ones. Choose a rule on "
            f"cases with {column}s as large as these."
        )
    closed = numbers < numbers.max(initial=0)
    return rows[closed], Clusters(numbers[closed], rule.largest_cluster)


def _cluster_names(extras: Mapping[str, NDArray[Any]], column: str, where: str) -> NDArray[Any]:
    if column not in extras:
        raise InvalidInput(
            f"The rule was chosen on clusters of the column {column!r}, which {where} does not have. "
            f"Keep it: calibrant route apply --keep {column}, or extras of the decision log."
        )
    return np.asarray([str(value) for value in extras[column]], dtype=object)


def _promised_groups(rule: RoutingRule | BinaryRule, promise: _Promise, groups: str | None) -> list[str]:
    """Groups of a column that the promise is made for, each by itself."""
    if isinstance(rule, BinaryRule) or promise.about != "promise" or groups is None or groups != rule.groups:
        return []
    return [each.name for each in rule.group_evidence or () if each.promised]


def _group_column(stream: Stream, groups: str) -> NDArray[Any]:
    if groups not in stream.extras:
        known = list(stream.extras)
        way_out = did_you_mean(groups, known) if known else "There are no other columns."
        raise invalid("groups", "be a column of the cases", repr(groups), way_out)
    return np.asarray([str(value) for value in stream.extras[groups]], dtype=object)


def _samenesses(stream: Stream, reference: Predictions, part: float, seed: int) -> list[Signal]:
    rule = stream.rule
    ordered = rule.in_own_order(reference, where="reference")
    routed = Stream.of_predictions(Policy(ordered.n_classes, rule=rule), ordered)
    names = names_or_numbers(rule.class_names, reference.n_classes)
    before, after = np.arange(len(routed)), np.arange(len(stream))
    if not isinstance(rule, BinaryRule) and rule.cluster_column is not None:
        # Ranks are independent only for independent cases: the first one of each cluster stands for it.
        column = rule.cluster_column
        before = _first_of_each(_cluster_names(ordered.extras, column, "the reference"))
        after = _first_of_each(_cluster_names(stream.extras, column, "the stream"))
    signals = []
    for about in ("share automated", "confidence", "predicted classes"):
        name = {"share automated": "automate", "predicted classes": "predicted"}.get(about, about)
        signals.append(
            sameness_signal(
                about,
                getattr(routed, name)[before],
                getattr(stream, name)[after],
                level=part / 3.0,
                rows=after,
                names=names if name == "predicted" else None,
                seed=seed,
            )
        )
    return signals


def _first_of_each(names: NDArray[Any]) -> NDArray[np.int64]:
    """Places of the first case of each cluster."""
    seen: dict[str, int] = {}
    for place, name in enumerate(names.tolist()):
        seen.setdefault(name, place)
    return np.array(list(seen.values()), dtype=np.int64)


def _to_notice(target: float | None, level: float, largest: int) -> int | None:
    """Labels after which the bet on twice the promised error rate reaches 1 / level on average, if that is the rate.

    In clusters of the largest size whose cases are right or wrong together, it takes that many clusters.
    """
    if target is None:
        return None
    promised = 1.0 - target
    doubled = min(2.0 * promised, (1.0 + promised) / 2.0)
    gain = doubled * math.log(doubled / promised) + (1.0 - doubled) * math.log((1.0 - doubled) / (1.0 - promised))
    # One of twelve bets is near this rate, and has that part of the capital.
    return largest * math.ceil(math.log(12.0 / level) / gain)


def _to_refit(rule: RoutingRule | BinaryRule) -> int | None:
    if isinstance(rule, BinaryRule):
        return None
    evidence, target = rule.evidence, rule.target_accuracy
    if evidence is None or target is None or rule.confidence is None or not evidence.automated:
        return None
    # Half of the error probability is spent at the threshold that is safe for a calibrated model.
    automated = cases_at_rate(evidence.errors / evidence.automated, target, (1.0 - rule.confidence) / 2.0)
    return None if automated is None else math.ceil(automated * evidence.cases / evidence.automated)
