"""On a GPU: all step modes train alike, a resumed run goes on as it would have, and a captured step follows changes."""

import pytest
import torch

from calibrant.training import resume, train
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


MODES = ["eager", "compiled", "graphed"]
# float64: batch normalisation multiplies a rounding difference at every step, so float32 curves part within epochs.
ON_GPU = {"engine__accelerator": "cuda", "engine__precision": "64-true", "model__name": "tiny"}


@pytest.fixture(scope="module")
def big_toy(make_toy):
    """Enough images for several full batches and a partial one, before and after pruning."""
    return make_toy(samples=330, tests=60)


@pytest.fixture(scope="module")
def eager_run(big_toy, toy_recipe, tmp_path_factory):
    recipe = toy_recipe(**ON_GPU, engine__mode="eager")
    return train(recipe, tmp_path_factory.mktemp("runs") / "eager", data=big_toy)


@pytest.mark.parametrize("mode", MODES[1:])
def test_every_mode_gives_the_eager_curve(mode, eager_run, big_toy, toy_recipe, tmp_path):
    run = train(toy_recipe(**ON_GPU, engine__mode=mode), tmp_path / mode, data=big_toy)
    assert run.summary["steps_mode"] == mode
    for line, expected in zip(run.epochs(), eager_run.epochs(), strict=True):
        assert line["kept"] == expected["kept"]
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert line["accuracy"] == expected["accuracy"]


def test_a_captured_step_gives_the_eager_curve_at_every_size(big_toy, toy_recipe, tmp_path):
    curves = []
    for mode in ("eager", "graphed"):
        recipe = toy_recipe(**ON_GPU | {"model__name": "resnet32"}, engine__mode=mode, schedule__resolution=[[4, 0.5]])
        curves.append([line["loss"] for line in train(recipe, tmp_path / mode, data=big_toy).epochs()])
    assert curves[1] == pytest.approx(curves[0], rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_ends_like_an_undisturbed_one(mode, eager_run, big_toy, toy_recipe, tmp_path, stopped):
    recipe = toy_recipe(**ON_GPU, engine__mode=mode)
    run = resume(stopped(recipe, tmp_path / "run", big_toy, 2), data=big_toy)
    for line, expected in zip(run.epochs(), eager_run.epochs(), strict=True):
        assert line["kept"] == expected["kept"]
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    logits, expected = run.predictions("test").logits, eager_run.predictions("test").logits
    torch.testing.assert_close(torch.as_tensor(logits), torch.as_tensor(expected), rtol=1e-4, atol=1e-4)


def test_a_captured_step_follows_the_learning_rate(big_toy, toy_recipe):
    recipe = toy_recipe(**ON_GPU, engine__mode="graphed", optimiser__momentum=0.0)
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, big_toy))
    setup.network.train()
    for epoch in (1, 2):
        setup.steps.source.begin(epoch)
        setup.steps.run_epoch(lambda step: None)
    before = [parameter.detach().clone() for parameter in setup.network.parameters()]
    setup.set_learning_rate(0.0)
    setup.steps.source.begin(3)
    setup.steps.run_epoch(lambda step: None)
    assert all(torch.equal(a, b) for a, b in zip(before, setup.network.parameters(), strict=True))


VARIANTS = {
    "adafocal": {"method__name": "adafocal", "method__options": {"adafocal_bins": 3, "adafocal_switch": 0.9}},
    "adamw": {"optimiser__name": "adamw", "optimiser__lr": 0.001},
    "readmit": {"method__options__readmit": True, "method__options__scoring": "resting"},
    "infobatch": {"method__name": "nll+infobatch", "method__options": {}, "budget": 0.8},
    "small images first": {"schedule__resolution": [[4, 0.5]]},
    "nesterov and alternating mirrors": {"optimiser__nesterov": True, "data__mirror": "alternate"},
    "best epoch": {"select": "best:scaled-nll"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_mode_gives_the_eager_curve_in_variants_too(variant, big_toy, toy_recipe, tmp_path):
    recipe = toy_recipe(**ON_GPU, **VARIANTS[variant])
    runs = [train(recipe.changed({"engine.mode": mode}), tmp_path / mode, data=big_toy) for mode in MODES]
    expected, *others = ([line["loss"] for line in run.epochs()] for run in runs)
    for found in others:
        assert found == pytest.approx(expected, rel=1e-6)
    # Whoever rests, and the epoch that is kept as the best, must not depend on the mode either.
    kept = [[line["kept"] for line in run.epochs()] for run in runs]
    logits = [torch.tensor(run.predictions("test").logits) for run in runs]
    for index in (1, 2):
        assert kept[index] == kept[0]
        torch.testing.assert_close(logits[index], logits[0], rtol=1e-4, atol=1e-4)
