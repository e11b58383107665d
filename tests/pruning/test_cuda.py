"""On a GPU: the same scores and the same sets as on the CPU, also from inside a captured graph."""

import numpy as np
import pytest
import torch

from calibrant.pruning import ConfidencePruner, Every, InfoBatch, LowestConfidence, Unbiased

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

N, K, BATCH = 3000, 7, 64
LABELS = np.random.default_rng(0).integers(0, K, N)
POLICIES = {
    "lowest": {"policy": LowestConfidence(0.2), "schedule": Every(1)},
    "unbiased": {"policy": Unbiased(0.6, 0.5)},
    "infobatch": {"policy": InfoBatch(0.5)},
}


def batches(pruner, epoch):
    """Batches with copies; logits on a coarse grid, so that both devices see exact ties."""
    generator = torch.Generator().manual_seed(epoch)
    order = pruner.order()
    for part in order[: len(order) // BATCH * BATCH].split(BATCH):
        indices = part.clone()
        indices[::5] = indices[0]
        yield indices, torch.randint(-4, 5, (BATCH, K), generator=generator).float()


def assert_same(gpu, cpu):
    torch.testing.assert_close(gpu.table.rows.cpu(), cpu.table.rows, rtol=1e-6, atol=1e-6)
    # Selection is compared on equal scores: the softmax itself may differ in the last bit between devices.
    cpu.table.rows.copy_(gpu.table.rows)
    cpu.step()
    gpu.step()
    assert torch.equal(gpu.kept, cpu.kept)
    assert torch.equal(gpu.order(), cpu.order())
    everybody = torch.arange(N)
    assert torch.equal(gpu.weights(everybody.cuda()).cpu(), cpu.weights(everybody))


@pytest.mark.parametrize("options", POLICIES.values(), ids=POLICIES)
def test_both_devices_agree(options):
    cpu, gpu = ConfidencePruner(LABELS, seed=1, **options), ConfidencePruner(LABELS, seed=1, **options).to("cuda")
    for epoch in range(4):
        for indices, logits in batches(cpu, epoch):
            cpu.observe(indices, logits)
            gpu.observe(indices.cuda(), logits.cuda())
        assert_same(gpu, cpu)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["unbiased", "infobatch"])
def test_a_captured_graph_observes_and_weighs_through_pruning(name, compiled):
    options = POLICIES[name]
    cpu, gpu = ConfidencePruner(LABELS, seed=1, **options), ConfidencePruner(LABELS, seed=1, **options).to("cuda")
    indices, logits = torch.zeros(BATCH, dtype=torch.int64, device="cuda"), torch.zeros(BATCH, K, device="cuda")
    weights = torch.zeros(BATCH, device="cuda")

    def step():
        gpu.observe(indices, logits)
        weights.copy_(gpu.weights(indices))

    body = torch.compile(step, fullgraph=True) if compiled else step
    state = gpu.state_dict()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    gpu.load_state_dict(state)  # forget the warm-up, in place
    for epoch in range(4):
        for batch, said in batches(cpu, epoch):
            cpu.observe(batch, said)
            indices.copy_(batch)
            logits.copy_(said)
            graph.replay()
            assert torch.equal(weights.cpu(), cpu.weights(batch))
        assert_same(gpu, cpu)
    assert cpu.n_kept < N


def test_copies_give_the_same_bits_every_time():
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 10, (8192,), generator=generator).cuda()
    logits = torch.randn(8192, K, generator=generator).cuda()
    results = []
    for _ in range(10):
        pruner = ConfidencePruner(LABELS).to("cuda")
        pruner.observe(indices, logits)
        results.append(pruner.table.rows.clone())
    assert all(torch.equal(result, results[0]) for result in results)
