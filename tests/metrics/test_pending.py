"""Small batches wait, and nobody can tell: every way to look at a meter adds them first."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection

from calibrant import Predictions
from calibrant import metrics as m
from calibrant.errors import InvalidInput

GENERATOR = torch.Generator().manual_seed(5)
SCORES = (torch.randn(96, 4, generator=GENERATOR) * 2).softmax(dim=1)
TARGETS = torch.randint(0, 4, (96,), generator=GENERATOR)
METERS = {
    "ece": lambda: m.CalibrationError(15, kind="probabilities"),
    "classwise": lambda: m.ClasswiseCalibrationError(4, 15, kind="probabilities"),
    "nll": lambda: m.NegativeLogLikelihood(kind="probabilities"),
    "brier": lambda: m.BrierScore(kind="probabilities"),
    "share": lambda: m.ConfidentSetMeter(0.6, "share", kind="probabilities"),
}


def one_shot(name, rows=slice(None)):
    p = Predictions.from_probabilities(SCORES[rows], TARGETS[rows])
    return {
        "ece": lambda: m.expected_calibration_error(p, 15),
        "classwise": lambda: m.classwise_calibration_error(p, 15),
        "nll": lambda: m.negative_log_likelihood(p),
        "brier": lambda: m.brier_score(p),
        "share": lambda: m.confident_set(p, 0.6).share,
    }[name]()


@pytest.fixture(params=list(METERS))
def waiting(request):
    """A meter's name and the meter, with all but the first of six batches waiting."""
    meter = METERS[request.param]()
    feed(meter, 0, 96)
    assert meter._pending.rows == 80
    return request.param, meter


def feed(meter, start, end):
    for part in torch.arange(start, end).split(16):
        meter.update(SCORES[part], TARGETS[part])


def same(meter, name, rows=slice(None)):
    assert meter.compute().item() == pytest.approx(one_shot(name, rows), abs=1e-12)


def test_compute_adds_what_waits_and_so_does_every_later_one(waiting):
    name, meter = waiting
    same(meter, name)
    assert meter.update_count == 6
    feed(meter, 0, 48)
    order = np.r_[0:96, 0:48]
    same(meter, name, order)


def test_what_is_given_may_change_afterwards(waiting):
    name, meter = waiting
    scores, targets = SCORES[:16].clone(), TARGETS[:16].clone()
    meter.update(scores, targets)
    scores.fill_(torch.nan)
    targets.fill_(-1)
    same(meter, name, np.r_[0:96, 0:16])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda meter: pickle.loads(pickle.dumps(meter)), m.Meter.clone])
def test_copies_hold_what_waits(waiting, copied):
    name, meter = waiting
    other = copied(meter)
    feed(meter, 0, 32)  # the copy must not see this
    same(other, name)
    feed(other, 0, 16)
    same(other, name, np.r_[0:96, 0:16])
    same(meter, name, np.r_[0:96, 0:32])


def test_a_buffer_is_no_part_of_a_pickle(waiting):
    assert len(pickle.dumps(waiting[1])) < 20_000


def test_reset_drops_what_waits(waiting):
    name, meter = waiting
    meter.reset()
    assert all(state.sum() == 0 for state in meter.metric_state.values())
    feed(meter, 32, 64)
    same(meter, name, slice(32, 64))


def test_saved_states_hold_what_waits_and_loaded_ones_replace_it(waiting):
    name, meter = waiting
    meter.persistent(mode=True)
    saved = meter.state_dict()
    other = METERS[name]()
    other.persistent(mode=True)
    feed(other, 0, 48)
    assert other._pending.rows
    other.load_state_dict(saved)
    same(other, name)


def test_merging_adds_what_waits_on_both_sides(waiting):
    name, meter = waiting
    other = METERS[name]()
    feed(other, 0, 48)
    other.merge_state(meter)
    same(other, name, np.r_[0:48, 0:96])


