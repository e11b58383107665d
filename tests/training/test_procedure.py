"""The paper's supplementary procedure (TrainDNNwithDataPruning) and other readings of it, written slowly."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calibrant.pruning import load_audit
from calibrant.pruning.sampling import ORDER, generator_for
from calibrant.training import train
from calibrant.training.checkpoint import newest_checkpoint
from calibrant.training.data import draw_augmentation
from calibrant.training.network import make_model
from calibrant.training.reproducibility import derive_seed
from calibrant.training.run_data import TrainingData

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


def _prune_using_ema(kept, labels, scores, *, highest=False):
    """Class by class, in ascending order of the score: the first epsilon leave."""
    stay = []
    for label in sorted(set(labels)):
        members = sorted((i for i in kept if labels[i] == label), key=lambda i: -scores[i] if highest else scores[i])
        stay += members[math.floor(_EPSILON * len(members)) :]
    return sorted(stay)


# Other readings: what happens after an epoch `now.epoch`. `now` has all that the reference knows at that moment.


def _procedure_3(now):
    return _prune_using_ema(now.kept, now.labels, now.scores) if now.epoch in _PRUNE_AFTER else now.kept


def _procedure_2(now):
    """The main text's procedure refers to Procedure 1 after each epoch."""
    return _prune_using_ema(now.kept, now.labels, now.scores)


def _most_confident(now):
    """The "top" of the list leaves."""
    return _prune_using_ema(now.kept, now.labels, now.scores, highest=True) if now.epoch in _PRUNE_AFTER else now.kept


def _inside_batches(now):
    """In each minibatch of the epoch, class by class."""
    if now.epoch not in _PRUNE_AFTER:
        return now.kept
    return sorted(i for batch in now.batches for i in _prune_using_ema(batch, now.labels, now.scores))


def _resting_measured(now):
    """What rests is measured, as if it had been seen like this in each epoch that it missed."""
    if now.epoch not in _PRUNE_AFTER:
        return now.kept
    everybody = range(len(now.labels))
    for k in set(everybody) - set(now.kept):
        c = now.look(k, plain=False)
        for _ in range(now.epoch - now.last_seen[k]):
            now.scores[k] = _KAPPA * c + (1 - _KAPPA) * now.scores[k]
        now.last_seen[k] = now.epoch
    return _prune_using_ema(everybody, now.labels, now.scores)


_READINGS = {
    "procedure 3": (_procedure_3, {}, [81, 81, 66, 66, 54], 0),
    "procedure 2": (_procedure_2, {"start": 1, "interval": 1}, [81, 66, 54, 45, 36], 0),
    "most confident": (_most_confident, {"method": "flsd+h+highest"}, [81, 81, 66, 66, 54], 0),
    "inside batches": (_inside_batches, {"within": "batch"}, None, 0),
    "resting measured": (_resting_measured, {"scoring": "resting", "readmit": True}, [81, 81, 66, 66, 66], 15),
}


def _learning_rate(epoch):
    """Epochs counted from 1; a tenth from half of the run on."""
    return 0.05 if epoch - 1 < 3 else 0.005


def _reference(recipe, splits, after_epoch):
    """All of it with one image at a time; returns parameters, scores, who trained in each epoch, and what was met."""
    parameters = [p.detach().double().clone().requires_grad_() for p in make_model(recipe, splits).parameters()]
    velocity = [None] * len(parameters)
    labels = splits.targets.tolist()
    mean, std, padding = splits.mean[0], splits.std[0], splits.augmentation.crop_padding
    scores, kept, history, visited = [0.0] * len(labels), list(range(len(labels))), [], set()
    last_seen = [0] * len(labels)

    def look(k, *, plain):
        """How sure the network is of image k now; as it is, or cropped and mirrored by the draw for scores."""
        image = splits.train.images[k, 0].double()
        if not plain:
            generator = torch.Generator().manual_seed(derive_seed(recipe.seed, "score", epoch))
            offsets, flips = draw_augmentation(len(labels), padding, True, generator)
            image = _augmented(splits.train.images[k, 0], offsets[k], bool(flips[k]), padding)
        return _forward(parameters, ((image / 255 - mean) / std).flatten()).max().item()

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
                image = _augmented(splits.train.images[k, 0], offsets[position], bool(flips[position]), padding)
                probabilities = _forward(parameters, ((image / 255 - mean) / std).flatten())
                c = probabilities.max()
                accuracy = accuracy + (1.0 if int(probabilities.argmax()) == labels[k] else 0.0)
                confidence = confidence + c
                focal = focal + _focal(probabilities[labels[k]], visited)
                scores[k] = _KAPPA * c.item() + (1 - _KAPPA) * scores[k]
                last_seen[k] = epoch
            b = len(batch)
            total = focal / b + _LAMBDA * _huber(confidence / b - accuracy / b, visited)
            gradients = torch.autograd.grad(total, parameters)
            with torch.no_grad():
                for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                    step = gradient + _DECAY * parameter
                    velocity[number] = step if velocity[number] is None else _MOMENTUM * velocity[number] + step
                    parameter.sub_(_learning_rate(epoch) * velocity[number])
        batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
        now = SimpleNamespace(**{name: value for name, value in locals().items() if name in _KNOWN})
        # After the last epoch nothing is pruned any more: there is no epoch left to save.
        kept = after_epoch(now) if epoch < _EPOCHS else kept
    return parameters, scores, history, visited


_KNOWN = ("epoch", "kept", "labels", "scores", "batches", "last_seen", "look")


@pytest.mark.parametrize("reading", _READINGS)
def test_the_engine_follows_each_reading_of_the_paper_step_by_step(reading, toy, toy_recipe, tmp_path, own_module):
    after_epoch, options, sizes, scored = _READINGS[reading]
    own_module("slow_network", _NETWORK)
    recipe = toy_recipe(
        epochs=_EPOCHS,
        model__name="slow_network:network",
        engine__precision="64-true",
        method__name=options.get("method", "flsd+h+p-ema"),
        method__options={
            "start": 2,
            "interval": 2,
            "fraction": _EPSILON,
            "huber_weight": _LAMBDA,
            "huber_alpha": _ALPHA,
            "ema": _KAPPA,
            **{key: value for key, value in options.items() if key != "method"},
        },
        optimiser__batch_size=_BATCH,
        optimiser__lr=0.05,
        schedule__milestones=(3,),
    )
    parameters, scores, history, visited = _reference(recipe, TrainingData.make(recipe, toy), after_epoch)
    assert sizes is None or [len(kept) for kept in history] == sizes
    assert len(history[-1]) < len(history[0])
    if reading == "procedure 3":
        assert visited == {"gamma 3", "gamma 5", "linear", "quadratic"}, "the problem is too easy to show all branches"

    run = train(recipe, tmp_path / "run", data=toy)

    assert [line["kept"] for line in run.epochs()] == [len(kept) for kept in history]
    assert run.summary["samples_scored"] == scored == sum(line["samples_scored"] for line in run.epochs())
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
