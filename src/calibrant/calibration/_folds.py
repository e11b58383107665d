"""Stratified folds from a seed of our own."""

from typing import Any

import numpy as np

from calibrant.calibration._arrays import Integers
from calibrant.checks import whole
from calibrant.errors import invalid


def stratified_folds(targets: Integers, folds: int, seed: int) -> Integers:
    """The fold 0..folds-1 of each case; every class is spread as evenly as it can be.

    Args:
        targets: Class indices, shape (n,).
        folds: At least 2.
        seed: The same seed gives the same folds on every machine.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(targets))
    order = order[np.argsort(targets[order], kind="stable")]
    # Dealt like cards, class after class without a break, so that the folds also end up equally large.
    fold = np.empty(len(targets), dtype=np.int64)
    fold[order] = np.arange(len(targets)) % folds
    for held_out in range(folds):
        rest = targets[fold != held_out]
        if len(rest) == len(targets) or len(rest) == 0 or (rest == rest[0]).all():
            raise invalid(
                "targets",
                f"hold enough cases of two classes for {folds} folds",
                f"{len(targets)} cases",
                "Use more cases or fewer folds.",
            )
    return fold


def check_folds(folds: Any, seed: Any) -> None:
    """Refuse fewer than two folds and seeds that are not whole numbers."""
    whole("folds", folds, 2)
    whole("seed", seed, 0)
