"""Train small models on real data sets and write their predictions, for benchmarks/ranking_scores.py.

Run: python benchmarks/ranking_sets.py DATA OUT [name ...]

DATA holds cifar100.npz, svhn.npz, fashion-mnist.npz and mendeley-v2.npz (x_train, y_train, x_test, y_test in uint8),
letter.csv (UCI letter recognition, the letter first), satellite.csv (Statlog Landsat, the class last), adult-train.csv
and adult-test.csv (UCI adult) and packages.txt (Debian's list of packages). The digits come with scikit-learn. OUT gets
one file of predictions per set, of cases that the model was not trained on.
"""

import argparse
import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from torch import nn

from calibrant import Predictions

Array = NDArray[Any]


def network(
    images: Array, labels: Array, epochs: int, widths: tuple[int, int, int] = (16, 32, 64)
) -> Callable[[Array], Array]:
    """A small convolutional network, trained on the CPU; returns a function from images to logits."""
    torch.manual_seed(0)
    channels, classes = images.shape[1], int(labels.max()) + 1
    layers: list[nn.Module] = []
    for inside, outside in zip((channels, *widths), widths, strict=False):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(9 * widths[-1], classes))
    steps = epochs * (len(images) // 128)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=steps)
    for step in range(steps):
        rows = np.random.default_rng([7, step]).integers(len(images), size=128)
        inputs = torch.from_numpy(images[rows]).float() / 255 - 0.5
        loss = nn.functional.cross_entropy(model(inputs), torch.from_numpy(labels[rows]).long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    model.eval()

    def logits(some: Array) -> Array:
        with torch.no_grad():
            parts = [model(torch.from_numpy(part).float() / 255 - 0.5) for part in np.array_split(some, 20)]
        return torch.cat(parts).numpy()

    return logits


def images_of(path: Path) -> dict[str, Array]:
    arrays = dict(np.load(path))
    for name in ("x_train", "x_test"):
        images = arrays[name]
        if images.ndim == 3:
            images = images[..., None]
        arrays[name] = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return arrays


def of_network(path: Path, epochs: int, widths: tuple[int, int, int] = (16, 32, 64)) -> Predictions:
    arrays = images_of(path)
    logits = network(arrays["x_train"], arrays["y_train"], epochs, widths)
    return Predictions.from_logits(logits(arrays["x_test"]), arrays["y_test"].astype(np.int64))


def mendeley(data: Path) -> Predictions:
    """Half of the official training images is held out: the official 624 test cases are too few."""
    arrays = images_of(data / "mendeley-v2.npz")
    order = np.random.default_rng(0).permutation(len(arrays["y_train"]))
    images, labels = arrays["x_train"][order], arrays["y_train"][order].astype(np.int64)
    logits = network(images[:2000], labels[:2000], 12)
    return Predictions.from_logits(logits(images[2000:]), labels[2000:])


def packages(data: Path) -> Predictions:
    """The section of a Debian package from its name-free description; one package per source."""
    found: dict[str, tuple[str, str]] = {}
    for entry in (data / "packages.txt").read_text().split("\n\n"):
        fields = dict(re.findall(r"^(Package|Source|Section|Description): (.*)$", entry, re.MULTILINE))
        if {"Section", "Description"} <= fields.keys():
            found.setdefault(
                fields.get("Source", fields["Package"]).split()[0], (fields["Description"], fields["Section"])
            )
    names, counts = np.unique([section for _, section in found.values()], return_counts=True)
    common = {str(name) for name, count in zip(names, counts, strict=True) if count >= 100}
    rows = [row for row in found.values() if row[1] in common]
    order = np.random.default_rng(0).permutation(len(rows))
    texts = [rows[i][0] for i in order]
    sections = np.unique([rows[i][1] for i in order], return_inverse=True)[1]
    half = len(rows) // 2
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
    model = LogisticRegression(C=10, max_iter=200).fit(words.fit_transform(texts[:half]), sections[:half])
    return Predictions.from_logits(model.decision_function(words.transform(texts[half:])), sections[half:])


def letters(data: Path, model: Any) -> Predictions:
    with (data / "letter.csv").open() as file:
        rows = [row for row in csv.reader(file) if row[1:] and row[0] != "Letter"]
    features = np.array([row[1:] for row in rows], dtype=np.float64)
    labels = np.unique([row[0] for row in rows], return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(rows))
    features, labels = (features[order] - 7.5) / 3, labels[order]
    model.fit(features[:8000], labels[:8000])
    return Predictions.from_probabilities(model.predict_proba(features[8000:]), labels[8000:])


def satellites(data: Path, model: Any) -> Predictions:
    """What covers the ground, from pixels of a satellite."""
    with (data / "satellite.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    order = np.random.default_rng(0).permutation(len(rows))
    features = np.array([rows[i][:-1] for i in order], dtype=np.float64)
    labels = np.unique([rows[i][-1] for i in order], return_inverse=True)[1]
    model.fit(features[:2000], labels[:2000])
    return Predictions.from_probabilities(model.predict_proba(features[2000:]), labels[2000:])


def adults(data: Path, model: Any) -> Predictions:
    """Whether an adult earns more than 50,000 dollars (UCI adult); categories become numbers."""
    parts = [(data / f"adult-{name}.csv").read_text().strip().splitlines() for name in ("train", "test")]
    rows = [[cell.strip() for cell in row.split(",")] for part in parts for row in part]
    columns = list(zip(*rows, strict=True))
    numbers = [np.unique(column, return_inverse=True)[1] for column in columns[:-1]]
    for place in (0, 2, 4, 10, 11, 12):
        numbers[place] = np.array(columns[place], dtype=np.int64)
    features, labels = np.stack(numbers, axis=1).astype(np.float64), np.array([int(">" in row[-1]) for row in rows])
    model.fit(features[: len(parts[0])], labels[: len(parts[0])])
    return Predictions.from_probabilities(model.predict_proba(features[len(parts[0]) :]), labels[len(parts[0]) :])


def digits() -> Predictions:
    features, labels = load_digits(return_X_y=True)
    model = MLPClassifier((64,), max_iter=60, random_state=0)
    probabilities = cross_val_predict(model, features / 16, labels, cv=5, method="predict_proba")
    return Predictions.from_probabilities(probabilities, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    data = arguments.data
    makers: dict[str, Callable[[], Predictions]] = {
        "digits-mlp": digits,
        "letter-mlp": lambda: letters(data, MLPClassifier((100,), max_iter=100, random_state=0)),
        "letter-forest": lambda: letters(data, RandomForestClassifier(200, random_state=0)),
        "satellite-boosting": lambda: satellites(data, HistGradientBoostingClassifier(random_state=0)),
        "adult-bayes": lambda: adults(data, GaussianNB()),
        "adult-boosting": lambda: adults(data, HistGradientBoostingClassifier(random_state=0)),
        "debian-sections": lambda: packages(data),
        "mendeley-cnn": lambda: mendeley(data),
        "fashion-mnist-cnn": lambda: of_network(data / "fashion-mnist.npz", 4),
        "svhn-cnn": lambda: of_network(data / "svhn.npz", 3),
        "cifar100-cnn": lambda: of_network(data / "cifar100.npz", 8, (32, 64, 128)),
    }
    for name in arguments.names or makers:
        predictions = makers[name]()
        predictions.save(arguments.out / f"{name}.npz")
        print(f"{name}: {len(predictions):,} cases, accuracy {100 * predictions.correct.mean():.2f} %", flush=True)


if __name__ == "__main__":
    main()
