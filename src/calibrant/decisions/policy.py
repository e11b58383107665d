"""`Policy`: how raw scores become decisions, as one object and one file.

A policy holds the calibrator, the rule, the shortlist and the class names. Everything after the model takes raw scores
and a policy, so there is one place for a temperature and nobody has to match a rule with its calibrator.
"""

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration import Calibrator, fit_calibrator
from calibrant.calibration.base import Saved
from calibrant.calibration.temperature import temperature_share
from calibrant.checks import whole
from calibrant.decisions.binary import BinaryRule
from calibrant.decisions.choose import choose_threshold, refuse_values
from calibrant.decisions.ranking import Score, score_name
from calibrant.decisions.rule import Routed, RoutingRule
from calibrant.decisions.shortlist import Shortlist
from calibrant.errors import CalibrantWarning, InvalidInput, invalid, naming
from calibrant.files import check_format, content_digest, typed
from calibrant.predictions import Kind, Origin, Predictions, require_predictions
from calibrant.predictions.columns import as_class_names
from calibrant.predictions.rows import Precision, logits_of, probabilities_of
from calibrant.tables import Displayed, ShownFields, Table

FILE_NAME = "policy.json"
_FORMAT = "calibrant-policy"
LABELS_FORMAT = "calibrant-labels"
_VERSION = 1
_NOT_FOR_TWO = "This needs a rule of `calibrant route fit`, and the policy has one of `calibrant route binary`."


@dataclass(frozen=True)
class Fit(ShownFields):
    """A rule that was fitted on some cases."""

    cases: str  # SHA-256 of their file
    what: str  # calibrator and promise, as text


