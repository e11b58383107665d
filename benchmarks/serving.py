"""Does the exported file decide as Python does? 10,000 cases each of a table, of texts and of images.

Each model is trained here for seconds, calibrated, given a rule and a shortlist on cases of their own, exported, and
then asked about 10,000 new cases: once in Python (scikit-learn or PyTorch), once through `Decider.load` (the file's
network, our float64 arithmetic), and once as any other runtime would use the file, by its outputs alone.

    python benchmarks/serving.py [--cases 10000]
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from calibrant import Predictions
from calibrant.models import build_model
from calibrant.posthoc import make_calibrator
from calibrant.routing import choose_shortlist, choose_threshold
from calibrant.serving import Decider, export_onnx

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
    x, y = make_classification(4000 + LABELLED + cases, 20, n_informative=8, n_classes=4, class_sep=2.0, random_state=0)
    estimator.fit(x[:4000], y[:4000])

    def predict(arrays: dict[str, np.ndarray]) -> Predictions:
        rows = arrays["inputs"]
        names = [str(each) for each in estimator.classes_]
        return Predictions.from_probabilities(estimator.predict_proba(rows), y[4000:][: len(rows)], class_names=names)

    return name, "isotonic", estimator, {"inputs": x[4000:]}, predict, 0.95


def text(cases: int) -> Case:
    """Sentences of 16 tokens; the class is the group of tokens that occurs most often, and some labels are wrong."""
    from transformers import BertConfig, BertForSequenceClassification

    rng = np.random.default_rng(0)
    total = 4000 + LABELLED + cases
    y = rng.integers(0, 4, total)
    ids = rng.integers(10, 200, (total, 16))
    planted = rng.random((total, 16)) < 0.3
    ids = np.where(planted, 10 + 5 * y[:, None] + rng.integers(0, 5, (total, 16)), ids)
    mask = (np.arange(16) < rng.integers(6, 17, total)[:, None]).astype(np.int64)
    ids = ids * mask
    y = np.where(rng.random(total) < 0.02, rng.integers(0, 4, total), y)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=200, max_position_embeddings=16, num_labels=4, **sizes))
    arrays = {"input_ids": ids, "attention_mask": mask}
    start = {name: torch.from_numpy(array[:4000]) for name, array in arrays.items()}
    fit(model, start, torch.from_numpy(y[:4000]), 400, rate=2e-3)
    held = {name: array[4000:] for name, array in arrays.items()}
    return "text: BERT of 2 layers", "dirichlet", model, held, by_torch(model, y[4000:]), 0.9


def images(cases: int) -> Case:
    """Handwritten digits, drawn anew with noise."""
    digits = load_digits()
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(digits.target), 4000 + LABELLED + cases)
    noisy = digits.images[rows, None] / 16 + 0.25 * rng.normal(size=(len(rows), 1, 8, 8))
    x, y = np.clip(noisy, 0, 1).astype(np.float32), digits.target[rows]
    torch.manual_seed(0)
    model = build_model("tiny", n_classes=10, image_shape=(1, 8, 8))
    fit(model, {"images": torch.from_numpy(x[:4000])}, torch.from_numpy(y[:4000]), 300, rate=5e-3)
    predict = by_torch(model, y[4000:])
    return "images: tiny convolutional", "temperature", model, {"images": x[4000:]}, predict, 0.97


def compare(case: Case, folder: Path) -> str:
    name, method, model, arrays, predict, target_accuracy = case
    said = predict(arrays)
    labelled, new = said.subset(np.arange(LABELLED)), said.subset(np.arange(LABELLED, len(said)))
    some, rest = labelled.split(0.25)
    for_rule, for_list = rest.split(0.6)
    calibrator = make_calibrator(method).fit(some)
    rule = choose_threshold(calibrator(for_rule), target_accuracy)
    shortlist = choose_shortlist(calibrator(for_list), 0.9, rule=rule)
    parts = {"calibrator": calibrator, "rule": rule, "shortlist": shortlist}
    first = {key: values[:LABELLED] for key, values in arrays.items()}
    path = folder / "model.onnx"
    single = len(first) == 1
    example: Any = next(iter(first.values())) if single else {k: torch.from_numpy(v) for k, v in first.items()}
    if single and isinstance(model, nn.Module):
        example = torch.from_numpy(example)
    ranges = {key: (float(v.min()), float(v.max())) for key, v in arrays.items()}
    export_onnx(model, path, example=example, ranges=ranges, **parts)
    rows = {key: values[LABELLED:] for key, values in arrays.items()}
    routed = rule.route(calibrator(new))
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
    cases = parser.parse_args().cases
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    forest = RandomForestClassifier(100, max_depth=10, random_state=0)
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    print("| model | calibrator | new cases | automated | decisions that differ: Decider | the file's own outputs "
          "| largest difference of confidence |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for make in (
            lambda: table(cases, linear, "table: scikit-learn, scaled logistic regression"),
            lambda: table(cases, forest, "table: scikit-learn, random forest"),
            lambda: text(cases),
            lambda: images(cases),
        ):
            print(compare(make(), Path(folder)), flush=True)


if __name__ == "__main__":
    main()
