"""Scores from a pass of their own: what samples that rest would be worth now, measured at the cuts."""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import CalibrantError, invalid
from calibrant.losses import distributed
from calibrant.pruning import inputs
from calibrant.pruning.policies import PruningPolicy
from calibrant.pruning.state import PruningState
from calibrant.pruning.table import ScoreTable

Scoring = Literal["batches", "resting", "all"]
"""Where the scores at a cut come from.

`batches`: from the training batches, without any further pass. `resting`: samples that rest are passed through the
network before each cut, the others keep their score. `all`: every sample that competes is passed through the network
before each cut, and this alone is its score ("the model's performance is measured over the training dataset").
"""
Scorer = Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]
"""Takes indices, int64 on the CPU, and yields batches `(indices, logits)` that hold each of them once."""


def check_scoring(scoring: str, policy: PruningPolicy | None) -> None:
    """Refuse a way of scoring that is unknown, or that the policy has no use for."""
    if scoring not in get_args(Scoring):
        raise invalid("scoring", f"be one of {', '.join(get_args(Scoring))}", repr(scoring))
    if scoring == "batches":
        return
    if policy is None or policy.redraws or not policy.uses_scores:
        way_out = "Only a policy that cuts by score looks at other scores."
        raise invalid("scoring", f"be 'batches' with policy {policy}", repr(scoring), way_out)
    if scoring == "resting" and not policy.from_all:
        way_out = "Set readmit=True: else what rests never competes again."
        raise invalid("scoring", "be 'batches' or 'all' without re-admission", repr(scoring), way_out)


def score_samples(
    table: ScoreTable, state: PruningState, scorer: Scorer | None, scoring: str, *, from_all: bool
) -> int:
    """Score what competes at a cut; each rank scores a part, and all of them then hold all scores.

    Args:
        table: The scores.
        state: Which samples train now; the epoch that just ended is not counted in it yet.
        scorer: Passes samples through the network.
        scoring: See `Scoring`.
        from_all: Whether samples that rest compete.

    Returns:
        Number of samples that were scored, over all ranks.
    """
    if scorer is None:
        way_out = "Call pruner.step(score=...): docs/pruning.md shows how."
        raise invalid("score", f"be given to step() with scoring={scoring!r}", None, way_out)
    mask = state.kept_mask.cpu()
    wanted = torch.nonzero(~mask if scoring == "resting" else (torch.ones_like(mask) if from_all else mask)).flatten()
    mine = wanted[distributed.rank() :: distributed.world_size()]
    found = 0
    for indices, logits in scorer(mine) if len(mine) else ():
        inputs.check_logits(logits, len(indices), state.n_classes)
        rows = indices.to(table.rows.device)
        table.catch_up(rows, logits.detach(), finished=state.epoch + 1, anew=scoring == "all")
        found += len(indices)
    if found != len(mine):
        raise CalibrantError(f"score gave logits for {found} samples, but was asked for {len(mine)}.")
    if distributed.is_distributed():
        table.share(distributed.rank())
    return len(wanted)


def check_observed(table: ScoreTable, state: PruningState, policy: PruningPolicy) -> None:
    """Refuse a choice by scores where there are none, and note where some samples have none."""
    samples = len(state.labels)
    unseen = samples - int(np.count_nonzero(table.column("count")))
    if unseen == samples:
        raise CalibrantError(
            f"{policy} needs scores, and none was observed. Call pruner.observe(indices, logits) in each batch."
        )
    if unseen:
        state.note(f"{unseen} samples were never observed{_UNSEEN}", topic="never observed")


def note_unscored(table: ScoreTable, state: PruningState) -> None:
    """Note where samples compete for their return with the score that they left with."""
    stale = int((table.column("count")[~state.mask()] <= state.epoch).sum())
    if stale:
        state.note(f"{stale} samples that rest {_UNSCORED}", topic=_UNSCORED)


_UNSEEN = "; they keep the score 0 (drop_last, draws with replacement, or Indexed not outermost around the dataset)"
_UNSCORED = "were not scored since they left, so that hardly any can return; see scoring='resting'"
