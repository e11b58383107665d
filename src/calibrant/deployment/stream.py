"""`Stream`: the cases that a rule met, in their order, with the labels that have come so far."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import labels
from calibrant.decisions import BinaryRule, Policy, RoutingRule, Shortlist
from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.predictions import Predictions
from calibrant.predictions.reader import DistinctIds

Ints = NDArray[np.int64]
# Columns of extras that fit into memory.
_MOST_NAMES = 1000


class LoggedBlock(Protocol):
    """Some decisions of a log, as `calibrant.deployment.LoggedDecisions` has them, with the columns of `_LOGGED`."""

    @property
    def ids(self) -> NDArray[np.object_]:
        """Names of the cases."""

    @property
    def policy(self) -> NDArray[np.object_]:
        """Digest of the policy that decided."""

    @property
    def shortlists(self) -> list[tuple[int, ...]]:
        """Numbers of the classes that were listed for a person."""

    @property
    def extras(self) -> dict[str, NDArray[np.object_]]:
        """Other facts by name."""


class Log(Protocol):
    """What is read of a `calibrant.deployment.DecisionLog`."""

    def policies(self) -> dict[str, Policy]:
        """The policies that decided, by their digest."""

    def decisions(self, *, block: int = ..., extras: Collection[str] | None = None) -> Iterable[LoggedBlock]:
        """All decisions in the order of their sequence numbers, with the extras of these names; None for all."""


@dataclass(frozen=True)
class Stream:
    """Cases in the order in which they were decided; one entry for each case.

    Attributes:
        rule: The rule that decided.
        automate: True where the model decided alone.
        predicted: Number of the predicted class.
        confidence: Its probability, as the rule saw it.
        targets: Number of the true class; -1 where no label has come.
        label_order: In which order labels came; None for the order of the cases.
        ids: Names of the cases; None for their numbers.
        times: When each was decided, as text; None where that is not known. Only shown: the order is that of the rows.
        extras: Other columns by name, for groups.
        left_out: Cases of other policies that were passed over.
        policy: The policy that decided.
        listed: Whether the true class was on the list that a person saw; None where no lists are known.
    """

    rule: RoutingRule | BinaryRule
    automate: NDArray[np.bool_]
    predicted: Ints
    confidence: NDArray[np.float64]
    targets: Ints
    label_order: Ints | None = None
    ids: NDArray[Any] | None = None
    times: NDArray[Any] | None = None
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    left_out: int = 0
    policy: Policy | None = None
    listed: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.automate)

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Where a label has come."""
        return np.asarray(self.targets >= 0)

    @property
    def clock_went_back(self) -> int:
        """How often a case has an earlier time than the one before it."""
        return 0 if self.times is None else int((self.times[1:] < self.times[:-1]).sum())

    @property
    def shortlist(self) -> Shortlist | None:
        """What was shown to a person; None for nothing."""
        return None if self.policy is None else self.policy.shortlist

    @classmethod
    def of_predictions(cls, policy: Policy, predictions: Predictions) -> Self:
        """Labelled predictions with raw scores, as the policy decides them."""
        rule, shortlist = policy.rule, policy.shortlist
        if rule is None:
            raise InvalidInput("This policy has no rule, so there is nothing to watch. Fit one: calibrant route fit.")
        known: dict[str, Any] = {"ids": predictions.ids, "extras": predictions.extras, "policy": policy}
        own = policy.calibrate(predictions)
        if isinstance(rule, BinaryRule):
            called = np.asarray(rule.decide(own))
            decided = np.where(called == "positive", rule.positive, 1 - rule.positive)
            predicted = np.where(called == "review", own.predicted, decided)
            return cls(rule, called != "review", predicted, own.confidence, own.targets, **known)
        routed = rule.route(own)
        if shortlist is not None:
            known["listed"] = shortlist.listed(own)[np.arange(len(own)), own.targets]
        return cls(rule, routed.automate, routed.predicted, routed.confidence, own.targets, **known)

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """The cases of several parts of predictions, one after the other; ids must be distinct over all of them."""
        streams = list(parts)
        first = streams[0]

        def column(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(stream, name) for stream in streams])

        names = None if first.ids is None else column("ids")
        if names is not None:
            distinct = DistinctIds()
            distinct.add(names)
            distinct.check(lambda: [names])
        extras = {name: np.concatenate([stream.extras[name] for stream in streams]) for name in first.extras}
        automate, predicted, confidence = column("automate"), column("predicted"), column("confidence")
        known: dict[str, Any] = {"ids": names, "extras": extras, "policy": first.policy}
        known["listed"] = None if first.listed is None else column("listed")
        return cls(first.rule, automate, predicted, confidence, column("targets"), **known)

    @classmethod
    def of_decisions(
        cls,
        rule: RoutingRule,
        automate: Any,
        predicted: Any,
        confidence: Any,
        *,
        targets: Any = None,
        ids: Any = None,
        times: Any = None,
        label_order: Any = None,
        extras: Mapping[str, Any] | None = None,
        listed: Any = None,
    ) -> Self:
        """Decisions that were made elsewhere by this rule; refused where the rule would have decided otherwise."""
        made, rows = np.asarray(automate, dtype=np.bool_), len(automate)
        if rows == 0:
            raise InvalidInput("decisions must hold at least one case, got none.")
        classes = labels("predicted", predicted, rows=rows, n_classes=rule.n_classes).astype(np.int64)
        sure = np.asarray(confidence, dtype=np.float64)
        if not ((sure >= 0) & (sure <= 1)).all():
            raise invalid("confidence", "lie in 0..1", sure[np.argmin((sure >= 0) & (sure <= 1))])
        true = np.full(rows, -1) if targets is None else np.asarray(targets, dtype=np.int64)
        if ((true < -1) | (true >= rule.n_classes)).any():
            raise invalid("targets", f"lie in 0..{rule.n_classes - 1}, or be -1 for none", true.min())
        other = np.flatnonzero(made != (sure >= rule.thresholds[classes]))
        if len(other):
            at = int(other[0])
            found = f"{'auto' if made[at] else 'review'} at confidence {sure[at]:.6g} in row {at}"
            way_out = f"{len(other):,} of {rows:,} differ: name the rule that decided."
            raise invalid("decisions", "be those of this rule", found, way_out)
        names = None if ids is None else _values(ids)
        if names is not None:
            distinct = DistinctIds()
            distinct.add(names)
            distinct.check(lambda: [names])
        given = {name: _values(column) for name, column in (extras or {}).items()}
        order = None if label_order is None else np.asarray(label_order, dtype=np.int64)
        stamps = None if times is None else _values(times)
        on_list = None if listed is None else np.asarray(listed, dtype=np.bool_)
        return cls(rule, made, classes, sure, true, order, names, stamps, given, listed=on_list)

    @classmethod
    def of_log(cls, log: Log, policy: Policy | None = None, *, extras: Collection[str] | None = None) -> Self:
        """Decisions of one policy in a log.

        Args:
            log: A `calibrant.deployment.DecisionLog`.
            policy: Whose decisions; None for the policy of the last decision. Those of other policies are left out.
            extras: Names of the extras to read; None for all. A column that the rule has promises for is always read.
        """
        known = log.policies()
        rules = [each.rule for each in (*known.values(), policy) if each is not None]
        wanted = None if extras is None else {*extras, *needed_columns(rules)}
        blocks = [block for block in log.decisions(extras=wanted) if len(block.ids)]
        if not blocks:
            raise InvalidInput("the log must hold at least one decision, got none.")
        names = _names(blocks)
        for name in extras or ():
            if name not in names:
                some = list(next(iter(log.decisions(block=1))).extras)
                way_out = did_you_mean(name, some) if some else "There are no other columns."
                raise invalid("groups", "be a column of the cases", repr(name), way_out)
        digest = str(blocks[-1].policy[-1]) if policy is None else policy.digest
        if policy is None:
            if digest not in known:
                raise InvalidInput("The log does not name the policy of its last decision. Pass it: --policy FILE.")
            policy = known[digest]
        if policy.rule is None:
            raise InvalidInput("The policy of the last decision has no rule, so it promised nothing to watch.")
        rule = policy.routing
        columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in _LOGGED}
        own = columns.pop("policy") == digest
        if not own.any():
            raise invalid("log", "hold decisions of this policy", "decisions of other policies only")
        facts = {name: np.concatenate([_column(block, name) for block in blocks])[own] for name in names}
        kept = {name: column[own] for name, column in columns.items()}
        lists = [each for block in blocks for each in block.shortlists]
        listed = [kind in each for each, kind in zip(lists, columns["target"].tolist(), strict=True)]
        stream = cls.of_decisions(
            rule,
            kept["automate"],
            kept["predicted"],
            kept["confidence"],
            targets=kept["target"],
            ids=kept["ids"],
            times=np.datetime_as_string(kept["time"], unit="s"),
            label_order=kept["label_sequence"],
            extras=facts,
            listed=np.asarray(listed)[own] if any(lists) else None,
        )
        return replace(stream, left_out=int((~own).sum()), policy=policy)


