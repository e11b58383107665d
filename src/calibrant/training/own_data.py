"""`--data module:function`: torch datasets that a function of the user's own gives."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset, TensorDataset

from calibrant.errors import invalid
from calibrant.own_code import load, own_code_at_work
from calibrant.training.data import Augmentation, Extent, own_data, split_validation
from calibrant.training.recipe import Recipe
from calibrant.training.run_data import TrainingData
from calibrant.training.torchdata import SeededItems, TorchData, first_image, label_of, whole_numbers


def own_training_data(recipe: Recipe) -> TrainingData:
    """Call the function that the recipe names; what it gives must be the code that the run began with."""
    return _given(recipe.data.name, recipe).prepare(recipe)


def own_extent(name: str) -> Extent:
    """The size of such a set, which settings are derived from. Nothing is augmented: its items are finished."""
    found = _given(name, Recipe())
    side = min(first_image("train", found.train).shape[1:])
    parts: tuple[Any, Any] = (found.train, found.validation)
    return Extent(name, sum(map(len, parts)), len(found.class_names), side, Augmentation(0, flip=False))


def _given(name: str, recipe: Recipe) -> TorchData:
    """What the function gives, with a validation part: its own, or one that is drawn from its training part."""
    code = own_data(name)
    assert code is not None
    function = load(code, kind="data", expected=recipe.own_code.get(code.partition(":")[0]))
    with own_code_at_work(f"data {code} raised"):
        found: Any = function()
    if isinstance(found, TorchData):
        return found
    if not isinstance(found, tuple | list) or len(found) not in (2, 3):
        rule = "return torch datasets, (train, test) or (train, validation, test), or a TorchData"
        got = f"{len(found)} entries" if isinstance(found, tuple | list) else type(found).__name__
        raise invalid(f"data {code}", rule, got)
    train, *between, test = found
    first_image("train", train)  # refuses what is no dataset of images
    with own_code_at_work(f"data {code} raised"):
        targets = _labels(train)
    names = _class_names(train, targets)
    if between:
        return TorchData(train, between[0], test, names, targets, name=name)
    rows, held = split_validation(targets, fraction=recipe.data.validation, seed=recipe.data.split_seed)
    # The items of the validation part may be random, as those of the training part are: the same ones every time.
    validation = SeededItems(Subset(train, held.tolist()), recipe.seed)
    return TorchData(Subset(train, rows.tolist()), validation, test, names, targets[rows], name=name)


def _labels(items: Any) -> Tensor:
    """The labels that a dataset lists as `targets`, else those of its items, which are read once."""
    listed = whole_numbers(items.tensors[1] if isinstance(items, TensorDataset) else getattr(items, "targets", None))
    if listed is not None and len(listed) == len(items):
        return listed.to(torch.int64)
    seeded = SeededItems(items, seed=0)
    return torch.tensor([label_of("train", seeded[row], row) for row in range(len(items))])


def _class_names(items: TorchDataset[Any], targets: Tensor) -> Sequence[str]:
    """The attribute `classes`, as torchvision's datasets have it, else the numbers of the labels."""
    names = getattr(items, "classes", None)
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return tuple(names)
    return tuple(str(label) for label in range(int(targets.max()) + 1))
