"""Lightning's `Trainer`: callbacks that prune and calibrate.

`training_step` returns a dictionary with `loss`, `logits` and `indices`; Lightning hands it to the callback. The
indices came with the batch: nothing here has to know "the current batch".
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from calibrant.checks import fraction
from calibrant.errors import CalibrantWarning, InvalidInput, importing, invalid
from calibrant.files import as_path
from calibrant.integrations.any_loop import Judgement, judge
from calibrant.losses import distributed
from calibrant.predictions import Predictions
from calibrant.pruning import ConfidencePruner
from calibrant.pruning.sampling import KeptSampler

with importing("this adapter", "Lightning", "train"):
    import lightning.pytorch as pl

__all__ = ["CalibrationCallback", "PruningCallback"]


class PruningCallback(pl.Callback):
    """Feeds a pruner from Lightning's training loop and ends its epochs.

    The training loader is `DataLoader(Indexed(dataset), sampler=pruner.sampler(batch_size=...), ...)`. After each
    training batch the pruner observes `logits` and `indices` from the dictionary that `training_step` returned; after
    each training epoch it takes its step. Its state is part of Lightning's checkpoint, and a training can be resumed
    from the end of an epoch. Logs `pruning/kept` and `pruning/kept_share`, the samples that the epoch trained on.

    The `Trainer` needs `reload_dataloaders_every_n_epochs=1`: Lightning counts the batches of an epoch when it loads
    the loader, and with a count that is too high it would not validate at the end of a shorter epoch. On several
    processes it needs `use_distributed_sampler=False`, as the pruner's sampler gives each process its part.

    Args:
        pruner: The one whose sampler the training loader has.
    """

    def __init__(self, pruner: ConfidencePruner) -> None:
        self.pruner = pruner
        self._batches = 0  # of this epoch, done

    # the hooks of a run, in their order -------------------------------------------------------------------------------

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the tables to the module's device and check the options."""
        every = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)  # set, but not declared
        if every != 1:
            hint = "Lightning counts the batches of an epoch only when it loads the loader."
            raise invalid("Trainer's reload_dataloaders_every_n_epochs", "be 1 with a pruner", every, hint)
        self.pruner.to(pl_module.device)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the loader, and that the pruner stands where the trainer does."""
        loader = _pruned_loader(trainer.train_dataloader, self.pruner)
        dataset: Any = loader.dataset
        if len(dataset) != self.pruner.samples:
            raise invalid("dataset", f"have the {self.pruner.samples} samples of the pruner's targets", len(dataset))
        if self._batches:
            # The sampler begins an epoch anew, and Lightning does not skip the batches that are done.
            hint = "ModelCheckpoint(save_on_train_epoch_end=True) writes them."
            raise invalid("ckpt_path", "be a checkpoint from the end of an epoch", "one from before that", hint)
        at = cast("Any", trainer.fit_loop.epoch_progress.current).processed
        if trainer.current_epoch != at:
            # Lightning would end that epoch once more, and tell by the number of batches whether it has.
            hint = "Give max_epochs alone."
            raise invalid("Trainer's max_steps", "be left out after the end of an epoch", trainer.max_steps, hint)
        if at != self.pruner.epoch:
            hint = "A new training needs a new pruner; a resumed one a checkpoint written with this callback."
            raise invalid("pruner", f"stand at the trainer's epoch {at}", f"one at epoch {self.pruner.epoch}", hint)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Observe the batch."""
        self._batches += 1
        if outputs is None or (isinstance(outputs, Mapping) and outputs.get("loss") is None):
            return  # training_step returned None: Lightning leaves the batch out
        self.pruner.observe(*_tensors(outputs, "training_step", "indices", "logits"))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what the epoch trained on, and take the pruner's step."""
        kept = float(self.pruner.n_kept)
        values = {"pruning/kept": kept, "pruning/kept_share": kept / self.pruner.samples}
        pl_module.log_dict(values, sync_dist=True)
        self.pruner.step()
        self._batches = 0

    # checkpoints ------------------------------------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the state anew with the scores of all ranks, as only one of them writes the file."""
        self.pruner.table.share()
        if "callbacks" in checkpoint:
            checkpoint["callbacks"][self.state_key] = self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {"pruner": self.pruner.state_dict(), "batches": self._batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.pruner.load_state_dict(state_dict["pruner"])
        self._batches = int(state_dict["batches"])


def _tensors(outputs: Any, step: str, *names: str) -> list[Tensor]:
    """Entries of what a step of the user's module returned."""
    got: object = type(outputs).__name__
    if isinstance(outputs, Mapping):
        if all(isinstance(outputs.get(name), Tensor) for name in names):
            return [outputs[name].detach() for name in names]
        got = sorted(outputs)
    raise invalid(step, f"return a dictionary with the tensors {' and '.join(map(repr, names))}", got)


def _pruned_loader(loaders: Any, pruner: ConfidencePruner) -> DataLoader[Any]:
    """The training loader, or the one of several, whose sampler is the pruner's."""
    samplers = []
    for loader in _flat(loaders):
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            if isinstance(sampler, KeptSampler) and sampler.pruner is pruner:
                return loader
            samplers.append(type(sampler).__name__)
    hint = "Give loader and callback the same pruner. On several processes set Trainer(use_distributed_sampler=False)."
    got = ", ".join(dict.fromkeys(samplers)) or "no DataLoader"
    raise invalid("the training loader", "have the sampler pruner.sampler()", got, hint)


def _flat(loaders: Any) -> list[DataLoader[Any]]:
    """The loaders in whatever lists and dictionaries the user gave."""
    return [loader for loader in tree_leaves(loaders) if isinstance(loader, DataLoader)]


class CalibrationCallback(pl.Callback):
    """Ends a training calibrated: temperature, rule, predictions and page in one folder.

    `validation_step` returns a dictionary with `logits` and `targets`, and so does `test_step` if there is one.
    After `trainer.fit`, and after `trainer.validate`, the temperature is fitted on the logits of the last validation
    and everything is written as `calibrant.integrations.any_loop.judge` does; `trainer.test` adds the test cases, to
    which the page then belongs. Only the first of several validation loaders is looked at.

    If the cases cannot be judged (too few, labels of one class), there is a warning and the training is kept.

    Args:
        folder: Gets predictions, policy and page.
        target_accuracy: What the rule is to promise.
        class_names: One for each class.

    Attributes:
        judgement: What was found; None before the first fit.
    """

    def __init__(
        self, folder: str | Path, *, target_accuracy: float = 0.99, class_names: Sequence[str] | None = None
    ) -> None:
        self.folder = as_path(folder, "folder")
        self.target_accuracy = fraction("target_accuracy", target_accuracy)
        self.class_names = class_names
        self.judgement: Judgement | None = None
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._validation: Predictions | None = None
        # Which weights the validation was about: those of another checkpoint have another temperature.
        self._weights: tuple[float, ...] = ()

    # validation -------------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the batches before."""
        self._rows = []

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the batch."""
        if dataloader_idx == 0 and not trainer.sanity_checking:
            step = "test_step" if trainer.testing else "validation_step"
            logits, targets = _tensors(outputs, step, "logits", "targets")
            self._rows.append((logits.cpu(), targets.cpu()))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the batches; after `trainer.validate` judge at once."""
        if trainer.sanity_checking or not self._rows:
            return
        self._validation = self._joined(trainer.val_dataloaders)
        self._weights = _fingerprint(pl_module)
        if trainer.state.fn == "validate":
            self._judge(None)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge the model by its last validation."""
        if self._validation is None or self._weights != _fingerprint(pl_module):
            self._validation = None
            _warn("the last validation was before the last step: call trainer.validate(model) for a temperature")
            return
        self._judge(None)

    # test -------------------------------------------------------------------------------------------------------------

    # The same for test batches: the hooks of Lightning have other names for them.
    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the test predictions and their page, and log ECE and NLL before and after."""
        if self._validation is None or self._weights != _fingerprint(pl_module):
            _warn("there is no validation of these weights: call trainer.validate with the same ckpt_path before")
            return
        self._judge(self._joined(trainer.test_dataloaders))
        if self.judgement is None:
            return
        for name in ("nll", "ece"):
            pl_module.log(f"test/{name}", getattr(self.judgement.raw, name), rank_zero_only=True)
            pl_module.log(f"test/{name}_calibrated", getattr(self.judgement.calibrated, name), rank_zero_only=True)

    # both -------------------------------------------------------------------------------------------------------------

    def _judge(self, test: Predictions | None) -> None:
        if distributed.rank() != 0 or self._validation is None:
            return
        try:
            self.judgement = judge(self.folder, self._validation, test, target_accuracy=self.target_accuracy)
        except InvalidInput as error:
            self.judgement = None
            _warn(str(error))

    def _joined(self, loaders: Any) -> Predictions:
        """All rows, of several processes in the order of the dataset. Collective."""
        logits, targets = (torch.cat(part) for part in zip(*self._rows, strict=True))
        self._rows = []
        if distributed.is_distributed():
            parts: list[Any] = [None] * distributed.world_size()
            dist.all_gather_object(parts, (logits, targets))
            logits, targets = (_interleaved([part[which] for part in parts], loaders) for which in (0, 1))
        return Predictions.from_logits(logits, targets, class_names=self.class_names)


def _interleaved(parts: Sequence[Tensor], loaders: Any) -> Tensor:
    """Rank r of W holds the rows r, r + W, r + 2W, ... and, if they do not divide, repeats of the first rows."""
    joined = torch.stack([part[: min(map(len, parts))] for part in parts], dim=1).flatten(0, 1)
    rest = [part[min(map(len, parts)) :] for part in parts]
    return torch.cat([joined, *rest])[: len(_flat(loaders)[0].dataset)]  # type: ignore[arg-type]  # it has a length


def _fingerprint(module: pl.LightningModule) -> tuple[float, ...]:
    """Changes with the weights."""
    return tuple(float(each.detach().double().sum()) for each in module.parameters())


def _warn(text: str) -> None:
    warnings.warn(f"CalibrationCallback: {text.rstrip('.')}.", CalibrantWarning, stacklevel=3)