_LOGGED = ("ids", "time", "policy", "predicted", "confidence", "automate", "target", "label_sequence")


def _names(blocks: Sequence[LoggedBlock]) -> list[str]:
    names = list(dict.fromkeys(name for block in blocks for name in block.extras))
    if len(names) > _MOST_NAMES:
        rule = f"have at most {_MOST_NAMES:,} names"
        raise invalid("extras of the decision log", rule, f"{len(names):,}", "Say which ones to read: extras=[...].")
    return names


def needed_columns(rules: Iterable[RoutingRule | BinaryRule | None]) -> set[str]:
    """Columns without which a rule cannot be watched: groups with a promise of their own, and clusters."""
    found = [getattr(rule, name, None) for rule in rules for name in ("groups", "cluster_column")]
    return {name for name in found if isinstance(name, str)}


def _values(column: Any) -> NDArray[Any]:
    """A column as it is, or as objects: an array of text has for every row the room of the longest."""
    return column if isinstance(column, np.ndarray) else np.array(list(column), dtype=object)


def _column(block: LoggedBlock, name: str) -> NDArray[Any]:
    """One extra of a block as text; empty where a case has none."""
    found = block.extras.get(name)
    texts = [""] * len(block.ids) if found is None else ["" if value is None else str(value) for value in found]
    column = np.empty(len(texts), dtype=object)
    column[:] = texts
    return column
