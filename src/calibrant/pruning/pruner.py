"""The pruner: a table of scores, a timetable, and the set of samples that train now."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch import distributed as dist

from calibrant.checks import as_array, labels, number, require_tensor, whole
from calibrant.errors import CalibrantError, invalid
from calibrant.losses import distributed
from calibrant.pruning.policies import Choice, PruningPolicy, Snapshot
from calibrant.pruning.quotas import Mask
from calibrant.pruning.sampling import DRAW, ORDER, KeptSampler, generator_for, steps_in
from calibrant.pruning.scores import ScoreTable, collective_device
from calibrant.pruning.timetable import Every, Timetable
from calibrant.runs import PruningAudit, save_audit

_log = logging.getLogger("calibrant.pruning")
Scorer = Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]
"""Takes indices, int64 on the CPU, and yields batches `(indices, logits)` that hold each of them once."""
_MOST_CLASSES = 2**20
"""A hash or an id that is given as a label would ask for a table of its size."""
_STATE = ("rows", "weights", "kept_mask", "left", "history", "epoch", "notes", "settings")


class ConfidencePruner:
    """Keeps the score of every training sample and decides which samples train in each epoch.

    The score is the paper's exponential moving average of the top probability, `e <- ema * c + (1 - ema) * e` from
    `e = 0`, taken from the training batches themselves, before the optimiser's step.

    Args:
        targets: Label of every sample, shape (n,), whole numbers `0..K-1`.
        policy: Chooses the samples that leave. None: all stay, and order and scores are still kept.
        schedule: After which epochs they leave. Policies that draw every epoch do not need one.
        ema: Weight of the newest confidence, in (0, 1]; the paper's 0.3. 1.0 is the paper's pruning without EMA.
        seed: The order of an epoch and every draw depend on this and the epoch alone.
        epochs: Number of epochs of the training; needed for `anneal` and `budget`.
        anneal: Final epochs on all data with weight 1: a number, or a fraction of `epochs` (rounded up).
        minimum_per_class: No class is pruned below this.
        budget: Share of `epochs * n` that may be trained on, exactly; it takes the place of the policy's rate.
        n_classes: Number of classes K, the columns of the logits. None: one more than the largest target, and a class
            without samples is an error.
        batch_size: Samples of one rank's batch: several ranks then repeat samples only if it cannot be avoided. Needed
            for `LowestConfidence(within="batch")`.

    >>> from calibrant.pruning import ConfidencePruner, Every, LowestConfidence
    >>> pruner = ConfidencePruner([0, 0, 1, 1], policy=LowestConfidence(0.5), schedule=Every(1))
    >>> pruner.observe(torch.arange(4), torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]))
    >>> pruner.step()
    >>> pruner.kept
    tensor([0, 3])
    """

    def __init__(
        self,
        targets: Tensor | NDArray[Any] | Sequence[int],
        *,
        policy: PruningPolicy | None = None,
        schedule: Every | None = None,
        ema: float = 0.3,
        seed: int = 0,
        epochs: int | None = None,
        anneal: float = 0,
        minimum_per_class: int = 1,
        budget: float = 1.0,
        n_classes: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._labels, sizes = _checked_targets(targets, n_classes)
        if not 0 < number("ema", ema) <= 1:
            raise invalid("ema", "lie in (0, 1]", ema, "The paper uses 0.3; 1.0 keeps the last confidence alone.")
        if epochs is not None:
            epochs = whole("epochs", epochs, 1)
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1)
        minimum = whole("minimum_per_class", minimum_per_class, 1)
        self.timetable = Timetable(sizes, policy, schedule, epochs, anneal, minimum, budget)
        columns: tuple[str, ...] = ()
        if policy is not None:
            columns = policy.columns
            if policy.within_batch and batch_size is None:
                raise invalid("batch_size", f"be given with {policy}", None)
        self.samples = len(self._labels)
        self.n_classes = len(sizes)
        self.seed = whole("seed", seed, 0)
        self.batch_size = batch_size
        # Samples of a batch over all ranks, if their parts differ in size.
        self.global_batch_size: int | None = None
        self.table = ScoreTable(torch.from_numpy(self._labels), ema=float(ema), extra=columns)
        self.epoch = 0
        """Finished epochs; while an epoch runs, its number counted from 0."""
        self.scored = 0
        """How many resting samples all ranks scored in the last step."""
        self.kept_mask = torch.ones(self.samples, dtype=torch.bool)
        """Whether each sample trains in the coming epoch, shape (n,); fixed storage on the device, read only."""
        self._weights = torch.ones(self.samples)
        self._kept_sizes = sizes
        self._left = np.full(self.samples, -1, dtype=np.int32)
        self._history: list[list[int]] = []
        self.notes: list[str] = []
        """What the pruner refused or could not do, with the epoch when it first happened."""
        self._targets_digest = hashlib.sha256(self._labels.data).hexdigest()[:16]
        if empty := [k for k, size in enumerate(sizes) if size == 0]:
            self._note(f"{len(empty)} of {self.n_classes} classes have no samples (first: class {empty[0]})")

    # While training.

    def to(self, device: torch.device | str) -> "ConfidencePruner":
        """Move the tables; afterwards their storage never changes, so a captured graph may keep their addresses."""
        self.table.to(device)
        self.kept_mask = self.kept_mask.to(device)
        self._weights = self._weights.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self._weights.device

    def observe(self, indices: Tensor, logits: Tensor) -> None:
        """Take note of what the model says about a batch.

        Nothing waits for the device and all shapes are fixed. Of several copies of a sample in the batch the
        first one counts; rows that are not finite are left out.

        Args:
            indices: Shape (b,), the samples' positions in `targets`.
            logits: Shape (b, K), as the model gave them; any floating type, gradients are not followed.
        """
        indices = self._on_device(indices)
        self._check_logits(logits, len(indices))
        self.table.observe(indices, logits.detach())

    def weights(self, indices: Tensor) -> Tensor:
        """Return the weight of each sample in the classification loss, shape (b,), float32; 0 if it rests."""
        return self._weights.index_select(0, self._on_device(indices))

    def _on_device(self, indices: Tensor) -> Tensor:
        """Return the indices on the device of the tables. Their range is checked if that costs no wait."""
        require_tensor("indices", indices)
        if indices.dtype not in {torch.int64, torch.int32} or indices.ndim != 1:
            raise invalid("indices", "be int64 of shape (batch,)", f"{indices.dtype} {tuple(indices.shape)}")
        if indices.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = indices[(indices < 0) | (indices >= self.samples)]
            if len(outside):
                hint = "Wrap what the loader reads, outermost: Indexed(Subset(...))."
                raise invalid("indices", f"lie in 0..{self.samples - 1}", int(outside[0]), hint)
        return indices.to(self.device, torch.int64, non_blocking=True)

    def _check_logits(self, logits: Tensor, rows: int) -> None:
        """Raise if logits do not fit the indices or the classes. Only shapes are looked at."""
        require_tensor("logits", logits)
        if logits.ndim != 2 or logits.shape[1] != self.n_classes:
            hint = "Make the pruner with n_classes= if some classes have no samples."
            if self.n_classes == 2 and logits.shape == (rows, 1):
                hint = "One logit z is the same as two: torch.cat([torch.zeros_like(z), z], dim=1)."
            raise invalid("logits", f"have shape (batch, {self.n_classes})", tuple(logits.shape), hint)
        if rows != len(logits):
            raise invalid("indices", f"have shape ({len(logits)},), one per row of logits", f"({rows},)")

    # Once per epoch.

    def step(self, *, score: Scorer | None = None) -> None:
        """End the epoch: merge the ranks' scores, and decide which samples train next.

        Args:
            score: Called before a cut of a policy with `readmit`, with the resting samples that this rank must score.
                It passes them through the network, without gradients, and yields batches `(indices, logits)`. How many
                samples all ranks scored in this step is then `scored`.
        """
        self.table.share()
        finished = self.epoch + 1
        trained = self._kept_sizes
        action = self.timetable.action(finished)
        policy = self.timetable.policy
        self.scored = 0
        if action in {"cut", "draw"}:
            assert policy is not None
            if action == "cut" and policy.from_all:
                self._score(score)
            self._prune(policy, finished)
        elif action == "all":
            self._train_on(np.ones(self.samples, dtype=np.bool_))
        self._history.append(trained)
        self.epoch = finished
        if distributed.is_distributed():
            self._assert_ranks_agree()

    def _score(self, scorer: Scorer | None) -> None:
        """Score the resting samples, each rank a part."""
        if scorer is None:
            hint = "Call pruner.step(score=...): docs/pruning.md shows how."
            raise invalid("score", f"be given to step() with {self.timetable.policy}", None, hint)
        wanted = self.resting
        mine = wanted[distributed.rank() :: distributed.world_size()]
        found = 0
        if len(mine):
            for indices, logits in scorer(mine):
                self._check_logits(logits, len(indices))
                self.table.catch_up(indices.to(self.device), logits.detach(), finished=self.epoch + 1)
                found += len(indices)
        if found != len(mine):
            raise CalibrantError(f"score gave logits for {found} samples, but was asked for {len(mine)}.")
        self.table.share()
        self.scored = len(wanted)

    def _prune(self, policy: PruningPolicy, finished: int) -> None:
        """Let the policy choose from its pool."""
        pool = np.arange(self.samples) if policy.from_all else self.kept.numpy()
        rested = self.samples * finished - sum(self.kept_by_epoch) - self.n_kept
        quota = self.timetable.quota(finished, self.timetable.pool(self._kept_sizes), rested=rested)
        choice = _checked_choice(policy, self._snapshot(pool, policy, quota.asked), quota.leave)
        left = np.bincount(self._labels[pool[~choice.stay]], minlength=self.n_classes).tolist()
        self.timetable.check_left(quota, left)
        wanted = quota.wanted if choice.wanted is None else choice.wanted
        if wanted is not None:
            self._note_refusals(left, wanted)
        # If scores decide how many leave, an epoch in which no sample does is nothing to report.
        if choice.stay.all() and (policy.known_ahead or not policy.redraws):
            self._note("no sample left: every class is too small for the policy's fraction or the class floor")
        rest, asked = self.timetable.rest, quota.asked or 0
        if rest is not None and finished == rest.last and sum(left) < asked:
            self._note(
                f"the budget is not met: {asked} samples had to rest in the last epoch with rest, {sum(left)} could"
            )
        stay = np.zeros(self.samples, dtype=np.bool_)
        stay[pool] = choice.stay
        weights = None
        if choice.weights is not None:
            weights = np.zeros(self.samples, dtype=np.float32)
            weights[pool] = choice.weights
        if not policy.redraws:
            before = self._mask()
            self._left[before & ~stay] = finished
            self._left[stay & ~before] = -1
        self._train_on(stay, weights)

    def _train_on(self, stay: Mask, weights: NDArray[np.float32] | None = None) -> None:
        """Set in place which samples train in the coming epoch; the weight of all others becomes 0."""
        self.kept_mask.copy_(torch.from_numpy(stay))
        self._weights.copy_(self.kept_mask if weights is None else torch.from_numpy(weights))
        self._kept_sizes = self._count(stay)

    def _count(self, mask: Mask) -> list[int]:
        sizes: list[int] = np.bincount(self._labels[mask], minlength=self.n_classes).tolist()
        return sizes

    def _mask(self) -> Mask:
        mask: Mask = self.kept_mask.cpu().numpy()
        return mask

    def _snapshot(self, pool: NDArray[np.intp], policy: PruningPolicy, asked: int | None) -> Snapshot:
        if policy.columns:
            self._check_observed(policy)
        batches = None
        if policy.within_batch:
            block = self.global_batch_size or (self.batch_size or 1) * distributed.world_size()
            order = self.global_order().numpy()
            batch_of = np.full(self.samples, -1, dtype=np.int64)
            batch_of[order] = np.arange(len(order)) // block
            batches = batch_of[pool]
        return Snapshot(
            targets=self._labels[pool],
            scores={name: self.table.column(name)[pool] for name in ("confidence", *policy.columns)},
            generator=generator_for(self.seed, self.epoch, DRAW),
            batches=batches,
            asked=asked,
        )

    def _note(self, text: str, *, topic: str | None = None) -> None:
        """Log what was refused or could not be done, once; `topic` is the part of the text that makes it the same."""
        if not any((topic or text) in note for note in self.notes):
            self.notes.append(f"epoch {self.epoch + 1}: {text}")
            _log.warning(self.notes[-1])

    def _note_refusals(self, left: Sequence[int], wanted: Sequence[int]) -> None:
        """Note if the class floor kept samples."""
        refused = [k for k in range(self.n_classes) if left[k] < wanted[k]]
        if refused:
            k = refused[0]
            self._note(
                f"refused to prune below minimum_per_class={self.timetable.minimum} in {len(refused)} of "
                f"{self.n_classes} classes (first: class {k}, {wanted[k]} should leave, {left[k]} did)"
            )

    def _check_observed(self, policy: PruningPolicy) -> None:
        """Raise if there are no scores, and note if some samples have none."""
        unseen = self.samples - int(np.count_nonzero(self.table.column("count")))
        if unseen == self.samples:
            raise CalibrantError(
                f"{policy} needs scores, and none was observed. Call pruner.observe(indices, logits) in each batch."
            )
        if unseen:
            self._note(
                f"{unseen} samples were never observed; they keep the score 0 (drop_last, draws with replacement, or "
                "Indexed not outermost around the dataset)",
                topic="never observed",
            )

    def _assert_ranks_agree(self) -> None:
        """Raise, on every rank, if the ranks do not train on the same set."""
        values = {
            "settings or targets": _short_digest(repr(self.settings()).encode()),
            "kept set": _short_digest(self._mask().data),
            "weights": _short_digest(self._weights.cpu().numpy().data),
        }
        mine = torch.tensor(list(values.values()), dtype=torch.int64, device=collective_device(self.device))
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine)
        differs = (torch.stack(rows) != mine).any(0).tolist()
        if any(differs):
            what = "; ".join(name for name, differ in zip(values, differs, strict=True) if differ)
            raise CalibrantError(f"the ranks disagree on: {what}.")

    # What is trained on, and in what order.

    @property
    def kept(self) -> Tensor:
        """Sorted indices of the samples that train in the coming epoch, int64, on the CPU."""
        return torch.from_numpy(np.flatnonzero(self._mask()))

    @property
    def resting(self) -> Tensor:
        """Sorted indices of the samples that do not train in the coming epoch, int64, on the CPU."""
        return torch.from_numpy(np.flatnonzero(~self._mask()))

    @property
    def n_kept(self) -> int:
        """Number of samples that train in the coming epoch."""
        return sum(self._kept_sizes)

    @property
    def kept_by_epoch(self) -> list[int]:
        """Number of samples that each finished epoch trained on."""
        return [sum(trained) for trained in self._history]

    @property
    def scores(self) -> Tensor:
        """EMA confidence of each sample, shape (n,); a copy on the CPU."""
        return torch.from_numpy(self.table.column("confidence").copy())

    def global_order(self) -> Tensor:
        """Return the order of this epoch over all ranks: a shuffle of `kept` by seed and epoch alone."""
        kept = self.kept
        return kept[torch.randperm(len(kept), generator=generator_for(self.seed, self.epoch, ORDER))]

    def order(self) -> Tensor:
        """Return this rank's indices in order, int64, on the CPU: what `sampler()` yields."""
        return self.sampler().order()

    def sampler(
        self,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> KeptSampler:
        """Return a sampler for `DataLoader`; one for the whole training.

        Args:
            batch_size: Per rank. None: that of the pruner. Ranks then repeat as few samples as possible.
            drop_last: Set it if the `DataLoader` has it and there are several ranks.
            rank: This process's rank. None: that of `torch.distributed`.
            world_size: Number of ranks. None: that of `torch.distributed`.
        """
        return KeptSampler(self, batch_size or self.batch_size or 1, drop_last, rank, world_size)

    def samples_by_epoch(self, epochs: int) -> list[int]:
        """Return the number of samples that each of the first `epochs` epochs trains on, exactly."""
        return [sum(sizes) for sizes in self.timetable.sizes_by_epoch(whole("epochs", epochs, 0))]

    def total_steps(self, epochs: int, batch_size: int, world_size: int = 1, *, drop_last: bool = False) -> int:
        """Return the exact number of steps of a training with `epochs` epochs, from its start, before it begins.

        Raise if it is not known, as for `within="batch"`.
        """
        samples = self.samples_by_epoch(epochs)
        return sum(steps_in(n, batch_size=batch_size, world_size=world_size, drop_last=drop_last) for n in samples)

    # State and record.

    def settings(self) -> dict[str, Any]:
        """Return everything that the state of pruning depends on, as plain values."""
        return {
            "samples": self.samples,
            "classes": self.n_classes,
            "targets": self._targets_digest,
            "seed": self.seed,
            "ema": self.table.ema,
            "policy": repr(self.timetable.policy),
            "schedule": repr(self.timetable.schedule),
            "epochs": self.timetable.epochs,
            "anneal": self.timetable.anneal,
            "minimum_per_class": self.timetable.minimum,
            "rest": repr(self.timetable.rest),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state: tensors on the CPU, and plain values that JSON can hold."""
        return {
            "rows": self.table.rows.cpu().clone(),
            "weights": self._weights.cpu().clone(),
            "kept_mask": self.kept_mask.cpu().clone(),
            "left": torch.from_numpy(self._left.copy()),
            "history": torch.tensor(self._history, dtype=torch.int64).reshape(-1, self.n_classes),
            "epoch": self.epoch,
            "notes": list(self.notes),
            "settings": self.settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave, in place: the tables keep their storage.

        The state must come from a pruner with the same targets and settings. Save it between epochs, when all ranks
        hold the same rows; in the middle of an epoch call `table.share()` on all of them before.
        """
        if not isinstance(state, Mapping) or not all(name in state for name in _STATE):
            raise invalid("state", "be what state_dict gave", type(state).__name__)
        theirs, mine = state["settings"], self.settings()
        differs = [name for name in {**mine, **theirs} if theirs.get(name) != mine.get(name)]
        if differs:
            found = ", ".join(f"{name} ({theirs.get(name)} there, {mine.get(name)} here)" for name in differs)
            raise invalid("state", "come from a pruner with the same targets and settings", f"another {found}")
        self.table.load(state["rows"])
        self._weights.copy_(state["weights"])
        self.kept_mask.copy_(state["kept_mask"])
        self._kept_sizes = self._count(self._mask())
        self._left = state["left"].cpu().numpy().astype(np.int32, copy=True)
        self._history = state["history"].tolist()
        self.epoch = int(state["epoch"])
        self.notes = list(state["notes"])

    def audit(self) -> PruningAudit:
        """Return the whole record, sample by sample."""
        return PruningAudit(
            target=self._labels.copy(),
            left=self._left.astype(np.int64),
            score=self.table.column("confidence"),
            excess=self.table.column("excess"),
            predicted=self.table.column("predicted").astype(np.int64),
            count=self.table.column("count").astype(np.int64),
            kept=self._mask().copy(),
            kept_counts=np.array(self._history, dtype=np.int64).reshape(-1, self.n_classes),
            class_sizes=np.array(self.timetable.sizes, dtype=np.int64),
            settings=self.settings(),
        )

    def save(self, path: str | Path) -> None:
        """Write the record to `pruning.npz` or another name in .npz; `load_audit` reads it."""
        save_audit(path, self.audit())


def _checked_targets(
    targets: Tensor | NDArray[Any] | Sequence[int], n_classes: int | None
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the labels as a copy, and the number of samples of each class."""
    limit = min(whole("n_classes", n_classes or _MOST_CLASSES, 1), _MOST_CLASSES)
    found = np.array(labels("targets", as_array("targets", targets), n_classes=limit), dtype=np.int64)
    sizes = np.bincount(found, minlength=n_classes or 0)
    if n_classes is None and not sizes.all():
        hint = "Number the classes 0..K-1, or give n_classes= if a class is meant to be empty."
        raise invalid("targets", "hold every class", f"none of class {int(np.argmin(sizes))}", hint)
    return found, sizes.tolist()


def _checked_choice(policy: PruningPolicy, pool: Snapshot, leave: Sequence[int]) -> Choice:
    """Return what the policy chooses. Raise if it does not have one entry for each sample of the pool."""
    choice = policy.choose(pool, leave)
    stay = np.asarray(choice.stay)
    rows = len(pool.targets)
    if stay.shape != (rows,):
        hint = "It says of each sample whether it stays; it is no list of indices."
        raise invalid(f"Choice.stay of {policy}", f"have the {rows} rows of the pool", f"shape {stay.shape}", hint)
    weights = choice.weights
    if weights is not None and not (
        np.shape(weights) == (rows,) and np.isfinite(weights).all() and np.min(weights) >= 0
    ):
        raise invalid(f"Choice.weights of {policy}", f"be {rows} finite numbers, none of them negative", "others")
    return replace(choice, stay=stay.astype(np.bool_, copy=False))


def _short_digest(content: bytes | memoryview) -> int:
    """Return 63 bits of a SHA-256, as a number that fits into a tensor."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1
