import math
from dataclasses import replace

import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.losses import CrossEntropy, HuberCalibration
from calibrant.losses.base import balanced_loss
from calibrant.metrics import evaluate_classes
from calibrant.training import default_recipe, train
from calibrant.training.batches import balanced_draw
from calibrant.training.data import Images, load_dataset

TARGETS = torch.tensor([0] * 6 + [1] * 3 + [2])
SHARES = (0.6, 0.3, 0.1)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(20, 3, generator=generator), torch.randint(0, 3, (20,), generator=generator)


def nll(row, target):
    return math.log(sum(math.exp(v) for v in row)) - row[target]


def test_weights_by_hand():
    logits, labels = batch()
    expected = sum(nll(row, y) / (3 * SHARES[y]) for row, y in zip(logits.tolist(), labels.tolist(), strict=True)) / 20
    found = balanced_loss(CrossEntropy(), "loss", TARGETS, 3)
    assert float(found(logits, labels)) == pytest.approx(expected, rel=1e-5)
    # Weights of a plan multiply them.
    assert float(found(logits, labels, torch.full((20,), 2.0))) == pytest.approx(2 * expected, rel=1e-5)


def test_logit_adjustment_by_hand():
    logits, labels = batch()
    shifted = [[v + math.log(s) for v, s in zip(row, SHARES, strict=True)] for row in logits.tolist()]
    expected = sum(nll(row, y) for row, y in zip(shifted, labels.tolist(), strict=True)) / 20
    found = balanced_loss(CrossEntropy(), "logit-adjustment", TARGETS, 3)
    assert float(found(logits, labels)) == pytest.approx(expected, rel=1e-5)


def test_logit_adjustment_is_exact_in_mixed_precision():
    logits, labels = batch()
    rounded = logits.bfloat16()
    found = balanced_loss(CrossEntropy(), "logit-adjustment", TARGETS, 3)
    assert float(found(rounded, labels)) == pytest.approx(float(found(rounded.float(), labels)), rel=1e-6)


@pytest.mark.parametrize("balance", ["none", "sampler"])
def test_the_loss_is_left_alone_where_nothing_is_balanced_in_it(balance):
    loss = CrossEntropy()
    assert balanced_loss(loss, balance, TARGETS, 3) is loss


def test_equal_shares_change_nothing_and_terms_keep_their_names():
    logits, labels = batch()
    loss = CrossEntropy() + 5.0 * HuberCalibration()
    for balance in ("loss", "logit-adjustment"):
        found = balanced_loss(loss, balance, torch.arange(30) % 3, 3).terms(logits, labels)
        wanted = loss.terms(logits, labels)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value)


def test_a_class_without_samples_is_refused():
    with pytest.raises(InvalidInput, match="class 3 has none"):
        balanced_loss(CrossEntropy(), "loss", TARGETS, 4)


def test_drawn_classes_are_equally_likely_and_samples_of_a_class_too():
    targets = TARGETS.repeat(300)
    order = torch.arange(len(targets)).flip(0)
    drawn = balanced_draw(order, targets, seed=1)
    assert len(drawn) == len(order)
    shares = torch.bincount(targets[drawn]).double() / len(drawn)
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert torch.equal(drawn, balanced_draw(order, targets, seed=1))
    assert not torch.equal(drawn, balanced_draw(order, targets, seed=2))
    # Only what is in the order: samples that rest, and classes that are not there, are not drawn.
    few = balanced_draw(order[targets[order] != 1], targets, seed=1)
    assert set(targets[few].tolist()) == {0, 2}


@pytest.fixture(scope="module")
def rare():
    """Digits of which classes 5 to 9 have a tenth of the training images."""
    digits = load_dataset("digits")
    labels = digits.train.labels
    place = torch.zeros_like(labels)
    for k in range(10):
        place[labels == k] = torch.arange(int((labels == k).sum()))
    rows = torch.nonzero((labels < 5) | (place % 10 == 0)).flatten()
    return replace(digits, train=Images(digits.train.images[rows].contiguous(), labels[rows]))


def test_every_way_of_balancing_says_rare_classes_more_often(rare, tmp_path):
    said = {}
    for balance in ("none", "loss", "sampler", "logit-adjustment"):
        run = train(default_recipe(rare, epochs=3, balance=balance), tmp_path / balance, data=rare)
        found = evaluate_classes(run.predictions("test"))
        said[balance] = sum(each.gap for each in found.classes[5:])
        assert run.summary["recipe"]["balance"] == balance
        assert len(run.summary["per_class"]) == 10
        assert run.summary["test"]["balanced_error"] == pytest.approx(found.balanced_error)
    assert all(said[balance] > said["none"] + 0.02 for balance in ("loss", "sampler", "logit-adjustment"))
