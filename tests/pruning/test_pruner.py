"""The pruner as a whole: resuming, refusing, telling."""

import logging

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from calibrant.errors import CalibrantError, InvalidInput
from calibrant.pruning import (
    ConfidencePruner,
    Every,
    HighestConfidence,
    Indexed,
    LowestConfidence,
    load_audit,
)

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [30, 22, 11]))


def test_the_class_floor_refuses_and_says_so(caplog):
    labels = np.repeat([0, 1], [20, 4])
    pruner = ConfidencePruner(labels, policy=LowestConfidence(0.5), schedule=Every(1), minimum_per_class=3)
    with caplog.at_level(logging.WARNING, logger="calibrant.pruning"):
        for _ in range(4):
            pruner.observe(pruner.order(), torch.zeros(pruner.n_kept, 2))
            pruner.step()
    assert np.bincount(labels[pruner.kept]).tolist() == [3, 3]
    assert (
        "refused to prune below minimum_per_class=3 in 1 of 2 classes (first: class 1, 2 should leave, 1 did)"
        in caplog.text
    )
    notes = pruner.notes
    # 20, 10, 5, 3 of class 0; the same refusal is noted once
    assert [note.partition(":")[0] for note in notes] == ["epoch 1", "epoch 2", "epoch 4", "epoch 4"]
    assert "in 2 of 2 classes" in notes[2]
    assert "no sample left" in notes[3]


def test_no_class_is_ever_emptied():
    labels = np.repeat([0, 1, 2], [40, 2, 1])
    pruner = ConfidencePruner(labels, policy=HighestConfidence(0.9), schedule=Every(1))
    for _ in range(6):
        pruner.observe(pruner.order(), torch.zeros(pruner.n_kept, 3))
        pruner.step()
        assert np.bincount(labels[pruner.kept], minlength=3).min() == 1


def test_a_cut_without_effect_is_not_silent(caplog):
    pruner = ConfidencePruner(np.arange(6) % 2, policy=LowestConfidence(0.1), schedule=Every(1))
    pruner.observe(torch.arange(6), torch.zeros(6, 2))
    with caplog.at_level(logging.WARNING, logger="calibrant.pruning"):
        pruner.step()
    assert pruner.n_kept == 6
    assert "no sample left" in caplog.text
    assert "no sample left" in pruner.notes[0]


def test_pruning_without_scores_is_an_error():
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.1), schedule=Every(1))
    with pytest.raises(CalibrantError, match=r"Call pruner\.observe"):
        pruner.step()


def test_samples_that_were_never_observed_are_noted(caplog):
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.1), schedule=Every(1))
    pruner.observe(torch.arange(60), torch.zeros(60, 3))
    pruner.step()
    assert "3 samples were never observed" in caplog.text


@pytest.mark.parametrize(
    ("indices", "logits", "message"),
    [
        (torch.tensor([63]), torch.zeros(1, 3), r"indices must lie in 0\.\.62, got 63"),
        (torch.tensor([-1]), torch.zeros(1, 3), r"got -1"),
        (torch.tensor([5, -2, 5]), torch.zeros(3, 3), r"got -2"),
        (torch.tensor([5, 63, 5]), torch.zeros(3, 3), r"got 63\. Wrap what the loader reads, outermost: Indexed\("),
        (torch.tensor([1, 2]), torch.zeros(1, 3), r"indices must have shape \(1,\)"),
        (torch.tensor([[1]]), torch.zeros(1, 3), "indices must be int64 of shape"),
        (torch.tensor([1.0]), torch.zeros(1, 3), r"indices must be int64 of shape \(batch,\), got torch.float32"),
        (torch.tensor([1]), torch.zeros(1, 4), r"logits must have shape \(batch, 3\)"),
        (torch.tensor([1]), torch.zeros(1, 4), r"Make the pruner with n_classes= if some classes have no samples"),
        (torch.tensor([1]), torch.zeros(3), "logits must have shape"),
        (np.array([1]), torch.zeros(1, 3), r"indices must be a torch tensor, got ndarray\. .*as_tensor\(indices\)"),
        ([1], torch.zeros(1, 3), "indices must be a torch tensor, got list"),
        (torch.tensor([1]), np.zeros((1, 3)), "logits must be a torch tensor, got ndarray"),
        (torch.tensor([1]), None, "logits must be a torch tensor, got None"),
        (torch.tensor(1), torch.zeros(1, 3), "indices must be int64 of shape"),
    ],
)
def test_batches_that_do_not_fit_are_refused(indices, logits, message):
    pruner = ConfidencePruner(LABELS)
    with pytest.raises(InvalidInput, match=message):
        pruner.observe(indices, logits)
    assert pruner.table.rows[:, 0].eq(0).all()


def test_an_index_from_inside_the_dataset_is_hinted_at(caplog):
    """Each half counts from 0: the samples of the second are taken for those of the first, and never observed."""
    halves = TensorDataset(torch.randn(5, 3)), TensorDataset(torch.randn(5, 3))
    pruner = ConfidencePruner([0, 1] * 5, policy=LowestConfidence(0.5), schedule=Every(1))
    wrong = ConcatDataset([Indexed(half) for half in halves])
    for x, i in DataLoader(wrong, batch_size=10, sampler=pruner.sampler()):
        pruner.observe(i, x[:, :2])
    with caplog.at_level(logging.WARNING, "calibrant.pruning"):
        pruner.step()
    assert "5 samples were never observed; they keep the score 0 (drop_last, draws with replacement" in caplog.text
    assert "Indexed not outermost" in pruner.notes[0]


