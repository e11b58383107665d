import pytest
import torch
from torch.utils.data import TensorDataset

from calibrant.pruning import ConfidencePruner, Every, LowestConfidence
from calibrant.training.batches import Batches, EpochTables, Preparation
from calibrant.training.data import Augmentation, Images, augment, draw_augmentation, normalise
from calibrant.training.reproducibility import derive_seed

_N, _SIDE = 23, 5
_AUGMENTATION = Augmentation(crop_padding=2, flip=True)
_IMAGES = torch.randint(0, 256, (_N, 2, _SIDE, _SIDE), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
_LABELS = torch.arange(_N) % 3
_CPU = torch.device("cpu")


def make(kind, *, rank=0, world_size=1, batch_size=4, augmentation=_AUGMENTATION, workers=0):
    pruner = ConfidencePruner(
        _LABELS, policy=LowestConfidence(0.3), schedule=Every(1), seed=5, batch_size=batch_size // world_size
    )
    ranks = {"rank": rank, "world_size": world_size}
    tables = EpochTables(pruner, augmentation=augmentation, batch_size=batch_size, seed=5, **ranks)
    preparation = Preparation((0.4, 0.5), (0.2, 0.3), augmentation=augmentation, device=_CPU, dtype=torch.float32)
    local = tables.part(batch_size)
    items = TensorDataset(_IMAGES, _LABELS)
    if kind == "resident":
        items = Images(_IMAGES, _LABELS)
    resident = kind == "resident"
    return pruner, Batches(items, tables, preparation, batch_size=local, workers=workers, resident=resident)


def run_epochs(kind, epochs=3, **options):
    """Batches of some epochs with a pruning after each."""
    pruner, source = make(kind, **options)
    found = []
    for epoch in range(1, epochs + 1):
        source.begin(epoch)
        found.append(list(source.batches()))
        pruner.observe(torch.arange(_N), torch.linspace(-1, 1, _N * 3).view(_N, 3))
        pruner.step()
    return found


@pytest.mark.parametrize("kind", ["resident", "loader"])
def test_an_epoch_visits_every_kept_sample_once_augmented_by_its_position(kind):
    for epoch, batches in enumerate(run_epochs(kind), start=1):
        indices = torch.cat([batch.indices for batch in batches])
        assert len(indices) == len(set(indices.tolist()))
        assert [len(batch.indices) for batch in batches[:-1]] == [4] * (len(batches) - 1)
        offsets, flips = draw_augmentation(_N, 2, True, torch.Generator().manual_seed(derive_seed(5, "augment", epoch)))
        n = len(indices)
        expected = normalise(augment(_IMAGES[indices], offsets[:n], flips[:n], 2), (0.4, 0.5), (0.2, 0.3))
        assert torch.equal(torch.cat([batch.images for batch in batches]), expected)
        assert torch.equal(torch.cat([batch.targets for batch in batches]), _LABELS[indices])
    assert len(indices) < _N


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("kind", ["resident", "loader"])
def test_any_number_of_ranks_together_train_on_the_batches_of_one(kind, world_size):
    whole = run_epochs(kind)
    ranks = [run_epochs(kind, rank=rank, world_size=world_size) for rank in range(world_size)]
    for epoch, batches in enumerate(whole):
        assert [len(rank[epoch]) for rank in ranks] == [len(batches)] * world_size
        for number, batch in enumerate(batches):
            for place, rank in enumerate(ranks):
                part = rank[epoch][number]
                assert torch.equal(part.indices, batch.indices[place::world_size])
                assert torch.equal(part.images, batch.images[place::world_size])
                assert torch.equal(part.targets, batch.targets[place::world_size])


def test_without_augmentation_images_are_only_normalised():
    for batches in run_epochs("resident", augmentation=None):
        for batch in batches:
            assert torch.equal(batch.images, normalise(_IMAGES[batch.indices], (0.4, 0.5), (0.2, 0.3)))


def test_float_images_are_finished_input():
    preparation = Preparation((0.4,), (0.2,), augmentation=None, device=_CPU, dtype=torch.float64)
    images = torch.randn(2, 1, 3, 3)
    prepared = preparation.plain(images)
    assert prepared.dtype == torch.float64
    assert torch.equal(prepared, images.double())


def test_reading_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    run_epochs("loader")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["resident", "loader"])
def test_a_rank_may_hold_nothing_of_the_last_batch(kind):
    # 23 samples, two ranks, one sample each a step: no sample is trained on twice.
    (first,), (second,) = (run_epochs(kind, epochs=1, rank=rank, world_size=2, batch_size=2) for rank in (0, 1))
    assert (len(first), len(second)) == (12, 12)
    assert second[-1].images.shape == (0, *first[-1].images.shape[1:])
    assert second[-1].images.dtype == first[-1].images.dtype
    assert second[-1].indices.tolist() == []


def test_an_epoch_of_full_batches_has_no_empty_one_at_its_end():
    for kind in ("resident", "loader"):
        (batches,) = run_epochs(kind, epochs=1, batch_size=_N)
        assert [len(batch.indices) for batch in batches] == [_N]


def test_only_full_batches_are_prepared_by_the_compiled_way(monkeypatch):
    compiled = []

    def compile_(way, **_):
        return lambda *arguments: compiled.append(len(arguments[0])) or way(*arguments)

    monkeypatch.setattr(torch, "compile", compile_)
    _, source = make("resident")
    source.preparation.compile(4)
    source.begin(1)
    assert [len(batch.indices) for batch in source.batches()] == [4] * 5 + [3]
    assert compiled == [4] * 5


def test_a_dataset_whose_items_are_random_hears_the_epoch():
    heard = []

    class Told(TensorDataset):
        def set_epoch(self, epoch):
            heard.append(epoch)

    _, source = make("loader")
    again = Batches(Told(_IMAGES, _LABELS), source.tables, source.preparation, batch_size=4)
    for epoch in (1, 2):
        again.begin(epoch)
    assert heard == [1, 2]
