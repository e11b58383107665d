"""`RoutingRule`: which cases are automated and which go to a person, and the evidence for that."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from calibrant.checks import fraction, whole
from calibrant.decisions.base import Part
from calibrant.errors import InvalidInput, invalid
from calibrant.files import MOST_CLASSES
from calibrant.predictions import Kind, Predictions, in_order_of, require_predictions
from calibrant.predictions.columns import as_class_names
from calibrant.predictions.rows import SUM_TOLERANCE, Precision, as_scores, probabilities_of, refuse_scores
from calibrant.tables import Displayed, ShownFields, Table

_ROWS_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Routed(Displayed):
    """Decisions, one per row.

    Attributes:
        automate: True where the model decides alone.
        predicted: The class with the top probability.
        confidence: That probability, float64.
    """

    automate: NDArray[np.bool_]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @property
    def decisions(self) -> list[str]:
        """`auto` or `review`, one per row."""
        return np.where(self.automate, "auto", "review").tolist()  # type: ignore[no-any-return] # NumPy types tolist as Any

    def _overview(self) -> Table:
        rows: list[tuple[object, ...]] = [
            (row, "auto" if self.automate[row] else "review", self.predicted[row], f"{self.confidence[row]:.4f}")
            for row in range(min(len(self.automate), _ROWS_SHOWN))
        ]
        if len(self.automate) > _ROWS_SHOWN:
            rows.append((f"{len(self.automate) - _ROWS_SHOWN:,} more", "", "", ""))
        title = f"{int(self.automate.sum()):,} of {len(self.automate):,} cases are automated"
        return Table(title, rows, ("row", "decision", "predicted", "confidence"))


@dataclass(frozen=True)
class Evidence(ShownFields):
    """What the rule was chosen on.

    Attributes:
        cases: Labelled cases.
        automated: How many of them the rule automates.
        errors: How many of these are wrong.
        automation_low: Lower end of the 95 % interval of the automated share.
        automation_high: Upper end.
        cases_needed: Where nothing could be promised: about how many cases would do, 100,000,000 standing for that
            many or more; None where no number would.
    """

    cases: int
    automated: int
    errors: int
    automation_low: float
    automation_high: float
    cases_needed: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts that no cases can have."""
        if not 0 <= self.errors <= self.automated <= self.cases or self.cases == 0:
            counts = f"{self.cases}, {self.automated} and {self.errors}"
            raise invalid("evidence", "count cases, automated ones and errors, each a part of the one before", counts)


@dataclass(frozen=True)
class GroupEvidence(ShownFields):
    """What the rule was chosen on, in one group.

    Attributes:
        name: The group.
        cases: Labelled cases.
        automated: How many of them the rule automates.
        errors: How many of these are wrong.
        promised: Whether the promise is made for this group by itself; False where it has too few cases.
    """

    name: str
    cases: int
    automated: int
    errors: int
    promised: bool


@dataclass(frozen=True)
class Costs(ShownFields):
    """Cost of an automated error and of one review, in the same unit.

    Attributes:
        error: Cost of a wrong decision that nobody looked at; None where `matrix` says it.
        review: Cost of a person's look at one case.
        per_1000: Cost of the rule for 1,000 cases like those it was chosen on.
        per_1000_all_review: The same if a person saw every case.
        matrix: Row y, column k: cost of deciding k alone where y is true; None where `error` says it and what is right
            is free.
    """

    error: float | None
    review: float
    per_1000: float
    per_1000_all_review: float
    matrix: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, repr=False)
