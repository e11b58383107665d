import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.losses import CrossEntropy
from calibrant.pruning import ConfidencePruner
from calibrant.training import train
from calibrant.training.batches import TrainingBatch
from calibrant.training.setup import make_fabric
from calibrant.training.step import Steps, TrainingMeter


def make_steps(recipe, loss):
    torch.manual_seed(0)
    network = nn.Linear(4, 3).double()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    fabric = make_fabric(recipe)
    model, wrapped = fabric.setup(network, optimiser)
    pruner = ConfidencePruner(torch.arange(30) % 3)
    source = SimpleNamespace(batch_size=12, tables=SimpleNamespace(pruner=pruner))
    return Steps(fabric, model, loss, wrapped, source), network


def make_batch(size):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    indices = torch.arange(size)
    return TrainingBatch(images, indices % 3, indices)


@pytest.mark.parametrize("before", [False, True])
def test_convolutions_are_measured_for_full_batches_and_the_setting_is_put_back(toy_recipe, monkeypatch, before):
    steps, network = make_steps(toy_recipe(engine__precision="64-true"), CrossEntropy())
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    seen = []
    network.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.benchmark))
    for size in (12, 5):
        steps.learn(make_batch(size))
    assert seen == [True, before]
    assert torch.backends.cudnn.benchmark == before


_NETWORK = """
from torch import nn

def network(*, n_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, n_classes))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_steps_follow_the_eager_curve(toy, toy_recipe, tmp_path, own_module):
    own_module("compiled_network", _NETWORK)
    # Kernels sum in another order: float64 shows that nothing else differs.
    recipe = toy_recipe(engine__precision="64-true", model__name="compiled_network:network")
    runs = [train(recipe.changed({"engine.mode": mode}), tmp_path / mode, data=toy) for mode in ("eager", "compiled")]
    assert [run.summary["steps_mode"] for run in runs] == ["eager", "compiled"]
    for eager, compiled in zip(*(run.epochs() for run in runs), strict=True):
        assert compiled["kept"] == eager["kept"]
        assert compiled["loss"] == pytest.approx(eager["loss"], rel=1e-9)
        assert compiled["accuracy"] == eager["accuracy"]
    weights = [run.load_model().state_dict() for run in runs]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-7, atol=1e-9)


def reference(batches):
    """Accuracy, confidence and ECE sample by sample; loss terms weighted by the size of their batch."""
    bins = [[0, 0.0, 0] for _ in range(15)]
    terms, samples = {}, 0
    for logits, targets, values in batches:
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
            top = max(row)
            confidence = 1 / sum(math.exp(value - top) for value in row)
            place = bins[max(math.ceil(confidence * 15) - 1, 0)]
            place[0] += 1
            place[1] += confidence
            place[2] += row.index(top) == target
        for name, value in values.items():
            terms[name] = terms.get(name, 0.0) + value * len(targets)
        samples += len(targets)
    return {
        "samples": samples,
        "accuracy": sum(place[2] for place in bins) / samples,
        "confidence": sum(place[1] for place in bins) / samples,
        "ece": sum(abs(place[1] - place[2]) for place in bins) / samples,
        "terms": {name: total / samples for name, total in terms.items()},
    }


def feed(meter, batches):
    for logits, targets, values in batches:
        terms = {name: torch.tensor(value) for name, value in values.items()}
        meter.update(logits, targets, terms, sum(terms.values()))
        meter.steps += 1


def make_batches(seed):
    generator = torch.Generator().manual_seed(seed)
    for size in (8, 8, 3):
        logits = torch.randn(size, 4, generator=generator) * 2
        yield logits, torch.randint(0, 4, (size,), generator=generator), {"focal": 0.5 + size, "huber": 0.25}


def test_totals_are_those_of_a_plain_loop_and_start_anew_each_epoch():
    meter = TrainingMeter(torch.device("cpu"))
    for seed in (0, 1):
        meter.reset()
        batches = list(make_batches(seed))
        feed(meter, batches)
        found, expected = meter.read(), reference(batches)
        assert found.pop("loss") == pytest.approx(sum(expected["terms"].values()))
        assert found.pop("terms") == pytest.approx(expected.pop("terms"))
        assert found == pytest.approx(expected, rel=1e-6)
        assert meter.first_bad_step() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_in_float32(dtype):
    meter = TrainingMeter(torch.device("cpu"))
    batches = [(logits.to(dtype), targets, terms) for logits, targets, terms in make_batches(2)]
    feed(meter, batches)
    found, expected = meter.read(), reference(batches)
    assert found["confidence"] == pytest.approx(expected["confidence"], rel=1e-6)
    assert json.loads(json.dumps(found)) == found  # it goes into the log


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_remembered(bad):
    meter = TrainingMeter(torch.device("cpu"))
    logits, targets = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    for first in (0, 1, 2):
        meter.reset()
        assert meter.first_bad_step() is None
        for value in (*[1.0] * first, bad, 3.0, bad):
            meter.update(logits, targets, {"loss": torch.tensor(value)}, torch.tensor(value))
            meter.steps += 1
        assert meter.first_bad_step() == first


def test_no_digit_of_a_loss_is_lost():
    meter = TrainingMeter(torch.device("cpu"))
    large = 2.0**24 - 1  # three times this is no float32, nor is one more than the sum
    for value, size in ((large, 3), (1.0, 1)):
        meter.update(
            torch.zeros(size, 2), torch.zeros(size, dtype=torch.int64), {"a": torch.tensor(value)}, torch.tensor(value)
        )
    assert meter.read()["terms"] == {"a": (3 * large + 1) / 4}
    assert meter.bins.dtype == torch.float64


def test_a_last_batch_that_cannot_be_normalised_is_one_line(toy, toy_recipe, tmp_path):
    # 81 samples in batches of 16, and feature maps of one pixel.
    with pytest.raises(InvalidInput, match=r"batch_size must leave no epoch with a last batch of one sample.*got 16"):
        train(toy_recipe(model__name="resnet18", epochs=1, method__name="nll", method__options={}), tmp_path, data=toy)
