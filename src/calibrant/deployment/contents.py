"""Everything that decides beside the network: inputs, classes, calibrator, rule, shortlist; as a file keeps it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import InitVar, asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from calibrant.calibration import Calibrator
from calibrant.decisions import Routed, RoutingRule, Shortlist, calibrator_for
from calibrant.deployment.inputs import InputSpec
from calibrant.deployment.stored import rule_digest
from calibrant.errors import InvalidInput, invalid
from calibrant.files import content_digest, parse_json, typed
from calibrant.predictions import Kind, Origin, Precision, as_class_names, logits_of

FORMAT = 1
_PRECISIONS: dict[str, Precision] = {"float32": "float32", "float64": "float64"}


@dataclass(frozen=True)
class Judged:
    """What calibrator, rule and shortlist make of scores.

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
    """What is known about a model besides its network; parts that do not fit together are refused.

    Attributes:
        inputs: What it was exported for.
        n_classes: Number of classes.
        network: SHA-256 of the network: of its weights, or of its file.
        kind: What the network gives.
        calibrator: Applied first; None for none.
        rule: Its own temperature comes next, then its thresholds; None where nothing is automated.
        shortlist: What a person looks at first; None for none.
        class_names: Names of the classes in the network's order; by default the rule's.
    """

    inputs: tuple[InputSpec, ...]
    n_classes: int
    network: str
    kind: Kind = "logits"
    calibrator: Calibrator | None = None
    rule: RoutingRule | None = None
    shortlist: Shortlist | None = None
    class_names: tuple[str, ...] | None = None
    reader: RoutingRule = field(init=False)
    checked: InitVar[bool] = False

    def __post_init__(self, checked: bool) -> None:
        """Refuse parts of different models; that rule and calibrator belong together was `checked` for a file."""
        rule, calibrator, n_classes = self.rule, self.calibrator, self.n_classes
        if rule is not None:
            rule.check_classes(n_classes)
        if calibrator is not None:
            _check_calibrator(calibrator, n_classes, self.kind)
        if not checked:
            _check_together(rule, calibrator)
        names = _names(self.class_names, rule, calibrator, n_classes)
        object.__setattr__(self, "class_names", names)
        # A rule that automates nothing stands for none: it checks scores and calibrates all the same.
        object.__setattr__(self, "reader", rule or RoutingRule(None, n_classes, class_names=names))
        if self.shortlist is not None:
            self.shortlist.check_fits(self.reader)

    @property
    def model(self) -> str:
        """SHA-256 of what makes the probabilities, network and calibrator: whose log it is."""
        calibrator = self.calibrator
        map_ = None if calibrator is None or calibrator.identity_ else calibrator.digest
        return content_digest({"network": self.network, "calibrator": map_})

    @property
    def rule_version(self) -> str:
        """SHA-256 of the rule; empty without one."""
        return "" if self.rule is None else rule_digest(self.rule)

    def name_of(self, k: int) -> str:
        """The name of a class, or its number."""
        return str(k) if self.class_names is None else self.class_names[k]

    def judge(self, scores: NDArray[Any]) -> Judged:
        """Scores (n, K) of the network to decisions, number by number as `calibrant route apply` does it."""
        kind: Kind = self.kind
        if self.calibrator is not None:
            logits = logits_of(scores, kind, _PRECISIONS.get(str(scores.dtype), "float32"))
            scores, kind = self.calibrator.transform_logits(logits), "logits"
        probabilities = self.reader.calibrated(scores, kind)
        routed = self.reader.decide(probabilities)
        listed = None
        if self.shortlist is not None:
            listed = self.shortlist.within(probabilities) & ~routed.automate[:, None]
        return Judged(probabilities, routed, listed)

    def to_text(self) -> str:
        """As JSON, for the metadata of a file."""
        parts = {"calibrator": self.calibrator, "rule": self.rule, "shortlist": self.shortlist}
        content = {
            "format": FORMAT,
            "inputs": [asdict(spec) for spec in self.inputs],
            "n_classes": self.n_classes,
            "network": self.network,
            "kind": self.kind,
            "class_names": None if self.class_names is None else list(self.class_names),
            **{name: None if part is None else _of_the_model(part.to_dict()) for name, part in parts.items()},
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
        calibrator, rule, shortlist = kept.calibrator, kept.rule, kept.shortlist
        return cls(
            inputs=kept.inputs,
            n_classes=kept.n_classes,
            network=kept.network,
            kind=kept.kind,
            class_names=kept.class_names,
            calibrator=None if calibrator is None else Calibrator.from_dict(calibrator, where=where),
            rule=None if rule is None else RoutingRule.from_dict(rule, where=where),
            shortlist=None if shortlist is None else Shortlist.from_dict(shortlist, where=where),
            checked=True,
        )


@dataclass(frozen=True)
class _Kept:
    """What the JSON holds."""

    inputs: tuple[InputSpec, ...]
    n_classes: int
    network: str
    kind: Kind
    class_names: tuple[str, ...] | None
    calibrator: dict[str, Any] | None
    rule: dict[str, Any] | None
    shortlist: dict[str, Any] | None


def _of_the_model(content: dict[str, Any]) -> dict[str, Any]:
    """Without what a calibrator was applied to: equal calibrators then make equal files."""
    return {name: value for name, value in content.items() if name not in ("applied_to", "made")}


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of a network's weights and buffers, by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        found.update(f"{name}:{values.dtype}:{tuple(values.shape)};".encode())
        found.update(values.reshape(-1).view(-1).numpy().tobytes() if values.numel() else b"")
    return found.hexdigest()


def _check_calibrator(calibrator: Calibrator, n_classes: int, kind: Kind) -> None:
    calibrator.to_module()  # says where it is not fitted
    if calibrator.n_classes_ != n_classes:
        raise invalid("calibrator", f"be made for the model's {n_classes} classes", f"{calibrator.n_classes_} classes")
    calibrator.refuse_other_kind(kind)


def _check_together(rule: RoutingRule | None, calibrator: Calibrator | None) -> None:
    """Refuse a rule that was chosen behind another calibrator, or behind none, than the one that stands here."""
    if rule is None:
        return
    if calibrator is None:
        if rule.calibrated_by is not None:
            way_out = "Give that calibrator, or fit a rule without one."
            raise invalid("rule", "stand with the calibrator that it was chosen behind", "none", way_out)
        return
    if rule.automates and not calibrator.identity_:
        calibrator_for(rule, calibrator, Origin())


def _names(
    given: Sequence[str] | None, rule: RoutingRule | None, calibrator: Calibrator | None, n_classes: int
) -> tuple[str, ...] | None:
    """The class names that all parts agree on."""
    known = [
        names
        for names in (
            as_class_names(given, n_classes),
            None if rule is None else rule.class_names,
            None if calibrator is None else calibrator.provenance_.class_names,
        )
        if names
    ]
    for names in known[1:]:
        if names != known[0]:
            first = next(k for k in range(n_classes) if names[k] != known[0][k])
            told = f"{known[0][first]!r} and {names[first]!r} for class {first}"
            raise InvalidInput(f"model, rule and calibrator must have the same classes in the same order, got {told}.")
    return known[0] if known else None
