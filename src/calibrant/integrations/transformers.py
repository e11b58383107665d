"""Hugging Face's `Trainer` with our losses, and a pruner that chooses the samples of each epoch.

The index of each sample travels in the batch and is taken out before the model is called: the data loader of Accelerate
is always one batch ahead, so nothing else knows which samples a batch holds.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import importing, invalid
from calibrant.integrations.any_loop import read_state, write_state
from calibrant.losses import Loss, distributed
from calibrant.metrics import evaluate
from calibrant.predictions import Predictions
from calibrant.pruning import ConfidencePruner, Indexed
from calibrant.pruning.sampling import steps_in

with importing("this adapter", "transformers and accelerate", "transformers"):
    from accelerate.data_loader import prepare_data_loader
    from transformers import (
        EvalPrediction,
        PreTrainedModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import seed_worker

INDEX_KEY = "calibrant_index"
"""Key of the samples' indices in a training batch."""
STATE_FILE = "pruner.safetensors"
"""The pruner's state in a checkpoint folder."""


def calibration_metrics(
    n_bins: int = DEFAULT_N_BINS, *, thresholds: Sequence[float] = (0.95, 0.99)
) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for the `Trainer`: every metric of `calibrant.evaluate` as a plain number.

    The names are those of `Evaluation.values()`, for example `test_error`, `ece`, `share@0.95`, `ece@0.95`, and
    `noise_floor`; the `Trainer` adds `eval_`. What is not defined (an AUROC without errors) is left out. `thresholds`
    are the least confidences of the high-confidence sets.
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        result = evaluate(predictions_of(prediction), n_bins=n_bins, thresholds=thresholds)
        values = {**result.values(), "noise_floor": result.noise_floor}
        return {name: float(value) for name, value in values.items() if value is not None}

    return compute


def predictions_of(output: Any, *, class_names: Sequence[str] | None = None) -> Predictions:
    """What `Trainer.predict(dataset)` returned, as `Predictions`.

    Args:
        output: With `predictions` (logits, or a tuple that begins with them) and `label_ids`.
        class_names: One for each class, for example `model.config.id2label.values()`.
    """
    logits = output.predictions
    if isinstance(logits, tuple | list):
        logits = logits[0]
    if output.label_ids is None:
        raise invalid("output", "have labels", "none", "Give the dataset a column 'labels'.")
    if class_names is not None:
        class_names = list(class_names)
    return Predictions.from_logits(logits, output.label_ids, class_names=class_names)


