"""`RoutingRule`: which cases are automated and which go to a person, and the evidence for that."""

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, number, whole
from calibrant.decisions.bounds import MOST_CASES, interval
from calibrant.decisions.costs import ErrorCost
from calibrant.decisions.ranking import GIVEN, Score, check_score, is_bounded, rank, score_name
from calibrant.errors import InvalidInput, invalid
from calibrant.files import MOST_CLASSES, typed
from calibrant.predictions import Kind, Predictions, in_order_of, names_or_numbers, require_predictions
from calibrant.predictions.columns import as_class_names, columns_in_order, group_name
from calibrant.predictions.readings import RIGHT_OR_WRONG
from calibrant.predictions.rows import SUM_TOLERANCE, Precision, as_scores, probabilities_of, refuse_scores
from calibrant.tables import FEW, Displayed, ShownFields, Table


class Part(Displayed):
    """Base of rules and shortlists: dataclasses of plain values that a policy file contains."""

    _what: ClassVar[str]
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain JSON values."""
        content: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        if callable(content.get("score")):
            raise InvalidInput(
                f"A {self._what} that ranks by the function {score_name(content['score'])} cannot be written to a "
                "file, because no file may name code. Keep it in Python, or use a score with a name."
            )
        return content

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build one from what `to_dict` returned. Damaged content is refused; `where` names its file."""
        return typed(cls, content, what=cls._what, where=where)

    def overview_rows(self) -> list[tuple[str, object]]:
        """What it promises and what it was chosen on, one line each."""
        raise NotImplementedError

    def describe(self) -> str:
        """The note and the overview as lines of text."""
        return "\n".join(
            [self.note, *(f"{name[0].upper()}{name[1:]}: {value}" for name, value in self.overview_rows())]
        )

    def _heading(self) -> str:
        return f"{self.n_classes} classes"  # type: ignore[attr-defined]  # rules and shortlists have it

    def _overview(self) -> Table:
        rows = self.overview_rows()
        if self.note:
            rows.append(("note", self.note))
        return Table(self._heading(), rows)


@dataclass(frozen=True)
class Routed(ShownFields):
    """Decisions, one per row.

    Attributes:
        automate: True if the model decides alone.
        predicted: The class with the top probability.
        confidence: That probability, float64.
        ranking: The score that was compared with the threshold; the same unless the rule names another one.
    """

    automate: NDArray[np.bool_]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]
    ranking: NDArray[np.float64]

    @property
    def decisions(self) -> list[str]:
        """`auto` or `review`, one per row."""
        return np.where(self.automate, "auto", "review").tolist()  # type: ignore[no-any-return] # NumPy types tolist as Any


