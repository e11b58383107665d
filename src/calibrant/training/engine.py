"""The main job: train by a recipe, leave a run folder; go on after anything that stopped it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from calibrant.data import Dataset
from calibrant.errors import CalibrantError, InvalidInput
from calibrant.metrics import evaluate, expected_calibration_error
from calibrant.predictions import Predictions
from calibrant.training.checkpoint import Checkpoint, load_newest, newest_name, save_checkpoint
from calibrant.training.environment import describe_environment
from calibrant.training.predict import predict_logits
from calibrant.training.progress import Quiet, Reporter
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run, Split
from calibrant.training.seeds import seeded
from calibrant.training.setup import Splits, Workshop, load_data, make_fabric
from calibrant.training.state import pack, unpack

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class TrainingDiverged(CalibrantError):
    """The loss became NaN or infinite."""


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    data_dir: str | Path | None = None,
    data: Dataset | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Train by `recipe` into the new folder `out`.

    Args:
        recipe: What to do.
        out: The run folder; it must not hold anything yet.
        data_dir: Where image sets lie; defaults to CALIBRANT_DATA, then the user's cache.
        data: A data set of your own instead of the one that the recipe names.
        reporter: Who is told about progress; nobody by default.
    """
    fabric = make_fabric(recipe)
    splits = Splits.make(recipe, data if data is not None else load_data(recipe, data_dir))
    # Built before the folder: a recipe that cannot run leaves nothing behind.
    workshop = Workshop(recipe, fabric, splits)
    with _first_rank_only(fabric):
        run = Run.create(out, recipe) if fabric.global_rank == 0 else Run(Path(out), recipe)
    return _Training(run, workshop, reporter or Quiet()).go()


