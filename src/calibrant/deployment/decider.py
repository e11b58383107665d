"""`Decider`: raw inputs in; class, calibrated probability, decision, shortlist and reason out, each decision logged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy, PolicyLike
from calibrant.decisions.policy import as_policy
from calibrant.deployment.contents import Contents, weights_digest
from calibrant.deployment.decision import Decision, Extra
from calibrant.deployment.inputs import Arrays, InputSpec, arrange, read_specs
from calibrant.deployment.log import DecisionLog
from calibrant.deployment.module import as_network, input_names, is_module
from calibrant.errors import InvalidInput, invalid

if TYPE_CHECKING:
    import torch
    from torch import nn

Score = Callable[[Arrays], NDArray[Any]]
Outside = Literal["refuse", "review"]

_EXPORT_IT = "Export a model of another kind with export_onnx, and open the file with Decider.load."


class Decider:
    """One model that decides: a network and a policy.

    The numbers are those of `calibrant route apply`: the network gives scores, and the policy works on them in float64.

    Args:
        model: A classifier that gives logits; it is put in evaluation mode.
        example: Cases that say what the inputs are: one tensor (n, ...), a sequence of them, or tensors by name, which
            the model then gets by name.
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
        network, specs, n_classes = prepare(model, example, ranges)
        contents = Contents(
            inputs=specs, network=weights_digest(model), policy=policy_for(n_classes, policy, class_names)
        )
        self._set(contents, torch_scores(network, specs), log, outside)

    @property
    def policy(self) -> Policy:
        """How scores become decisions."""
        return self.contents.policy

    @classmethod
    def load(
        cls, path: str | Path, *, log: DecisionLog | str | Path | None = None, outside: Outside = "refuse"
    ) -> Self:
        """The decider in an ONNX file that `export_onnx` wrote; onnxruntime runs it.

        Args:
            path: The file. One that was changed after it was written is refused.
            log: As for the class.
            outside: As for the class.
        """
        from calibrant.deployment.onnx_file import open_onnx

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
        """A decider around any network: a function from arrays by input to scores (n, K).

        Args:
            contents: Everything else.
            score: The network.
            log: As for the class.
            outside: As for the class.
        """
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
        arrays = arrange(self.contents.inputs, inputs)
        cases = len(next(iter(arrays.values())))
        names = [uuid4().hex for _ in range(cases)] if ids is None else list(ids)
        facts: Sequence[Mapping[str, Extra]] = [{}] * cases if extras is None else extras
        for what, given in (("ids", names), ("extras", facts)):
            if len(given) != cases:
                raise invalid(what, f"be as many as the {cases} cases", len(given))
        strange = self._outside(arrays)
        judged = self.contents.judge(self.score(self._tamed(arrays, strange)))
        routed, listed = judged.routed, judged.listed
        if listed is None:
            lists: list[tuple[int, ...]] = [()] * cases
        else:
            # A case outside the ranges goes to a person, and gets a list as every case that does.
            if strange and self.policy.shortlist is not None:
                rows = list(strange)
                listed[rows] = self.policy.shortlist.within(judged.probabilities[rows])
            lists = _lists(listed, judged.probabilities)
        decisions = [
            Decision(
                names[row],
                int(routed.predicted[row]),
                float(routed.confidence[row]),
                bool(routed.automate[row]) and row not in strange,
                lists[row],
                strange.get(row) or self._reason(int(routed.predicted[row]), float(routed.confidence[row])),
                facts[row],
            )
            for row in range(cases)
        ]
        if self.log is not None:
            self.log.append(decisions, policy=self._version)
        return decisions

    def decide_one(self, inputs: Any, *, id: str | None = None, extras: Mapping[str, Extra] | None = None) -> Decision:  # noqa: A002
        """Decide about one case, whose inputs come without the axis of cases."""
        one = {k: _one(v) for k, v in inputs.items()} if isinstance(inputs, Mapping) else _one(inputs)
        (decision,) = self.decide(one, ids=None if id is None else [id], extras=None if extras is None else [extras])
        return decision

    def to_dict(self, decision: Decision) -> dict[str, Any]:
        """A decision as plain JSON values, classes by name."""
        name = self.contents.name_of
        return {
            "id": decision.id,
            "decision": decision.decision,
            "predicted": decision.predicted,
            "class": name(decision.predicted),
            "confidence": decision.confidence,
            "shortlist": [name(k) for k in decision.shortlist],
            "reason": decision.reason,
        }

    def _outside(self, arrays: Arrays) -> dict[int, str]:
        """Row and reason of each case that the model was not exported for; refused where that was asked for."""
        strange: dict[int, str] = {}
        for spec in self.contents.inputs:
            array = arrays[spec.name]
            for row in np.flatnonzero(~spec.inside(array)).tolist():
                finite = bool(np.isfinite(array[row]).all())
                if self.outside == "refuse" or not finite:
                    rule = f"lie in {spec.range_in_words}, which the model was exported for" if finite else "be finite"
                    raise invalid(f"input {spec.name!r} of case {row}", rule, _odd(spec, array[row]))
                told = f"The input {spec.name} lies outside {spec.range_in_words}, which the model was exported for."
                strange.setdefault(row, told)
        return strange

    def _tamed(self, arrays: Arrays, strange: Mapping[int, str]) -> Arrays:
        """Token ids outside the range moved into it, as in the exported file: the network's table has no others."""
        if not strange:
            return arrays
        tamed = dict(arrays)
        for spec in self.contents.inputs:
            if spec.whole:
                tamed[spec.name] = arrays[spec.name].clip(math.ceil(spec.low), math.floor(spec.high))
        return tamed

    def _reason(self, predicted: int, confidence: float) -> str:
        rule, name = self.policy.routing, self.contents.name_of(predicted)
        if not rule.automates:
            return "No rule promises anything, so a person decides."
        threshold = float(rule.thresholds[predicted])
        if threshold == np.inf:
            return f"The rule never automates {name}."
        compared = "reaches" if confidence >= threshold else "is below"
        return f"The probability {confidence:.4f} of {name} {compared} the threshold {threshold:.4f}."