class RoutingRule(Displayed, Part):
    """Automate where the top probability reaches the threshold; send the rest to a person.

    Attributes:
        threshold: Common threshold; None where nothing is automated, or where each class has its own.
        n_classes: Number of classes that the rule was made for.
        target_accuracy: Promised accuracy of what is automated; None for a rule without a promise.
        confidence: Probability with which the promise holds.
        class_thresholds: One threshold for each predicted class, None for a class that is never automated.
        class_names: Names of the classes.
        evidence: What the rule was chosen on.
        costs: The cost model, where one was given.
        note: One sentence for a person.
        fitted_on: SHA-256 of the predictions file that the rule was chosen on, where it was one.
        groups: Name of the column whose groups the promise is made for, each by itself; None for all cases together.
        group_evidence: One entry for each group; None without groups.
        clusters: Number of clusters if cases of one cluster depend on each other; None if all are independent.
        cluster_column: Name of the column of the clusters, which the monitor needs too; None without clusters.
        largest_cluster: Most cases that a cluster had, and that a later one may have; None without clusters.
    """

    _what: ClassVar[str] = "routing rule"
    _optional: ClassVar[tuple[str, ...]] = (
        "groups",
        "group_evidence",
        "clusters",
        "cluster_column",
        "largest_cluster",
    )

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

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be applied."""
        if whole("n_classes", self.n_classes, 1) > MOST_CLASSES:
            raise invalid("n_classes", f"be at most {MOST_CLASSES:,}", self.n_classes)
        for name, sized in (("class_thresholds", self.class_thresholds), ("class_names", self.class_names)):
            if sized is not None and len(sized) != self.n_classes:
                raise invalid(name, f"have one entry for each of the {self.n_classes} classes", f"{len(sized)} entries")
        as_class_names(self.class_names, self.n_classes)
        if self.threshold is not None and self.class_thresholds is not None:
            raise invalid("threshold", "be None beside class_thresholds", self.threshold)
        for value in (self.threshold, *(self.class_thresholds or ())):
            if value is not None:
                fraction("threshold", value, ends=True)
        for name, share in (("target_accuracy", self.target_accuracy), ("confidence", self.confidence)):
            if share is not None:
                fraction(name, share)
        self._check_clusters()

    def _check_clusters(self) -> None:
        known = [each is not None for each in (self.clusters, self.cluster_column, self.largest_cluster)]
        if any(known) and not all(known):
            wanted = "be given together, or none of them"
            raise invalid("clusters, cluster_column and largest_cluster", wanted, f"{sum(known)} of them")
        if self.largest_cluster is not None:
            whole("largest_cluster", self.largest_cluster, 1)

    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain JSON values."""
        content = super().to_dict()
        if self.costs is not None and self.costs.matrix is None:
            del content["costs"]["matrix"]
        return content

    def _overview(self) -> Table:
        from calibrant.decisions.describe import rule_overview

        return rule_overview(self)

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """The threshold of each predicted class, shape (K,); infinity where nothing is automated."""
        each = self.class_thresholds if self.class_thresholds is not None else (self.threshold,) * self.n_classes
        return np.array([math.inf if value is None else value for value in each])

    @property
    def automates(self) -> bool:
        """Whether anything at all can be automated."""
        return bool(np.isfinite(self.thresholds).any())

    @property
    def automation_rate(self) -> float:
        """Share of the evidence that is automated; 0 where nothing is."""
        return self.evidence.automated / self.evidence.cases if self.evidence is not None and self.automates else 0.0

    @property
    def review_per_1000(self) -> float:
        """How many of 1,000 cases like the evidence go to a person."""
        return 1000.0 * (1.0 - self.automation_rate)

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
        parts = [self.decide(block) for _, block in self.in_own_order(probabilities).chunks()]
        return Routed(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Routed)))

    def probabilities(self, scores: Any, kind: Kind, *, precision: Precision | None = None) -> NDArray[np.float64]:
        """Check scores and return them as float64 probabilities, shape (n, K).

        Each row has the same numbers to the last bit in whatever block it comes: a threshold that is one case's
        confidence must automate that case wherever it appears again.

        Args:
            scores: Shape (n, K), NumPy or torch.
            kind: What they are.
            precision: The type that they came in, if they are held as a wider one: how well rows must sum to 1.
        """
        values, own_precision = as_scores(kind, scores, kind)
        self.check_classes(values.shape[1])
        refuse_scores(kind, values, 0, None if kind == "logits" else SUM_TOLERANCE[precision or own_precision])
        return probabilities_of(values, kind)

    def in_own_order(self, predictions: Predictions, *, where: str = "predictions") -> Predictions:
        """`predictions` in the order of the rule's classes; refused where they have other classes."""
        require_predictions(predictions)
        self.check_classes(predictions.n_classes)
        return in_order_of(self.class_names, predictions, where=where)

    def check_classes(self, n_classes: int) -> None:
        """Refuse predictions with another number of classes."""
        if n_classes != self.n_classes:
            raise InvalidInput(
                f"this rule was made for {self.n_classes} classes and cannot be applied to {n_classes}. "
                "Fit a rule on predictions with these classes."
            )

    def decide(self, probabilities: NDArray[np.float64]) -> Routed:
        """Decide from what `probabilities` returned."""
        predicted = probabilities.argmax(axis=1)
        # Rounded probabilities may be a little more than 1.
        top = np.minimum(probabilities[np.arange(len(predicted)), predicted], 1.0)
        return Routed(top >= self.thresholds[predicted], predicted, top)
