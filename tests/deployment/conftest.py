"""A calibrated model, its rule, and streams of it with and without planted drift."""

import csv

import numpy as np
import pytest
import torch
from torch import nn

from calibrant import Predictions, samples
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy, choose_shortlist, choose_threshold, route_file
from calibrant.deployment import export_onnx
from tests.deployment.serving import REQUESTS


def draw(n, *, seed, sharpness=6.0, flipped=0.0, classes=None, extras=None, ids=False):
    """Calibrated logits of four classes; `flipped` of the labels are drawn anew, which the model does not know."""
    rng = np.random.default_rng(seed)
    z = sharpness * rng.normal(size=(n, 4))
    if classes is not None:
        z += np.asarray(classes)
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    y = np.where(rng.random(n) < flipped, rng.integers(4, size=n), y)
    names = [f"case-{seed}-{row}" for row in range(n)] if ids else None
    return Predictions.from_logits(z, y, ids=names, extras=extras, class_names=["a", "b", "c", "d"])


def joined(*parts):
    ids = None if parts[0].ids is None else np.concatenate([part.ids for part in parts])
    scores, targets = np.concatenate([p.scores for p in parts]), np.concatenate([p.targets for p in parts])
    extras = {name: np.concatenate([p.extras[name] for p in parts]) for name in parts[0].extras}
    return Predictions.from_logits(scores, targets, ids=ids, extras=extras, class_names=parts[0].class_names)


@pytest.fixture(scope="session")
def reference():
    return draw(3000, seed=1)


@pytest.fixture(scope="session")
def rule(reference):
    chosen = choose_threshold(reference, 0.98)
    assert chosen.automates
    return chosen


def with_rule(rule, shortlist=None):
    """A policy without a calibrator."""
    return Policy(getattr(rule, "n_classes", 2), rule=rule, shortlist=shortlist)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """CIFAR-10 logits as the input of a network that changes nothing, and what `route apply` says about them."""
    folder = tmp_path_factory.mktemp("http")
    some, rest = samples.load("cifar10-resnet32-nll", "val").split(0.2)
    test = samples.load("cifar10-resnet32-nll")
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), 0.97)
    shortlist = choose_shortlist(calibrator(test.subset(np.arange(5000, 10000))), rule=rule)
    policy = Policy(10, calibrator, rule, shortlist)
    example = torch.from_numpy(test.logits[:200].astype(np.float32))
    export_onnx(nn.Identity(), folder / "model.onnx", example=example, ranges={"inputs": (-60, 60)}, policy=policy)
    first = test.subset(np.arange(REQUESTS))
    ids = [f"image {i}" for i in range(REQUESTS)]
    named = Predictions.from_logits(first.logits, first.targets, ids=ids, class_names=test.class_names)
    named.save(folder / "new.npz")
    route_file(policy, folder / "new.npz", folder / "applied.csv")
    with (folder / "applied.csv").open() as lines:
        applied = {row["id"]: row for row in csv.DictReader(lines)}
    return folder / "model.onnx", first.logits.astype(float).tolist(), applied
