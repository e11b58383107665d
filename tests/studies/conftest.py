"""A finished study on the digits, trained once, and records made from drawn predictions."""

import functools

import numpy as np
import pytest

from calibrant.metrics import evaluate
from calibrant.predictions import Predictions
from calibrant.studies import Study, StudySpec
from calibrant.studies.records import Record as _Record
from calibrant.studies.records import changes_of, evaluations_of
from calibrant.training import paper_recipe, train_or_resume
from calibrant.training.final_weights import fit_temperature, scaled_by


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory):
    """Two methods, two seeds, two epochs; trained in this process, so that no test waits for another interpreter."""
    spec = StudySpec(methods=("nll", "flsd+h+p-ema"), seeds=(0, 1), recipe={"epochs": 2})
    study = Study(tmp_path_factory.mktemp("study") / "s", spec)
    for planned in study.runs:
        train_or_resume(planned.recipe, study.folder(planned))
    study.run()
    return study


def drawn(seed, *, rows=400, sharpness=3.0, truth=1.0):
    """Predictions with targets drawn from softmax(truth * logits); another `sharpness` than `truth` miscalibrates."""
    generator = np.random.default_rng(seed)
    base = generator.normal(size=(rows, 10)) * 3
    targets = (truth * base + generator.gumbel(size=base.shape)).argmax(axis=1)
    return Predictions.from_logits((sharpness * base).astype(np.float32), targets)


@functools.cache
def measured(seed, sharpness):
    """What a record measures; drawn once, because a bootstrap takes its time."""
    validation, test = drawn(1000 + seed, sharpness=sharpness), drawn(seed, sharpness=sharpness)
    temperature, notes = fit_temperature(validation)
    return {
        "test": evaluations_of(test),
        "test_scaled": evaluations_of(scaled_by(test, temperature)),
        "validation": evaluate(validation, n_bins=10).to_dict(),
        "temperature": temperature,
        "temperature_notes": notes,
    }


@pytest.fixture
def make_record():
    """A record of a run that never was, from predictions drawn with its seed."""

    def make(method="nll", *, data="cifar10", model="resnet32", seed=0, options=None, sharpness=1.5, **fields):
        recipe = paper_recipe(data).changed(
            {"model.name": model, "method.name": method, "method.options": options or {}, "seed": seed}
        )
        content = {
            **measured(seed, sharpness),
            "version": 1,
            "data": data,
            "model": model,
            "method": method,
            "seed": seed,
            "changes": changes_of(recipe),
            "recipe": recipe.model_dump(mode="json"),
            "settings": recipe.plan().settings,
            "best_validation": None,
            "samples_seen": 1000,
            "samples_full": 1000,
            "seen_share": 1.0,
            "train_seconds": 100.0,
            "seconds": 110.0,
            "concurrent_runs": 1,
            "steps_mode": "graphed",
            "environment": {"device": "some GPU", "commit": "0123456789abcdef"},
            "predictions_sha256": {"val": "a", "test": f"{method}{seed}"},
        }
        return _Record(**{**content, **fields})

    return make
