"""Training settings that follow from the size of a data set, each with its reason.

One set of rules for all data. The constants are those of the recorded runs on CIFAR-10 and CIFAR-100 (docs/results.md);
below that size they were chosen on validation figures of small sets (docs/training.md).
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from calibrant.training.data import Extent

_LARGEST_BATCH, _SMALLEST_BATCH = 128, 16
_STEPS_PER_EPOCH = 64
_RATE = 0.1
# 160 epochs of the 45,000 training images of CIFAR-10 in batches of 128.
_SAMPLES, _UPDATES = 45_000, 56_250
_FEWEST_UPDATES, _FEWEST_EPOCHS = 1_000, 40
_FEW_PER_CLASS = 1_000
_SMALL_SIDE, _MEDIUM_SIDE = 16, 64
_FEW_SAMPLES = 1_000
_MANY_VALIDATION = 5_000
_SYMBOLS = re.compile(
    r"\b(digits?|numbers?|letters?|characters?|alphabet|handwriting|captcha|[ekq]?mnist|notmnist|svhn|usps|omniglot)\b"
)


@dataclass(frozen=True)
class Derived:
    """A derived setting.

    Args:
        key: Its key in the recipe.
        value: Its value.
        reason: The value in words, and why it is so.
        changes_anything: False where the data set itself brings this value.
    """

    key: str
    value: Any
    reason: str
    changes_anything: bool = True


def derive(extent: Extent, *, validation: float) -> list[Derived]:
    """The settings for a data set of this size.

    Args:
        extent: The size of the set.
        validation: The share that is held out of the training images.
    """
    samples = max(extent.train - round(extent.train * validation), 1)
    batch = _batch_size(samples)
    return [
        _model(extent.side, samples),
        *_step(samples, batch),
        _epochs(samples, batch),
        *_schedule(samples / max(extent.n_classes, 1)),
        _calibration(extent.train - samples),
        *_augmentation(extent),
    ]


def _batch_size(samples: int) -> int:
    """The largest power of two that leaves enough steps per epoch."""
    batch = _LARGEST_BATCH
    while batch > _SMALLEST_BATCH and samples / batch < _STEPS_PER_EPOCH:
        batch //= 2
    return min(batch, samples)


def _step(samples: int, batch: int) -> list[Derived]:
    # By the square root: at 216 images and batches of 16 it gave an NLL after scaling of .53, in proportion .58.
    rate = round(_RATE * (batch / _LARGEST_BATCH) ** 0.5, 3)
    steps = f"{batch}, which makes {math.ceil(samples / batch):,} steps per epoch of {samples:,} training images"
    in_proportion = "" if batch == _LARGEST_BATCH else f": {_RATE} times the square root of {batch} / {_LARGEST_BATCH}"
    return [
        Derived("optimiser.batch_size", batch, steps),
        Derived("optimiser.lr", rate, f"{rate:g} for batches of {batch}{in_proportion}"),
    ]


def _epochs(samples: int, batch: int) -> Derived:
    """As many updates as on CIFAR-10, fewer for smaller sets."""
    updates = max(_UPDATES * min(1.0, (samples / _SAMPLES) ** (2 / 3)), _FEWEST_UPDATES)
    epochs = max(round(updates * batch / samples), _FEWEST_EPOCHS)
    made = epochs * samples / batch
    return Derived("epochs", epochs, f"{epochs}, about {made:,.0f} updates for {samples:,} training images")


def _schedule(per_class: float) -> list[Derived]:
    few = per_class < _FEW_PER_CLASS
    floor = 0.5 if few else 0.2
    why = f"{floor} of the first rate, for {'fewer' if few else 'no fewer'} than {_FEW_PER_CLASS:,} images per class"
    return [
        Derived("schedule.floor", floor, f"{why} ({per_class:,.0f})"),
        Derived("schedule.average", 0.25, "0.25, the weights of the last quarter of the epochs are averaged"),
    ]


def _calibration(validation: int) -> Derived:
    # Twice the cases halve how often the ECE misses 1 %; below 5,000 they would cost several points of what may be
    # automated at 99 %, above only 0.3: results/benchmarks/calibration-share.txt.
    many = validation >= _MANY_VALIDATION
    share = 0.2 if many else 0.1
    why = f"{share} of {validation:,} validation cases for the temperature, the others for promises"
    return Derived("calibration.share", share, why, many)


def _model(side: int, samples: int) -> Derived:
    if side <= _SMALL_SIDE:
        return Derived("model.name", "tiny", f"tiny, for images of {side} pixels per side")
    # At 216 images and equal time on a CPU it was no worse than resnet32 on two sets: docs/training.md.
    if samples < _FEW_SAMPLES and side <= _MEDIUM_SIDE:
        return Derived("model.name", "tiny", f"tiny, for {samples:,} training images of {side} pixels per side")
    return Derived("model.name", "resnet32", f"resnet32, for images of {side} pixels per side")


def _augmentation(extent: Extent) -> list[Derived]:
    own = extent.augmentation
    crop, mirror = int(extent.side / 8 + 0.5), not _shows_symbols(extent.name)
    why = "yes, unless left and right matter: then say no" if mirror else "no, the set's name says digits or letters"
    return [
        Derived(
            "data.crop",
            crop,
            f"{crop} {'pixel' if crop == 1 else 'pixels'}, an eighth of {extent.side}",
            crop != own.crop_padding,
        ),
        Derived("data.mirror", mirror, why, mirror != own.flip),
    ]


def _shows_symbols(name: str) -> bool:
    """Whether a set shows digits or letters, by its name.

    >>> [_shows_symbols(name) for name in ("svhn", "my_Digits-2", "fashion-mnist", "digitalis")]
    [True, True, False, False]
    """
    words = name.lower().replace("_", " ")
    return _SYMBOLS.search(words) is not None and "fashion" not in words
