"""The paper's supplementary procedure (TrainDNNwithDataPruning), written slowly, against the engine."""

import math

import numpy as np
import torch

from calibrant.data.transforms import draw_augmentation
from calibrant.pruning import load_audit
from calibrant.pruning.sampling import ORDER, generator_for
from calibrant.training import train
from calibrant.training.checkpoint import newest_checkpoint
from calibrant.training.data import TrainingData
from calibrant.training.seeds import derive_seed
from calibrant.training.setup import make_model

_NETWORK = """
import torch
from torch import nn

def network(*, n_classes, image_shape):
    channels, height, width = image_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 5), nn.Tanh(), nn.Linear(5, n_classes))
"""
_MOMENTUM, _DECAY, _KAPPA, _ALPHA, _LAMBDA, _EPSILON = 0.9, 5e-4, 0.3, 0.05, 10.0, 0.2
_EPOCHS, _BATCH, _PRUNE_AFTER = 5, 16, {2, 4}


def _forward(parameters, pixels):
    """The network's output for one image, as probabilities."""
    w1, b1, w2, b2 = parameters
    return torch.softmax(w2 @ torch.tanh(w1 @ pixels + b1) + b2, dim=0)


def _augmented(image, offset, flip, padding):
    """One padded, cropped and mirrored image, pixel by pixel."""
    height, width = image.shape
    result = torch.zeros(height, width, dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            row = y + int(offset[0]) - padding
            column = (width - 1 - x if flip else x) + int(offset[1]) - padding
            if 0 <= row < height and 0 <= column < width:
                result[y, x] = float(image[row, column])
    return result


def _focal(p_true, visited):
    gamma = 5.0 if p_true.item() < 0.2 else 3.0
    visited.add(f"gamma {gamma:g}")
    return -((1 - p_true) ** gamma) * torch.log(p_true)


def _huber(gap, visited):
    if abs(gap.item()) < _ALPHA:
        visited.add("quadratic")
        return gap * gap / 2
    visited.add("linear")
    return _ALPHA * (abs(gap) - _ALPHA / 2)


def _prune_using_ema(kept, labels, scores, classes):
    """Class by class, in ascending order of the score: the first epsilon leave."""
    stay = []
    for label in range(classes):
        members = sorted((i for i in kept if labels[i] == label), key=lambda i: scores[i])
        stay += members[math.floor(_EPSILON * len(members)) :]
    return sorted(stay)


def _learning_rate(epoch):
    """Epochs counted from 1; a tenth from half of the run on."""
    return 0.05 if epoch - 1 < 3 else 0.005


def _reference(recipe, splits):
    """All of it with one image at a time; returns parameters, scores, and who trained in each epoch."""
    parameters = [p.detach().double().clone().requires_grad_() for p in make_model(recipe, splits).parameters()]
    velocity = [None] * len(parameters)
    labels = splits.targets.tolist()
    mean, std, padding = splits.mean[0], splits.std[0], splits.augmentation.crop_padding
    scores, kept, history, visited = [0.0] * len(labels), list(range(len(labels))), [], set()
    for epoch in range(1, _EPOCHS + 1):
        history.append(list(kept))
        shuffle = torch.randperm(
            len(kept), generator=generator_for(derive_seed(recipe.seed, "order"), epoch - 1, ORDER)
        ).tolist()
        order = [kept[position] for position in shuffle]
        generator = torch.Generator().manual_seed(derive_seed(recipe.seed, "augment", epoch))
        offsets, flips = draw_augmentation(len(labels), padding, True, generator)
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            accuracy, confidence, focal = 0.0, 0.0, 0.0
            for position, k in enumerate(batch, start):
                image = _augmented(splits.images[k, 0], offsets[position], bool(flips[position]), padding)
                probabilities = _forward(parameters, ((image / 255 - mean) / std).flatten())
                c = probabilities.max()
                accuracy = accuracy + (1.0 if int(probabilities.argmax()) == labels[k] else 0.0)
                confidence = confidence + c
                focal = focal + _focal(probabilities[labels[k]], visited)
                scores[k] = _KAPPA * c.item() + (1 - _KAPPA) * scores[k]
            b = len(batch)
            total = focal / b + _LAMBDA * _huber(confidence / b - accuracy / b, visited)
            gradients = torch.autograd.grad(total, parameters)
            with torch.no_grad():
                for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    step = gradient + _DECAY * parameter
                    velocity[number] = step if velocity[number] is None else _MOMENTUM * velocity[number] + step
                    parameter.sub_(_learning_rate(epoch) * velocity[number])
        if epoch in _PRUNE_AFTER:
            kept = _prune_using_ema(kept, labels, scores, splits.n_classes)
    assert visited == {"gamma 3", "gamma 5", "linear", "quadratic"}, "the problem is too easy to show all branches"
    return parameters, scores, history


def test_the_engine_follows_the_papers_procedure_step_by_step(toy, toy_recipe, tmp_path, own_module):
    own_module("slow_network", _NETWORK)
    recipe = toy_recipe(
        epochs=_EPOCHS,
        model__name="slow_network:network",
        engine__precision="64-true",
        method__options={
            "start": 2,
            "interval": 2,
            "fraction": _EPSILON,
            "huber_weight": _LAMBDA,
            "huber_alpha": _ALPHA,
            "ema": _KAPPA,
        },
        optimiser__batch_size=_BATCH,
        optimiser__lr=0.05,
        schedule__milestones=(3,),
    )
    parameters, scores, history = _reference(recipe, TrainingData.make(recipe, toy))
    assert [len(kept) for kept in history] == [81, 81, 66, 66, 54]

    run = train(recipe, tmp_path / "run", data=toy)

    assert [line["kept"] for line in run.epochs()] == [len(kept) for kept in history]
    audit = load_audit(run.path / "pruning.npz")
    assert np.flatnonzero(audit.kept).tolist() == history[-1]
    np.testing.assert_allclose(audit.score, scores, atol=2e-7)
    weights = newest_checkpoint(run.checkpoints).tensors
    names = ("1.weight", "1.bias", "3.weight", "3.bias")
    for name, expected in zip(names, parameters, strict=True):
        torch.testing.assert_close(weights[f"model.{name}"], expected.detach(), rtol=0, atol=1e-9)
        # Training has moved it: equality with the start would prove nothing.
        initial = dict(make_model(recipe, TrainingData.make(recipe, toy)).named_parameters())[name]
        assert (weights[f"model.{name}"] - initial).abs().max() > 1e-2
