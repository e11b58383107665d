"""`Decider`: raw inputs in; class, calibrated probability, decision, shortlist and reason out, each decision logged."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy, PolicyLike
from calibrant.decisions.policy import as_policy
from calibrant.decisions.ranking import score_name
from calibrant.decisions.shortlist import best_first
from calibrant.deployment.decision import Decision, Extra
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.networks import Arrays, Score, TorchModel, arrange, weights_digest
from calibrant.deployment.onnx_file import Contents, Judged, open_onnx
from calibrant.errors import CalibrantError, invalid
from calibrant.predictions import names_or_numbers

if TYPE_CHECKING:
    from torch import nn

Outside = Literal["refuse", "review"]


@dataclass(frozen=True)
class Scored:
    """Cases after the network and before the policy."""

    scores: NDArray[Any]  # (n, K)
    ids: Sequence[str]
    extras: Sequence[Mapping[str, Extra]]
    outside: Mapping[int, str]  # row and reason of each case outside the ranges of the model


class Decider:
    """Decide with a network and a policy.

    The numbers are those of `calibrant route apply`: the network gives scores, and the policy works on them in float64.

    Args:
        model: A classifier that gives logits; it is put in evaluation mode.
        example: Cases that show the inputs: one tensor (n, ...), or tensors by name, which the model then gets by name.
        policy: A policy or its file; without one every case goes to a person.
        class_names: Names of the classes; the policy's by default.
        ranges: Smallest and largest number of inputs by name; as found in the example by default (`read_specs`).
        log: A decision log, its path or URL: every decision is on disk before it is answered.
        outside: What happens to a case with a number outside the range of its input: "refuse" raises, "review" sends it
            to a person. A number that is not finite is always refused.

    >>> import torch
    >>> from calibrant.decisions import Policy, RoutingRule
    >>> policy = Policy(2, rule=RoutingRule(threshold=0.9, n_classes=2, class_names=("cat", "dog")))
    >>> decider = Decider(torch.nn.Identity(), example=torch.tensor([[-9.0, 9.0], [9.0, -9.0]]), policy=policy)
    >>> [(each.predicted, each.decision) for each in decider.decide([[4.0, 0.0], [0.5, 0.6]])]
    [(0, 'auto'), (1, 'review')]
    """

    def __init__(
        self,
        model: "nn.Module",
        *,
        example: Any,
        policy: PolicyLike | None = None,
        class_names: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        log: DecisionLog | str | Path | None = None,
        outside: Outside = "refuse",
    ) -> None:
        score = TorchModel(model, example, ranges)
        applied = policy_for(score.n_classes, policy, class_names)
        self._set(Contents(inputs=score.specs, network=weights_digest(model), policy=applied), score, log, outside)

    @property
    def policy(self) -> Policy:
        """How scores become decisions."""
        return self.contents.policy

    @classmethod
    def load(
        cls, path: str | Path, *, log: DecisionLog | str | Path | None = None, outside: Outside = "refuse"
    ) -> Self:
        """The decider in an ONNX file that `export_onnx` wrote; onnxruntime runs it.

        A file that was changed after it was written is refused. `log` and `outside` are as for the class.
        """
        contents, score = open_onnx(path)
        return cls.of(contents, score, log=log, outside=outside)

    @classmethod
    def of(
        cls,
        contents: Contents,
        score: Score,
        *,
        log: DecisionLog | str | Path | None = None,
        outside: Outside = "refuse",
    ) -> Self:
        """A decider around any network `score`: a function from arrays by input to scores (n, K)."""
        self = cls.__new__(cls)
        self._set(contents, score, log, outside)
        return self

    def _set(self, contents: Contents, score: Score, log: DecisionLog | str | Path | None, outside: Outside) -> None:
        if outside not in ("refuse", "review"):
            raise invalid("outside", "be 'refuse' or 'review'", repr(outside))
        self.contents, self.score, self.outside = contents, score, outside
        if isinstance(log, str | Path):
            names = contents.policy.class_names
            log = DecisionLog(log, model=contents.network, n_classes=contents.policy.n_classes, class_names=names)
        elif log is not None and log.model != contents.network:
            raise invalid("log", f"be one of the model {contents.network[:12]}...", f"one of {log.model[:12]}...")
        self.log = log
        self.class_names = names_or_numbers(contents.policy.class_names, contents.policy.n_classes)
        self._score = score_name(contents.policy.routing.score)
        self._thresholds = contents.policy.routing.thresholds.tolist()
        self._automates = contents.policy.automates
        self._version = contents.policy.digest
        if log is not None:
            log.add_policy(contents.policy)

    def decide(
        self, inputs: Any, *, ids: Sequence[str] | None = None, extras: Sequence[Mapping[str, Extra]] | None = None
    ) -> list[Decision]:
        """Decide about cases; with a log they are on disk when this returns, all or none.

        Args:
            inputs: Shape (n, ...), NumPy, torch or lists; for a model with several inputs, arrays by name.
            ids: A distinct name for each case; new ones are made by default.
            extras: Other facts about each case, such as groups, for the log.
        """
        (decisions,) = self.decide_all([self.scored(inputs, ids=ids, extras=extras)])
        if isinstance(decisions, CalibrantError):
            raise decisions
        return decisions

    def scored(
        self, inputs: Any, *, ids: Sequence[str] | None = None, extras: Sequence[Mapping[str, Extra]] | None = None
    ) -> "Scored":
        """Check the arguments of `decide` and run the network, which is the first half of it."""
        arrays = arrange(self.contents.inputs, inputs)
        cases = len(next(iter(arrays.values())))
        if ids is None:
            # They rise with time: a database then adds them at the end of its index, not all over it.
            prefix, random = f"{time.time_ns() // 1000:016x}", token_hex(8 * cases)
            ids = [prefix + random[start : start + 16] for start in range(0, 16 * cases, 16)]
        if extras is None:
            extras = [{}] * cases
        for what, values in (("ids", ids), ("extras", extras)):
            if len(values) != cases:
                raise invalid(what, f"be as many as the {cases} cases", len(values))
        outside = self._outside(arrays)
        if outside:
            for spec in self.contents.inputs:
                if spec.whole:  # token ids: as in the exported file, because the network's table has no others
                    arrays[spec.name] = arrays[spec.name].clip(math.ceil(spec.low), math.floor(spec.high))
        return Scored(self.score(arrays), ids, extras, outside)

    def decide_all(self, batches: "Sequence[Scored]") -> list[list[Decision] | CalibrantError]:
        """Decide about several batches, each all or none; the second half of `decide`.

        Together they cost little more than one: the policy works on all of their scores at once, which does not change
        a digit, and one transaction logs them.
        """
        judged = self.contents.judge(np.concatenate([batch.scores for batch in batches]))
        predicted = judged.routed.predicted.tolist()
        confidence = judged.routed.confidence.tolist()
        ranks = judged.routed.ranking.tolist()
        automate = judged.routed.automate.tolist()
        reasons = list(map(self._reason, predicted, confidence, ranks))
        ids: list[str] = []
        extras: list[Mapping[str, Extra]] = []
        outside: list[int] = []
        for batch in batches:
            for row, reason in batch.outside.items():
                outside.append(len(ids) + row)
                automate[outside[-1]] = False
                reasons[outside[-1]] = reason
            ids += batch.ids
            extras += batch.extras
        lists = self._lists(judged, outside)
        decisions = map(Decision, ids, predicted, confidence, automate, lists, reasons, extras)
        answers = [list(islice(decisions, len(batch.ids))) for batch in batches]
        if self.log is None:
            return [*answers]
        faults = self.log.append_all(answers, policy=self._version)
        return [fault or answer for fault, answer in zip(faults, answers, strict=True)]

    def decide_one(self, inputs: Any, *, id: str | None = None, extras: Mapping[str, Extra] | None = None) -> Decision:  # noqa: A002
        """Decide about one case, whose inputs come without the axis of cases."""
        if isinstance(inputs, Mapping):
            batch: Any = {name: _batch_of_one(values) for name, values in inputs.items()}
        else:
            batch = _batch_of_one(inputs)
        (decision,) = self.decide(batch, ids=None if id is None else [id], extras=[extras or {}])
        return decision

    def to_dict(self, decision: Decision) -> dict[str, Any]:
        """A decision as plain JSON values, classes by name."""
        return decision.to_dict(self.class_names)

    def _outside(self, arrays: Arrays) -> dict[int, str]:
        """Row and reason of each case outside the ranges of the model; refused if `outside` says so."""
        reasons: dict[int, str] = {}
        for spec in self.contents.inputs:
            array = arrays[spec.name]
            for row in np.flatnonzero(~spec.inside(array)).tolist():
                flat = array[row].reshape(-1)
                value = str(flat[~((flat >= spec.low) & (flat <= spec.high))][0])
                argument = f"input {spec.name!r} of case {row}"
                if not np.isfinite(array[row]).all():
                    raise invalid(argument, "be finite", value)
                if self.outside == "refuse":
                    rule = f"lie in {spec.range_in_words}, which the model was exported for"
                    raise invalid(argument, rule, value)
                reason = f"The input {spec.name} lies outside {spec.range_in_words}, which the model was exported for."
                reasons.setdefault(row, reason)
        return reasons

    def _lists(self, judged: Judged, outside: list[int]) -> list[tuple[int, ...]]:
        """Numbers of the listed classes of each case, most probable first."""
        mask, probabilities = judged.listed, judged.probabilities
        if mask is None or self.policy.shortlist is None:
            return [()] * len(probabilities)
        # A case outside the ranges goes to a person, and gets a list like every case that does.
        mask[outside] = self.policy.shortlist.within(probabilities[outside])
        return list(map(tuple, best_first(mask, probabilities)))

    def _reason(self, predicted: int, confidence: float, rank: float) -> str:
        if not self._automates:
            return "No rule promises anything, so a person decides."
        name, threshold = self.class_names[predicted], self._thresholds[predicted]
        if threshold == math.inf:
            return f"The rule never automates {name}."
        compared = "reaches" if rank >= threshold else "is below"
        if self._score != "probability":
            compared = f"{compared} the threshold {threshold:.4f}"
            return f"The score {self._score} of {rank:.4f} {compared}; {name} has probability {confidence:.4f}."
        return f"The probability {confidence:.4f} of {name} {compared} the threshold {threshold:.4f}."


def policy_for(n_classes: int, policy: PolicyLike | None, class_names: Sequence[str] | None) -> Policy:
    """The policy of a model with this many classes; one that automates nothing if none is given."""
    found = Policy(n_classes) if policy is None else as_policy(policy)
    if found.n_classes != n_classes:
        raise invalid("policy", f"be made for the model's {n_classes} classes", f"one for {found.n_classes} classes")
    found.routing  # noqa: B018 (a rule for sensitivity and specificity is refused)
    if class_names is None:
        return found
    return replace(found, class_names=tuple(class_names))


def _batch_of_one(values: Any) -> Any:
    if hasattr(values, "ndim"):
        return values[None]
    return [values]
