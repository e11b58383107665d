"""Predictions, and scores of samples."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from calibrant.training import resume, train
from calibrant.training.run_data import HeldOut, TrainingData
from calibrant.training.setup import Setup, make_fabric
from calibrant.training.step import predict, scorer


class Plain(Dataset):
    """The same items without being a TensorDataset."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in self.tensors)


def test_logits_and_labels_come_in_order_whatever_the_items_are():
    images, labels = torch.randn(2345, 4), torch.arange(2345) % 7
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9))
    network.train()
    for items in (TensorDataset(images, labels), Plain(images, labels)):
        batches = HeldOut(items, [str(row) for row in range(2345)]).batches(100)
        logits, found = predict(network, batches, lambda part: part * 2, device=torch.device("cpu"))
        torch.testing.assert_close(logits, network[0](images * 2).detach())
        assert torch.equal(found, labels)
        assert not logits.requires_grad
    assert network.training


def test_low_precision_is_widened_and_float64_kept():
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        network = nn.Linear(2, 3).to(dtype)
        batches = [(torch.ones(1, 2, dtype=dtype), torch.zeros(1))]
        assert predict(network, batches, lambda part: part, device=torch.device("cpu"))[0].dtype == expected


RESTING = {"readmit": True, "scoring": "resting"}


@pytest.fixture
def scoring_recipe(toy_recipe):
    def make(options, **changes):
        settings = {"start": 1, "interval": 1, "fraction": 0.3, **options}
        return toy_recipe(method__options=settings, **changes)

    return make


@pytest.fixture
def setup_of(toy, scoring_recipe):
    def make(options, **changes):
        recipe = scoring_recipe(options, **changes)
        return Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, toy))

    return make


def scores(setup, indices, epoch=1):
    found = {}
    for rows, logits in scorer(setup, epoch)(indices):
        found |= dict(zip(rows.tolist(), logits.tolist(), strict=True))
    return torch.tensor([found[index] for index in indices.tolist()])


def test_a_score_depends_on_the_sample_alone_and_leaves_no_trace(setup_of):
    setup = setup_of(RESTING)
    setup.network.train()
    before = {name: value.clone() for name, value in setup.network.state_dict().items()}
    assert any("running_mean" in name for name in before), "a network with batch norm"
    some = torch.tensor([3, 40, 7, 12, 80])
    together = scores(setup, some)
    alone = torch.cat([scores(setup, some[k : k + 1]) for k in range(len(some))])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert setup.network.training
    after = setup.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_rests_is_seen_as_in_training(setup_of):
    some = torch.arange(30)
    resting = setup_of(RESTING)
    assert not torch.equal(scores(resting, some), scores(resting, some, epoch=2)), "a new crop in each epoch"
    plain = setup_of(RESTING, data__augment=False)
    assert torch.equal(scores(plain, some), scores(plain, some, epoch=2))


def test_a_loader_gives_the_same_scores_and_runs_go_on(toy, scoring_recipe, tmp_path, stopped, assert_same_run):
    recipe = scoring_recipe(RESTING)
    whole = train(recipe, tmp_path / "whole", data=toy)
    scored = [line["samples_scored"] for line in whole.epochs()]
    assert scored == [0, 24, 24, 0]
    assert whole.summary["samples_scored"] == sum(scored)
    assert whole.summary["samples_seen"] == 81 + 3 * 57, "scored samples are no updates"
    assert_same_run(resume(stopped(recipe, tmp_path / "part", toy, 2), data=toy), whole)
    loaded = train(recipe.changed({"engine.data_path": "loader"}), tmp_path / "loader", data=toy)
    assert_same_run(loaded, whole, recipe=False)
