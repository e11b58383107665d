"""CalibratedClassifier behaves as scikit-learn expects, and its probabilities are those of a plain loop over folds."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, StratifiedKFold, TimeSeriesSplit
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant import evaluate
from calibrant.calibration import TemperatureScaling
from calibrant.errors import InvalidInput
from calibrant.integrations.sklearn import CalibratedClassifier


@parametrize_with_checks(
    [CalibratedClassifier(), CalibratedClassifier(GaussianNB(), ensemble=True)],
)
@pytest.mark.filterwarnings("ignore::calibrant.errors.CalibrantWarning", "ignore:divide by zero:RuntimeWarning")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_plain_loop_gives_the_same_probabilities(ensemble):
    X, y = load_digits(return_X_y=True)
    X, y, new = X[:600], y[:600], X[600:700]
    base = GaussianNB()
    logs, parts = np.zeros((600, 10)), []
    for inside, outside in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
        part = clone(base).fit(X[inside], y[inside])
        parts.append(part)
        logs[outside] = part.predict_proba(X[outside])
    assert (logs == 0).any()
    smallest = max(logs[logs > 0].min() / 2, np.finfo(float).eps)
    scaling = TemperatureScaling(prior_scale=None).fit(np.log(np.maximum(logs, smallest)), y)
    parts = parts if ensemble else [clone(base).fit(X, y)]
    expected = np.mean(
        [scaling.transform(np.log(np.maximum(part.predict_proba(new), smallest))) for part in parts], axis=0
    )

    model = CalibratedClassifier(base, cv=3, ensemble=ensemble).fit(X, y)

    assert model.calibrator_.temperature_ == scaling.temperature_
    np.testing.assert_allclose(model.predict_proba(new), expected, rtol=1e-12)


def test_a_forest_that_says_zero_keeps_a_finite_likelihood():
    X, y = load_digits(return_X_y=True)
    model = CalibratedClassifier(RandomForestClassifier(20, random_state=0), cv=3).fit(X[:900], y[:900])
    assert 0 < model.smallest_ < 0.05
    raw = model.estimators_[0].predict_proba(X[900:])
    assert (raw[np.arange(len(raw)), y[900:]] == 0).any()
    assert np.isfinite(evaluate(model.predictions(X[900:], y[900:])).nll)


def test_labels_are_texts_and_frames_have_names():
    pandas = pytest.importorskip("pandas")
    data = load_iris(as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"])[data.target]
    model = CalibratedClassifier(make_pipeline(StandardScaler(), LogisticRegression()), cv=4).fit(data.data, names)
    assert isinstance(data.data, pandas.DataFrame)
    assert model.feature_names_in_.tolist() == list(data.data.columns)
    assert set(model.predict(data.data)) == set(names)
    assert model.score(data.data, names) > 0.9
    assert model.predictions_.class_names == ("setosa", "versicolor", "virginica")


@pytest.mark.filterwarnings("ignore::calibrant.errors.CalibrantWarning")
def test_texts_in_a_pipeline_and_a_search_over_methods():
    texts = ["good film", "bad film", "fine good", "awful bad", "good", "bad"] * 6
    labels = ["yes", "no", "yes", "no", "yes", "yes"] * 6
    wrapped = CalibratedClassifier(make_pipeline(TfidfVectorizer(), LogisticRegression()), cv=3)
    search = GridSearchCV(wrapped, {"method": ["temperature", "vector"]}, scoring="neg_log_loss", cv=2)
    search.fit(texts, labels)
    assert search.best_estimator_.predict(["good film"]).tolist() == ["yes"]


def test_a_fitted_estimator_is_only_calibrated():
    X, y = load_iris(return_X_y=True)
    base = LinearSVC(max_iter=5000).fit(X[::2], y[::2])
    before = base.coef_.copy()
    model = CalibratedClassifier(base, cv="prefit").fit(X[1::2], y[1::2])
    assert model.estimators_ == [base]
    np.testing.assert_array_equal(base.coef_, before)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize(
    ("arguments", "y", "name"),
    [
        ({"cv": "folds"}, [0, 1] * 10, "cv"),
        ({"cv": 5}, [0] * 19 + [1], "y"),
        ({"cv": 5}, [0] * 20, "y"),
        ({"cv": TimeSeriesSplit(3)}, [0, 1] * 10, "cv"),
        ({"cv": RepeatedStratifiedKFold(n_splits=2, n_repeats=2)}, [0, 1] * 10, "cv"),
        ({"cv": 1}, [0, 1] * 10, "cv"),
        ({"method": "plat"}, [0, 1] * 10, "method"),
        ({"estimator": Ridge()}, [0, 1] * 10, "estimator"),
    ],
)
def test_bad_arguments_are_one_line(arguments, y, name):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(InvalidInput, match=f"^{name} must"):
        CalibratedClassifier(**arguments).fit(X, y)


def test_labels_that_a_fitted_estimator_does_not_know():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InvalidInput, match=r"^y must"):
        CalibratedClassifier(GaussianNB().fit(X, y), cv="prefit").fit(X, y + 1)


def test_weights_for_an_estimator_without_weights():
    from sklearn.neighbors import KNeighborsClassifier

    X, y = load_iris(return_X_y=True)
    with pytest.raises(InvalidInput, match=r"^sample_weight must"):
        CalibratedClassifier(KNeighborsClassifier()).fit(X, y, sample_weight=np.ones(len(y)))


def test_weights_reach_the_calibrator():
    X, y = load_digits(return_X_y=True)
    fitted = GaussianNB().fit(X[:600], y[:600])
    held_out, labels = X[600:900], y[600:900]
    copies = np.random.default_rng(0).integers(0, 3, 300)
    weighted = CalibratedClassifier(fitted, cv="prefit").fit(held_out, labels, sample_weight=copies)
    repeated = CalibratedClassifier(fitted, cv="prefit").fit(np.repeat(held_out, copies, 0), np.repeat(labels, copies))
    plain = CalibratedClassifier(fitted, cv="prefit").fit(held_out, labels)
    assert weighted.calibrator_.temperature_ == pytest.approx(repeated.calibrator_.temperature_, rel=1e-7)
    assert weighted.calibrator_.temperature_ != pytest.approx(plain.calibrator_.temperature_, rel=1e-3)


def test_weights_are_refused_if_the_method_is_still_to_be_chosen():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InvalidInput, match="sample_weight must be left out with method='best'"):
        CalibratedClassifier(method="best").fit(X, y, sample_weight=np.ones(len(y)))


def test_the_name_of_scikit_learns_default_leads_to_the_nearest_method():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InvalidInput, match=r"'sigmoid'.*'platt'.*'beta'.*'temperature'"):
        CalibratedClassifier(method="sigmoid").fit(X, y)


@pytest.mark.parametrize(("load", "cv"), [(load_iris, 3), (load_iris, "prefit"), (load_digits, 3)])
def test_a_decision_function_of_pairs_of_classes_is_refused(load, cv):
    # Three classes have three pairs: the number of columns alone does not give them away.
    X, y = load(return_X_y=True)
    X, y = X[:300], y[:300]
    model = CalibratedClassifier(SVC(decision_function_shape="ovo").fit(X, y), cv=cv)
    with pytest.raises(InvalidInput, match=r"^estimator must say .*decision_function_shape='ovr'"):
        model.fit(X, y)
    CalibratedClassifier(SVC(decision_function_shape="ovr"), cv=3).fit(X, y)


def test_a_decision_function_of_any_unit_finds_its_temperature():
    X, y = load_breast_cancer(return_X_y=True)  # raw columns: the perceptron's numbers are in the hundred thousands
    model = CalibratedClassifier(Perceptron()).fit(X[::2], y[::2])
    assert model.calibrator_.temperature_ > 1e5
    assert not model.calibrator_.summary_.at_bound
    assert evaluate(model.predictions(X[1::2], y[1::2])).nll < 0.5


def test_the_order_of_a_fitted_estimators_classes_does_not_matter():
    X, y = load_iris(return_X_y=True)

    class Backwards(GaussianNB):
        def predict_proba(self, X):
            return super().predict_proba(X)[:, ::-1]

    base = Backwards().fit(X, y)
    base.classes_ = base.classes_[::-1]
    model = CalibratedClassifier(base, cv="prefit").fit(X, y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(X, y) > 0.9


def test_a_frozen_estimator_that_knows_more_classes_than_the_cases():
    X, y = load_digits(return_X_y=True)
    base = GaussianNB().fit(X[:900], y[:900])
    X, y = X[900:][y[900:] != 3], y[900:][y[900:] != 3]
    with pytest.raises(InvalidInput, match=r"^y must hold every class that the fitted estimator knows, got no .*3"):
        CalibratedClassifier(FrozenEstimator(base)).fit(X, y)
    assert CalibratedClassifier(base, cv="prefit").fit(X, y).predict_proba(X).shape[1] == 10


def test_numpys_whole_numbers_and_none_are_folds_too():
    X, y = load_iris(return_X_y=True)
    found = [
        CalibratedClassifier(GaussianNB(), cv=cv).fit(X, y).calibrator_.temperature_ for cv in (5, np.int64(5), None)
    ]
    assert len(set(found)) == 1
