"""Models with known faults, and a run folder without training."""

import json
import re
import tempfile
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.files import write_json
from calibrant.report import write_report
from calibrant.runs import PruningAudit, save_audit
from calibrant.training import Recipe, Run


def make_predictions(
    n=600, classes=4, *, seed=0, strength=4.0, sharpness=1.0, class_names=None, ids=None, dtype=np.float32
):
    """Logits whose true class leads by `strength` on average; `sharpness` above 1 makes them overconfident."""
    targets = np.random.default_rng(12345).integers(0, classes, n)
    logits = np.random.default_rng(seed).normal(size=(n, classes)) * 2
    logits[np.arange(n), targets] += strength
    logits = (logits * sharpness).astype(dtype)
    return Predictions.from_logits(logits, targets, class_names=class_names, ids=ids)


@pytest.fixture(scope="session")
def make():
    return make_predictions


@pytest.fixture
def predictions():
    return make_predictions()


@pytest.fixture
def run_folder(tmp_path):
    """A finished run on the digits with pruning: 3 epochs, 2 classes of 10 samples, 4 samples left after epoch 1."""
    run = Run.create(tmp_path / "run", Recipe(epochs=3))
    from calibrant.training.data import load_dataset

    digits = load_dataset("digits")
    targets = digits.test.labels.numpy()
    logits = np.random.default_rng(0).normal(size=(len(targets), 10)).astype(np.float32)
    logits[np.arange(len(targets)), targets] += 3
    Predictions.from_logits(logits, targets, ids=digits.test.ids, class_names=digits.class_names).save(
        run.predictions_path("test")
    )
    n, target = 20, np.repeat([0, 1], 10)
    left = np.full(n, -1)
    left[[0, 1, 10, 11]] = 1
    predicted, excess = target.copy(), np.zeros(n, np.float32)
    predicted[[3, 12]], excess[[3, 12]] = [1, 0], [0.25, 0.75]
    save_audit(
        run.path / "pruning.npz",
        PruningAudit(
            target=target,
            left=left,
            score=np.linspace(0.2, 0.9, n, dtype=np.float32),
            excess=excess,
            predicted=predicted,
            count=np.full(n, 3),
            kept=left < 0,
            kept_counts=np.array([[10, 10], [8, 8], [8, 8]]),
            class_sizes=np.array([10, 10]),
            settings={},
        ),
    )
    write_json(
        run.summary_path,
        {
            "method": {"name": "nll", "settings": {}},
            **{key: {"n": 10, "test_error": 0.1, "nll": None, "ece": 0.1} for key in ("test", "validation")},
            "best_validation": None,
            "samples_seen": 52,
            "samples_full": 60,
            "seen_share": 52 / 60,
            "environment": {"torch": "2.13.0", "device": "<cpu>", "cuda": None},
            "timing": {"train_seconds": 1.25, "seconds": 1.5},
        },
    )
    return run.path


def build_page(sources, **settings):
    """The page that `write_report` writes, as text."""
    with tempfile.TemporaryDirectory() as folder:
        return write_report(sources, Path(folder) / "report.html", **settings).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def page_data():
    """The JSON inside a page, as a browser would read it."""

    def read(html):
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
        return json.loads(found.group(1))

    return read


@pytest.fixture(scope="session")
def visible_text():
    """A page's text without tags, style and scripts."""

    def read(html):
        body = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).replace("\N{NO-BREAK SPACE}", " ").split())

    return read