def policy_for(n_classes: int, policy: PolicyLike | None, class_names: Sequence[str] | None) -> Policy:
    """The policy of a model with this many classes; one that automates nothing if none is given."""
    names = None if class_names is None else tuple(class_names)
    if policy is None:
        return Policy(n_classes, class_names=names)
    found = as_policy(policy)
    if found.n_classes != n_classes:
        raise invalid("policy", f"be made for the model's {n_classes} classes", f"one for {found.n_classes} classes")
    found.routing  # noqa: B018 (a rule for sensitivity and specificity is refused)
    return found if names is None else replace(found, class_names=names)


def prepare(
    model: "nn.Module", example: Any, ranges: Mapping[str, tuple[float, float]] | None
) -> tuple["nn.Module", tuple[InputSpec, ...], int]:
    """A model behind one signature, what its inputs are, and its number of classes; tried on two cases."""
    if not is_module(model):
        raise invalid("model", "be a torch.nn.Module", type(model).__name__, _EXPORT_IT)
    import torch

    tensors, by_name = input_names(model, example)
    specs = read_specs(tensors, ranges)
    network = as_network(model.eval(), [spec.name for spec in specs], by_name=by_name).eval()
    try:
        with torch.no_grad():
            scores: Any = network(*(values[:2].to(_device(model)) for values in tensors.values()))
    except Exception as error:
        raise InvalidInput(f"model must take its example: {type(error).__name__}: {str(error)[:200]}") from error
    if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or scores.shape[1] < 2:
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise invalid("model", "give logits of shape (cases, classes)", got)
    return network, specs, int(scores.shape[1])


def torch_scores(network: "nn.Module", specs: Sequence[InputSpec]) -> Score:
    """A torch network as a function of arrays."""
    import torch

    def score(arrays: Arrays) -> NDArray[Any]:
        device = _device(network)
        with torch.no_grad():
            scores = network(*(torch.from_numpy(arrays[spec.name]).to(device) for spec in specs))
        return np.asarray(scores.cpu().numpy())

    return score


def _device(model: "nn.Module") -> "torch.device":
    import torch

    return next((each.device for each in model.parameters()), torch.device("cpu"))


def _one(values: Any) -> Any:
    return values[None] if hasattr(values, "ndim") else [values]


def _odd(spec: InputSpec, case: NDArray[Any]) -> str:
    flat = case.reshape(-1)
    return str(flat[~((flat >= spec.low) & (flat <= spec.high))][0])


def _lists(mask: NDArray[np.bool_], probabilities: NDArray[np.float64]) -> list[tuple[int, ...]]:
    """Numbers of the listed classes, most probable first, the lower class first of equals."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    return [tuple(k for k in own.tolist() if row[k]) for own, row in zip(order, mask, strict=True)]
