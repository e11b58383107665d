"""Lightning's `Trainer`: a callback that fits the temperature after training and writes predictions and page."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from calibrant.checks import fraction
from calibrant.errors import CalibrantWarning, InvalidInput, importing, invalid
from calibrant.files import as_path
from calibrant.integrations.any_loop import Judgement, judge
from calibrant.losses import distributed
from calibrant.predictions import Predictions

with importing("this adapter", "Lightning", "train"):
    import lightning.pytorch as pl


class CalibrationCallback(pl.Callback):
    """Ends a training calibrated: temperature, rule, predictions and page in one folder.

    `validation_step` returns a dictionary with `logits` and `targets`, and so does `test_step` where there is one.
    After `trainer.fit`, and after `trainer.validate`, the temperature is fitted on the logits of the last validation
    and everything is written as `calibrant.integrations.any_loop.judge` does; `trainer.test` adds the test cases, to
    which the page then belongs. Only the first of several validation loaders is looked at.

    What cannot be judged (too few cases, labels of one class) is a warning: the training is not lost for it.

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
        self.class_names = None if class_names is None else list(class_names)
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
            self._rows.append(_entries(outputs, "test_step" if trainer.testing else "validation_step"))

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
    """Rank r of W holds the rows r, r + W, r + 2W, ... and, where they do not divide, repeats of the first rows."""
    joined = torch.stack([part[: min(map(len, parts))] for part in parts], dim=1).flatten(0, 1)
    rest = [part[min(map(len, parts)) :] for part in parts]
    loader = loaders[0] if isinstance(loaders, list | tuple) else loaders
    return torch.cat([joined, *rest])[: len(loader.dataset)]


def _entries(outputs: Any, step: str) -> tuple[Tensor, Tensor]:
    names = ("logits", "targets")
    if not isinstance(outputs, Mapping) or any(name not in outputs for name in names):
        got = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise invalid(step, "return a dictionary with 'logits' and 'targets'", got)
    logits, targets = (outputs[name].detach().cpu() for name in names)
    return logits, targets


def _fingerprint(module: pl.LightningModule) -> tuple[float, ...]:
    """Changes with the weights."""
    return tuple(float(each.detach().double().sum()) for each in module.parameters())


def _warn(text: str) -> None:
    warnings.warn(f"CalibrationCallback: {text.rstrip('.')}.", CalibrantWarning, stacklevel=3)
