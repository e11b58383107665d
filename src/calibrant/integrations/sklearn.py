"""A scikit-learn classifier that calibrates another one: `fit(X, y)`, `predict_proba(X)`, in pipelines and searches.

from calibrant.integrations.sklearn import CalibratedClassifier

model = CalibratedClassifier(RandomForestClassifier(), method="temperature", cv=5).fit(X, y)
"""

from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, check_cv
from sklearn.utils import Tags, get_tags, indexable
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, has_fit_parameter

from calibrant.calibration import Calibrator, TemperatureScaling, fit_calibrator, make_calibrator
from calibrant.checks import whole
from calibrant.errors import invalid
from calibrant.predictions import Kind, Predictions

_FEWEST = 2  # classes, and folds


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # untyped
    """Fit a classifier and a calibrator, such that no case calibrates a model that has seen it.

    The classifier is fitted once without each fold; what these models say about the fold that they have not seen gives
    one prediction for every case, and one calibrator is fitted on all of these. In use, the models of the folds are
    calibrated and averaged.

    Args:
        estimator: Any classifier with `predict_proba` or `decision_function`; logistic regression by default.
        method: A name in `calibrant.calibration.METHODS`, or "best" for the one with the lowest cross-validated NLL.
        cv: Number of stratified folds, a splitter of scikit-learn, or "prefit" for an estimator that is fitted already;
            then `fit` gets cases that it has not seen and fits the calibrator alone.
        ensemble: Whether to keep the models of the folds and to average what they say, calibrated. False: one model is
            fitted on all cases and kept, so that a prediction costs what it costs without calibration; it is often a
            little worse.

    Attributes:
        classes_: Labels as in `y`, sorted.
        estimators_: The fitted classifiers in use: one per fold, or one without `ensemble`.
        smallest_: The smallest probability that is believed of a classifier without a decision function.
        calibrator_: The fitted `calibrant.calibration` calibrator, which can be saved.
        predictions_: What the calibrator was fitted on, as `Predictions`: for `evaluate`, `choose_threshold` and
            reports, once it is calibrated by `calibrator_`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> CalibratedClassifier(method="temperature").fit(X, y).predict_proba(X[:1]).shape
    (1, 3)
    """

    def __init__(
        self, estimator: Any = None, *, method: str = "temperature", cv: Any = 5, ensemble: bool = True
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.ensemble = ensemble

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit classifier and calibrator.

        Args:
            X: Anything that the estimator takes: array, sparse matrix, data frame, list of texts.
            y: Labels of any kind.
            sample_weight: Passed on to the estimator and to the calibrator. Every method but "best" takes weights.
        """
        check_classification_targets(y)
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        if len(y) == 0:
            raise invalid("X", "hold at least one case", "0 samples")
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X)
        if isinstance(self.cv, str):
            outputs, kind = self._take_fitted(X)
        else:
            outputs, kind = self._fit_folds(X, y, weights)
        self.smallest_ = _smallest(outputs, kind)
        named: list[str] | None = [str(label) for label in self.classes_]
        if len(set(map(str, self.classes_))) < len(self.classes_):
            named = None
        logits = _logits(outputs, kind, self.smallest_)
        self.predictions_ = Predictions.from_logits(logits, _codes(y, self.classes_), class_names=named)
        self.calibrator_ = self._fit_calibrator(weights)
        for attribute in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimators_[0], attribute):
                setattr(self, attribute, getattr(self.estimators_[0], attribute))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities, shape (n, K), columns in the order of `classes_`."""
        check_is_fitted(self, "calibrator_")
        calibrated = []
        for estimator in self.estimators_:
            outputs, kind = _outputs(estimator, X, self.classes_)
            calibrated.append(self.calibrator_.transform(_logits(outputs, kind, self.smallest_)))
        probabilities: NDArray[np.float64] = np.mean(calibrated, axis=0)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each case."""
        check_is_fitted(self, "calibrator_")
        labels: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return labels

    def predictions(self, X: Any, y: Any) -> Predictions:
        """Calibrated predictions of labelled cases, for metrics, thresholds and reports."""
        check_is_fitted(self, "calibrator_")
        names = self.predictions_.class_names
        return Predictions.from_probabilities(self.predict_proba(X), _codes(y, self.classes_), class_names=names)

    def _take_fitted(self, X: Any) -> tuple[NDArray[np.float64], Kind]:
        if self.cv != "prefit":
            raise invalid("cv", "be a number of folds, a splitter, or 'prefit'", repr(self.cv))
        check_is_fitted(self.estimator)
        self.estimators_, self.classes_ = [self.estimator], np.unique(self.estimator.classes_)
        return _outputs(self.estimator, X, self.classes_)

    def _fit_folds(self, X: Any, y: NDArray[Any], weights: Any) -> tuple[NDArray[np.float64], Kind]:
        """What is said about each case by a model that was fitted without its fold."""
        self.classes_ = np.unique(y)
        present = self.classes_ if weights is None else np.unique(y[weights > 0])
        if len(present) < _FEWEST:
            raise invalid("y", "hold at least two classes with a weight above 0", f"{len(present)} class")
        estimator = self._estimator()
        outputs = np.zeros((len(y), len(self.classes_)))
        times_held_out = np.zeros(len(y), dtype=int)
        kind: Kind = "logits"
        self.estimators_ = []
        for inside, outside in _folds(self.cv, X, y):
            part = clone(estimator)
            X_part, y_part = _safe_split(part, X, y, inside)
            _fit(part, X_part, y_part, None if weights is None else weights[inside])
            held_out, _ = _safe_split(part, X, None, outside, inside)
            outputs[outside], kind = _outputs(part, held_out, self.classes_)
            times_held_out[outside] += 1
            self.estimators_.append(part)
        if (times_held_out != 1).any():
            raise invalid("cv", "hold out every case once", repr(self.cv), "Use a number of folds.")
        if not self.ensemble:
            self.estimators_ = [_fit(clone(estimator), X, y, weights)]
        return outputs, kind

    def _fit_calibrator(self, weights: Any) -> Calibrator:
        if self.method == "best":
            if weights is not None:
                hint = "Name a method, such as 'temperature'."
                raise invalid("sample_weight", "be left out with method='best'", "weights", hint)
            return fit_calibrator(self.predictions_, self.method).calibrator
        if self.method != "temperature":
            return make_calibrator(self.method).fit(self.predictions_, weights=weights)
        # No prior: these are not the logits of a network, and a decision function has any unit.
        return TemperatureScaling(prior_scale=None).fit(self.predictions_, weights=weights)

    def _estimator(self) -> Any:
        if self.estimator is None:
            return LogisticRegression()
        return self.estimator

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._estimator())
        tags.input_tags.pairwise, tags.input_tags.sparse = inner.input_tags.pairwise, inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags


def predictions_of(estimator: Any, X: Any, y: Any) -> Predictions:
    """What a fitted classifier or pipeline of scikit-learn says about labelled cases.

    Args:
        estimator: A fitted classifier with `predict_proba` or `decision_function`.
        X: Cases.
        y: Their labels, of any type that the estimator was fitted with.

    >>> from sklearn.linear_model import LogisticRegression
    >>> model = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"])
    >>> predictions_of(model, [[0.5], [2.5]], ["no", "yes"])
    Predictions(2 rows, 2 classes, from probabilities in float64)
    """
    check_is_fitted(estimator)
    classes = np.asarray(estimator.classes_)
    names = None
    if classes.dtype.kind not in "iu" or classes.tolist() != list(range(len(classes))):
        names = [str(name) for name in classes.tolist()]
    codes = _codes(y, classes)
    if hasattr(estimator, "predict_proba"):
        return Predictions.from_probabilities(estimator.predict_proba(X), codes, class_names=names)
    outputs, _ = _outputs(estimator, X, classes)
    return Predictions.from_logits(outputs, codes, class_names=names)


def _folds(cv: Any, X: Any, y: NDArray[Any]) -> list[tuple[Any, Any]]:
    cv = 5 if cv is None else cv
    if not isinstance(cv, Integral):
        return list(check_cv(cv, y, classifier=True).split(X, y))
    whole("cv", cv, _FEWEST)
    rarest = int(np.unique(y, return_counts=True)[1].min())
    if rarest < _FEWEST:
        hint = "Leave such classes out, or fit the estimator yourself and use cv='prefit'."
        raise invalid("y", "hold at least two cases of every class, for two folds", f"{rarest} of the rarest", hint)
    # Mixed first: many tables are sorted by something.
    return list(StratifiedKFold(min(cv, rarest), shuffle=True, random_state=0).split(X, y))


def _fit(estimator: Any, X: Any, y: Any, weights: Any) -> Any:
    if weights is None:
        return estimator.fit(X, y)
    if not has_fit_parameter(estimator, "sample_weight"):
        raise invalid("sample_weight", "be taken by the estimator", type(estimator).__name__, "Leave it out.")
    return estimator.fit(X, y, sample_weight=weights)


def _codes(y: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    y = np.asarray(y)
    unknown = ~np.isin(y, classes)
    if unknown.any():
        raise invalid("y", "hold labels that the estimator knows", repr(y[unknown][0]))
    codes: NDArray[np.int64] = np.searchsorted(classes, y)
    return codes


def _outputs(estimator: Any, X: Any, classes: NDArray[Any]) -> tuple[NDArray[np.float64], Kind]:
    """What the estimator says, shape (n, K): its decision function if it has one, else its probabilities."""
    kind: Kind = "logits"
    if hasattr(estimator, "decision_function"):
        scores = np.asarray(estimator.decision_function(X), dtype=np.float64)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
    elif hasattr(estimator, "predict_proba"):
        kind, scores = "probabilities", np.asarray(estimator.predict_proba(X), dtype=np.float64)
    else:
        raise invalid("estimator", "have predict_proba or decision_function", type(estimator).__name__)
    n_classes = len(estimator.classes_)
    if scores.shape[1] != n_classes or (n_classes > 2 and _by_pairs(estimator)):
        got = f"{scores.shape[1]} columns for {n_classes} classes"
        raise invalid("estimator", "say one number per class", got, "Set decision_function_shape='ovr'.")
    unknown = ~np.isin(estimator.classes_, classes)
    if unknown.any():
        label = repr(np.asarray(estimator.classes_)[unknown][0])
        raise invalid("y", "hold every class that the fitted estimator knows", f"no {label}", "Use cv='prefit'.")
    columns = np.searchsorted(classes, estimator.classes_)
    # A model whose fold lacks a class says nothing about it: as little as about the least likely of the others.
    outputs = np.repeat(scores.min(axis=1, keepdims=True), len(classes), axis=1)
    outputs[:, columns] = scores
    return outputs, kind


def _by_pairs(estimator: Any) -> bool:
    """Whether the decision function has a column per pair of classes; three classes have three pairs."""
    settings: dict[str, Any] = getattr(estimator, "get_params", dict)()
    return any(name.endswith("decision_function_shape") and value == "ovo" for name, value in settings.items())


def _smallest(outputs: NDArray[np.float64], kind: Kind) -> float:
    """The smallest probability that is believed: 0 has no logarithm, and no model knows that a chance is 1e-300.

    If there are zeros it is half of the smallest probability that was met: a forest of a hundred trees that all say
    no knows no more than that the chance is below one in a hundred. It is never below the precision of float64.
    """
    zeros = kind == "probabilities" and outputs.min() == 0
    least = float(outputs[outputs > 0].min()) / 2 if zeros else 0.0
    return max(least, float(np.finfo(np.float64).eps))


def _logits(outputs: NDArray[np.float64], kind: Kind, smallest: float) -> NDArray[np.float64]:
    if kind == "logits":
        return outputs
    logits: NDArray[np.float64] = np.log(np.maximum(outputs, smallest))
    return logits