def test_one_logit_of_two_classes_is_told_how_to_become_two():
    pruner, z = ConfidencePruner([0, 1, 1]), torch.tensor([[2.0], [-1.0]])
    with pytest.raises(
        InvalidInput, match=r"logits must have shape .* torch\.cat\(\[torch\.zeros_like\(z\), z\], dim=1"
    ):
        pruner.observe(torch.arange(2), z)
    pruner.observe(torch.arange(2), torch.cat([torch.zeros_like(z), z], dim=1))
    torch.testing.assert_close(pruner.scores[:2], 0.3 * torch.sigmoid(torch.tensor([2.0, 1.0])))


def test_weights_check_their_indices_too():
    with pytest.raises(InvalidInput, match="indices must lie"):
        ConfidencePruner(LABELS).weights(torch.tensor([99]))
    with pytest.raises(InvalidInput, match="indices must be a torch tensor, got list"):
        ConfidencePruner(LABELS).weights([1])


def test_numbers_of_numpy_do_not_stop_the_record(tmp_path):
    pruner = ConfidencePruner(LABELS, ema=np.float32(0.5), epochs=np.int64(3), minimum_per_class=np.int32(2))
    pruner.save(tmp_path / "pruning.npz")
    assert load_audit(tmp_path / "pruning.npz").settings == pruner.settings()


@pytest.mark.parametrize(
    ("argument", "arguments"), [("batch_size", (3, 0)), ("world_size", (3, 1, 0)), ("epochs", (-1, 1))]
)
def test_steps_of_nothing_are_refused(argument, arguments):
    with pytest.raises(InvalidInput, match=f"{argument} must"):
        ConfidencePruner(LABELS).total_steps(*arguments)


def test_steps_are_known_in_advance():
    assert ConfidencePruner(LABELS).total_steps(2, 10) == 2 * 7  # 63 samples: six full batches and one of three
    assert ConfidencePruner(LABELS).total_steps(2, 10, 3) == 2 * 3
    assert ConfidencePruner(LABELS).total_steps(0, 10) == 0


def test_a_batch_size_is_the_constructors_unless_told():
    # 63 samples over two ranks: batches of 3 leave 3 for the last, batches of 31 leave 1, which is too few for two.
    pruner, order = ConfidencePruner(LABELS, batch_size=3), ConfidencePruner(LABELS).global_order().tolist()
    assert list(pruner.sampler(rank=1, world_size=2)) == order[1::2]
    assert list(pruner.sampler(rank=1, world_size=2, batch_size=31)) == [*order[1::2], order[0]]
    assert len(pruner.sampler(rank=1, world_size=2)) == 31
    assert len(pruner.sampler(rank=1, world_size=2, batch_size=31)) == 32


def test_the_tables_lie_where_they_were_asked_for():
    assert ConfidencePruner(LABELS).device.type == "cpu"
    pruner = ConfidencePruner(LABELS).to("meta")
    assert {pruner.device.type, pruner.kept_mask.device.type, pruner.table.rows.device.type} == {"meta"}


def test_an_empty_batch_changes_nothing():
    pruner = ConfidencePruner(LABELS)
    before = pruner.table.rows.clone()
    pruner.observe(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))
    assert torch.equal(before, pruner.table.rows)


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        ([], {}, "targets must"),
        ([[0], [1]], {}, "targets must"),
        ([0.0, 1.0], {}, "targets must"),
        (["cat", "dog"], {}, "targets must"),
        ([[1, 0], [0, 1]], {}, "targets must"),
        (TensorDataset(torch.zeros(2, 3), torch.arange(2)), {}, "targets must"),
        ([torch.arange(2), torch.arange(3)], {}, "targets must"),
        ([0, -1], {}, "targets must"),
        ([0, 2], {}, "targets must hold every class, got none of class 1"),
        ([0, 5], {"n_classes": 3}, "targets must"),
        ([0, 2**20], {"n_classes": 2**21}, "targets must"),
        ([0, 1], {"ema": 0}, r"ema must lie in \(0, 1\]"),
        ([0, 1], {"ema": 1.1}, "ema must lie"),
        ([0, 1], {"ema": "x"}, "ema must be a number, got 'x'"),
        ([0, 1], {"epochs": "x"}, "epochs must"),
        ([0, 1], {"n_classes": 2.5}, "n_classes must"),
        ([0, 1], {"batch_size": None, "minimum_per_class": 1.5}, "minimum_per_class must"),
        ([0, 1], {"seed": -1}, "seed must be"),
        ([0, 1], {"seed": True}, "seed must be"),
        ([0, 1], {"epochs": 0}, "epochs must"),
        ([0, 1], {"minimum_per_class": 0}, "minimum_per_class must"),
        ([0, 1], {"batch_size": 0}, "batch_size must"),
        (
            [0, 1],
            {"policy": LowestConfidence(0.1, within="batch"), "schedule": Every(1)},
            "batch_size must be given with LowestConfidence",
        ),
    ],
)
def test_constructors_refuse_what_cannot_work(targets, options, message):
    with pytest.raises(InvalidInput, match=message):
        ConfidencePruner(targets, **options)


def test_a_class_may_be_empty_where_that_is_said(caplog):
    pruner = ConfidencePruner([0, 0, 2], n_classes=4, policy=LowestConfidence(0.5), schedule=Every(1))
    assert "2 of 4 classes have no samples (first: class 1)" in caplog.text
    pruner.observe(torch.arange(3), torch.zeros(3, 4))
    pruner.step()
    assert len(pruner.kept) == 2


def test_targets_are_copied():
    labels = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    pruner = ConfidencePruner(labels)
    labels[0] = 1
    assert pruner.audit().class_sizes.tolist() == [2, 2]