def test_forward_gives_the_batch_and_keeps_what_waits(waiting):
    name, meter = waiting
    assert meter(SCORES[:16], TARGETS[:16]).item() == pytest.approx(one_shot(name, slice(16)), abs=1e-12)
    same(meter, name, np.r_[0:96, 0:16])


def test_synchronising_sends_what_waits(waiting):
    name, meter = waiting
    twice = {"dist_sync_fn": lambda state, group=None: [state, state], "distributed_available": lambda: True}
    meter.sync(**twice)
    states = {key: state.clone() for key, state in meter.metric_state.items()}
    meter.unsync()
    for key, state in meter.metric_state.items():
        torch.testing.assert_close(states[key], 2 * state)
    same(meter, name)


def test_moving_takes_along_what_waits(waiting):
    name, meter = waiting
    same(meter.to("cpu").double(), name)
    feed(meter, 0, 48)
    moved = meter.to("meta")
    assert moved._pending.rows == 0
    assert moved.refused.device.type == "meta"


def test_compute_groups_share_what_waits():
    collection = MetricCollection(
        {"ece": METERS["ece"](), "mce": m.CalibrationError(15, kind="probabilities", norm="maximum")}
    )
    feed(collection, 0, 48)
    assert collection.compute_groups == {0: ["ece", "mce"]}
    p = Predictions.from_probabilities(SCORES, TARGETS)
    for _ in range(2):
        feed(collection, 48, 96)
        assert collection["mce"].compute().item() == pytest.approx(m.maximum_calibration_error(p, 15), abs=1e-12)
        values = collection.compute()
        assert values["mce"].item() == pytest.approx(m.maximum_calibration_error(p, 15), abs=1e-12)
        assert values["ece"].item() == pytest.approx(m.expected_calibration_error(p, 15), abs=1e-12)
        collection.reset()
        feed(collection, 0, 48)


def test_types_and_layouts_may_change_between_batches():
    meter, single = METERS["nll"](), SCORES[:, :1] * 0 + 1
    whole = 0.0
    for scores in (SCORES, SCORES.double(), SCORES.T.contiguous().T, SCORES.half(), SCORES.clone().requires_grad_()):
        for targets in (TARGETS, TARGETS.int(), TARGETS.repeat_interleave(2)[::2]):
            meter.update(scores, targets)
            whole += m.negative_log_likelihood(Predictions.from_probabilities(scores, targets)) * 96
    meter.update(single, TARGETS * 0)  # another number of classes
    meter.update(targets=TARGETS, scores=SCORES)
    whole += one_shot("nll") * 96
    assert meter.compute().item() == pytest.approx(whole / (17 * 96), abs=1e-12)


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 10, 32, 33, 300])
def test_few_and_many_classes_with_ties_give_what_rows_read_one_by_one_give(classes, dtype, kind):
    rng = np.random.default_rng(classes)
    grid = torch.from_numpy(rng.multinomial(32, rng.dirichlet(np.full(classes, 0.5), 3000)) / 32).to(dtype)
    targets = torch.from_numpy(rng.integers(0, classes, 3000))
    meters = [m.CalibrationError(15, kind=kind), m.ConfidentSetMeter(0.5, "ece", kind=kind)]
    for meter in meters:
        for part in torch.arange(3000).split(100):
            meter.update(grid[part], targets[part])
        assert meter._pending.rows > 0
    rows = (grid.double() if kind == "probabilities" else grid.double().softmax(dim=1)).tolist()
    edges = (torch.arange(16, dtype=torch.float64) / 15).to(dtype if kind == "probabilities" else torch.float64)
    counts, sums, right = np.zeros((3, 15))
    for row, raw, target in zip(rows, grid.tolist(), targets.tolist(), strict=True):
        bin_ = next(k for k in range(15) if max(row) <= edges[k + 1].item() or k == 14)
        counts[bin_] += 1
        sums[bin_] += max(row)
        right[bin_] += raw.index(max(raw)) == target
    assert meters[0].counts.tolist() == counts.tolist()
    assert meters[0].correct_sums.tolist() == right.tolist()
    np.testing.assert_allclose(meters[0].confidence_sums, sums, rtol=1e-12)
    assert meters[1].counts.sum().item() == sum(max(row) >= 0.5 for row in rows)


