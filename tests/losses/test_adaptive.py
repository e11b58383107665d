"""AdaFocal: what it does after validation, held against a loop over bins and cases."""

import copy
import math

import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.losses import AdaFocal, CrossEntropy, Focal, HuberCalibration


def slow_update(gammas, confidence, correct, *, switch=0.2, lowest=-2.0, highest=20.0):
    """The paper's update, case by case in Python numbers; returns edges and exponents."""
    n, n_bins = len(confidence), len(gammas)
    ordered = sorted(confidence)
    edges = []
    for number in range(1, n_bins):
        cut = number * n // n_bins  # so many cases lie below
        edges.append((ordered[max(cut - 1, 0)] + ordered[min(cut, n - 1)]) / 2)
    new = []
    for number, gamma in enumerate(gammas):
        here = [
            (c, right)
            for c, right in zip(confidence, correct, strict=True)
            if (number == 0 or c > edges[number - 1]) and (number == n_bins - 1 or c <= edges[number])
        ]
        gap = sum(c - right for c, right in here) / len(here) if here else 0.0
        moved = gamma * math.exp(gap if gamma > 0 else -gap)
        if abs(moved) < switch:
            moved = -switch if moved > 0 else switch
        new.append(min(max(moved, lowest), highest))
    return edges, new


def validation(n, k, seed, sharpness):
    """Logits and targets; a large sharpness makes them over-confident."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator)
    logits[torch.arange(n), targets] += 1.0
    return sharpness * logits, targets


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 4.0])
@pytest.mark.parametrize(("n", "n_bins"), [(500, 15), (97, 4), (9, 15), (1, 3), (40, 1)])
def test_every_validation_moves_the_exponents_like_the_papers_loop(n, n_bins, sharpness):
    loss = AdaFocal(n_bins, lowest=-1.5, highest=3.0)
    gammas = loss.gammas.tolist()
    for seed in range(12):
        logits, targets = validation(n, 4, seed, sharpness)
        confidence, predicted = torch.softmax(logits.double(), dim=1).max(dim=1)
        edges, gammas = slow_update(
            gammas, confidence.tolist(), (predicted == targets).tolist(), lowest=-1.5, highest=3.0
        )
        loss.after_validation(logits, targets)
        assert loss.edges.tolist() == pytest.approx(edges, rel=1e-6)
        assert loss.gammas.tolist() == pytest.approx(gammas, rel=1e-5)
        gammas = loss.gammas.tolist()  # float32 in between: rounding must not add up over the rounds


def test_bins_hold_equally_many_cases():
    loss = AdaFocal(7)
    logits, targets = validation(100, 5, 0, 1.0)
    loss.after_validation(logits, targets)
    confidence = torch.softmax(logits.double(), dim=1).amax(dim=1)
    counts = torch.bincount((confidence[:, None] > loss.edges).sum(1), minlength=7)
    assert counts.tolist() == [14, 14, 14, 15, 14, 14, 15]


def test_over_confidence_raises_the_exponents_and_under_confidence_turns_the_loss_round():
    over, under = AdaFocal(1), AdaFocal(1)
    sure, wrong = torch.tensor([[9.0, 0.0]] * 4), torch.tensor([0, 1, 1, 1])
    for _ in range(3):
        over.after_validation(sure, wrong)
    assert float(over.gammas) == pytest.approx(math.exp(3 * (torch.softmax(sure[0], 0)[0] - 0.25)), rel=1e-5)
    found = []
    for _ in range(8):
        under.after_validation(torch.tensor([[0.1, 0.0]] * 4), torch.tensor([0, 0, 0, 0]))
        found.append(float(under.gammas))
    # exp(-0.475 t) falls below 0.2 in the fourth round; from -0.2 on the size grows.
    assert found[2] > 0.2
    assert found[3] == pytest.approx(-0.2)
    assert found[4] == pytest.approx(-0.2 * math.exp(0.475), rel=1e-3)
    for _ in range(8):
        under.after_validation(torch.tensor([[0.1, 0.0]] * 4), torch.tensor([0, 0, 0, 0]))
    assert float(under.gammas) == -2.0


def test_equal_confidences_leave_bins_empty_and_their_exponents_alone():
    loss = AdaFocal(4, gamma=2.0)
    loss.after_validation(torch.tensor([[40.0, 0.0]] * 10), torch.tensor([1] * 10))
    assert loss.edges.tolist() == [1.0, 1.0, 1.0]
    assert loss.gammas.tolist() == pytest.approx([2.0 * math.e, 2.0, 2.0, 2.0])


def test_before_the_first_validation_it_is_the_focal_loss(cases):
    logits, targets, weights = cases.make_batch(32, 10)
    torch.testing.assert_close(AdaFocal(gamma=3.0)(logits, targets, weights), Focal(3.0)(logits, targets, weights))


def test_a_sum_passes_the_news_on_and_keeps_it_in_its_state():
    inner = AdaFocal(5)
    loss = CrossEntropy() + 0.5 * (inner + HuberCalibration())
    assert loss.follows_validation
    assert not (CrossEntropy() + HuberCalibration()).follows_validation
    before = inner.gammas.clone()
    loss.after_validation(*validation(50, 3, 0, 5.0))
    assert not torch.equal(inner.gammas, before)
    again = CrossEntropy() + 0.5 * (AdaFocal(5) + HuberCalibration())
    again.load_state_dict(loss.state_dict())
    batch = validation(20, 3, 1, 1.0)
    assert torch.equal(again(*batch), loss(*batch))
    CrossEntropy().after_validation(*batch)  # does not listen


def test_buffers_stay_where_they_are():
    """A captured CUDA graph and a compiled loss read these very tensors."""
    loss = AdaFocal(3)
    addresses = [loss.gammas.data_ptr(), loss.edges.data_ptr()]
    loss.after_validation(*validation(30, 3, 0, 2.0))
    loss.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert [loss.gammas.data_ptr(), loss.edges.data_ptr()] == addresses


@pytest.mark.parametrize(
    "options",
    [
        {"n_bins": 0},
        {"switch": 0.0},
        {"lowest": -0.1},
        {"highest": 0.1},
        {"gamma": 21.0},
        {"gamma": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        AdaFocal(**options)


def test_validation_that_cannot_be_is_refused_and_changes_nothing():
    loss = AdaFocal(3)
    before = copy.deepcopy(loss.state_dict())
    logits, targets = validation(10, 3, 0, 1.0)
    for bad in ((logits, targets + 3), (logits[:0], targets[:0]), (logits / 0, targets), (logits, targets[:5])):
        with pytest.raises(InvalidInput):
            loss.after_validation(*bad)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
