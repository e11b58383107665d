"""The score table against slow float64 loops, sample by sample."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.pruning import ConfidencePruner, Every, InfoBatch, LowestConfidence
from calibrant.pruning.scores import ScoreTable

N, K = 12, 4


def softmax(row):
    shifted = np.exp(row - row.max())
    return shifted / shifted.sum()


class SlowTable:
    """One sample at a time, in float64; of copies in a batch the first one enters."""

    def __init__(self, labels, ema):
        self.labels, self.ema = labels, ema
        n = len(labels)
        self.confidence, self.excess, self.count, self.loss = [0.0] * n, [0.0] * n, [0] * n, [3.0] * n

    def observe(self, indices, logits):
        for i in sorted(set(indices)):
            row = softmax(logits[indices.index(i)])
            if not np.isfinite(row).all():
                continue
            y, k = self.labels[i], self.ema
            self.confidence[i] = k * row.max() + (1 - k) * self.confidence[i]
            self.excess[i] = k * (row.max() - row[y]) + (1 - k) * self.excess[i]
            self.count[i] += 1
            self.loss[i] = -np.log(row[y])


def make(labels, ema=0.3, extra=("loss",)):
    return ScoreTable(torch.as_tensor(labels, dtype=torch.int64), ema=ema, extra=extra)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.3, 1.0]), st.integers(1, 6))
def test_all_columns_follow_the_slow_table(seed, ema, batches):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, N)
    table, slow = make(labels, ema), SlowTable(labels, ema)
    for _ in range(batches):
        indices = rng.integers(0, N, 9)  # with copies
        logits = rng.normal(0, 3, (9, K)).astype(np.float32)
        logits[rng.random(9) < 0.1, 0] = np.nan
        table.observe(torch.from_numpy(indices), torch.from_numpy(logits))
        slow.observe(indices.tolist(), logits.astype(np.float64))
    np.testing.assert_allclose(table.column("confidence"), slow.confidence, rtol=2e-6)
    np.testing.assert_allclose(table.column("excess"), slow.excess, atol=3e-7)
    np.testing.assert_allclose(table.column("loss"), slow.loss, rtol=1e-4, atol=3e-7)
    assert table.column("count").tolist() == slow.count


def test_zero_start_as_printed():
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    pruner = ConfidencePruner([0, 1, 2, 3])
    confidence = torch.softmax(logits, 1).max().item()
    for observations in range(1, 6):
        pruner.observe(torch.tensor([2]), logits)
        assert pruner.scores[2].item() == pytest.approx(confidence * (1 - 0.7**observations), rel=1e-6)


def test_ema_of_one_is_the_last_confidence_bit_for_bit():
    table = make(np.zeros(5, int), ema=1.0)
    for seed in range(3):
        logits = torch.randn(5, K, generator=torch.Generator().manual_seed(seed))
        table.observe(torch.arange(5), logits)
    assert torch.equal(torch.from_numpy(table.column("confidence")), torch.softmax(logits, 1).max(1).values)


def test_the_first_copy_counts():
    table = make([0, 1])
    table.observe(torch.tensor([1, 1]), torch.tensor([[0.0, 0, 9, 0], [0.0, 0, 0, 2]]))
    assert table.column("predicted").tolist() == [-1, 2]
    assert table.column("confidence")[1] == pytest.approx(0.3 * np.exp(9) / (np.exp(9) + 3))


def test_rows_that_are_not_finite_leave_no_trace():
    table = make([0, 1, 2])
    table.observe(torch.tensor([0, 1, 2]), torch.ones(3, K))
    before = table.rows.clone()
    bad = torch.tensor([[float("nan"), 0, 0, 0], [float("inf"), 0, 0, 0]])
    table.observe(torch.tensor([0, 1]), bad)
    assert torch.equal(table.rows, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_softmax_is_float32_whatever_the_logits_are(dtype):
    logits = torch.randn(6, K, generator=torch.Generator().manual_seed(0)).to(dtype)
    table, exact = make(np.zeros(6, int)), make(np.zeros(6, int))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        table.observe(torch.arange(6), logits)
    exact.observe(torch.arange(6), logits.float())
    torch.testing.assert_close(table.rows, exact.rows, rtol=1e-6, atol=1e-7)
    assert table.rows.dtype == torch.float32


def test_observe_compiles_into_one_graph_and_keeps_its_storage():
    pruner = ConfidencePruner(np.arange(40) % K, policy=InfoBatch(0.5), seed=3)
    eager = copy.deepcopy(pruner)
    where = (pruner.table.rows.data_ptr(), pruner.kept_mask.data_ptr(), pruner.weights(torch.arange(2)).dtype)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(indices, logits):
        pruner.observe(indices, logits)
        return (logits.logsumexp(1) * pruner.weights(indices)).sum()

    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        indices, logits = torch.randint(0, 40, (16,), generator=generator), torch.randn(16, K, generator=generator)
        loss = step(indices, logits)
        eager.observe(indices, logits)
        torch.testing.assert_close(loss, (logits.logsumexp(1) * eager.weights(indices)).sum())
        pruner.step()
        eager.step()
    torch.testing.assert_close(pruner.table.rows, eager.table.rows)
    assert torch.equal(pruner.kept, eager.kept)
    assert len(pruner.kept) < 40
    assert where == (pruner.table.rows.data_ptr(), pruner.kept_mask.data_ptr(), torch.float32)


def test_observe_follows_no_gradient_and_changes_no_generator():
    logits = torch.randn(3, K, requires_grad=True)
    before = torch.get_rng_state()
    pruner = ConfidencePruner(np.arange(K), policy=LowestConfidence(0.5), schedule=Every(1))
    pruner.observe(torch.arange(3), logits)
    pruner.step()
    list(pruner.sampler())
    assert not pruner.table.rows.requires_grad
    assert torch.equal(torch.get_rng_state(), before)