def test_the_buffer_does_not_grow():
    meter = METERS["ece"]()
    scores, targets = SCORES.repeat(40, 1), TARGETS.repeat(40)
    sizes = set()
    for _ in range(90):
        meter.update(scores, targets)
        sizes.add(meter._pending._scores.nbytes)
    assert max(sizes) <= 2**21
    assert meter._pending.rows < 90 * 40 * 96
    same(meter, "ece")


@pytest.mark.parametrize(
    ("scores", "targets", "match"),
    [
        ([[torch.nan, 1.0]], [0], "finite, got nan in row 0, column 0"),
        ([[torch.inf, 0.0]], [0], "finite, got inf"),
        ([[1.0, 0.0], [1.2, -0.2]], [0, 1], "not be negative, got -0.2 in row 1"),
        ([[3e38, 3e38]], [0], "sum to 1"),
        ([[0.5, 0.5]], [2], "targets must"),
        ([[0.5, 0.5]], [-1], "targets must"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_later_batches_are_refused_on_the_spot(scores, targets, match, dtype):
    meter = METERS["ece"]()
    feed(meter, 0, 96)
    with pytest.raises(InvalidInput, match=match):
        meter.update(torch.tensor(scores, dtype=dtype), torch.tensor(targets))
    same(meter, "ece")


@pytest.mark.parametrize(
    ("scores", "labels", "match"),
    [
        ([[0.5, 0.5], [0.7, 0.3]], [0], "targets must"),
        ([[0.5, 0.5], [0.7, 0.3]], [0, 1, 0], "targets must"),
        ([0.5, 0.5], [0, 1], r"shape \(n, K\)"),
        ([[[0.5, 0.5]]], [0], r"shape \(n, K\)"),
    ],
)
def test_a_second_batch_has_to_have_the_form_too(scores, labels, match):
    meter = METERS["ece"]()
    meter.update(SCORES, TARGETS)
    with pytest.raises(InvalidInput, match=match):
        meter.update(torch.tensor(scores), torch.tensor(labels))
    same(meter, "ece")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_later_logits_are_refused_on_the_spot(bad):
    meter = m.NegativeLogLikelihood(kind="logits")
    for _ in range(2):
        meter.update(SCORES.log(), TARGETS)
    with pytest.raises(InvalidInput, match="logits must be finite"):
        meter.update(torch.tensor([[bad, 0.0]]), torch.tensor([0]))
    whole = m.negative_log_likelihood(Predictions.from_logits(SCORES.log(), TARGETS))
    assert meter.compute().item() == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("earlier_round", [False, True])
def test_a_wrong_sum_that_waited_is_refused_when_its_turn_comes_and_only_its_batch_is_lost(earlier_round):
    meter = METERS["ece"]()
    feed(meter, 0, 48)
    if earlier_round:
        meter.compute()  # adds what waits: from here on others do
    meter.update(torch.tensor([[0.4, 0.6, 0, 0], [0.2, 0.3, 0, 0]]), torch.tensor([0, 1]))
    feed(meter, 48, 96)
    with pytest.raises(InvalidInput, match=r"sum to 1 .* got 0.5 in row 1\. .* came in an earlier update"):
        meter.compute()
    same(meter, "ece")


def test_a_reset_forgets_a_wrong_sum_too():
    meter = METERS["ece"]()
    feed(meter, 0, 16)
    meter.update(torch.tensor([[0.2, 0.3]]), torch.tensor([0]))
    meter.reset()
    feed(meter, 0, 96)
    same(meter, "ece")
