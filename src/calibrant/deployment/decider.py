"""`Decider`: raw inputs in; class, calibrated probability, decision, shortlist and reason out, each decision logged."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy
from calibrant.decisions.ranking import score_name
from calibrant.decisions.shortlist import best_first
from calibrant.deployment.decision import Decision, Extra
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.networks import Arrays, Score, arrange
from calibrant.deployment.onnx_file import Contents, open_onnx
from calibrant.errors import CalibrantError, invalid
from calibrant.predictions import names_or_numbers


@dataclass(frozen=True)
class Scored:
    """Cases after the network and before the policy."""

    scores: NDArray[Any]  # (n, K)
    ids: Sequence[str]
    extras: Sequence[Mapping[str, Extra]]


class Decider:
    """Decide with a network and a policy; `Decider.load` opens an exported file.

    The numbers are those of `calibrant route apply`: the network gives scores, and the policy works on them in float64.
    Inputs outside the ranges that the model was exported for are refused.

    Args:
        contents: The inputs of the model, its digest and its policy.
        score: The network: a function from arrays by input to scores (n, K).
        log: A decision log or its path: every decision is on disk before it is answered.
    """

    def __init__(self, contents: Contents, score: Score, *, log: DecisionLog | str | Path | None = None) -> None:
        policy = contents.policy
        if isinstance(log, str | Path):
            log = DecisionLog(log, model=contents.network, n_classes=policy.n_classes, class_names=policy.class_names)
        elif log is not None and log.model != contents.network:
            raise invalid("log", f"be one of the model {contents.network[:12]}...", f"one of {log.model[:12]}...")
        if log is not None:
            log.add_policy(policy)
        self.contents, self.score, self.log = contents, score, log
        self.class_names = names_or_numbers(policy.class_names, policy.n_classes)
        # Computed once, not for every case.
        self._ranked_by = score_name(policy.routing.score)
        self._thresholds = policy.routing.thresholds.tolist()
        self._automates = policy.automates
        self._version = policy.digest

    @classmethod
    def load(cls, path: str | Path, *, log: DecisionLog | str | Path | None = None) -> Self:
        """The decider in an ONNX file that `export_onnx` wrote; onnxruntime runs it.

        A file that was changed after it was written is refused.
        """
        return cls(*open_onnx(path), log=log)

    @property
    def policy(self) -> Policy:
        """How scores become decisions."""
        return self.contents.policy

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
    ) -> Scored:
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
        self._refuse_outside(arrays)
        return Scored(self.score(arrays), ids, extras)

    def decide_all(self, batches: Sequence[Scored]) -> list[list[Decision] | CalibrantError]:
        """Decide about several batches, each all or none; the second half of `decide`.

        Together they cost little more than one: the policy works on all of their scores at once, which does not change
        a digit, and one transaction logs them.
        """
        judged = self.contents.judge(np.concatenate([batch.scores for batch in batches]))
        routed = judged.routed
        predicted, confidence = routed.predicted.tolist(), routed.confidence.tolist()
        lists: Iterable[tuple[int, ...]] = [()] * len(predicted)
        if judged.listed is not None:
            lists = map(tuple, best_first(judged.listed, judged.probabilities))
        decisions = map(
            Decision,
            [name for batch in batches for name in batch.ids],
            predicted,
            confidence,
            routed.automate.tolist(),
            lists,
            map(self._reason, predicted, confidence, routed.ranking.tolist()),
            [facts for batch in batches for facts in batch.extras],
        )
        answers = [list(islice(decisions, len(batch.ids))) for batch in batches]
        if self.log is None:
            return [*answers]
        faults = self.log.append_all(answers, policy=self._version)
        return [fault or answer for fault, answer in zip(faults, answers, strict=True)]

    def _refuse_outside(self, arrays: Arrays) -> None:
        for spec in self.contents.inputs:
            array = arrays[spec.name]
            outside = np.flatnonzero(~spec.inside(array))
            if not len(outside):
                continue
            values = array[outside[0]].reshape(-1)
            rule = f"lie in {spec.range_in_words}, which the model was exported for"
            if not np.isfinite(values).all():
                rule = "be finite"
            value = str(values[~((values >= spec.low) & (values <= spec.high))][0])
            raise invalid(f"input {spec.name!r} of case {outside[0]}", rule, value)

    def _reason(self, predicted: int, confidence: float, rank: float) -> str:
        if not self._automates:
            return "No rule promises anything, so a person decides."
        name, threshold = self.class_names[predicted], self._thresholds[predicted]
        if threshold == math.inf:
            return f"The rule never automates {name}."
        compared = "reaches" if rank >= threshold else "is below"
        value, limit = f"{rank:.4f}", f"{threshold:.4f}"
        if value == limit:  # all digits show which is larger
            value, limit = str(rank), str(threshold)
        if self._ranked_by != "probability":
            compared = f"{compared} the threshold {limit}"
            return f"The score {self._ranked_by} of {value} {compared}; {name} has probability {confidence:.4f}."
        return f"The probability {value} of {name} {compared} the threshold {limit}."