def resume(
    path: str | Path,
    *,
    data_dir: str | Path | None = None,
    data: Dataset | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Continue a run that was stopped, from its newest sound checkpoint, to the numbers it would have had anyway."""
    run = Run.open(path)
    if run.finished:
        return run
    fabric = make_fabric(run.recipe)
    splits = Splits.make(run.recipe, data if data is not None else load_data(run.recipe, data_dir))
    workshop = Workshop(run.recipe, fabric, splits)
    return _Training(run, workshop, reporter or Quiet()).go()


class _Training:
    """One run's loop."""

    def __init__(self, run: Run, workshop: Workshop, reporter: Reporter) -> None:
        self.run, self.workshop, self.reporter = run, workshop, reporter
        self.recipe, self.fabric = run.recipe, workshop.fabric
        self.first = self.fabric.global_rank == 0
        if not self.first:
            self.reporter = Quiet()

    def go(self) -> Run:
        with self.run.locked() if self.first else _nothing():
            done = self._restore()
            self.reporter.start(self.run, done)
            try:
                for epoch in range(done + 1, self.recipe.epochs + 1):
                    self._epoch(epoch)
                self._finish()
            finally:
                self.reporter.stop()
        return self.run

    def _restore(self) -> int:
        """Load the newest checkpoint; returns the number of finished epochs."""
        checkpoint = load_newest(self.run.checkpoints)
        if checkpoint is None:
            if self.first:
                self.run.cut_log(0)
            return 0
        if checkpoint.values["data"] != self.workshop.splits.fingerprint():
            raise InvalidInput(
                f"run {self.run.path} began with other data than what is found now. "
                "Point --data-dir to the data that it began with."
            )
        unpack(self.workshop, checkpoint)
        if self.first:
            self.run.cut_log(checkpoint.epoch)
        return checkpoint.epoch

    def _epoch(self, epoch: int) -> None:
        workshop, meter = self.workshop, self.workshop.learner.meter
        started = time.perf_counter()
        workshop.network.train()
        meter.reset()
        self.source.begin(epoch)
        steps = len(self.source.tables.sizes(self.workshop.learner.full_size))
        self.reporter.begin_epoch(epoch, steps)

        def before_step(step: int) -> None:
            workshop.set_learning_rate(self.recipe.learning_rate(epoch - 1 + step / steps))
            self.reporter.step()

        with seeded(self.recipe.seed, "epoch", epoch, self.fabric.global_rank):
            workshop.steps.run_epoch(before_step)
        figures = meter.read()
        self._stop_if_diverged(epoch, steps)
        kept = len(workshop.pruner.kept)
        workshop.pruner.step(loss=figures["loss"])
        train_seconds = time.perf_counter() - started
        line = {
            "epoch": epoch,
            "lr": self.recipe.learning_rate(epoch - 1),
            "kept": kept,
            "kept_share": kept / workshop.pruner.samples,
            **figures,
            "train_seconds": train_seconds,
            "samples_per_second": figures["samples"] / train_seconds,
        }
        self._close_epoch(epoch, line, started)

    @property
    def source(self) -> Any:
        return self.workshop.steps.source

    def _close_epoch(self, epoch: int, line: dict[str, Any], started: float) -> None:
        last = epoch == self.recipe.epochs
        if self.first:
            if last or epoch % self.recipe.engine.evaluate_every == 0:
                line["validation"] = _brief(self._predict("val"))
            line["seconds"] = time.perf_counter() - started
            self.run.log_epoch(line)
            if last or epoch % self.recipe.engine.checkpoint_every == 0:
                save_checkpoint(self.run.checkpoints, pack(self.workshop, epoch))
            self.reporter.end_epoch(line)
        self.fabric.barrier()

    def _stop_if_diverged(self, epoch: int, steps: int) -> None:
        step = self.workshop.learner.meter.first_bad_step()
        if step is None:
            return
        good = newest_name(self.run.checkpoints)
        lr = self.recipe.learning_rate(epoch - 1 + step / steps)
        raise TrainingDiverged(
            f"the loss became NaN or infinite in epoch {epoch} at step {step + 1} of {steps}, learning rate {lr:g}. "
            f"The last good checkpoint is {good or 'none (it happened in the first epoch)'}. "
            "Try a smaller learning rate or a smaller loss weight."
        )

    def _predict(self, split: Split) -> Predictions:
        splits, dataset = self.workshop.splits, self.workshop.splits.dataset
        if split == "val":
            images, labels = dataset.train.images[splits.validation], dataset.train.labels[splits.validation]
            ids = dataset.ids("train", splits.validation)
        else:
            images, labels, ids = dataset.test.images, dataset.test.labels, dataset.ids("test")
        logits = predict_logits(
            self.workshop.network, images, self.workshop.preparation.plain, device=self.fabric.device
        )
        return Predictions.from_logits(logits, labels, ids=ids, class_names=dataset.class_names)

    def _finish(self) -> None:
        if not self.first:
            return
        predictions = {split: self._predict(split) for split in ("val", "test")}
        for split, prediction in predictions.items():
            prediction.save(self.run.predictions_path(split))
        pruner = self.workshop.pruner
        pruner.save(self.run.path / "pruning.npz")
        log = self.run.epochs()
        evaluations = {split: evaluate(p).to_dict() for split, p in predictions.items()}
        seen = sum(line["samples"] for line in log)
        full = pruner.samples * self.recipe.epochs
        summary = {
            "recipe": self.recipe.model_dump(mode="json"),
            "method": {"name": self.workshop.plan.name, "settings": self.workshop.plan.settings},
            "test": evaluations["test"],
            "test_ece_15_bins": expected_calibration_error(predictions["test"], n_bins=15),
            "validation": evaluations["val"],
            "best_validation": _best(log),
            "samples_seen": seen,
            "samples_full": full,
            "seen_share": seen / full,
            "steps_mode": self.workshop.mode,
            "timing": {
                "train_seconds": sum(line["train_seconds"] for line in log),
                "seconds": sum(line["seconds"] for line in log),
            },
            "environment": describe_environment(),
        }
        self.run.write_summary(summary)


def _brief(predictions: Predictions) -> dict[str, float]:
    return {
        "accuracy": float(predictions.correct.mean()),
        "ece": expected_calibration_error(predictions, n_bins=10),
    }


def _best(log: list[dict[str, Any]]) -> dict[str, Any] | None:
    lines = [line for line in log if "validation" in line]
    if not lines:
        return None
    best = max(lines, key=lambda line: line["validation"]["accuracy"])
    return {"epoch": best["epoch"], **best["validation"]}


@contextmanager
def _first_rank_only(fabric: "Fabric") -> Iterator[None]:
    yield
    fabric.barrier()


@contextmanager
def _nothing() -> Iterator[None]:
    yield
