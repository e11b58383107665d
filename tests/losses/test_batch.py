"""What no loss can be computed from."""

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.errors import InvalidInput
from calibrant.losses import CrossEntropy
from calibrant.losses.base import Batch

GOOD = {"logits": torch.zeros(3, 4), "targets": torch.tensor([0, 1, 3]), "weights": None}
BAD = {
    "target too large": (
        {"targets": torch.tensor([0, 4, 1])},
        "targets must",
    ),
    "target negative": (
        {"targets": torch.tensor([0, 1, -100])},
        "targets must",
    ),
    "float targets": (
        {"targets": torch.zeros(3)},
        "targets must",
    ),
    "bool targets": ({"targets": torch.zeros(3, dtype=torch.bool)}, "targets must"),
    "one-hot targets": (
        {"targets": torch.zeros(3, 4, dtype=torch.long)},
        "targets must",
    ),
    "soft targets": (
        {"targets": torch.full((3, 4), 0.25)},
        "targets must",
    ),
    "a column of targets": ({"targets": torch.zeros(3, 1).long()}, "targets must"),
    "too few targets": (
        {"targets": torch.zeros(2, dtype=torch.long)},
        "targets must",
    ),
    "integer logits": (
        {"logits": torch.zeros(3, 4, dtype=torch.long)},
        r"logits must be floating point.*got torch.int64",
    ),
    "one-dimensional logits": (
        {"logits": torch.zeros(3)},
        r"logits must be .*\[batch, classes\].* got torch.float32 \(3,\)",
    ),
    "images of logits": ({"logits": torch.zeros(3, 4, 2, 2)}, r"logits must be .*got torch.float32 \(3, 4, 2, 2\)"),
    "one class": ({"logits": torch.zeros(3, 1)}, r"logits must be .* two classes, got torch.float32 \(3, 1\)"),
    "empty": (
        {"logits": torch.zeros(0, 4), "targets": torch.zeros(0, dtype=torch.long)},
        r"logits must be .* at least one row .* got torch.float32 \(0, 4\)",
    ),
    "negative weight": (
        {"weights": torch.tensor([1.0, 1.0, -0.5])},
        "weights must be finite and not negative, got -0.5 to 1",
    ),
    "weight not a number": (
        {"weights": torch.tensor([float("nan"), 1.0, 1.0])},
        "weights must be finite .*nan",
    ),
    "integer weights": ({"weights": torch.ones(3, dtype=torch.long)}, r"weights must be floating point of shape \[3\]"),
    "NumPy logits": (
        {"logits": np.zeros((3, 4))},
        r"logits must be a torch tensor, got ndarray\. .*as_tensor\(logits\)",
    ),
    "no logits": ({"logits": None}, "logits must be a torch tensor, got None"),
    "NumPy targets": ({"targets": np.zeros(3, int)}, "targets must be a torch tensor, got ndarray"),
    "a list of targets": ({"targets": [0, 1, 3]}, "targets must be a torch tensor, got list"),
    "a list of weights": ({"weights": [1.0, 1.0, 1.0]}, "weights must be a torch tensor, got list"),
    "too many weights": ({"weights": torch.ones(4)}, r"weights must be floating point of shape \[3\].*\(4,\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_is_refused(name):
    change, message = BAD[name]
    arguments = {**GOOD, **change}
    with pytest.raises(InvalidInput, match=message) as caught:
        CrossEntropy()(arguments["logits"], arguments["targets"], arguments["weights"])
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_every_loss_checks_its_batch(case):
    for change, _ in BAD.values():
        arguments = {**GOOD, **change}
        with pytest.raises(InvalidInput):
            case.loss(arguments["logits"], arguments["targets"], arguments["weights"])


def test_shared_results_are_computed_once():
    batch = Batch(GOOD["logits"], GOOD["targets"], None)
    assert batch.log_probabilities is batch.log_probabilities
    assert batch.probabilities is batch.probabilities
    assert batch.true_log is batch.true_log
    assert batch.top is batch.top


def test_top_of_equal_logits_is_the_first_class_as_argmax_has_it():
    logits = torch.zeros(3, 4)
    confidence, correct = Batch(logits, torch.tensor([0, 1, 3]), None).top
    assert confidence.tolist() == [0.25] * 3
    assert correct.tolist() == [1, 0, 0] == (logits.argmax(1) == torch.tensor([0, 1, 3])).int().tolist()


@pytest.mark.parametrize(
    ("shape", "hint", "rows"),
    [
        ((2, 4, 3, 5), "Flatten dense logits", lambda z: z.movedim(1, -1).flatten(0, -2)),
        ((2, 3, 4), "Flatten dense logits", lambda z: z.flatten(0, -2)),
        ((6,), "torch.stack([torch.zeros_like(z), z], dim=1)", lambda z: torch.stack([torch.zeros_like(z), z], dim=1)),
    ],
)
def test_the_way_out_leads_out(shape, hint, rows):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator)
    places = shape[:1] + shape[2:] if len(shape) == 4 else shape[:2]
    targets = torch.randint(0, 2, places, generator=generator)
    with pytest.raises(InvalidInput) as caught:
        CrossEntropy()(logits, targets)
    assert hint in str(caught.value)
    expected = nn.functional.cross_entropy(rows(logits), targets.flatten())
    torch.testing.assert_close(CrossEntropy()(rows(logits), targets.flatten()), expected)