@dataclass(frozen=True, repr=False)
class Policy(Saved, Displayed):
    """How raw scores become decisions: calibrate them, then let the rule decide.

    Any part may be missing. Without a calibrator the rule decides on the scores as they are; without a rule every case
    goes to a person.

    Attributes:
        n_classes: Number of classes.
        calibrator: Applied to raw scores first; None for none.
        rule: Decides on what the calibrator returns; None to automate nothing.
        shortlist: The classes that a person looks at first; None for none.
        class_names: Names of the classes in the order of the scores; by default those of the parts.
        fits: The distinct rules that are known to have been fitted on files, of which this policy has one. Choosing
            among several rules of one file breaks the confidence of the promise, so `with_rule` warns from the second
            on. It is no part of `digest`.

    >>> policy = Policy(2, rule=RoutingRule(threshold=0.9, n_classes=2))
    >>> policy.decide([[3.0, 0.0], [0.4, 0.6]], kind="logits").decisions
    ['auto', 'review']
    """

    n_classes: int
    calibrator: Calibrator | None = None
    rule: RoutingRule | BinaryRule | None = None
    shortlist: Shortlist | None = None
    class_names: tuple[str, ...] | None = None
    fits: tuple[Fit, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        whole("n_classes", self.n_classes, 2)
        made_for = {}
        if self.rule is not None:
            made_for["rule"] = self.rule.n_classes
        if self.calibrator is not None:
            if not isinstance(self.calibrator, Calibrator):
                raise invalid("calibrator", "be a fitted calibrator", repr(self.calibrator))
            self.calibrator.digest  # noqa: B018 (raises if it is not fitted)
            if self.calibrator.provenance_.kind not in ("confidence", "score"):  # these calibrate one confidence
                made_for["calibrator"] = self.calibrator.n_classes_
        for part, n_classes in made_for.items():
            if n_classes != self.n_classes:
                raise invalid(
                    part, f"be made for the policy's {self.n_classes} classes", f"one for {n_classes} classes"
                )
        names = self._agreed_names()
        object.__setattr__(self, "class_names", names)
        for part in ("rule", "shortlist"):
            own = getattr(self, part)
            if own is not None and own.class_names is None and names is not None:
                object.__setattr__(self, part, replace(own, class_names=names))
        if self.shortlist is not None:
            self.shortlist.check_fits(self.routing)

    def _agreed_names(self) -> tuple[str, ...] | None:
        known = [as_class_names(self.class_names, self.n_classes)]
        known += [part.class_names for part in (self.rule, self.shortlist) if part is not None]
        if self.calibrator is not None:
            known.append(self.calibrator.provenance_.class_names)
        named = [names for names in known if names]
        for names in named[1:]:
            if names != named[0]:
                first = next(k for k in range(self.n_classes) if names[k] != named[0][k])
                got = f"{named[0][first]!r} and {names[first]!r} for class {first}"
                raise InvalidInput(f"All parts of a policy must have the same classes in the same order, got {got}.")
        if not named:
            return None
        return named[0]

    # -- parts ---------------------------------------------------------------------------------------------------

    @property
    def routing(self) -> RoutingRule:
        """The rule; one that automates nothing if there is none. A rule for sensitivity and specificity is refused."""
        if isinstance(self.rule, BinaryRule):
            raise InvalidInput(_NOT_FOR_TWO)
        if self.rule is None:
            return RoutingRule(None, self.n_classes, class_names=self.class_names)
        return self.rule

    @property
    def automates(self) -> bool:
        """Whether any case can be automated."""
        return self.rule is not None and self.rule.automates

    @property
    def columns(self) -> set[str]:
        """Columns of the cases without which the promise cannot be watched: its groups and clusters."""
        if self.rule is None:
            return set()
        return {name for name in (self.rule.groups, self.rule.cluster_column) if name is not None}

    @property
    def calibrated(self) -> bool:
        """Whether anything is done to the raw scores."""
        return self.calibrator is not None and not self.calibrator.identity_

    def with_calibrator(self, calibrator: Calibrator | None) -> "Policy":
        """This policy with another calibrator. The rule and the shortlist go, unless the new one computes the same."""
        if calibrator is not None and self.calibrator is not None and calibrator.digest == self.calibrator.digest:
            return replace(self, calibrator=calibrator)
        return Policy(self.n_classes, calibrator, class_names=self.class_names, fits=self.fits)

    def with_rule(self, rule: RoutingRule | BinaryRule | None) -> "Policy":
        """This policy with another rule, fitted on `policy.calibrate(cases)`. A shortlist of the old rule goes.

        Warns if another rule is known to have been fitted on the same file.
        """
        policy = replace(self, rule=rule, shortlist=None)
        promise = _promise_of(rule)
        if rule is None or rule.fitted_on is None or not promise:
            return policy
        calibrator = "raw scores"
        if self.calibrator is not None:
            calibrator = self.calibrator.describe()
        policy = policy.remember([Fit(rule.fitted_on, f"{promise}, {calibrator}")])
        known = [fit.what for fit in policy.fits if fit.cases == rule.fitted_on]
        if len(known) > 1:
            text = (
                f"{len(known)} different rules were fitted on the same cases ({'; '.join(known)}). If you choose among "
                "them by what they automate, the promise no longer has its confidence: decide beforehand, use new "
                "cases, or pass candidates to choose_threshold, which pays for the choice."
            )
            warnings.warn(text, CalibrantWarning, stacklevel=2)
        return policy

    def remember(self, fits: Iterable[Fit]) -> "Policy":
        """This policy, which also knows of other fits."""
        return replace(self, fits=tuple(dict.fromkeys([*self.fits, *fits])))

    # -- raw scores in -------------------------------------------------------------------------------------------

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Calibrated predictions, in the policy's order of classes."""
        predictions = (self.rule or self.routing).in_own_order(predictions)
        if self.calibrator is None:
            return predictions
        self.refuse_calibrated(predictions.origin)
        return self.calibrator(predictions)

    def probabilities(
        self, scores: Any, kind: Kind, *, precision: Precision | None = None, first: int = 0
    ) -> NDArray[np.float64]:
        """Check raw scores (n, K), columns in the order of `class_names`, and return calibrated float64 probabilities.

        Every decision goes through here or through `calibrate`, which gives the same numbers. `precision` is the type
        that scores came in, if they are held as a wider one; `first` is the number of the first row, for messages.
        """
        values, precision = self.routing.checked(scores, kind, precision, first)
        if self.calibrator is None:
            return probabilities_of(values, kind)
        self.calibrator.refuse_other_kind(kind)
        calibrated = self.calibrator.transform_logits(logits_of(values, kind, precision))
        return self.routing.probabilities(calibrated, "logits")

    def decide(self, scores: Predictions | Any, kind: Kind | None = None, *, groups: Any = None) -> Routed:
        """Decide about cases.

        Args:
            scores: Raw scores of the model, shape (n, K); or `Predictions`, which know what their scores are.
            kind: "logits" or "probabilities"; needed for arrays.
            groups: The group of each row of an array, for a rule with a threshold per group.
        """
        if isinstance(scores, Predictions):
            return self.routing.decide_all(self.calibrate(scores))
        if kind not in ("logits", "probabilities"):
            raise invalid("kind", "be 'logits' or 'probabilities' for an array of scores", repr(kind))
        if groups is not None:
            groups = np.asarray(groups)
        return self.routing.decide(self.probabilities(scores, kind), groups)

    def listed(self, probabilities: NDArray[np.float64], automate: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which classes a person looks at first, shape (n, K); none for automated cases and without a shortlist."""
        if self.shortlist is None:
            return np.zeros(probabilities.shape, dtype=np.bool_)
        return self.shortlist.within(probabilities) & ~automate[:, None]

    def unseen(self, predictions: Predictions) -> Predictions:
        """The cases that the calibrator was not fitted on; a rule may be chosen on these. Refused if there are none."""
        if self.calibrator is None:
            return predictions
        known, origin = self.calibrator.provenance_, predictions.origin
        if known.fitted_on is None or known.fitted_on != origin.sha256:
            return predictions
        if known.part is None:
            hint = (
                "Fit the calibrator on a share of them (calibrant calibrate --share 0.2, or calibrant route fit "
                "--calibrate), or use other cases."
            )
            raise invalid("predictions", "have cases that the calibrator was not fitted on", "its own cases", hint)
        parts = predictions.split(known.part.share, seed=known.part.seed, clusters=known.part.clusters)
        return parts[1 - known.part.index]

    def warn_if_seen(self, predictions: Predictions) -> None:
        """Warn if a part was fitted on these very cases, which are then no test of a promise."""
        origin, parts = predictions.origin, []
        if self.calibrator is not None and self.calibrator.provenance_.in_sample(origin):
            parts.append("calibrator")
        for name, part in (("rule", self.rule), ("shortlist", self.shortlist)):
            if part is not None and origin.is_file(part.fitted_on):
                parts.append(name)
        if parts:
            text = f"the {' and the '.join(parts)} of this policy saw cases of {origin.path} when fitted"
            warnings.warn(f"{text}: these are no test of a promise. Use new cases.", CalibrantWarning, stacklevel=3)

    def refuse_calibrated(self, origin: Origin) -> None:
        """Refuse predictions that are calibrated already, as far as their origin says."""
        if origin.calibrated_by is None:
            return
        where = ""
        if origin.path is not None:
            where = f" ({origin.path})"
        raise InvalidInput(f"These predictions are calibrated already{where}. Pass the raw scores of the model.")

    # -- on disk -------------------------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides: the version of a policy that a decision log names."""
        content = replace(self, fits=()).to_dict()
        if self.calibrator is not None:
            content["calibrator"] = self.calibrator.digest  # what it computes, whatever it was fitted on
        return content_digest(content)

    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain JSON values."""
        content: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "n_classes": self.n_classes}
        content["class_names"] = None if self.class_names is None else list(self.class_names)
        for name in ("calibrator", "rule", "shortlist"):
            part = getattr(self, name)
            content[name] = None if part is None else part.to_dict()
        if self.rule is not None:
            content["rule"]["kind"] = self.rule.kind
        if self.fits:
            content["fits"] = [asdict(fit) for fit in self.fits]
        return content

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build a policy from what `to_dict` returned."""
        if is_of_labels(content):
            raise InvalidInput(
                f"{where} has rules for several labels. They are for route apply, route check, report and monitor."
            )
        members, _ = check_format(content, what="policy", name=_FORMAT, version=_VERSION, where=where)
        file = typed(_File, members, what="policy", where=where)
        calibrator = rule = shortlist = None
        with naming(where):
            if file.calibrator is not None:
                calibrator = Calibrator.from_dict(file.calibrator, where=where)
            if file.rule is not None:
                of_kind = _RULES.get(str(file.rule.pop("kind", None)))
                if of_kind is None:
                    raise invalid(where, "be an undamaged policy", "a rule of no known kind")
                rule = of_kind.from_dict(file.rule, where=where)
            if file.shortlist is not None:
                shortlist = Shortlist.from_dict(file.shortlist, where=where)
            return cls(file.n_classes, calibrator, rule, shortlist, file.class_names, file.fits)

    # -- for people ----------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Two sentences: how scores are calibrated and what is automated."""
        sentences = ["Scores are not calibrated."]
        if self.calibrator is not None:
            sentences = [f"Scores are calibrated by {self.calibrator.describe()}."]
        if self.rule is None:
            sentences.append("There is no rule, so every case goes to a person.")
        elif not self.automates:
            sentences.append("The rule promises nothing, so every case goes to a person.")
        else:
            sentences.append(self.rule.note)
        if self.shortlist is not None:
            sentences.append("It lists classes for the cases that go to a person.")
        return " ".join(sentences)

    def _overview(self) -> Table:
        rows: list[tuple[object, ...]] = [("calibrator", "none")]
        if self.calibrator is not None:
            rows = [("calibrator", self.calibrator.describe())]
        if self.rule is None:
            rows.append(("rule", "none: every case goes to a person"))
        else:
            rows += self.rule.overview_rows()
            if not self.automates and self.rule.note:
                rows.append(("note", self.rule.note))  # why, and how many cases would be needed
        if self.shortlist is not None:
            rows += [(f"shortlist: {name}", value) for name, value in self.shortlist.overview_rows()]
        return Table(f"{self.n_classes} classes", rows)


@dataclass(frozen=True)
class _File:
    """What a policy file says besides its format."""

    n_classes: int
    class_names: tuple[str, ...] | None
    calibrator: dict[str, Any] | None
    rule: dict[str, Any] | None
    shortlist: dict[str, Any] | None
    fits: tuple[Fit, ...] = ()


_RULES: dict[str, type[RoutingRule | BinaryRule]] = {rule.kind: rule for rule in (RoutingRule, BinaryRule)}


def is_of_labels(content: Any) -> bool:
    """Whether the content of a file is rules for several labels."""
    return isinstance(content, dict) and content.get("format") == LABELS_FORMAT


PolicyLike = Policy | str | Path


def as_policy(policy: PolicyLike) -> Policy:
    """A policy, or the one in a file."""
    if isinstance(policy, Policy):
        return policy
    return Policy.load(policy)


def fit_policy(
    predictions: Predictions,
    target_accuracy: float = 0.99,
    *,
    calibrator: Calibrator | Literal["temperature", "best"] | None = "temperature",
    share: float | None = None,
    seed: int = 0,
    score: Score | None = None,
    **options: Any,
) -> Policy:
    """Fit a calibrator on a share of labelled cases and choose the threshold on the others.

    The promise of the rule is exact because its cases were used for nothing else.

    Args:
        predictions: Labelled cases that were used for nothing else.
        target_accuracy: Accuracy to promise for what is automated.
        calibrator: A calibrator that was fitted on other cases, the name of one to fit, or None for none. A class and
            a score are not calibrated by default.
        share: Share of the cases that fits the calibrator; by default a tenth, or 100 cases if that is more.
        seed: Seed of the random split. With `clusters`, the name of a column, whole clusters are split.
        score: As in `choose_threshold`; the cases that fit the calibrator also find its thresholds and, for "auto",
            choose it.
        **options: Further arguments of `choose_threshold`.

    >>> from calibrant import samples
    >>> policy = fit_policy(samples.load("cifar10-resnet32-nll", "val"), 0.98)
    >>> policy.automates
    True
    """
    require_predictions(predictions)
    some, rest = None, predictions
    if calibrator == "temperature" and not predictions.has_all_classes:
        calibrator = None  # one confidence has no temperature; rules do not need one
    if isinstance(calibrator, str):
        if share is None:
            share = temperature_share(len(predictions))
        refuse_values("clusters", options.get("clusters"))
        some, rest = predictions.split(share, seed=seed, clusters=options.get("clusters"))
        calibrator = fit_calibrator(some, calibrator, seed=seed).calibrator
    stated = predictions
    if not options.get("per_class"):
        stated = predictions.as_right_or_wrong()
    policy = Policy(stated.n_classes, calibrator, class_names=stated.class_names)
    if some is not None and score is not None:
        options["fitting"] = policy.calibrate(some)
    rule = choose_threshold(policy.calibrate(rest), target_accuracy, score=score, seed=seed, **options)
    return policy.with_rule(rule)


def _promise_of(rule: RoutingRule | BinaryRule | None) -> str:
    """What a rule promises, and in which way; "" for a rule without a promise."""
    if isinstance(rule, BinaryRule):
        shares = {"sensitivity": rule.sensitivity, "specificity": rule.specificity}
        return " and ".join(f"{name} {share:g}" for name, share in shares.items() if share is not None)
    if rule is None or rule.target_accuracy is None:
        return ""
    words = {
        f"accuracy {rule.target_accuracy:g} with confidence {rule.confidence:g}": True,
        f"by the score {score_name(rule.score)}": rule.score != "probability",
        "per class": rule.class_thresholds is not None,
        f"per group of {rule.groups}": rule.group_thresholds is not None,
        f"for groups of {rule.groups}": rule.groups is not None and rule.group_thresholds is None,
        f"by clusters of {rule.cluster_column}": rule.cluster_column is not None,
        "cheapest": rule.costs is not None,
    }
    return " ".join(text for text, said in words.items() if said)
