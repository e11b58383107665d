"""The pruner: a table of scores, a timetable, and the set of samples that train now."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.checks import whole
from calibrant.errors import CalibrantError, invalid
from calibrant.losses import distributed
from calibrant.pruning import inputs
from calibrant.pruning.audit import PruningReport, find_suspects
from calibrant.pruning.overview import audit_of, report_of
from calibrant.pruning.policies import PruningPolicy, Snapshot
from calibrant.pruning.ranks import assert_agreement, mean_over_ranks, short_digest
from calibrant.pruning.sampling import DRAW, ORDER, KeptSampler, Sharding, batch_numbers, generator_for, steps_in
from calibrant.pruning.schedules import Schedule
from calibrant.pruning.scoring import Scorer, Scoring, check_observed, check_scoring, note_unscored, score_samples
from calibrant.pruning.state import PruningState
from calibrant.pruning.table import ScoreTable
from calibrant.pruning.timetable import Timetable, anneal_epochs, checked_choice
from calibrant.runs import PruningAudit, save_audit


class ConfidencePruner:
    """Keeps the score of every training sample and decides which samples train in each epoch.

    The score is the paper's exponential moving average of the top probability, `e <- ema * c + (1 - ema) * e` from
    `e = 0`, taken from the training batches themselves, before the optimiser's step; no extra pass is made unless
    `scoring` asks for one.

    Args:
        targets: Label of every sample, shape (n,), whole numbers `0..K-1`.
        policy: Chooses the samples that leave. With None all stay, and order and scores are still kept.
        schedule: After which epochs they leave. Not needed for `Unbiased` and `RandomSubset`.
        ema: Weight of the newest confidence, in (0, 1]; the paper's 0.3. 1.0 is the paper's pruning without EMA.
        seed: The order of an epoch and every draw depend on this and the epoch alone.
        epochs: Number of epochs of the training; needed for `anneal`.
        anneal: Final epochs on all data with weight 1: a number, or a fraction of `epochs` (rounded up).
        minimum_per_class: No class is pruned below this.
        budget: Share of `epochs * n` that may be trained on, exactly: the policy's free rate is solved for it.
        bias_correction: Divide the EMA by `1 - (1 - ema)**count`, which matters where samples are not seen equally
            often (`drop_last`).
        scoring: "batches", or at the cuts also a forward pass: over what rests ("resting", which `readmit` needs to
            bring samples back), or over all that competes ("all"). `step` then takes `score`.
        fixed_batches: Build the batches once and never again: what is pruned leaves the set, but not its batch, and
            every epoch trains on all samples in the same order. The paper's Procedure 3, taken at its word.
        n_classes: Number of classes K, the columns of the logits; one more than the largest target unless told. A class
            without samples is an error unless `n_classes` is given.
        batch_size: Samples of one rank's batch: several ranks then repeat samples only where it cannot be avoided.
            Needed for `LowestConfidence(within="batch")`.
        device: Where the tables live; see `to`.
        validate: Check indices on a GPU too, which waits for it. On the CPU they are always checked.

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
        schedule: Schedule | None = None,
        ema: float = 0.3,
        seed: int = 0,
        epochs: int | None = None,
        anneal: float = 0,
        minimum_per_class: int = 1,
        budget: float = 1.0,
        bias_correction: bool = False,
        scoring: Scoring = "batches",
        fixed_batches: bool = False,
        n_classes: int | None = None,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        validate: bool = False,
    ) -> None:
        self._labels, sizes = inputs.checked_targets(targets, n_classes)
        inputs.check_options(ema=ema, seed=seed)
        epochs = None if epochs is None else whole("epochs", epochs, 1)
        minimum = whole("minimum_per_class", minimum_per_class, 1)
        batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
        timetable = Timetable(tuple(sizes), policy, schedule, epochs, anneal_epochs(anneal, epochs), minimum)
        self.timetable = timetable.with_budget(budget)
        if policy is not None and policy.within_batch and batch_size is None:
            raise invalid("batch_size", f"be given with {policy}", None)
        check_scoring(scoring, policy)
        inputs.check_fixed_batches(fixed_batches, policy, scoring)
        if epochs is not None:
            self.timetable.warn_if_idle(epochs, stacklevel=2)
        self.samples, self.n_classes = len(self._labels), len(sizes)
        self.seed, self.batch_size, self.validate = int(seed), batch_size, validate
        self.scoring, self.scored = scoring, 0
        # Samples of a batch over all ranks, where their parts differ in size.
        self.global_batch_size: int | None = None
        labels, extra = torch.from_numpy(self._labels), policy.columns if policy is not None else ()
        self.table = ScoreTable(labels, ema=float(ema), bias_correction=bias_correction, extra=extra)
        self._state = PruningState(self._labels, sizes, fixed=fixed_batches)
        self._base_order, self._targets_digest = 0, hashlib.sha256(self._labels.data).hexdigest()
        if device is not None:
            self.to(device)

    # while training ---------------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> "ConfidencePruner":
        """Move the tables; afterwards their storage never changes, so a captured graph may keep their addresses."""
        self.table.to(device)
        self._state.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the tables live."""
        return self._state.weights.device

    def observe(self, indices: Tensor, logits: Tensor) -> None:
        """Take note of what the model says about a batch.

        Nothing waits for the device and all shapes are fixed. Several copies of a sample in the batch count once, with
        their mean; rows that are not finite are left out.

        Args:
            indices: Shape (b,), the samples' positions in `targets`.
            logits: Shape (b, K), as the model gave them; any floating type, gradients are not followed.
        """
        indices = self._on_device(indices)
        inputs.check_logits(logits, len(indices), self.n_classes)
        self.table.observe(indices, logits.detach())

    def weights(self, indices: Tensor) -> Tensor:
        """Weight of each sample in the classification loss, shape (b,), float32; 0 for a sample that rests."""
        return self._state.weights.index_select(0, self._on_device(indices))

    def _on_device(self, indices: Tensor) -> Tensor:
        """The indices where the tables are, checked where that costs no wait."""
        inputs.check_indices(indices, self.samples, validate=self.validate)
        return indices.to(self.device, torch.int64, non_blocking=True)

    # once per epoch ---------------------------------------------------------------------------------------------------

    def step(self, loss: float | None = None, *, score: Scorer | None = None) -> None:
        """End the epoch: merge the ranks' scores, and decide which samples train next.

        Args:
            loss: Mean loss of the epoch, for `OnPlateau`; averaged over the ranks. Other schedules ignore it.
            score: Called before a cut where `scoring` is not "batches", with the indices that this rank is to score; it
                passes them through the network, without gradients, and yields batches `(indices, logits)`. How many
                samples all ranks scored in this step is then `scored`.
        """
        many, loss = distributed.is_distributed(), inputs.checked_loss(loss)
        if many:
            self.table.share(distributed.rank())
            loss = None if loss is None else mean_over_ranks(loss, self.device)
        state = self._state
        action = self.timetable.action(state.epoch + 1, state.memory, loss)
        trained, self.scored = state.kept_sizes, 0
        policy = self.timetable.policy
        if action == "cut" and policy is not None and self.scoring != "batches":
            self.scored = score_samples(self.table, state, score, self.scoring, from_all=policy.from_all)
        if action in {"cut", "draw"}:
            self._prune(redraw=action == "draw")
        elif action == "all":
            state.train_on(np.ones(self.samples, dtype=np.bool_))
        state.finish_epoch(trained)
        if many:
            self._agree()

    def _prune(self, *, redraw: bool) -> None:
        """Let the policy choose from its pool; the epoch that just ended is `self.epoch`, counted from 0."""
        policy, state = self.timetable.policy, self._state
        assert policy is not None
        mask = state.members()
        if policy.from_all and not redraw:
            note_unscored(self.table, state)
        pool = slice(None) if policy.from_all or mask.all() else np.flatnonzero(mask)
        sizes = self.timetable.pool(state.member_sizes())
        quota = self.timetable.quota(self.epoch + 1, sizes, rested=state.rested())
        limits = [max(n - self.timetable.minimum, 0) for n in sizes] if policy.within_batch else quota.leave
        choice = checked_choice(policy, self._snapshot(pool, policy), limits)
        state.note_refusals(choice.quota or quota, self.timetable.minimum)
        # Where scores decide how many leave, an epoch in which nobody does is nothing to report.
        if choice.stay.all() and (policy.known_ahead or policy.within_batch):
            state.note("no sample left: every class is too small for the policy's fraction or the class floor")
        stay, weights = np.zeros(self.samples, dtype=np.bool_), choice.weights
        stay[pool] = choice.stay
        if weights is not None and not policy.from_all:
            weights = np.zeros(self.samples, dtype=np.float32)
            weights[pool] = choice.weights
        if not redraw:
            state.note_leaving(stay)
        state.train_on(stay, weights)
        leave = (choice.quota or quota).leave
        if missed := self.timetable.missed(self.epoch + 1, asked=sum(quota.leave), left=sum(leave)):
            state.note(missed)
        if state.member_sizes() != [size - out for size, out in zip(sizes, leave, strict=True)]:
            raise CalibrantError(f"{policy} let other numbers of samples go than its quota says; choose must obey it.")

    def _snapshot(self, pool: slice | NDArray[np.intp], policy: PruningPolicy) -> Snapshot:
        if policy.uses_scores:
            check_observed(self.table, self._state, policy)
        block = self.global_batch_size or (self.batch_size or 1) * distributed.world_size()
        scores = {name: self.table.score(name) for name in ("confidence", *policy.columns)}
        return Snapshot(
            targets=self._labels[pool],
            scores={name: values[pool] for name, values in scores.items()},
            generator=generator_for(self.seed, self.epoch, DRAW),
            batches=batch_numbers(self.global_order(), block, self.samples)[pool] if policy.within_batch else None,
            epoch=self.epoch + 1,
            floor=self.timetable.minimum,
        )

    def _agree(self) -> None:
        """Raise where ranks do not train on the same set."""
        about = {
            "settings or targets": short_digest(repr(self.settings()).encode()),
            "kept set": short_digest(self._state.mask().data),
            "weights": short_digest(self._state.weights.cpu().numpy().data),
            "order of the base sampler (seed its generator alike on all ranks)": self._base_order,
        }
        assert_agreement(about, self.device)

    # what is trained on, and in what order ----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Finished epochs; while an epoch runs, its number counted from 0."""
        return self._state.epoch

    @property
    def kept_mask(self) -> Tensor:
        """Whether each sample trains in the coming epoch, shape (n,), bool; fixed storage on the device, read only."""
        return self._state.kept_mask

    @property
    def kept(self) -> Tensor:
        """Sorted indices of the samples that train in the coming epoch, int64, on the CPU."""
        return torch.from_numpy(np.flatnonzero(self._state.mask()))

    @property
    def resting(self) -> Tensor:
        """Sorted indices of the samples that do not train in the coming epoch, int64, on the CPU."""
        return torch.from_numpy(np.flatnonzero(~self._state.mask()))

    @property
    def n_kept(self) -> int:
        """Number of samples that train in the coming epoch."""
        return sum(self._state.kept_sizes)

    @property
    def scores(self) -> Tensor:
        """EMA confidence of each sample, shape (n,), bias-corrected where asked; a copy on the CPU."""
        return torch.from_numpy(self.table.confidence().copy())

    def global_order(self) -> Tensor:
        """The order of this epoch over all ranks: a shuffle of `kept` by seed and epoch alone."""
        kept = self.kept
        epoch = 0 if self._state.fixed else self.epoch
        return kept[torch.randperm(len(kept), generator=generator_for(self.seed, epoch, ORDER))]

    def order(
        self,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Tensor:
        """This rank's indices in order, int64, on the CPU: what `sampler` with the same arguments yields."""
        return self._sharding(batch_size, drop_last, rank, world_size).take(self.global_order())

    def _sharding(self, batch_size: int | None, drop_last: bool, rank: int | None, world_size: int | None) -> Sharding:
        return Sharding(
            rank=distributed.rank() if rank is None else rank,
            world_size=distributed.world_size() if world_size is None else world_size,
            batch_size=self.batch_size if batch_size is None else batch_size,
            drop_last=drop_last,
        )

    def sampler(
        self,
        base: Iterable[int] | None = None,
        *,
        weights: Tensor | None = None,
        batch_size: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> KeptSampler:
        """A sampler for `DataLoader`; one for the whole training.

        Args:
            base: Your own sampler. Its order is kept and samples that are out are skipped; a pass has
                `len(base) * n_kept // n` samples, for which `base` is passed over again where it takes that. On several
                ranks it must yield the same indices on each: the pruner shards them.
            weights: Sampling weights, shape (n,): `n_kept` draws with replacement from the kept samples.
            batch_size: Per rank; the constructor's unless told. See `Sharding` for what it avoids.
            drop_last: Set it where the `DataLoader` has it and there are several ranks.
            rank: This process's rank; `torch.distributed`'s unless told.
            world_size: Number of ranks; `torch.distributed`'s unless told.
        """
        sharding = partial(self._sharding, batch_size, drop_last, rank, world_size)
        return KeptSampler(self, sharding, base=base, weights=weights, remember=self._remember)

    def _remember(self, order: Tensor) -> None:
        if distributed.is_distributed():
            self._base_order = short_digest(order.numpy().data)

    def samples_by_epoch(self, epochs: int) -> list[int]:
        """Number of samples that each of the first `epochs` epochs trains on, exactly."""
        if self._state.fixed:
            return [self.samples] * whole("epochs", epochs, 0)
        return [sum(sizes) for sizes in self.timetable.sizes_by_epoch(whole("epochs", epochs, 0))]

    def total_steps(self, epochs: int, batch_size: int, world_size: int = 1, *, drop_last: bool = False) -> int:
        """Exact number of steps of a training with `epochs` epochs, from its start, before it begins.

        Not known for `OnPlateau` and `within="batch"`, which raise.
        """
        samples = self.samples_by_epoch(epochs)
        if self.timetable.epochs is None:
            self.timetable.warn_if_idle(epochs, stacklevel=2)
        return sum(steps_in(n, batch_size=batch_size, world_size=world_size, drop_last=drop_last) for n in samples)

    # state and reports ------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Everything that the state of pruning depends on, as plain values."""
        return {
            "samples": self.samples,
            "classes": self.n_classes,
            "targets": self._targets_digest,
            "seed": self.seed,
            "ema": self.table.ema,
            "bias_correction": self.table.bias_correction,
            "policy": repr(self.timetable.policy),
            "schedule": repr(self.timetable.schedule),
            "epochs": self.timetable.epochs,
            "anneal": self.timetable.anneal,
            "minimum_per_class": self.timetable.minimum,
            # Left out without a budget and without scoring: states of older versions have no such entries.
            **({} if self.scoring == "batches" else {"scoring": self.scoring}),
            **({"fixed_batches": True} if self._state.fixed else {}),
            **({} if self.timetable.rest is None else {"rest": repr(self.timetable.rest)}),
        }

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state: tensors on the CPU, and plain values that JSON can hold."""
        return {
            "rows": self.table.rows.cpu().clone(),
            "shared_count": self.table.shared_count.cpu().clone(),
            **self._state.state_dict(),
            "settings": self.settings(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True, shared: bool = False) -> None:
        """Continue from a saved state, in place: the tables keep their storage.

        Args:
            state: What `state_dict` gave.
            strict: Refuse a state that was made with other settings. Size, classes and targets must agree in any case.
            shared: All ranks held the same rows when the state was saved, as they do between epochs. One process keeps
                no account of that; without it, a run that goes on with several would take each row from the first.
        """
        inputs.check_settings(state, self.settings(), strict=strict)
        if state["rows"].shape != self.table.rows.shape:
            found = f"columns for {state['settings']['policy']}"
            raise invalid("state", f"hold scores for {self.timetable.policy}", found)
        self.table.rows.copy_(state["rows"])
        count = self.table.rows[:, self.table.columns.index("count")] if shared else state["shared_count"]
        self.table.shared_count.copy_(count)
        self._state.load_state_dict(state)

    def report(self, *, suspects: int = 100, seconds: float | None = None) -> PruningReport:
        """What pruning did so far.

        Args:
            suspects: At most so many likely wrong labels.
            seconds: Training time so far, for an estimate of the time saved.
        """
        found = find_suspects(self.table, self._labels, limit=suspects)
        return report_of(self._state, self.timetable.sizes, found, seconds=seconds)

    def audit(self) -> PruningAudit:
        """The whole record, sample by sample."""
        return audit_of(self.table, self._state, self.timetable.sizes, self.settings())

    def save(self, path: str | Path) -> None:
        """Write the record to `pruning.npz` or another name in .npz; `load_audit` reads it."""
        save_audit(path, self.audit())
