"""Does the exported file decide as Python does? 10,000 real cases each of a table, of texts and of images.

Each model is trained here for a minute, calibrated, given a rule and a shortlist on cases of their own, exported, and
then asked about 10,000 new cases: once in Python (scikit-learn or PyTorch), once through `Decider.load` (the file's
network, our float64 arithmetic), and once as any other runtime would use the file, by its outputs alone.

    python benchmarks/serving.py [--cases 10000] [--data-dir FOLDER]

The table: the 1,797 digits of scikit-learn as rows of 64 numbers. They are too few, so rows are drawn from them again
with noise: the largest real table that comes with a package. The texts: sentences from the documentation inside the
installed packages; the class is the package. The images: the street view house numbers (`svhn.npz`) in FOLDER.
"""

import argparse
import ast
import importlib
import re
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from calibrant import Predictions
from calibrant.calibration import make_calibrator
from calibrant.decisions import Policy, choose_shortlist, choose_threshold
from calibrant.deployment import Decider, export_onnx
from calibrant.training.models import build_model

LABELLED = 4000
Case = tuple[str, str, Any, dict[str, np.ndarray], Callable[[dict[str, np.ndarray]], Predictions], float]


def ask(model: nn.Module, part: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits; several inputs go by name."""
    said = model(**part) if len(part) > 1 else model(*part.values())
    return said if isinstance(said, torch.Tensor) else said.logits


def fit(model: nn.Module, inputs: dict[str, torch.Tensor], targets: torch.Tensor, steps: int, *, rate: float) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(targets), (128,), generator=generator)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(ask(model, {k: v[rows] for k, v in inputs.items()}), targets[rows])
        loss.backward()
        optimiser.step()
    model.eval()


def by_torch(model: nn.Module, targets: np.ndarray) -> Callable[[dict[str, np.ndarray]], Predictions]:
    def predict(arrays: dict[str, np.ndarray]) -> Predictions:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        starts = range(0, len(targets), 500)
        with torch.no_grad():
            parts = [ask(model, {name: tensor[at : at + 500] for name, tensor in tensors.items()}) for at in starts]
        return Predictions.from_logits(torch.cat(parts), targets)

    return predict


def table(cases: int, estimator: Any, name: str) -> Case:
    digits, rng = load_digits(), np.random.default_rng(0)
    rows = rng.integers(0, len(digits.target), 4000 + LABELLED + cases)
    x, y = digits.data[rows] + 2.0 * rng.normal(size=(len(rows), 64)), digits.target[rows]
    estimator.fit(x[:4000], y[:4000])

    def predict(arrays: dict[str, np.ndarray]) -> Predictions:
        given = arrays["inputs"]
        names = [str(each) for each in estimator.classes_]
        return Predictions.from_probabilities(estimator.predict_proba(given), y[4000:][: len(given)], class_names=names)

    return name, "isotonic", estimator, {"inputs": x[4000:]}, predict, 0.95


def sentences(package: str, most: int) -> list[str]:
    """Sentences of the docstrings of an installed package, each once, in the order of its files."""
    folder = Path(importlib.import_module(package).__file__ or "").parent
    found: dict[str, None] = {}
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
        texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
        for one in re.split(r"(?<=[.!?])\s+|\n\n", "\n\n".join(texts)):
            # The package's own name would give it away.
            words = re.sub(rf"(?i){package}", "", one).split()
            if 5 <= len(words) <= 60:
                found[" ".join(words)] = None
        if len(found) >= most:
            break
    return list(found)[:most]


def text(cases: int) -> Case:
    """Real sentences; words are hashed to 4,000 numbers, so that no tokenizer has to be fetched."""
    from transformers import BertConfig, BertForSequenceClassification

    each = -(-(12_000 + LABELLED + cases) // 4)
    labelled = [
        (one, k) for k, name in enumerate(("torch", "scipy", "sklearn", "sympy")) for one in sentences(name, each)
    ]
    order = np.random.default_rng(0).permutation(len(labelled))
    texts, y = [labelled[k][0] for k in order], np.array([labelled[k][1] for k in order])
    if len(y) < 4000 + LABELLED + cases:
        raise SystemExit(f"only {len(y):,} sentences in the installed packages")
    ids, mask = np.zeros((len(y), 24), dtype=np.int64), np.zeros((len(y), 24), dtype=np.int64)
    for row, one in enumerate(texts):
        words = re.findall(r"[a-z]+|[^a-z\s]", one.lower())[:24]
        ids[row, : len(words)] = [1 + zlib.crc32(word.encode()) % 3999 for word in words]
        mask[row, : len(words)] = 1
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=4000, max_position_embeddings=24, num_labels=4, **sizes)
    model = BertForSequenceClassification(config)
    arrays, train = {"input_ids": ids, "attention_mask": mask}, len(y) - LABELLED - cases
    start = {name: torch.from_numpy(array[:train]) for name, array in arrays.items()}
    fit(model, start, torch.from_numpy(y[:train]), 800, rate=1e-3)
    held = {name: array[train:] for name, array in arrays.items()}
    return "text: BERT of 2 layers", "dirichlet", model, held, by_torch(model, y[train:]), 0.9


def images(cases: int, data_dir: Path) -> Case:
    """House numbers: trained on a part of the training set, asked about the test set."""
    with np.load(data_dir / "svhn.npz") as data:
        few = slice(0, 20_000 + LABELLED)
        x = np.concatenate([data["x_train"][few], data["x_test"][:cases]])
        y = np.concatenate([data["y_train"][few], data["y_test"][:cases]]).astype(np.int64)
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.shape[-1] == 3 else x).astype(np.float32) / 255
    torch.manual_seed(0)
    model = build_model("tiny", n_classes=10, image_shape=(3, 32, 32))
    fit(model, {"images": torch.from_numpy(x[:20_000])}, torch.from_numpy(y[:20_000]), 800, rate=3e-3)
    predict = by_torch(model, y[20_000:])
    return "images: tiny convolutional", "temperature", model, {"images": x[20_000:]}, predict, 0.95


def compare(case: Case, folder: Path) -> str:
    name, method, model, arrays, predict, target_accuracy = case
    said = predict(arrays)
    labelled, new = said.subset(np.arange(LABELLED)), said.subset(np.arange(LABELLED, len(said)))
    some, rest = labelled.split(0.25)
    for_rule, for_list = rest.split(0.6)
    calibrator = make_calibrator(method).fit(some)
    rule = choose_threshold(calibrator(for_rule), target_accuracy)
    shortlist = choose_shortlist(calibrator(for_list), 0.9, rule=rule)
    policy = Policy(said.n_classes, calibrator, rule, shortlist)
    first = {key: values[:LABELLED] for key, values in arrays.items()}
    path = folder / "model.onnx"
    single = len(first) == 1
    example: Any = next(iter(first.values())) if single else {k: torch.from_numpy(v) for k, v in first.items()}
    if single and isinstance(model, nn.Module):
        example = torch.from_numpy(example)
    ranges = {key: (float(v.min()), float(v.max())) for key, v in arrays.items()}
    export_onnx(model, path, example=example, ranges=ranges, policy=policy)
    rows = {key: values[LABELLED:] for key, values in arrays.items()}
    routed = policy.decide(new)
    decider = Decider.load(path)
    decisions = decider.decide(rows)
    automate = np.array([each.automate for each in decisions])
    confidence = np.array([each.confidence for each in decisions])
    # The file says in which precision it wants its inputs.
    wanted = {spec.name: rows[spec.name].astype(spec.dtype) for spec in decider.contents.inputs}
    (alone,) = onnxruntime.InferenceSession(str(path)).run(["automate"], wanted)
    return (
        f"| {name} | {method} | {len(automate):,} | {routed.automate.mean():.1%} "
        f"| {int((automate != routed.automate).sum())} | {int((alone != routed.automate).sum())} "
        f"| {np.abs(confidence - routed.confidence).max():.1g} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--data-dir", type=Path, help="folder with svhn.npz; without it no images are compared")
    arguments = parser.parse_args()
    cases = arguments.cases
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    forest = RandomForestClassifier(100, max_depth=10, random_state=0)
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    print("| model | calibrator | new cases | automated | decisions that differ: Decider | the file's own outputs "
          "| largest difference of confidence |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- |")
    made: list[Callable[[], Case]] = [
        lambda: table(cases, linear, "table: scikit-learn, scaled logistic regression"),
        lambda: table(cases, forest, "table: scikit-learn, random forest"),
        lambda: text(cases),
    ]
    made += [] if arguments.data_dir is None else [lambda: images(cases, arguments.data_dir)]
    with tempfile.TemporaryDirectory() as folder:
        for make in made:
            print(compare(make(), Path(folder)), flush=True)


if __name__ == "__main__":
    main()
