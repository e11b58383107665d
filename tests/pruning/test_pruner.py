"""The pruner as a whole: resuming, refusing, telling."""

import copy
import json
import logging

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from calibrant.errors import CalibrantError, InvalidInput
from calibrant.pruning import (
    AtEpochs,
    ConfidencePruner,
    EasyHard,
    ErrorNorm,
    Every,
    Forgetting,
    HighestConfidence,
    Indexed,
    InfoBatch,
    LowestConfidence,
    OnPlateau,
    OrderDP,
    RandomSubset,
    RePB,
    Selective,
    Unbiased,
    load_audit,
)

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [30, 22, 11]))
EPOCHS = 7
# Every policy and every schedule once: the table over which resuming is tested.
RUNS = {
    "nothing": {},
    "lowest": {"policy": LowestConfidence(0.2), "schedule": Every(2), "bias_correction": True},
    "within batches": {"policy": LowestConfidence(0.3, within="batch"), "schedule": Every(1), "batch_size": 16},
    "reselect": {"policy": LowestConfidence(0.3, readmit=True), "schedule": Every(1)},
    "highest": {"policy": HighestConfidence(0.2), "schedule": AtEpochs([1, 4])},
    "error norm": {"policy": ErrorNorm(0.2), "schedule": OnPlateau(1)},
    "forgetting": {"policy": Forgetting(0.2), "schedule": Every(2, start=3), "minimum_per_class": 9},
    "random": {"policy": RandomSubset(0.4), "anneal": 2, "epochs": EPOCHS},
    "unbiased": {"policy": Unbiased(0.8, 0.5), "schedule": OnPlateau(2), "ema": 1.0},
    "infobatch": {"policy": InfoBatch(0.4), "anneal": 2, "epochs": EPOCHS},
    "infobatch with a budget": {"policy": InfoBatch(), "budget": 0.75, "anneal": 1, "epochs": EPOCHS},
    "static subset with a budget": {
        "policy": ErrorNorm(0.5),
        "schedule": AtEpochs([2]),
        "budget": 0.6,
        "epochs": EPOCHS,
    },
    "easy and hard": {"policy": EasyHard(easy=0.6, hard=0.1, weights="mean"), "schedule": Every(1, start=2)},
    "orderdp": {"policy": OrderDP(0.8, 0.5)},
    "selective": {"policy": Selective(0.5, 2.0)},
    "repb": {"policy": RePB(0.6), "batch_size": 16},
}


def train_epoch(pruner):
    """One epoch of a stand-in for training: what the model says depends on the sample and the epoch alone."""
    generator = torch.Generator().manual_seed(1000 + pruner.epoch)
    logits = 3 * torch.randn(len(LABELS), 3, generator=generator)
    order = pruner.order()
    for indices in order.split(16):
        pruner.observe(indices, logits[indices])
    kept, weights = pruner.kept.tolist(), pruner.weights(torch.arange(len(LABELS))).tolist()
    pruner.step(loss=[3.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0][pruner.epoch])
    return order.tolist(), kept, weights


def through_files(state):
    """What a checkpoint does: tensors to safetensors, the rest to JSON, and back."""
    from safetensors.torch import load, save

    tensors = load(save({name: value for name, value in state.items() if isinstance(value, torch.Tensor)}))
    rest = json.loads(json.dumps({name: value for name, value in state.items() if name not in tensors}))
    return {**tensors, **rest}


def equal(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name] for name in a
    )


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_resuming_at_every_epoch_changes_nothing(options):
    straight = ConfidencePruner(LABELS, seed=6, **options)
    course, states = [], []
    for _ in range(EPOCHS):
        states.append(straight.state_dict())
        course.append(train_epoch(straight))
    for start, state in enumerate(states):
        resumed = ConfidencePruner(LABELS, seed=6, **options)
        addresses = resumed.table.rows.data_ptr(), resumed.kept_mask.data_ptr()
        resumed.load_state_dict(through_files(state))
        assert equal(resumed.state_dict(), state)
        assert resumed.epoch == start
        assert [train_epoch(resumed) for _ in range(start, EPOCHS)] == course[start:]
        assert equal(resumed.state_dict(), straight.state_dict())
        assert addresses == (resumed.table.rows.data_ptr(), resumed.kept_mask.data_ptr())
        assert resumed.report() == straight.report()
    if options:  # the run is worth resuming: somebody was out at some time
        assert min(len(kept) for _, kept, _ in course) < len(LABELS)


