"""CalibratedClassifier against scikit-learn's CalibratedClassifierCV: held-out NLL, and seconds to fit and to predict.

    python benchmarks/sklearn_calibration.py [--splits 5]

Ten sets: the classification sets that scikit-learn brings along, its diabetes set with the outcome cut at the median,
even and odd digits, and four of `make_classification`; five classifiers (boosting is
left out for the ten digits, where a fit takes a minute); repeated halves for training and test. Both
wrappers have five folds and see the same rows, in turn, in one process. NLL and seconds are means over the splits; a
ratio below 1 means that ours is better or faster. The interval of the mean ratio is Student's over the sets.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
from scipy.special import stdtrit
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from calibrant.integrations.sklearn import CalibratedClassifier


def sets() -> dict[str, tuple[Any, Any]]:
    loaders = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}
    found = {name: load(return_X_y=True) for name, load in loaders.items()}
    X, y = load_diabetes(return_X_y=True)
    found["diabetes, halves"] = X, y > np.median(y)
    X, y = found["digits"]
    found["digits, even"] = X, y % 2
    kinds: dict[str, dict[str, Any]] = {"3 classes": {"n_classes": 3}, "5 classes": {"n_classes": 5}}
    kinds |= {"1 in 10": {"weights": [0.9]}, "wrong labels": {"flip_y": 0.2}}
    for name, kind in kinds.items():
        found[name] = make_classification(1200, 20, n_informative=6, random_state=0, **kind)
    return found


MODELS: dict[str, Callable[[int], Any]] = {
    "forest": lambda seed: RandomForestClassifier(50, random_state=seed),
    "boosting": lambda seed: GradientBoostingClassifier(n_estimators=30, random_state=seed),
    "naive Bayes": lambda _: GaussianNB(),
    "linear SVM": lambda seed: make_pipeline(StandardScaler(), LinearSVC(random_state=seed, max_iter=5000)),
    "logistic": lambda _: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "ours": CalibratedClassifier,
    "ours, one model": lambda model: CalibratedClassifier(model, ensemble=False),
    "sigmoid": lambda model: CalibratedClassifierCV(model, method="sigmoid"),
    "isotonic": lambda model: CalibratedClassifierCV(model, method="isotonic"),
    "temperature": lambda model: CalibratedClassifierCV(model, method="temperature"),
    "sigmoid, one model": lambda model: CalibratedClassifierCV(model, method="sigmoid", ensemble=False),
    "temperature, one model": lambda model: CalibratedClassifierCV(model, method="temperature", ensemble=False),
}


def measure(make: Callable[[Any], Any], model: Any, split: tuple[Any, ...]) -> tuple[float, float, float]:
    X, X_test, y, y_test = split
    began = time.perf_counter()
    fitted = make(model).fit(X, y)
    middle = time.perf_counter()
    probabilities = fitted.predict_proba(X_test)
    ended = time.perf_counter()
    return log_loss(y_test, probabilities, labels=fitted.classes_), middle - began, ended - middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--against", nargs="*", default=list(WRAPPERS)[2:], help="wrappers of scikit-learn")
    given = parser.parse_args()
    splits, against = given.splits, given.against
    warnings.simplefilter("ignore")
    print(f"scikit-learn {sklearn.__version__}, {splits} splits; CalibratedClassifierCV by the name of its method\n")
    print(f"{'set':<18}{'classifier':<13}{'wrapper':<24}{'NLL':>8}{'fit s':>9}{'predict s':>11}")
    cells: list[str] = []  # the set of each cell
    everything: dict[str, list[Any]] = {name: [] for name in [*list(WRAPPERS)[:2], *against]}
    for name, (X, y) in sets().items():
        for title, model in MODELS.items():
            if title == "boosting" and len(np.unique(y)) > 5:
                continue
            cells.append(name)
            for wrapper, means in everything.items():
                runs = [
                    measure(
                        WRAPPERS[wrapper], model(s), train_test_split(X, y, test_size=0.5, random_state=s, stratify=y)
                    )
                    for s in range(splits)
                ]
                mean = np.mean(runs, axis=0)
                means.append(mean)
                print(f"{name:<18}{title:<13}{wrapper:<24}{mean[0]:8.4f}{mean[1]:9.4f}{mean[2]:11.5f}", flush=True)
    print("\ngeometric mean of ours over theirs: NLL with a 95 % interval, seconds to fit, to predict; and cells won")
    for ours in ("ours", "ours, one model"):
        for wrapper in against:
            ratio = np.array(everything[ours]) / np.array(everything[wrapper])
            nll, fit, predict = np.exp(np.log(ratio).mean(axis=0))
            logs = np.log(ratio[:, 0])
            by_set = np.array([logs[np.array(cells) == name].mean() for name in dict.fromkeys(cells)])
            half = stdtrit(len(by_set) - 1, 0.975) * by_set.std(ddof=1) / len(by_set) ** 0.5
            ends = f"{np.exp(by_set.mean() - half):.3f} to {np.exp(by_set.mean() + half):.3f}"
            won = f"{int((ratio[:, 0] < 1).sum())} of {len(ratio)}"
            print(f"{ours:<16}{wrapper:<24}{nll:8.3f} ({ends}){fit:8.3f}{predict:8.3f}   {won}")


if __name__ == "__main__":
    main()
