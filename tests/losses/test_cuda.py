"""On a GPU: no host synchronisation, and the whole step in a CUDA graph."""

import copy

import pytest
import torch

from calibrant.losses import AdaFocal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def batch(cases):
    logits, targets, weights = cases.make_batch(128, 10)
    return logits.cuda().requires_grad_(), targets.cuda(), weights.cuda()


def test_no_synchronisation_and_the_cpu_value(case, batch):
    logits, targets, weights = batch
    loss = copy.deepcopy(case.loss).cuda()
    loss(logits, targets, weights).backward()
    logits.grad = None
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = loss(logits, targets, weights)
        value.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    on_cpu = logits.detach().cpu().requires_grad_()
    expected = case.loss(on_cpu, targets.cpu(), weights.cpu())
    expected.backward()
    torch.testing.assert_close(value.cpu(), expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(logits.grad.cpu(), on_cpu.grad, rtol=1e-3, atol=1e-6)


def capture(loss, logits, targets, weights):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            logits.grad = None
            loss(logits, targets, weights).backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    logits.grad = None
    with torch.cuda.graph(graph):
        value = loss(logits, targets, weights)
        value.backward()
    return graph, value


def test_a_captured_graph_follows_its_inputs(case, cases, batch):
    loss = copy.deepcopy(case.loss).cuda()
    graph, value = capture(loss, *batch)
    other = [tensor.cuda() for tensor in cases.make_batch(128, 10, seed=5)]
    with torch.no_grad():
        for static, new in zip(batch, other, strict=True):
            static.copy_(new)
    graph.replay()
    fresh = other[0].clone().requires_grad_()
    expected = loss(fresh, *other[1:])
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(batch[0].grad, fresh.grad)


def test_a_captured_graph_follows_the_exponents_of_an_adaptive_loss(batch):
    loss = AdaFocal(4, switch=0.9).cuda()
    graph, value = capture(loss, *batch)
    before = value.clone()
    for _ in range(3):
        loss.after_validation(batch[0].detach(), batch[1])
    graph.replay()
    torch.testing.assert_close(value, loss(*batch))
    assert not torch.equal(value, before)