class CalibratedTrainer(Trainer):
    """`Trainer` for classifiers that minimises one of our losses, on the samples that a pruner keeps.

    The model is called without labels; its `logits` (or first output) and the labels go to the criterion, with the
    pruner's weights. The pruner observes each training batch and takes its step at the end of each epoch. The number
    of steps, and with it the learning-rate schedule, is that of the shorter epochs. Each checkpoint folder gets the
    pruner's state in a file without pickle, from which `resume_from_checkpoint` goes on exactly. Every call of
    `train()` without it starts from a fresh pruner.

    Args:
        model: As for `Trainer`.
        args: As for `Trainer`.
        criterion: A loss of `calibrant.losses`, or a sum of them.
        pruner: Made with the labels of `train_dataset`, in its order; None trains on all samples.
        options: Everything else that `Trainer` takes.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        criterion: Loss,
        pruner: ConfidencePruner | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(criterion, Loss):
            raise invalid("criterion", "be a loss of calibrant.losses", type(criterion).__name__)
        if options.get("compute_loss_func") is not None:
            raise invalid("compute_loss_func", "be left out", "one beside the criterion", "Put it into a Loss.")
        if args is not None and args.label_smoothing_factor:
            hint = "Use CrossEntropy(label_smoothing=...)."
            raise invalid("label_smoothing_factor", "be 0", args.label_smoothing_factor, hint)
        if pruner is not None:
            _check_data(pruner, options.get("train_dataset"))
        super().__init__(model, args, **options)
        self.criterion, self.pruner = criterion.to(self.args.device), pruner
        # Our losses are means over the batch: the Trainer has to divide them by the batches that share a step.
        self.model_accepts_loss_kwargs = False
        self.label_names = self.label_names or ["labels"]
        self._batches_done = self._epoch_batches = 0
        self._renamed = False
        if pruner is not None:
            _check_sampling(self.args)
            self._fresh = pruner.state_dict()
            self.add_callback(_EpochEnd(self))

    # the loss ---------------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The criterion's value; in training also what the pruner needs to see."""
        inputs = dict(inputs)
        indices, labels = inputs.pop(INDEX_KEY, None), inputs.pop("labels", None)
        if labels is None:
            raise invalid("the batch", "hold 'labels'", sorted(inputs), "Rename the column of the labels.")
        outputs = model(**inputs)
        logits = _logits_of(outputs)
        if self.pruner is not None and model.training:
            if indices is None:
                raise invalid("the training batch", f"hold {INDEX_KEY!r}", sorted(inputs), "Keep get_train_dataloader.")
            loss = self.criterion(logits, labels, weights=self.pruner.weights(indices))
            self.pruner.observe(indices, logits)
            self._batches_done += 1
        else:
            loss = self.criterion(logits, labels)
        if not return_outputs:
            return loss
        if isinstance(outputs, Mapping):
            return loss, outputs
        return loss, (loss, logits)  # Trainer takes the first entry of a tuple for the loss

    # the samples ------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader over the kept samples; its length changes with the pruner's epoch."""
        if self.pruner is None or self.train_dataset is None:
            return super().get_train_dataloader()
        args, dataset = self.args, self.train_dataset
        if hasattr(dataset, "column_names"):  # a datasets.Dataset
            dataset = self._remove_unused_columns(dataset, description="training")
        loader: DataLoader[Any] = DataLoader(
            Indexed(dataset, key=INDEX_KEY),
            batch_size=self._train_batch_size,
            sampler=self.pruner.sampler(batch_size=self._train_batch_size, drop_last=args.dataloader_drop_last),
            drop_last=args.dataloader_drop_last,
            collate_fn=partial(_with_indices, self._get_collator_with_removed_columns(self.data_collator, "training")),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        # As one process: the pruner's sampler gives each rank its part, and Accelerate must not share it out again.
        device = self.accelerator.device
        prepared = prepare_data_loader(loader, device, num_processes=1, process_index=0, put_on_device=True)
        return cast("DataLoader[Any]", prepared)

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader[Any]) -> tuple[Any, ...]:
        """The number of steps and epochs, with epochs as short as the pruner will make them."""
        values = super().set_initial_training_values(args, dataloader)
        if self.pruner is None:
            return values
        _, _, examples, samples, total_batch, _, max_steps = values
        epochs = math.ceil(args.num_train_epochs)
        batches = self._batches(self.pruner.samples)
        updates = self._updates(batches)
        if args.max_steps > 0:
            epochs = sys.maxsize  # the number of steps ends the training
        elif self._created_lr_scheduler or (self.lr_scheduler is None and args.lr_scheduler_type != "constant"):
            by_epoch = self.pruner.samples_by_epoch(epochs)
            *whole, last = [self._updates(self._batches(kept)) for kept in by_epoch]
            max_steps = sum(whole) + math.ceil(last * (args.num_train_epochs - len(whole)))
            samples = sum(by_epoch)
        else:  # no schedule needs the number of steps, which may not be known: that of full epochs is a bound
            max_steps = math.ceil(args.num_train_epochs * updates)
        return epochs, updates, examples, samples, total_batch, batches, max_steps

    def _batches(self, samples: int) -> int:
        """Batches of an epoch with so many samples, on each rank."""
        size, drop_last = self._train_batch_size, self.args.dataloader_drop_last
        return steps_in(samples, batch_size=size, world_size=distributed.world_size(), drop_last=drop_last)

    def _updates(self, batches: int) -> int:
        """Optimiser steps of an epoch with so many batches."""
        return -(-batches // self.args.gradient_accumulation_steps)

    # epochs and checkpoints -------------------------------------------------------------------------------------------

    def _init_training_state(
        self, max_steps: int, steps: int, epochs: int, resume_from_checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        """Where the training begins: Trainer divides by a number of steps per epoch, which is no constant here."""
        begin: tuple[int, int] = super()._init_training_state(max_steps, steps, epochs, resume_from_checkpoint, trial)
        if self.pruner is None:
            return begin
        self.pruner.to(self.args.device)
        self._batches_done = 0
        if resume_from_checkpoint is None:
            self.pruner.load_state_dict(self._fresh)
            return begin
        state = read_state(Path(resume_from_checkpoint) / STATE_FILE)
        self.pruner.load_state_dict(state)
        if not self.args.ignore_data_skip:
            self._batches_done = int(state["batches_done"])
        return self.pruner.epoch, self._batches_done

    # Trainer passes every argument by name; only three of the eleven matter here, so the signature is not repeated.
    def _run_epoch(self, **options: Any) -> None:  # type: ignore[override]  # as said above
        """One epoch, with the number of steps that it has."""
        if self.pruner is not None:
            batches = len(options["train_dataloader"])
            options["steps_in_epoch"] = self._epoch_batches = batches
            options["num_update_steps_per_epoch"] = self._updates(batches)
            if self._batches_done >= batches:
                # Resumed from the last batch of an epoch: Trainer restores the generators at the next batch only.
                self._load_rng_state(options["resume_from_checkpoint"])
        super()._run_epoch(**options)  # type: ignore[no-untyped-call]  # Trainer's

    def _end_epoch(self, *, stopped: bool) -> None:
        """The pruner's step, unless the training stopped in the middle of the epoch."""
        assert self.pruner is not None
        if stopped and self._batches_done < self._epoch_batches:
            return
        self.pruner.step()
        self._batches_done = 0

    # Some models are saved under older names of their weights. Trainer looks for today's names, leaves out what it does
    # not find (all layers of a ViT in 5.22) and only logs that; `from_pretrained` knows both.

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Notice weights under other names."""
        self._renamed = bool(load_result.unexpected_keys) and isinstance(self.model, PreTrainedModel)
        if not self._renamed:
            super()._issue_warnings_after_load(load_result)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """All weights, also under older names."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_renamed(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        """All weights, also under older names."""
        super()._load_best_model()
        self._load_renamed(self.state.best_model_checkpoint)

    def _load_renamed(self, folder: str | None) -> None:
        renamed, self._renamed, model = self._renamed, False, self.model
        if renamed and isinstance(model, PreTrainedModel):
            saved = type(model).from_pretrained(folder, config=model.config, dtype=model.dtype)
            model.load_state_dict(saved.state_dict())

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the pruner with the optimiser."""
        super()._save_optimizer_and_scheduler(output_dir)
        if self.pruner is None:
            return
        self.pruner.table.share()
        if self.args.should_save:
            state = {**self.pruner.state_dict(), "batches_done": self._batches_done}
            write_state(Path(output_dir) / STATE_FILE, state)


class _EpochEnd(TrainerCallback):
    """Ends the pruner's epoch before Trainer saves at the end of its own."""

    def __init__(self, trainer: CalibratedTrainer) -> None:
        self._trainer = trainer

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._trainer._end_epoch(stopped=control.should_training_stop)  # noqa: SLF001 (a part of the trainer)


def _with_indices(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    """Collate samples without their index, which the collator may not know, and add the indices to the batch."""
    if not isinstance(samples[0], Mapping):
        raise invalid("train_dataset", "yield dictionaries", f"{type(samples[0][0]).__name__} and the like")
    indices = torch.tensor([sample[INDEX_KEY] for sample in samples])
    batch = collate([{key: sample[key] for key in sample if key != INDEX_KEY} for sample in samples])
    batch[INDEX_KEY] = indices
    return batch


def _logits_of(outputs: Any) -> Tensor:
    """The logits in what a model returned."""
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("logits")
    elif isinstance(outputs, tuple | list):
        found = outputs[0]
    if not isinstance(found, Tensor):
        hint = "Use a model for classification."
        raise invalid("the model", "return 'logits', or logits first", type(outputs).__name__, hint)
    return found


def _check_data(pruner: ConfidencePruner, dataset: Any) -> None:
    if pruner.epoch:
        hint = "A new trainer needs a new pruner; resume_from_checkpoint restores a saved one."
        raise invalid("pruner", "be new", f"one at epoch {pruner.epoch}", hint)
    if dataset is not None and len(Indexed(dataset)) != pruner.samples:
        raise invalid("train_dataset", f"have the {pruner.samples} samples of the pruner's targets", len(dataset))


def _check_sampling(args: TrainingArguments) -> None:
    if args.train_sampling_strategy != "random":
        raise invalid("train_sampling_strategy", "be left out with a pruner", args.train_sampling_strategy)
    config = cast("Any", args.accelerator_config)  # Trainer has read it by now
    if args.world_size > 1 and (config.split_batches or config.dispatch_batches):
        raise invalid("accelerator_config", "leave split_batches and dispatch_batches off with a pruner", "one of them")
