import copy

import pytest
import torch
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.losses import CrossEntropy, Focal, HuberCalibration
from calibrant.pruning import ConfidencePruner
from calibrant.training import resume, train
from calibrant.training.batches import TrainingBatch
from calibrant.training.setup import make_fabric
from calibrant.training.step import Learner, SharpnessAware

_RHO = 0.3


def make_network(*, normalised=True):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(5)] if normalised else []
    return nn.Sequential(nn.Linear(4, 5), *middle, nn.Tanh(), nn.Linear(5, 3)).double()


def make_learner(recipe, loss, network, *, accumulate=1, rho=_RHO, **options):
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    fabric = make_fabric(recipe)
    model, wrapped = fabric.setup(network, optimiser)
    pruner = ConfidencePruner(torch.arange(30) % 3)
    sam = SharpnessAware(network, rho) if rho else None
    return Learner(fabric, model, loss, wrapped, pruner, batch_size=12, accumulate=accumulate, sam=sam, **options)


def make_batch(size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return TrainingBatch(images, torch.arange(size) % 3, torch.arange(size), size)


def slow_steps(network, loss, batches):
    """The algorithm of the paper with every tensor by hand, and SGD with momentum and weight decay as torch has it."""
    network = copy.deepcopy(network)
    momentum = [torch.zeros_like(parameter) for parameter in network.parameters()]
    first = True
    for batch in batches:
        parameters = list(network.parameters())
        gradients = torch.autograd.grad(loss(network(batch.images), batch.targets), parameters)
        length = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
        # A second network stands at the worst point, so that nothing it does to its statistics reaches the first.
        other = copy.deepcopy(network)
        with torch.no_grad():
            for parameter, gradient in zip(other.parameters(), gradients, strict=True):
                parameter.add_(_RHO * gradient / length)
        worst = torch.autograd.grad(loss(other(batch.images), batch.targets), list(other.parameters()))
        with torch.no_grad():
            for parameter, gradient, velocity in zip(parameters, worst, momentum, strict=True):
                pull = gradient + 0.01 * parameter
                velocity.copy_(pull if first else 0.9 * velocity + pull)
                parameter.sub_(0.1 * velocity)
        first = False
    return network


@pytest.mark.parametrize("loss", [CrossEntropy(), Focal() + 10 * HuberCalibration(0.1)])
def test_steps_equal_the_papers_algorithm(toy_recipe, loss):
    network = make_network()
    batches = [make_batch(12, seed=1), make_batch(12, seed=2), make_batch(7, seed=3)]
    expected = slow_steps(network, loss, batches)
    learner = make_learner(toy_recipe(engine__precision="64-true"), loss, network)
    for batch in batches:
        learner.learn(batch)
    for (name, value), other in zip(network.state_dict().items(), expected.state_dict().values(), strict=True):
        # Parameters, and the running statistics of the passes at the weights themselves.
        torch.testing.assert_close(value, other, rtol=1e-10, atol=1e-13, msg=lambda told, name=name: f"{name}: {told}")
    assert int(network[1].num_batches_tracked) == 3


def test_log_and_scores_are_those_of_the_weights_themselves(toy_recipe):
    figures, scores = [], []
    for rho in (0.0, _RHO):
        learner = make_learner(toy_recipe(engine__precision="64-true"), CrossEntropy(), make_network(), rho=rho)
        learner.learn(make_batch(12))
        figures.append(learner.meter.read())
        scores.append(learner.pruner.scores)
    assert figures[0] == figures[1]
    assert torch.equal(scores[0], scores[1])


@pytest.mark.parametrize("accumulate", [2, 5])
@pytest.mark.parametrize("size", [12, 7])
def test_pieces_give_the_step_of_the_whole_batch(toy_recipe, accumulate, size):
    """Both gradients are those of the whole batch; without batch normalisation, whose statistics are a piece's."""
    found = []
    for pieces in (1, accumulate):
        network = make_network(normalised=False)
        recipe = toy_recipe(engine__precision="64-true")
        make_learner(recipe, CrossEntropy(), network, accumulate=pieces).learn(make_batch(size))
        found.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-14)


def test_a_network_without_a_gradient_stays_where_it_is():
    network = nn.Linear(2, 2)
    before = copy.deepcopy(network.state_dict())
    sam = SharpnessAware(network, 1.0)
    network.weight.grad = torch.zeros_like(network.weight)  # and none at all for the bias
    sam.climb()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_it_asks_the_host_for_nothing():
    """A meta tensor has no values: whatever looks at one fails, as it would inside a capture."""
    network = make_network().to("meta")
    sam = SharpnessAware(network, 0.1)
    network(torch.ones(6, 4, device="meta", dtype=torch.float64)).sum().backward()
    sam.climb()
    sam.come_back()


def test_the_way_back_is_exact():
    network = make_network()
    before = copy.deepcopy(network.state_dict())
    sam = SharpnessAware(network, 0.7)
    network(torch.randn(6, 4, dtype=torch.float64)).sum().backward()
    kept = copy.deepcopy(network.state_dict())
    sam.climb()
    moved = torch.cat([(p.detach() - before[n]).flatten() for n, p in network.named_parameters()])
    assert float(moved.norm()) == pytest.approx(0.7)
    network(torch.randn(6, 4, dtype=torch.float64))
    sam.come_back()
    assert all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())


def test_a_resumed_run_ends_with_the_same_bits_and_counts_both_gradients(
    toy, toy_recipe, tmp_path, stopped, assert_same_run
):
    recipe = toy_recipe(optimiser__sam=0.05)
    whole = train(recipe, tmp_path / "whole", data=toy)
    assert_same_run(resume(stopped(recipe, tmp_path / "part", toy, 2), data=toy), whole)
    assert whole.summary["gradient_passes"] == 2 * whole.summary["samples_seen"]
    assert "sample updates (2 gradients each)" in whole.describe()
    plain = train(recipe.changed({"optimiser.sam": 0.0}), tmp_path / "plain", data=toy)
    assert plain.summary["gradient_passes"] == plain.summary["samples_seen"]
    assert "gradients each" not in plain.describe()
    assert plain.summary["test"] != whole.summary["test"]


@pytest.mark.parametrize("rho", [-0.1, float("inf"), "much"])
def test_rho_is_a_number_that_is_not_negative(toy_recipe, rho):
    with pytest.raises(InvalidInput, match=r"optimiser\.sam"):
        toy_recipe(optimiser__sam=rho)
