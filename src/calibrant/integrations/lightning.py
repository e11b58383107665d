"""Lightning's `Trainer`: callbacks that prune and calibrate, and a loader that can go on in the middle of an epoch.

`training_step` returns a dictionary with `loss`, `logits` and `indices`; Lightning hands it to the callback. The
indices came with the batch: nothing here has to know "the current batch".
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from calibrant.errors import importing, invalid
from calibrant.integrations.any_loop import RunningEpoch, share_scores
from calibrant.integrations.lightning_calibration import CalibrationCallback
from calibrant.pruning import ConfidencePruner, Indexed
from calibrant.pruning.sampling import KeptSampler

with importing("this adapter", "Lightning", "train"):
    import lightning.pytorch as pl

__all__ = ["CalibrationCallback", "PrunedLoader", "PruningCallback"]


class _Continued(Sampler[int]):
    """The pruner's sampler, from some sample on; its length is that of the whole epoch, as Lightning counts."""

    def __init__(self, sampler: KeptSampler) -> None:
        self.sampler, self.skip = sampler, 0

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self.sampler), self.skip, None)

    def __len__(self) -> int:
        return len(self.sampler)


class PrunedLoader(DataLoader[Any]):
    """`DataLoader` over the samples that a pruner keeps, with each sample's index in the batch.

    It is `DataLoader(Indexed(dataset), sampler=pruner.sampler(), ...)` and can be resumed in the middle of an epoch:
    Lightning saves its `state_dict`, and the batches that are done are skipped without being loaded.

    Args:
        dataset: With `__getitem__` and `__len__`, in the order of the pruner's targets.
        pruner: Knows which samples train, and in what order.
        batch_size: Samples of one process's batch.
        drop_last: Leave an incomplete last batch out.
        key: Of the index, where the dataset yields dictionaries; tuples get one more entry.
        options: Other options of `DataLoader` (workers, collation, ...), save those that choose samples.

    >>> pruner = ConfidencePruner([0, 1, 0, 1])
    >>> x, i = next(iter(PrunedLoader([0.5, 1.5, 2.5, 3.5], pruner, batch_size=4)))
    >>> bool((x == i + 0.5).all())
    True
    """

    def __init__(
        self,
        dataset: Any,
        pruner: ConfidencePruner,
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        key: str = "index",
        **options: Any,
    ) -> None:
        if taken := sorted({"sampler", "batch_sampler", "shuffle"} & set(options)):
            raise invalid("options", "leave the choice of samples to the pruner", taken[0])
        self._order = _Continued(pruner.sampler(batch_size=batch_size, drop_last=drop_last))
        self._pruner = pruner
        self._at = self._resume = (-1, 0)
        super().__init__(
            Indexed(dataset, key=key), batch_size=batch_size, drop_last=drop_last, sampler=self._order, **options
        )
        _check_size(self, pruner)

    @property
    def batches_done(self) -> int:
        """Batches of the pruner's current epoch that a resumed run will skip."""
        epoch, batches = self._resume
        return batches if epoch == self._pruner.epoch else 0

    def __iter__(self) -> Any:
        # A generator: it starts at the first batch, when a resumed pruner has ended an epoch that was due.
        done, epoch = self.batches_done, self._pruner.epoch
        self._order.skip = done * (self.batch_size or 1)
        self._at = self._resume = (epoch, done)
        for batch in super().__iter__():
            self._at = (epoch, self._at[1] + 1)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands: the pruner's epoch, and the batches of it that were handed out."""
        return {"epoch": self._at[0], "batches": self._at[1]}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Skip what was handed out, in the epoch that it belongs to."""
        self._resume = (int(state["epoch"]), int(state["batches"]))


class PruningCallback(pl.Callback):
    """Feeds a pruner from Lightning's training loop and ends its epochs.

    After each training batch the pruner observes `logits` and `indices` from the dictionary that `training_step`
    returned; after each training epoch it takes its step. Its state is part of Lightning's checkpoint. Logs
    `pruning/kept` and `pruning/kept_share`, the samples that the epoch trained on.

    The `Trainer` needs `reload_dataloaders_every_n_epochs=1`: Lightning counts the batches of an epoch when it loads
    the loader, and with a count that is too high it would not validate at the end of a shorter epoch. On several
    processes it needs `use_distributed_sampler=False`, as the pruner's sampler gives each process its part.

    Args:
        pruner: The one whose sampler the training loader has.
    """

    def __init__(self, pruner: ConfidencePruner) -> None:
        self.pruner = pruner
        self._epoch = RunningEpoch()
        self._complete = False

    # the hooks of a run, in their order -------------------------------------------------------------------------------

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the tables to the module's device and check the options."""
        every = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)  # set, but not declared
        if every != 1:
            way_out = "Lightning counts the batches of an epoch only when it loads the loader."
            raise invalid("Trainer's reload_dataloaders_every_n_epochs", "be 1 with a pruner", every, way_out)
        self.pruner.to(pl_module.device)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the loader, and that the pruner stands where the trainer does."""
        loader = _pruned_loader(trainer.train_dataloader, self.pruner)
        _check_size(loader, self.pruner)
        at = cast("Any", trainer.fit_loop.epoch_progress.current).processed
        if trainer.current_epoch != at:
            # Lightning would end that epoch once more, and tell by the number of batches whether it has.
            way_out = "Give max_epochs alone, or resume from a checkpoint in the middle of an epoch."
            raise invalid("Trainer's max_steps", "be left out after the end of an epoch", trainer.max_steps, way_out)
        if at == self.pruner.epoch + 1 and self._complete:
            self._end_due_epoch(loader, trainer.limit_train_batches)
        elif at != self.pruner.epoch:
            raise invalid(
                "pruner",
                f"stand at the trainer's epoch {at}",
                f"one at epoch {self.pruner.epoch}",
                "A new training needs a new pruner; a resumed one a checkpoint that was written with this callback.",
            )
        elif not self._complete and self._epoch.batches != _batches_skipped(loader):
            raise invalid(
                "the training loader",
                f"skip the {self._epoch.batches} batches of this epoch that are done",
                type(loader).__name__,
                "Use PrunedLoader, or resume from a checkpoint at the end of an epoch.",
            )

    def _end_due_epoch(self, loader: DataLoader[Any], limit: float) -> None:
        """The checkpoint was written after the last batch of an epoch, and Lightning goes on with the next one."""
        done = self._epoch.batches
        self._end_epoch()
        coming = min(len(loader), limit) if isinstance(limit, int) else int(len(loader) * limit)
        # Lightning takes the batches that are done for the coming epoch's where that is longer; and workers of a
        # loader that is not ours have begun to fetch the old epoch's samples.
        if coming > done or (loader.num_workers and not isinstance(loader, PrunedLoader)):
            way_out = "Resume from another one; ModelCheckpoint(save_on_train_epoch_end=True) writes them."
            raise invalid(
                "ckpt_path", "be a checkpoint from the end of an epoch here", "one from its last batch", way_out
            )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Observe the batch."""
        self._complete = trainer.is_last_batch
        if outputs is None or (isinstance(outputs, Mapping) and outputs.get("loss") is None):
            self._epoch.skip()  # training_step returned None: Lightning leaves the batch out
            return
        loss, logits, indices = (_entry(outputs, name) for name in ("loss", "logits", "indices"))
        self.pruner.observe(indices, logits)
        # Lightning has divided the loss already, by the number of batches that share a step.
        factor = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self._epoch.add(loss * factor, samples=len(indices))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what the epoch trained on, and take the pruner's step."""
        kept = float(self.pruner.n_kept)
        values = {"pruning/kept": kept, "pruning/kept_share": kept / self.pruner.samples}
        pl_module.log_dict(values, sync_dist=True)
        self._end_epoch()

    def _end_epoch(self) -> None:
        self.pruner.step(loss=self._epoch.mean_loss())
        self._epoch, self._complete = RunningEpoch(), False

    # checkpoints ------------------------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Write the state anew with the scores of all ranks, as only one of them writes the file."""
        share_scores(self.pruner)
        if "callbacks" in checkpoint:
            checkpoint["callbacks"][self.state_key] = self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {"pruner": self.pruner.state_dict(), "epoch": self._epoch.state_dict(), "complete": self._complete}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.pruner.load_state_dict(state_dict["pruner"], shared=True)
        self._epoch.load_state_dict(state_dict["epoch"])
        self._complete = bool(state_dict["complete"])


