"""Small real predictions that ship with the package: what recorded runs said about CIFAR-10, for guides and trials.

Logits are kept in float16, so figures differ from those of the records in the fourth digit. `scripts/make_samples.py`
makes the files from finished runs.
"""

from importlib import resources
from typing import Literal

from calibrant.errors import did_you_mean, invalid
from calibrant.predictions import Predictions

__all__ = ["SAMPLES", "Split", "load", "names"]

Split = Literal["val", "test"]

# Each sample with its run in words; `results/` has the record of each.
SAMPLES = {
    "cifar10-resnet32-nll": "CIFAR-10, ResNet-32, cross-entropy with the paper's schedule, seed 0: overconfident",
    "cifar10-resnet32-nll-averaged": "the same network and loss, cosine schedule and averaged weights, seed 1",
    "cifar10-resnet50-nll-averaged": "ResNet-50, cross-entropy, cosine schedule and averaged weights, seed 0",
    "cifar10-resnet32-flsd+h+p-ema": "the paper's method, pruning from the first drop of the learning rate, seed 0",
}


def names() -> tuple[str, ...]:
    """Names of the samples.

    >>> names()[0]
    'cifar10-resnet32-nll'
    """
    return tuple(SAMPLES)


def load(name: str, split: Split = "test") -> Predictions:
    """The predictions of a recorded run.

    Args:
        name: One of `names()`.
        split: "val" (5,000 images held out from training, for calibrators and rules) or "test" (the official 10,000).

    >>> load("cifar10-resnet32-nll")
    Predictions(10000 rows, 10 classes, from logits in float16)
    """
    if name not in SAMPLES:
        raise invalid("name", "be one of the samples", repr(name), did_you_mean(str(name), SAMPLES))
    if split not in ("val", "test"):
        raise invalid("split", "be 'val' or 'test'", repr(split))
    with resources.as_file(resources.files(__name__).joinpath(f"{name}-{split}.npz")) as path:
        return Predictions.load(path)