def test_resuming_in_the_middle_of_an_epoch_keeps_what_was_observed():
    whole, broken = (ConfidencePruner(LABELS, policy=LowestConfidence(0.2), schedule=Every(1)) for _ in range(2))
    logits = torch.randn(len(LABELS), 3, generator=torch.Generator().manual_seed(2))
    order = whole.order()
    for indices in order.split(16):
        whole.observe(indices, logits[indices])
    whole.step()
    for indices in order[:32].split(16):
        broken.observe(indices, logits[indices])
    resumed = ConfidencePruner(LABELS, policy=LowestConfidence(0.2), schedule=Every(1))
    resumed.load_state_dict(broken.state_dict())
    for indices in order[32:].split(16):
        resumed.observe(indices, logits[indices])
    resumed.step()
    assert equal(resumed.state_dict(), whole.state_dict())


def test_a_state_is_a_copy():
    pruner = ConfidencePruner(LABELS)
    state = pruner.state_dict()
    pruner.observe(torch.arange(3), torch.ones(3, 3))
    assert state["rows"][:, 0].eq(0).all()


def test_neither_saving_nor_loading_ties_a_state_to_its_pruner():
    first, second = (ConfidencePruner(LABELS, policy=LowestConfidence(0.2), schedule=Every(1)) for _ in range(2))
    train_epoch(first)
    state = first.state_dict()
    before = copy.deepcopy(state)
    second.load_state_dict(state)
    for pruner in (first, second):
        pruner.table.shared_count += 1
        train_epoch(pruner)
        assert equal(state, before)


def test_a_state_that_all_ranks_share_counts_as_shared():
    # One process keeps no account of what was shared; several that go on from it must not take its rows as news.
    pruner = ConfidencePruner(LABELS)
    train_epoch(pruner)
    for shared, expected in ((False, 0.0), (True, 1.0)):
        resumed = ConfidencePruner(LABELS)
        resumed.load_state_dict(pruner.state_dict(), shared=shared)
        assert resumed.table.shared_count.tolist() == [expected] * len(LABELS)


def test_a_state_of_other_data_or_other_settings_is_refused():
    state = ConfidencePruner(LABELS, seed=1).state_dict()
    with pytest.raises(InvalidInput, match=r"another seed \(1 there, 2 here\)\. Pass strict=False"):
        ConfidencePruner(LABELS, seed=2).load_state_dict(state)
    other = ConfidencePruner(LABELS, seed=2)
    other.load_state_dict(state, strict=False)
    swapped = LABELS.copy()
    swapped[[0, np.flatnonzero(swapped != swapped[0])[0]]] = swapped[[np.flatnonzero(swapped != swapped[0])[0], 0]]
    with pytest.raises(InvalidInput, match=r"another targets \(other labels, .*\)\. It belongs to other data"):
        ConfidencePruner(swapped, seed=1).load_state_dict(state, strict=False)
    with pytest.raises(InvalidInput, match="state must hold scores for ErrorNorm"):
        ConfidencePruner(LABELS, policy=ErrorNorm(0.1), schedule=Every(1)).load_state_dict(state, strict=False)
    with pytest.raises(InvalidInput, match="what state_dict gave"):
        other.load_state_dict({})
    with pytest.raises(InvalidInput, match="state must be what state_dict gave, got None"):
        other.load_state_dict(None)
    del state["notes"]
    with pytest.raises(InvalidInput, match="what state_dict gave, got something without notes"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 3),
        ("rows", torch.zeros(2, dtype=torch.int64)),
        ("weights", torch.ones(3)),
        ("kept_mask", torch.ones(len(LABELS))),
        ("left", None),
        ("history", torch.zeros(2)),
        ("epoch", "1"),
        ("memory", [1]),
        ("notes", {"a": 1}),
        ("notes", [{"epoch": 1}]),
        ("notes", [{"epoch": "1", "text": "x"}]),
        ("settings", 5),
    ],
)
def test_a_state_with_right_names_and_wrong_types_is_refused(name, value):
    pruner = ConfidencePruner(LABELS, policy=LowestConfidence(0.1), schedule=Every(1))
    with pytest.raises(InvalidInput, match="state must be what state_dict gave"):
        pruner.load_state_dict(pruner.state_dict() | {name: value})