def _entry(outputs: Any, name: str) -> Tensor:
    """An entry of what `training_step` returned."""
    found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
    if not isinstance(outputs, Mapping) or not isinstance(outputs.get(name), Tensor):
        way_out = "The indices come with the batch: see PrunedLoader and Indexed."
        raise invalid("training_step", f"return a dictionary with the tensor {name!r}", found, way_out)
    value: Tensor = outputs[name]
    return value


def _pruned_loader(loaders: Any, pruner: ConfidencePruner) -> DataLoader[Any]:
    """The training loader, or the one of several, whose sampler is the pruner's."""
    found = _flat(loaders)
    for loader in found:
        if any(isinstance(sampler, KeptSampler) and sampler.pruner is pruner for sampler in _samplers(loader)):
            return loader
    samplers = ", ".join(type(sampler).__name__ for loader in found for sampler in _samplers(loader)[:1])
    way_out = "On several processes set Trainer(use_distributed_sampler=False)."
    if any(isinstance(sampler, KeptSampler) for loader in found for sampler in _samplers(loader)):
        samplers, way_out = "that of another pruner", "Give loader and callback the same one."
    raise invalid("the training loader", "have the sampler pruner.sampler()", samplers or "no DataLoader", way_out)


def _batches_skipped(loader: DataLoader[Any]) -> int:
    return loader.batches_done if isinstance(loader, PrunedLoader) else 0


def _flat(loaders: Any) -> list[DataLoader[Any]]:
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, list | tuple):
        return [loader for group in loaders for loader in _flat(group)]
    return [loaders] if isinstance(loaders, DataLoader) else []


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    """The loader's sampler, what that wraps, and the sampler of its batch sampler."""
    candidates = [loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    return [*candidates, *(one.sampler for one in candidates if isinstance(one, _Continued))]


def _check_size(loader: DataLoader[Any], pruner: ConfidencePruner) -> None:
    dataset: Any = loader.dataset
    if len(dataset) != pruner.samples:
        raise invalid("dataset", f"have the {pruner.samples} samples of the pruner's targets", len(dataset))
