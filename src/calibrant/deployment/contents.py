"""What an exported file says about itself: inputs, network and policy."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions import Policy, Routed
from calibrant.deployment.inputs import InputSpec
from calibrant.errors import invalid
from calibrant.files import parse_json, typed
from calibrant.predictions import Kind

if TYPE_CHECKING:
    from torch import nn

FORMAT = 2


@dataclass(frozen=True)
class Judged:
    """What a policy makes of scores.

    Attributes:
        probabilities: Calibrated, (n, K) float64.
        routed: Decisions of the rule.
        listed: With a shortlist: the classes for a person, (n, K); none for automated cases.
    """

    probabilities: NDArray[np.float64]
    routed: Routed
    listed: NDArray[np.bool_] | None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is known about a model besides its network.

    Attributes:
        inputs: What it was exported for.
        network: SHA-256 of the network: of its weights, or of its file.
        policy: How its scores become decisions.
        kind: What the network gives.
    """

    inputs: tuple[InputSpec, ...]
    network: str
    policy: Policy
    kind: Kind = "logits"

    def __post_init__(self) -> None:
        """Refuse a calibrator that was fitted on another kind of scores."""
        if self.policy.calibrator is not None:
            self.policy.calibrator.refuse_other_kind(self.kind)

    def name_of(self, k: int) -> str:
        """The name of a class, or its number."""
        return self.policy.class_label(k)

    def judge(self, scores: NDArray[Any]) -> Judged:
        """Scores (n, K) of the network to decisions, number by number as `calibrant route apply` does it."""
        policy = self.policy
        probabilities = policy.probabilities(scores, self.kind)
        routed = policy.routing.decide(probabilities)
        listed = None if policy.shortlist is None else policy.listed(probabilities, routed.automate)
        return Judged(probabilities, routed, listed)

    def to_text(self) -> str:
        """As JSON, for the metadata of a file."""
        policy = self.policy.to_dict()
        if policy["calibrator"] is not None:
            # Without what it was applied to: equal calibrators then make equal files.
            for name in ("applied_to", "made"):
                policy["calibrator"].pop(name, None)
        content = {
            "format": FORMAT,
            "inputs": [asdict(spec) for spec in self.inputs],
            "network": self.network,
            "kind": self.kind,
            "policy": policy,
        }
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_text(cls, text: str, *, where: str) -> "Contents":
        """What `to_text` wrote; anything else is refused.

        Args:
            text: JSON.
            where: The file, for messages.
        """
        found = parse_json(text, where)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise invalid(where, f"hold contents of format {FORMAT}", "others", "Use the calibrant that wrote it.")
        kept = typed(_Kept, {k: v for k, v in found.items() if k != "format"}, what="exported model", where=where)
        policy = Policy.from_dict(kept.policy, where=where)
        return cls(inputs=kept.inputs, network=kept.network, policy=policy, kind=kept.kind)


@dataclass(frozen=True)
class _Kept:
    """What the JSON holds."""

    inputs: tuple[InputSpec, ...]
    network: str
    kind: Kind
    policy: dict[str, Any]


def weights_digest(model: "nn.Module") -> str:
    """SHA-256 of a network's weights and buffers, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        found.update(f"{name}:{values.dtype}:{tuple(values.shape)};".encode())
        found.update(values.reshape(-1).view(-1).numpy().tobytes() if values.numel() else b"")
    return found.hexdigest()
