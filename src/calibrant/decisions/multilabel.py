"""Several labels per case: a rule for each label, and one confidence for the promises of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrant.calibration.base import Saved
from calibrant.checks import fraction
from calibrant.decisions.binary import BinaryRule, binary_rates, choose_binary_rule, level_of_each
from calibrant.decisions.bounds import cases_without_error
from calibrant.decisions.policy import LABELS_FORMAT, Policy, is_of_labels
from calibrant.decisions.rule import Part
from calibrant.errors import invalid, naming
from calibrant.files import check_format, read_json
from calibrant.metrics import evaluate
from calibrant.predictions import Predictions
from calibrant.predictions.columns import columns_in_order
from calibrant.tables import Table

_VERSION = 1
_METRICS = ("test_error", "nll", "brier", "ece")
LabelCases = Mapping[str, Predictions]
"""Cases of two classes for each label: whether a case has the label."""


def cases_by_label(probabilities: Any, targets: Any, labels: Sequence[str]) -> dict[str, Predictions]:
    """Make predictions of two classes for each label.

    Args:
        probabilities: Shape (n, L): the probability of each label, in 0..1. A row need not sum to 1.
        targets: Shape (n, L): 1 if a case has the label, else 0.
        labels: Names of the L labels.

    >>> cases = cases_by_label([[0.9, 0.2], [0.4, 0.7]], [[1, 0], [0, 1]], ["urgent", "invoice"])
    >>> cases["invoice"].probabilities[:, 1].tolist()
    [0.2, 0.7]
    """
    values, truth = np.atleast_1d(probabilities), np.atleast_1d(targets)
    if len(set(labels)) != len(labels) or not labels:
        raise invalid("labels", "be distinct names, at least one", list(labels))
    for name, array in (("probabilities", values), ("targets", truth)):
        if array.shape != (len(values), len(labels)):
            raise invalid(name, f"have the shape (n, {len(labels)}), a column per label", array.shape)
    values, truth = columns_in_order(values, probabilities, labels), columns_in_order(truth, targets, labels)
    if not np.isin(truth, (0, 1)).all():
        raise invalid("targets", "be 0 or 1 for each label", truth[~np.isin(truth, (0, 1))][0])
    cases = {}
    for place, label in enumerate(labels):
        columns = values[:, place], truth[:, place].astype(np.int64)
        with naming(f"label {label!r}"):
            cases[label] = Predictions.from_binary(*columns, kind="probabilities", class_names=(f"not {label}", label))
    return cases


def read_labels(source: str | Path, labels: Sequence[str]) -> dict[str, Predictions]:
    """Read a table with the columns `p_LABEL`, a probability, and `y_LABEL`, 0 or 1 or a boolean, for each label."""
    probabilities, targets = [], []
    for label in labels:
        columns = {"scores": f"p_{label}", "target": f"y_{label}", "positive": "1"}
        cases = Predictions.load(source, kind="probabilities", columns=columns)
        probabilities.append(cases.probabilities[:, 1])
        targets.append(cases.targets)
    return cases_by_label(np.stack(probabilities, axis=1), np.stack(targets, axis=1), labels)


def evaluate_labels(cases: LabelCases) -> Table:
    """Error, NLL, Brier score and ECE of each label, and their mean over the labels.

    >>> cases = cases_by_label([[0.9, 0.2], [0.4, 0.7]], [[1, 0], [0, 1]], ["urgent", "invoice"])
    >>> evaluate_labels(cases).rows[-1][0]
    'mean'
    """
    rows: list[tuple[object, ...]] = []
    values = []
    for label, own in cases.items():
        found = evaluate(own)
        values.append([getattr(found, name) for name in _METRICS])
        rows.append((label, f"{int((own.targets == 1).sum()):,}", *(f"{value:.4f}" for value in values[-1])))
    means = np.mean(values, axis=0)
    rows.append(("mean", "", *(f"{value:.4f}" for value in means)))
    title = f"{len(cases)} labels, {len(next(iter(cases.values()))):,} cases"
    return Table(title, rows, ("label", "positive", "error", "NLL", "Brier score", "ECE"))


@dataclass(frozen=True, repr=False)
class MultiLabel(Part, Saved):
    """A rule for each label; all promises together hold with one confidence.

    Attributes:
        rules: Label and its rule.
        confidence: Probability with which the promises of all labels hold.
        left_out: Labels with too few cases to promise anything, which always go to a person.
    """

    _what: ClassVar[str] = "family of rules"

    rules: tuple[tuple[str, BinaryRule], ...]
    confidence: float
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a family that cannot be applied."""
        fraction("confidence", self.confidence)
        if len(set(self.labels)) != len(self.rules) or not self.rules:
            raise invalid("rules", "have distinct labels, at least one", list(self.labels))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the columns of scores."""
        return tuple(label for label, _ in self.rules)

    @property
    def promised(self) -> dict[str, Policy]:
        """The policies of the labels that something is promised for, as the monitor takes them."""
        found = {}
        for label, rule in self.rules:
            if rule.sensitivity is not None or rule.specificity is not None:
                found[label] = Policy(2, rule=rule)
        return found

    def decide(self, probabilities: Any) -> NDArray[np.str_]:
        """Return "negative", "positive" or "review" for each case and label, shape (n, L).

        >>> rule = BinaryRule(0.2, 0.8, 1, 0.95, 0.9, 0.95, ("not urgent", "urgent"))
        >>> MultiLabel((("urgent", rule),), 0.95).decide([[0.1], [0.5], [0.9]]).tolist()
        [['negative'], ['review'], ['positive']]
        """
        # Decisions do not depend on targets, so any will do.
        cases = cases_by_label(probabilities, np.zeros(np.shape(probabilities), dtype=np.int64), self.labels)
        return np.stack([np.asarray(rule.decide(cases[label])) for label, rule in self.rules], axis=1)

    def check(self, cases: LabelCases, *, confidence: float = 0.95) -> dict[str, dict[str, Any]]:
        """Counts of each label on new labelled cases, and whether they contradict its promises.

        If all promises hold, the probability that any of them is contradicted is at most 1 - confidence.
        """
        self.refuse_other_labels(cases)
        each = 1.0 - (1.0 - confidence) / len(self.rules)
        return {label: rule.check(cases[label], confidence=each) for label, rule in self.rules}

    def table_of_check(self, results: Mapping[str, dict[str, Any]]) -> Table:
        """What `check` found, one row per label."""
        rows: list[tuple[object, ...]] = []
        for label, result in results.items():
            verdict = "held"
            if label in self.left_out:
                verdict = "nothing is promised"
            elif not all(result["held"].values()):
                verdict = "BROKEN"
            missed = f"{result['missed']:,} of {result['positives']:,}"
            flagged = f"{result['flagged']:,} of {result['negatives']:,}"
            rows.append((label, missed, flagged, f"{result['reviewed']:,}", verdict))
        headings = ("label", "positive cases missed", "negative cases flagged", "for a person", "promise")
        return Table("", rows, headings, "Labelled cases that the rules were not chosen on.")

    def refuse_other_labels(self, cases: LabelCases) -> None:
        """Refuse cases without one of the labels."""
        missing = [label for label in self.labels if label not in cases]
        if missing:
            raise invalid("cases", "have all labels of the rules", f"none for {missing[0]!r}")

    def to_dict(self) -> dict[str, Any]:
        """Everything that `from_dict` needs, as plain JSON values."""
        return {"format": LABELS_FORMAT, "version": _VERSION, **super().to_dict()}

    @classmethod
    def from_dict(cls, content: Any, *, where: str = "content") -> Self:
        """Build the rules from what `to_dict` returned."""
        members, _ = check_format(content, what=cls._what, name=LABELS_FORMAT, version=_VERSION, where=where)
        return super().from_dict(members, where=where)

    @classmethod
    def of_file(cls, path: str | Path | None) -> Self | None:
        """What `load` returns; None if there is no file, or if it is a policy of one label per case."""
        if path is None or not is_of_labels(read_json(path)):
            return None
        return cls.load(path)

    def table(self) -> Table:
        """What is promised for each label, and what a person sees."""
        rows: list[tuple[object, ...]] = []
        for label, rule in self.rules:
            seen = rule.evidence
            assert seen is not None
            review = f"{100 * seen.reviewed / seen.cases:.1f} %"
            shares = (rule.sensitivity, rule.specificity)
            promises = ["not promised" if share is None else f"{100 * share:.6g} %" for share in shares]
            upper = "never" if rule.high is None else f"{rule.high:.4g}"
            rows.append((label, f"{seen.positives:,}", *promises, f"{rule.low:.4g}", upper, review))
        together = f"All promises hold together with {100 * self.confidence:.6g} % confidence."
        headings = ("label", "positive", "sensitivity", "specificity", "negative below", "positive from", "review")
        return Table(f"{len(self.rules)} labels", rows, headings, together)

    def _overview(self) -> Table:
        return self.table()


def choose_label_rules(
    cases: LabelCases,
    *,
    sensitivity: float | None = 0.95,
    specificity: float | None = None,
    confidence: float = 0.95,
) -> MultiLabel:
    """Choose a rule for each label, so that the promises of all labels hold together.

    Labels with fewer positive or negative cases than a promise needs at the very least are left out: every case goes to
    a person. That depends on the numbers of cases alone, so it does not spoil the promises of the others, which share
    the error probability in equal parts. Labels of one case may depend on each other in any way.

    Args:
        cases: Labelled held-out cases of each label (`cases_by_label`), used for nothing else.
        sensitivity: Promised for each label: the share of its positive cases that is not called negative.
        specificity: Promised for each label: the share of its negative cases that is not called positive.
        confidence: Probability with which all promises hold.
    """
    level = level_of_each(sensitivity, specificity, confidence)
    needed = {}
    for target, share in ((1, sensitivity), (0, specificity)):
        if share is not None:
            needed[target] = cases_without_error(share, level)
    able = []
    for label, own in cases.items():
        if all((own.targets == target).sum() >= fewest for target, fewest in needed.items()):
            able.append(label)
    part = 1.0 - (1.0 - confidence) / max(len(able), 1)
    rules = []
    left_out = []
    for label, own in cases.items():
        rule = choose_binary_rule(own, sensitivity=sensitivity, specificity=specificity, confidence=part)
        if label not in able or (rule.sensitivity, rule.specificity) != (sensitivity, specificity):
            rates = binary_rates(own, 0.0, np.inf)
            rule = BinaryRule(0.0, None, 1, None, None, part, own.class_names, rates, "Every case goes to a person.")
            left_out.append(label)
        rules.append((label, rule))
    return MultiLabel(tuple(rules), confidence, tuple(left_out))