@dataclass(frozen=True)
class Evidence(ShownFields):
    """What the rule was chosen on.

    If nothing could be promised, `cases_needed` says about how many cases would do: 100,000,000 means that many or
    more, None means that no number would.
    """

    cases: int
    automated: int
    errors: int  # automated cases that are wrong
    cases_needed: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts that no cases can have."""
        if not 0 <= self.errors <= self.automated <= self.cases or not 0 < self.cases <= MOST_CASES:
            counts = f"{self.cases}, {self.automated} and {self.errors}"
            raise invalid("evidence", "count cases, automated ones and errors, each a part of the one before", counts)


@dataclass(frozen=True)
class GroupEvidence(ShownFields):
    """What the rule was chosen on, in one group."""

    name: str
    cases: int
    automated: int
    errors: int
    promised: bool  # False if the group has too few cases for a promise of its own


@dataclass(frozen=True)
class Costs(ShownFields):
    """Cost of automated errors and of one review, in the same unit."""

    error: ErrorCost
    review: float
    per_1000: float  # of 1,000 cases like the evidence, by the rule
    per_1000_all_review: float  # the same if a person saw all


@dataclass(frozen=True)
class Supported(ShownFields):
    """What the cases show if the target cannot be promised."""

    accuracy: float  # the highest lower bound over a fixed grid of thresholds
    threshold: float  # where it is
    automated: float  # share of the cases that this threshold automates
    reserved: bool  # whether part of the level was reserved, so that it is promised; otherwise it is exploratory
    least_review: float  # least share of cases that must be reviewed to reach the target, whatever the score


@dataclass(frozen=True, repr=False)
class RoutingRule(Part):
    """Automate a case if its top probability reaches the threshold; send the others to a person.

    Attributes:
        threshold: Common threshold; None if nothing is automated, or if each class has its own.
        target_accuracy: Promised accuracy of what is automated; None for a rule without a promise.
        confidence: Probability with which the promise holds.
        class_thresholds: One threshold for each predicted class, None for a class that is never automated.
        evidence, costs, note: What the rule was chosen on, what it costs, and one sentence for a person.
        fitted_on: SHA-256 of the predictions file that the rule was chosen on, if it was a file.
        groups, group_evidence: Name of the column whose groups the promise is made for, each by itself, and an entry
            for each group; None for a promise for all cases together.
        clusters, cluster_column, largest_cluster: Number of clusters, name of their column, and the most cases that one
            had and a later one may have; None if all cases are independent.
        weight_column, weight_seed: Column and seed by which the cases were drawn (`sample_by_weights`); None for none.
        supported: What the cases show, if the target cannot be promised.
        candidate: Number of the candidate that was chosen; None if there was one only.
        group_thresholds: Group and its threshold, None for a group that is never automated; then each value of the
            column `groups` has its own threshold, and a case of an unknown group goes to a person.
        score: By which cases are ranked and compared with the threshold, see `calibrant.decisions.ranking`.
    """

    _what: ClassVar[str] = "routing rule"
    kind: ClassVar[str] = "threshold"

    threshold: float | None
    n_classes: int
    target_accuracy: float | None = None
    confidence: float | None = None
    class_thresholds: tuple[float | None, ...] | None = None
    class_names: tuple[str, ...] | None = None
    evidence: Evidence | None = None
    costs: Costs | None = None
    note: str = ""
    fitted_on: str | None = None
    groups: str | None = None
    group_evidence: tuple[GroupEvidence, ...] | None = None
    clusters: int | None = None
    cluster_column: str | None = None
    largest_cluster: int | None = None
    weight_column: str | None = None
    weight_seed: int | None = None
    supported: Supported | None = None
    candidate: int | None = None
    group_thresholds: tuple[tuple[str, float | None], ...] | None = None
    score: Score = "probability"

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be applied."""
        if whole("n_classes", self.n_classes, 1) > MOST_CLASSES:
            raise invalid("n_classes", f"be at most {MOST_CLASSES:,}", self.n_classes)
        as_class_names(self.class_names, self.n_classes)
        if self.class_thresholds is not None and len(self.class_thresholds) != self.n_classes:
            got = f"{len(self.class_thresholds)} entries"
            raise invalid("class_thresholds", f"have one entry for each of the {self.n_classes} classes", got)
        self._check_thresholds()
        for name in ("target_accuracy", "confidence"):
            if getattr(self, name) is not None:
                fraction(name, getattr(self, name))
        missing = [value is None for value in (self.clusters, self.cluster_column, self.largest_cluster)]
        if any(missing) and not all(missing):
            rule = "be given together, or none of them"
            raise invalid("clusters, cluster_column and largest_cluster", rule, f"{missing.count(False)} of them")
        if self.largest_cluster is not None:
            whole("largest_cluster", self.largest_cluster, 1)

    def _check_thresholds(self) -> None:
        kinds = (self.threshold, self.class_thresholds, self.group_thresholds)
        if sum(kind is not None for kind in kinds) > 1:
            raise invalid("threshold", "be None beside class_thresholds or group_thresholds", self.threshold)
        if self.group_thresholds is not None and self.groups is None:
            raise invalid("groups", "name the column of group_thresholds", self.groups)
        check_score(self.score)
        of_groups = dict(self.group_thresholds or ())
        for value in (self.threshold, *(self.class_thresholds or ()), *of_groups.values()):
            if value is not None and is_bounded(self.score):
                fraction("threshold", value, ends=True)
            elif value is not None and not math.isfinite(number("threshold", value)):
                raise invalid("threshold", "be finite", value)

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """The threshold of each predicted class, shape (K,); infinity if nothing is automated or groups decide."""
        values = self.class_thresholds or (self.threshold,) * self.n_classes
        return np.array([math.inf if value is None else value for value in values])

    @property
    def automates(self) -> bool:
        """Whether anything at all can be automated."""
        by_group = any(value is not None for _, value in self.group_thresholds or ())
        return by_group or bool(np.isfinite(self.thresholds).any())

    @property
    def automation_rate(self) -> float:
        """Share of the evidence that is automated."""
        if self.evidence is None or not self.automates:
            return 0.0
        return self.evidence.automated / self.evidence.cases

    def route(self, probabilities: Predictions | Any) -> Routed:
        """Decide from calibrated probabilities. For raw scores, use a `Policy`, which calibrates them first.

        Args:
            probabilities: Shape (n, K), rows sum to 1, NumPy or torch; or `Predictions`, whose class names decide the
                order of columns.

        >>> RoutingRule(threshold=0.9, n_classes=2).route([[0.95, 0.05], [0.4, 0.6]]).decisions
        ['auto', 'review']
        """
        if not isinstance(probabilities, Predictions):
            return self.decide(self.probabilities(probabilities, "probabilities"))
        return self.decide_all(self.in_own_order(probabilities))

    def decide_all(self, predictions: Predictions) -> Routed:
        """Decide calibrated predictions that are in the rule's order of classes, block by block."""
        groups = predictions.extras.get(self.groups or "")
        if not predictions.has_all_classes:
            wanted = {"probability": "confidence", GIVEN: "score"}.get(score_name(self.score))
            if wanted is None:
                raise InvalidInput(
                    f"The score {score_name(self.score)!r} of this rule needs the scores of all classes."
                )
            if predictions.kind != wanted:
                got = f"these have a {predictions.kind}"
                raise InvalidInput(f"This rule was fitted on a {wanted} of the predicted class, and {got}.")
            predicted, confidence = predictions.predicted, predictions.confidence
            return Routed(confidence >= self._cuts(predicted, groups), predicted, confidence, confidence)
        parts = []
        for rows, block in predictions.chunks():
            parts.append(self.decide(block, None if groups is None else groups[rows]))
        columns = zip(*((part.automate, part.predicted, part.confidence, part.ranking) for part in parts), strict=True)
        return Routed(*(np.concatenate(column) for column in columns))

    def probabilities(self, scores: Any, kind: Kind) -> NDArray[np.float64]:
        """Check scores and return them as float64 probabilities, shape (n, K).

        Each row has the same numbers to the last bit in whatever block it comes: a threshold that is one case's
        confidence must automate that case wherever it appears again.
        """
        return probabilities_of(self.checked(scores, kind)[0], kind)

    def checked(
        self, scores: Any, kind: Kind, precision: Precision | None = None, first: int = 0
    ) -> tuple[NDArray[np.float64], Precision]:
        """Scores that are finite and, if they are probabilities, sum to 1, with the precision that they came in.

        `precision` is given if they are held as a wider type; `first` is the number of the first row, for messages.
        """
        values, own_precision = as_scores(scores, kind)
        precision = precision or own_precision
        tolerance = None
        if kind != "logits":
            tolerance = SUM_TOLERANCE[precision]
        refuse_scores(kind, values, first, tolerance)
        self.check_classes(values.shape[1])
        return columns_in_order(values, scores, self.class_names), precision

    def in_own_order(self, predictions: Predictions, *, where: str = "predictions") -> Predictions:
        """`predictions` in the order of the rule's classes. Other classes are refused."""
        require_predictions(predictions)
        if not predictions.has_all_classes:
            # A rule that treats all classes alike knows none. Others put classes that they do not know after their own.
            if self.class_names in (None, RIGHT_OR_WRONG, predictions.class_names):
                return predictions
            return predictions.recoded(self.class_names or ())
        self.check_classes(predictions.n_classes)
        return in_order_of(self.class_names, predictions, where=where)

    def check_classes(self, n_classes: int) -> None:
        """Refuse scores of all classes for a rule of a class and a score, and another number of classes."""
        if self.class_names == RIGHT_OR_WRONG:
            raise InvalidInput("This rule was fitted on a class and a score, and these are scores of all classes.")
        if n_classes != self.n_classes:
            raise InvalidInput(
                f"this rule or calibrator was made for {self.n_classes} classes and cannot be applied to {n_classes}. "
                "Fit one on predictions with these classes."
            )

    def decide(self, probabilities: NDArray[np.float64], groups: NDArray[Any] | None = None) -> Routed:
        """Decide from what `probabilities` returned. A rule with a threshold per group needs the group of each row."""
        predicted = probabilities.argmax(axis=1)
        # Rounded probabilities may be a little more than 1.
        top = np.minimum(probabilities[np.arange(len(predicted)), predicted], 1.0)
        ranking = top
        if self.score != "probability":
            ranking = rank(self.score, probabilities)
        return Routed(ranking >= self._cuts(predicted, groups), predicted, top, ranking)

    def _cuts(self, predicted: NDArray[np.int64], groups: NDArray[Any] | None) -> NDArray[np.float64]:
        """The threshold of each case. A class that a rule for each class does not know is never automated."""
        if self.group_thresholds is None:
            if self.class_thresholds is None:
                return np.full(len(predicted), self.thresholds[0])
            known_classes = np.append(self.thresholds, math.inf)
            return known_classes[np.minimum(predicted, self.n_classes)]
        if groups is None:
            raise InvalidInput(
                f"This rule has a threshold for each value of {self.groups!r}. Pass cases with that column."
            )
        known = {name: value for name, value in self.group_thresholds if value is not None}
        return np.array([known.get(group_name(name), math.inf) for name in groups.tolist()])

    def unknown_groups(self, groups: NDArray[Any]) -> int:
        """How many cases have a group that the rule was not fitted with."""
        known = {name for name, _ in self.group_thresholds or ()}
        return sum(group_name(name) not in known for name in groups.tolist())

    def overview_rows(self) -> list[tuple[str, object]]:
        """What it promises and what it was chosen on, one line each."""
        rows: list[tuple[str, object]] = []
        if self.target_accuracy is not None and self.confidence is not None and self.automates:
            rows.append(("promised accuracy", f"{self.target_accuracy:g}, with probability {self.confidence:g}"))
        rows += self._threshold_rows()
        if (seen := self.evidence) is not None:
            share = percent(seen.automated, seen.cases)
            rows.append(("automated", f"{seen.automated:,} of {seen.cases:,} cases ({share}), {seen.errors:,} wrong"))
        if seen is not None and self.automates:
            low, high = (1000 * float(share) for share in interval(seen.cases - seen.automated, seen.cases))
            rows.append(
                ("of 1,000 cases a person sees", f"{1000 * (1 - self.automation_rate):.0f} ({low:.0f} to {high:.0f})")
            )
        if self.groups is not None:
            rows.append(("promised by group", self.groups))
        for group in (self.group_evidence or ())[:FEW]:
            promised = "promised" if group.promised and self.automates else "not promised"
            counts = f"{group.cases:,} cases, {group.automated:,} automated, {group.errors:,} wrong"
            rows.append((f"{self.groups or 'group'} {group.name}", f"{counts}; {promised}"))
        if self.costs is not None:
            costs = f"{self.costs.per_1000:.1f}; {self.costs.per_1000_all_review:.1f} if a person sees all"
            rows.append(("cost per 1,000 cases", costs))
        return rows

    def _threshold_rows(self) -> list[tuple[str, object]]:
        scored = ""
        if self.score != "probability":
            scored = f" of the score {score_name(self.score)}"
        if self.threshold is not None:
            return [("threshold", f"{threshold_text(self.threshold)}{scored}")]
        named, field = self.group_thresholds, "group_thresholds"
        if self.class_thresholds is not None:
            names = names_or_numbers(self.class_names, self.n_classes)
            named, field = tuple(zip(names, self.class_thresholds, strict=True)), "class_thresholds"
        if named is None:
            return [("threshold", "nothing is automated")]
        rows: list[tuple[str, object]] = []
        for name, value in named[:FEW]:
            text = "never automated"
            if value is not None:
                text = threshold_text(value)
            rows.append((f"threshold of {name}", text))
        if len(named) > FEW:
            rows.append((f"{len(named) - FEW:,} more thresholds", f"see {field}"))
        return rows


def route_all(predictions: Predictions, score: Score | None = None) -> Routed:
    """Predicted class, confidence and ranking score of every case as a rule will see them; nothing is automated."""
    require_predictions(predictions)
    if score is None:
        score = {"score": GIVEN}.get(predictions.kind, "probability")
    return RoutingRule(None, predictions.n_classes, class_names=predictions.class_names, score=score).route(predictions)


def threshold_text(threshold: float) -> str:
    """Six decimals, or as many more as show two digits of the distance from 1.

    >>> threshold_text(0.95), threshold_text(0.99999991)
    ('0.950000', '0.999999910')
    """
    digits = 6
    if threshold < 1.0:
        digits = max(digits, 1 - math.floor(math.log10(1.0 - threshold)))
    return f"{threshold:.{digits}f}"


def percent(part: int, whole: int) -> str:
    """One rounding for every share that is printed: to the nearest tenth, halves up, exact in whole numbers."""
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10} %"
