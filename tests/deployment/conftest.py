"""A calibrated model, its rule, and streams of it with and without planted drift."""

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import Policy, choose_threshold


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
