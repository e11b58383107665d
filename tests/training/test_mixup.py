import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from calibrant.errors import InvalidInput
from calibrant.losses import BSCEGRA, CrossEntropy, EntropyPenalty, Focal
from calibrant.pruning import ConfidencePruner
from calibrant.training import resume, train
from calibrant.training.batches import EpochTables, LoaderBatches, Mixup, Preparation, ResidentBatches
from calibrant.training.data import Augmentation
from calibrant.training.reproducibility import derive_seed
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

_N, _BATCH, _ALPHA = 22, 8, 0.4
_IMAGES = torch.randint(0, 256, (_N, 2, 5, 5), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
_LABELS = torch.arange(_N) % 3
_AUGMENTATION = Augmentation(crop_padding=1, flip=True)
_CPU = torch.device("cpu")


def batches(kind, *, epoch=1, rank=0, world_size=1, mixed=True):
    """The batches of an epoch."""
    pruner = ConfidencePruner(_LABELS, seed=5, batch_size=_BATCH // world_size)
    ranks = {"rank": rank, "world_size": world_size}
    tables = EpochTables(pruner, augmentation=_AUGMENTATION, batch_size=_BATCH, seed=5, **ranks)
    preparation = Preparation((0.4, 0.5), (0.2, 0.3), augmentation=_AUGMENTATION, device=_CPU, dtype=torch.float64)
    mixup = Mixup(_ALPHA, steps=8, seed=5, device=_CPU, dtype=torch.float64) if mixed else None
    options = {"batch_size": _BATCH // world_size, "mixup": mixup}
    if kind == "resident":
        source = ResidentBatches(_IMAGES, _LABELS, tables, preparation, **options)
    else:
        source = LoaderBatches(TensorDataset(_IMAGES, _LABELS), tables, preparation, workers=0, device=_CPU, **options)
    source.begin(epoch)
    return list(source.batches())


def shares(epoch, number):
    """What the shares must be: drawn from the seed and the epoch alone, the larger part first."""
    drawn = np.random.default_rng(derive_seed(5, "mixup", epoch)).beta(_ALPHA, _ALPHA, 8)
    return [max(value, 1 - value) for value in drawn][:number]


@pytest.mark.parametrize("kind", ["resident", "loader"])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_batch_is_mixed_with_itself_pixel_by_pixel(kind, epoch):
    plain, mixed = batches(kind, epoch=epoch, mixed=False), batches(kind, epoch=epoch)
    assert [len(batch.indices) for batch in mixed] == [8, 8, 6]
    for before, after, share in zip(plain, mixed, shares(epoch, 3), strict=True):
        assert torch.equal(after.indices, before.indices)
        assert torch.equal(after.targets, before.targets)
        assert float(after.mixed.share) == share >= 0.5
        n = len(before.indices)
        for i in range(n):
            j = (i + n // 2) % n
            expected = share * before.images[i] + (1 - share) * before.images[j]
            torch.testing.assert_close(after.images[i], expected, rtol=1e-14, atol=1e-14)
            assert int(after.mixed.partners[i]) == int(before.targets[j])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_odd_and_tiny_batches_are_mixed_too(size):
    mixup = Mixup(1.0, steps=1, seed=0, device=_CPU, dtype=torch.float64)
    mixup.begin(1)
    images, targets = torch.arange(float(size), dtype=torch.float64), torch.arange(size)
    found, mixed = mixup(images, targets, 0)
    assert sorted(mixed.partners.tolist()) == list(range(size))
    assert (mixed.partners != targets).all() or size == 1
    torch.testing.assert_close(found, mixed.share * images + (1 - mixed.share) * mixed.partners)


def test_mixing_asks_the_host_for_nothing():
    """A meta tensor has no values: whatever looks at one fails, as it would inside a capture."""
    meta = torch.device("meta")
    mixup = Mixup(1.0, steps=4, seed=0, device=meta, dtype=torch.float32)
    step = torch.zeros((), dtype=torch.int64, device=meta)
    images, mixed = mixup(torch.ones(6, 1, 2, 2, device=meta), torch.ones(6, dtype=torch.int64, device=meta), step)
    assert images.shape == (6, 1, 2, 2)
    assert (mixed.partners.shape, mixed.share.shape) == ((6,), ())


def test_two_ranks_mix_the_pairs_of_one_in_full_batches():
    whole = batches("resident")
    ranks = [batches("resident", rank=rank, world_size=2) for rank in (0, 1)]
    for number in range(2):
        one = whole[number]
        images = dict(zip(one.indices.tolist(), one.images, strict=True))
        partners = dict(zip(one.indices.tolist(), one.mixed.partners.tolist(), strict=True))
        for rank in ranks:
            part = rank[number]
            assert torch.equal(part.mixed.share, one.mixed.share)
            for row, index in enumerate(part.indices.tolist()):
                assert torch.equal(part.images[row], images[index])
                assert int(part.mixed.partners[row]) == partners[index]


def make_setup(toy_recipe, toy, **changes):
    changes = {"data__mixup": _ALPHA, "method__name": "nll", "method__options": {}, **changes}
    recipe = toy_recipe(engine__precision="64-true", **changes)
    return Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))


@pytest.mark.parametrize("loss", [CrossEntropy(0.1), Focal() + 0.3 * EntropyPenalty(), BSCEGRA()])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_gradient_is_the_mean_of_both_labels_sample_by_sample(toy_recipe, toy, loss, accumulate, monkeypatch):
    """Without batch normalisation, whose statistics would differ from piece to piece."""
    monkeypatch.setattr("calibrant.training.network.build_model", lambda *_, **__: small_network())
    setup = make_setup(toy_recipe, toy, optimiser__accumulate=accumulate)
    setup.learner.loss, setup.learner._full_terms = loss, loss.terms
    setup.steps.source.begin(1)
    batch = next(setup.steps.source.batches())
    share, expected, value = float(batch.mixed.share), [], 0.0
    for image, y, other in zip(batch.images, batch.targets, batch.mixed.partners, strict=True):
        for label, part in ((y, share), (other, 1 - share)):
            value = value + part * loss(setup.network(image[None]), label[None]) / len(batch.targets)
    expected = torch.autograd.grad(value, list(setup.network.parameters()))
    setup.learner.learn(batch)
    for parameter, gradient in zip(setup.network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-13)
    figures = setup.learner.meter.read()
    assert figures["loss"] == pytest.approx(float(value.detach()), rel=1e-10)
    # The log's accuracy goes by the label of the larger part; no sample gets the confidence of a mixture.
    assert figures["samples"] == len(batch.targets)
    assert not setup.pruner.table.column("count").any()


def small_network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


@pytest.mark.parametrize("path", ["resident", "loader"])
def test_a_resumed_run_ends_with_the_same_bits(toy, toy_recipe, tmp_path, stopped, assert_same_run, path):
    recipe = toy_recipe(data__mixup=0.3, method__name="fl", method__options={}, engine__data_path=path)
    whole = train(recipe, tmp_path / "whole", data=toy)
    assert_same_run(resume(stopped(recipe, tmp_path / "part", toy, 2), data=toy), whole)
    plain = train(recipe.changed({"data.mixup": 0.0}), tmp_path / "plain", data=toy)
    assert plain.summary["test"] != whole.summary["test"]


def test_both_data_paths_train_alike(toy, toy_recipe, tmp_path, assert_same_run):
    recipe = toy_recipe(data__mixup=0.3, method__name="nll+random", method__options={"start": 1}, epochs=3)
    runs = [train(recipe.changed({"engine.data_path": path}), tmp_path / path, data=toy) for path in PATHS]
    assert_same_run(*runs, recipe=False)


PATHS = ("resident", "loader")


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("flsd+h", "data.mixup must be 0 with a loss of the whole batch, got huber_calibration in flsd+h."),
        ("mmce", "data.mixup must be 0 with a loss of the whole batch, got mmce in mmce."),
        ("nll+unbiased", "data.mixup must be 0 with a plan that goes by the scores of batches, got nll+unbiased."),
    ],
)
def test_what_has_no_meaning_for_a_mixed_sample_is_refused(toy, toy_recipe, tmp_path, method, told):
    recipe = toy_recipe(data__mixup=0.2, method__name=method, method__options={})
    with pytest.raises(InvalidInput) as error:
        train(recipe, tmp_path / "run", data=toy)
    assert str(error.value).startswith(told)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("alpha", [-0.1, float("inf"), float("nan")])
def test_alpha_is_a_finite_number(toy_recipe, alpha):
    with pytest.raises(InvalidInput, match=r"data\.mixup"):
        toy_recipe(data__mixup=alpha)