def test_nothing_leaves_without_a_policy():
    pruner = ConfidencePruner(LABELS)
    orders = [tuple(train_epoch(pruner)[0]) for _ in range(3)]
    assert len(set(orders)) == 3
    assert pruner.n_kept == len(LABELS)
    assert pruner.scores.min() > 0


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
    notes = pruner.report().notes
    assert [note.epoch for note in notes] == [1, 2, 4, 4]  # 20, 10, 5, 3 of class 0; the same refusal is told once
    assert "in 2 of 2 classes" in notes[2].text
    assert "no sample left" in notes[3].text


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
    assert "no sample left" in pruner.report().table()


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
        (torch.tensor([[1]]), torch.zeros(1, 3), "indices must have shape"),
        (torch.tensor([1.0]), torch.zeros(1, 3), "indices must be int64"),
        (torch.tensor([1]), torch.zeros(1, 4), r"logits must have shape \(batch, 3\)"),
        (torch.tensor([1]), torch.zeros(1, 4), r"Make the pruner with n_classes=4 where some have no samples"),
        (torch.tensor([1]), torch.zeros(3), "logits must have shape"),
        (np.array([1]), torch.zeros(1, 3), r"indices must be a torch tensor, got ndarray\. .*as_tensor\(indices\)"),
        ([1], torch.zeros(1, 3), "indices must be a torch tensor, got list"),
        (torch.tensor([1]), np.zeros((1, 3)), "logits must be a torch tensor, got ndarray"),
        (torch.tensor([1]), None, "logits must be a torch tensor, got None"),
        (torch.tensor(1), torch.zeros(1, 3), "indices must have shape"),
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
    assert "Indexed not outermost" in pruner.report().notes[0].text


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


@pytest.mark.parametrize("loss", ["x", torch.zeros(2), [1.0]])
def test_a_loss_that_is_no_number_is_refused(loss):
    pruner = ConfidencePruner(LABELS)
    with pytest.raises(InvalidInput, match="loss must be a number, got"):
        pruner.step(loss)
    assert pruner.epoch == 0


@pytest.mark.parametrize("loss", [1, np.float32(1.0), torch.tensor(1.0, requires_grad=True), np.array(1.0), None])
def test_a_loss_may_be_any_one_number(loss):
    pruner = ConfidencePruner(LABELS)
    pruner.step(loss)
    assert pruner.epoch == 1


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
    assert pruner.order(rank=1, world_size=2).tolist() == order[1::2]
    assert pruner.order(rank=1, world_size=2, batch_size=31).tolist() == [*order[1::2], order[0]]
    assert len(pruner.sampler(rank=1, world_size=2)) == 31
    assert len(pruner.sampler(rank=1, world_size=2, batch_size=31)) == 32


def test_the_tables_lie_where_they_were_asked_for():
    assert ConfidencePruner(LABELS).device.type == "cpu"
    pruner = ConfidencePruner(LABELS, device="meta")
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
    assert pruner.report().class_kept == [1, 0, 1, 0]


def test_targets_are_copied():
    labels = torch.tensor([0, 1, 0, 1], dtype=torch.int32)
    pruner = ConfidencePruner(labels)
    labels[0] = 1
    assert pruner.report().class_sizes == [2, 2]


def test_the_loss_of_an_epoch_may_be_a_tensor():
    pruner = ConfidencePruner(LABELS, policy=RandomSubset(0.5), schedule=OnPlateau(1))
    for _ in range(2):
        pruner.step(loss=torch.tensor(1.0))
    assert pruner.n_kept == 32
    json.dumps(pruner.state_dict()["memory"])


def test_fixed_batches_hold_what_was_pruned():
    """The set gets smaller, the batches stay as they were before the training; resumed or not."""
    options = {"policy": LowestConfidence(0.5), "schedule": Every(1), "fixed_batches": True, "seed": 3}
    pruner, again = (ConfidencePruner([0] * 8 + [1] * 8, **options) for _ in range(2))
    first = pruner.order().tolist()
    logits = torch.linspace(0.1, 4, 16)[:, None] * torch.tensor([1.0, 0.0])
    for epoch in range(3):
        assert pruner.order().tolist() == first
        pruner.observe(pruner.order(), logits[pruner.order()])
        pruner.step()
        if epoch == 0:
            again.load_state_dict(pruner.state_dict())
    left = pruner.audit().left.tolist()
    assert left == [1, 1, 1, 1, 2, 2, 3, -1] * 2, "half of what is left of each class, the least confident first"
    assert (pruner.n_kept, pruner.samples_by_epoch(3)) == (16, [16, 16, 16])
    assert pruner.report().seen == 48
    for _ in range(2):
        again.observe(again.order(), logits[again.order()])
        again.step()
    assert again.audit().left.tolist() == left
    with pytest.raises(InvalidInput, match="another fixed_batches"):
        ConfidencePruner([0] * 8 + [1] * 8, **{**options, "fixed_batches": False}).load_state_dict(pruner.state_dict())


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Unbiased(0.5, 0.5)},
        {"policy": LowestConfidence(0.5, readmit=True), "schedule": Every(1), "scoring": "all"},
        {"policy": LowestConfidence(0.5), "schedule": Every(1), "scoring": "all"},
    ],
)
def test_fixed_batches_that_would_mean_nothing_are_refused(options):
    with pytest.raises(InvalidInput, match="fixed_batches must be False with"):
        ConfidencePruner([0, 1], fixed_batches=True, **options)
