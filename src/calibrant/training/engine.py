"""Train by a recipe into a run folder, and resume a run after anything that stopped it."""

import shutil
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from calibrant.errors import CalibrantError, InvalidInput, OutputError, invalid
from calibrant.files import write_json
from calibrant.losses.distributed import is_distributed
from calibrant.predictions import Predictions
from calibrant.runs import Split
from calibrant.training.batches import lost_worker
from calibrant.training.checkpoint import (
    Line,
    append_line,
    checkpoint_path,
    load_checkpoint,
    newest_checkpoint,
    pack,
    read_log,
    remove_leftovers,
    save_checkpoint,
    saved_checkpoints,
    unpack,
    write_log,
)
from calibrant.training.data import Dataset
from calibrant.training.data.pictures import Unreadable
from calibrant.training.final_weights import take_mean
from calibrant.training.launch import launched, on_first_rank, start_processes
from calibrant.training.models import AveragedViews
from calibrant.training.models.build import Views
from calibrant.training.progress import Reporter
from calibrant.training.recipe import Recipe, first_difference
from calibrant.training.reproducibility import seeded
from calibrant.training.run import Run
from calibrant.training.run_data import TorchData
from calibrant.training.setup import OWN_DATA, Setup, load_data, make_fabric, on_gpu, trained_recipe
from calibrant.training.step import predict, scorer
from calibrant.training.summary import brief, calibrate_run, find_failures, judged, summarise

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class TrainingDiverged(CalibrantError):
    """The loss or a weight became NaN or infinite."""


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    data_dir: str | Path | None = None,
    data: Dataset | TorchData | None = None,
    reporter: Reporter | None = None,
    trust_code: bool = False,
) -> Run:
    """Train by `recipe` into the new folder `out`.

    Args:
        recipe: What to do.
        out: The run folder; it must not hold anything yet.
        data_dir: Where image sets lie; defaults to CALIBRANT_DATA, then the user's cache.
        data: A data set of your own instead of the one that the recipe names.
        reporter: Shows the progress; nothing is shown by default.
        trust_code: Whether to import a method or network `module:name` that you have not used on this machine before.
    """
    _check_types(recipe, data)
    if isinstance(data, TorchData):
        recipe = recipe.changed({"data.name": f"{OWN_DATA}{data.name}"})
    recipe = recipe.with_trusted_code(trust_code=trust_code)
    Run(out, recipe).refuse_if_used()
    _train(Path(out), recipe, data_dir, data, new=True, reporter=reporter or Reporter())
    return Run(out)


def resume(
    path: str | Path,
    *,
    devices: int | None = None,
    data_dir: str | Path | None = None,
    data: Dataset | TorchData | None = None,
    reporter: Reporter | None = None,
    trust_code: bool = False,
) -> Run:
    """Continue a stopped run from its newest sound checkpoint to the same numbers; a finished run is returned as it is.

    Args:
        path: The run folder.
        devices: Number of processes, if it should differ from the run's.
        data_dir: Where image sets lie, as for `train`.
        data: The data set that the run began with, if it was passed to `train`.
        reporter: Shows the progress; nothing is shown by default.
        trust_code: Whether to import a method or network `module:name` that you have not used on this machine before.
    """
    run = Run(path)
    if run.finished:
        return run
    recipe = run.recipe.with_trusted_code(trust_code=trust_code)
    if devices is not None:
        recipe = recipe.changed({"engine.devices": devices})
    _train(run.path, recipe, data_dir, data, new=False, reporter=reporter or Reporter())
    return run


def _train(
    path: Path,
    recipe: Recipe,
    data_dir: str | Path | None,
    data: Dataset | TorchData | None,
    *,
    new: bool,
    reporter: Reporter,
) -> None:
    """Train into `path` to the end, in this process or in new ones."""
    if recipe.engine.devices > 1 and not is_distributed():
        work = partial(_train, path, recipe, data_dir, data, new=new)
        start_processes(recipe.engine.devices, work, path, reporter, on_gpu=on_gpu(recipe))
        return
    # The caller vouched for code of the user's own; new processes do not know it.
    recipe.with_trusted_code(trust_code=True)
    fabric = make_fabric(recipe)
    with launched(fabric, path):
        # Built before the folder: a recipe that cannot run leaves nothing behind.
        loaded = load_data(recipe, data_dir, data)
        setup = Setup(trained_recipe(recipe, loaded), fabric, loaded)
        if new:
            run = on_first_rank(fabric, lambda: Run.create(path, recipe))
        else:
            run = Run(path)
        _Training(run, setup, reporter).go(new=new)


def predict_again(
    path: str | Path,
    out: str | Path,
    *,
    views: Views | Literal["none"],
    data_dir: str | Path | None = None,
    data: Dataset | TorchData | None = None,
    trust_code: bool = False,
) -> Run:
    """Predict with the network of a finished run and other views of each picture; nothing is trained.

    Returns a run in the new folder `out`, as `train` with these views would have left it: with predictions, a policy
    that was fitted on them, and the network.

    Args:
        path: The run folder.
        out: The new run folder.
        views: "none", "mirror" or "mirror+shift", see `AveragedViews`.
        data_dir: Where image sets lie, as for `train`.
        data: The data set that the run began with, if it was passed to `train`.
        trust_code: Whether to import a method or network `module:name` that you have not used on this machine before.
    """
    run = Run(path)
    run.refuse_unfinished()
    checkpoint = run.checkpoint()
    again = Run.create(out, run.recipe.changed({"model.views": views}))
    try:
        write_log(again.log_path, run.epochs())
        save_checkpoint(again.checkpoints, checkpoint)
        # All epochs are done, so that resuming predicts and calibrates only.
        return resume(again.path, devices=1, data_dir=data_dir, data=data, trust_code=trust_code)
    except BaseException:
        shutil.rmtree(again.path)
        raise


def _check_types(recipe: object, data: object) -> None:
    """Refuse common mistakes: a name or a dictionary for the recipe, bare tensors for the data."""
    if not isinstance(recipe, Recipe):
        hint = "Recipe.load(path) reads one, default_recipe(data) gives the recommended one."
        raise invalid("recipe", "be a Recipe", type(recipe).__name__, hint)
    if data is not None and not isinstance(data, Dataset | TorchData):
        hint = "TorchData takes torch datasets, calibrant.training.data.load_dataset files and the known sets."
        raise invalid("data", "be a Dataset or TorchData", type(data).__name__, hint)


class _Training:
    """One run's loop."""

    def __init__(self, run: Run, setup: Setup, reporter: Reporter) -> None:
        self.run, self.setup = run, setup
        self.recipe = setup.recipe
        self.fabric: Fabric = setup.fabric
        self.reporter = reporter
        if self.fabric.global_rank > 0:
            self.reporter = Reporter()
        self.final_validation: Predictions | None = None
        self.log: list[Line] = []
        """Lines of the epochs so far; the first rank keeps it."""

    def go(self, *, new: bool) -> None:
        """Train to the end. A new run that fails in its first epoch leaves nothing behind: it would fail again."""
        with ExitStack() as held:
            on_first_rank(self.fabric, lambda: held.enter_context(self.run.locked()))
            try:
                self._train(held)
            except OutputError:
                raise  # a full disk, for one: with more space the run can be resumed
            except Exception as error:
                lost = lost_worker(error, self.run.path)
                if lost is not None:
                    raise lost from error
                # Only under the lock: a process that did not get it must not touch the run of another one.
                if new and self.fabric.global_rank == 0 and not self.log:
                    self.run.discard()
                if isinstance(error, Unreadable) and self.log:
                    hint = f"With sound files in their places: calibrant train --resume {self.run.path}"
                    raise Unreadable(f"{error} {hint}") from error
                raise

    def _train(self, held: ExitStack) -> None:
        done = self._restore()
        recipe, reason = self.recipe, self.setup.data.reason
        if reason:  # why the data are streamed or in memory
            recipe = recipe.changed({"reasons": {**recipe.reasons, "engine.data_path": reason}})
        self.reporter.start(Run(self.run.path, recipe), done)
        held.callback(self.reporter.stop)
        for epoch in range(done + 1, self.recipe.epochs + 1):
            self._epoch(epoch)
        on_first_rank(self.fabric, self._finish)

    def _restore(self) -> int:
        """Put the newest checkpoint's state into the setup; returns the number of finished epochs."""

        def find() -> int:
            self.run.remove_drafts()
            remove_leftovers(self.run.checkpoints)
            newest = newest_checkpoint(self.run.checkpoints)
            if newest is None:
                return 0
            if newest.epoch > self.recipe.epochs:
                name = f"of epoch {newest.epoch} in {self.run.checkpoints}"
                raise InvalidInput(f"the checkpoint {name} is not of this run of {self.recipe.epochs} epochs.")
            self.log = read_log(self.run.log_path, epochs=newest.epoch)
            return newest.epoch

        done = on_first_rank(self.fabric, find)
        if done:
            checkpoint = load_checkpoint(checkpoint_path(self.run.checkpoints, done))
            if checkpoint.values["data"] != self.setup.data.fingerprint:
                raise InvalidInput(
                    f"run {self.run.path} began with other data than what is found now. "
                    "Point --data-dir to the data that it began with."
                )
            there, here = checkpoint.values["settings"], self.recipe.kept()
            if (key := first_difference(there, here)) is not None:
                raise InvalidInput(
                    f"run {self.run.path} began with {key} = {there.get(key)}, and its recipe.toml says "
                    f"{here.get(key)} now. Set it back, or begin a new run."
                )
            unpack(self.setup, checkpoint)
        # Epochs that were logged after this checkpoint are trained again.
        on_first_rank(self.fabric, lambda: write_log(self.run.log_path, self.log))
        return done

    def _epoch(self, epoch: int) -> None:
        setup = self.setup
        setup.enter(epoch)
        meter, source = setup.steps.meter, setup.steps.source
        started = time.perf_counter()
        meter.reset()
        source.begin(epoch)
        steps = len(source.tables.totals())
        self.reporter.begin_epoch(epoch, steps)

        def before_step(step: int) -> None:
            setup.set_learning_rate(self.recipe.learning_rate(epoch - 1 + step / steps))
            self.reporter.step()

        with seeded(self.recipe.seed, "epoch", epoch, self.fabric.global_rank):
            setup.steps.run_epoch(before_step)
        figures = meter.read()
        self._stop_if_diverged(epoch, steps)
        kept = setup.pruner.n_kept
        self._average(epoch)  # before the pruner's step: on the samples of this epoch
        setup.pruner.step(score=scorer(setup, epoch))
        seconds = time.perf_counter() - started
        line = {
            "epoch": epoch,
            "lr": self.recipe.learning_rate(epoch - 1),
            "kept": kept,
            "kept_share": kept / setup.pruner.samples,
            **figures,
            "samples_scored": setup.pruner.scored,
            "image_size": list(setup.sizes[epoch - 1]),
            "flops": setup.epoch_flops(epoch, trained=figures["samples"], scored=setup.pruner.scored),
            "train_seconds": seconds,
            "samples_per_second": figures["samples"] / seconds,
        }
        heard = on_first_rank(self.fabric, lambda: self._record(epoch, line, started))
        if heard is not None and self.fabric.global_rank > 0:
            setup.loss.load_state_dict(heard)  # only the first rank validates

    def _average(self, epoch: int) -> None:
        """Add this epoch's weights to the mean, if there is one; after the last epoch the network takes the mean."""
        average, source = self.setup.average, self.setup.steps.source
        if average is None or epoch <= self.recipe.epochs - self.recipe.averaged_epochs:
            return
        average.update_parameters(self.setup.network)
        if epoch == self.recipe.epochs:
            source.begin(epoch + 1)
            # "settle" is this stream's name in recorded runs: another name would change their numbers.
            with seeded(self.recipe.seed, "settle", self.fabric.global_rank):
                take_mean(self.setup.network, average, (batch.images for batch in source.batches()))

    def _record(self, epoch: int, line: dict[str, Any], started: float) -> dict[str, torch.Tensor] | None:
        """Evaluate, log, save, in this order: an epoch that a checkpoint contains is always in the log.

        Returns the state of a loss that follows validation; it is in the checkpoint, too.
        """
        last, engine, loss = epoch == self.recipe.epochs, self.recipe.engine, self.setup.loss
        if last or epoch % engine.evaluate_every == 0:
            validation = self._predict("val")
            line["validation"] = brief(validation)
            if loss.follows_validation:
                loss.after_validation(torch.tensor(validation.logits), torch.tensor(validation.targets))
            if self.setup.best is not None:
                line["selection"] = self.setup.best.consider(epoch, validation, self.setup.network)
            if last:
                self.final_validation = validation
        line["seconds"] = time.perf_counter() - started
        append_line(self.run.log_path, line)
        self.log.append(line)
        if last or epoch % engine.checkpoint_every == 0:
            save_checkpoint(self.run.checkpoints, pack(self.setup, epoch))
        self.reporter.end_epoch(line)
        if not loss.follows_validation:
            return None
        return {name: value.cpu() for name, value in loss.state_dict().items()}

    def _stop_if_diverged(self, epoch: int, steps: int) -> None:
        step = self.setup.steps.meter.first_bad_step()
        what = "the loss became NaN or infinite"
        if step is None:
            weights = [value for value in self.setup.network.state_dict().values() if value.is_floating_point()]
            if bool(torch.stack([torch.isfinite(value).all() for value in weights]).all()):
                return
            # The last step broke the weights: no loss was computed with them yet.
            what, step = "a weight became NaN or infinite", steps - 1
        lr = self.recipe.learning_rate(epoch - 1 + step / steps)
        saved = "There was no checkpoint yet."
        if good := saved_checkpoints(self.run.checkpoints):
            saved = f"The last good checkpoint is {good[0].name}."
        raise TrainingDiverged(
            f"{what} in epoch {epoch} at step {step + 1} of {steps}, learning rate {lr:g}. {saved} "
            "Try a smaller learning rate, and look for NaN in the images."
        )

    def _predict(self, split: Split) -> Predictions:
        setup, part = self.setup, self.setup.data.held_out[split]
        network = setup.network
        if self.recipe.model.views != "none":
            network = AveragedViews(network, self.recipe.model.views)
        logits, labels = predict(
            network,
            part.batches(setup.batch_size, self.recipe.engine.workers),
            setup.preparation.plain,
            device=self.fabric.device,
        )
        try:
            return Predictions.from_logits(logits, labels, ids=part.ids, class_names=setup.data.class_names)
        except InvalidInput as error:
            part_name = {"val": "validation", "test": "test"}[split]
            raise InvalidInput(f"the {part_name} data: {error}") from error

    def _finish(self) -> None:
        # The last epoch predicted the validation part already, unless this process began after that epoch.
        validation = self.final_validation or self._predict("val")
        predictions: dict[Split, Predictions] = {"val": validation, "test": self._predict("test")}
        self._save(predictions)
        self.setup.pruner.save(self.run.pruning_path)
        calibration = calibrate_run(self.run)
        content = summarise(self.run.recipe, self.setup, predictions, self.log, calibration)
        compute_share = content["flops"] / content["flops_full"]
        warnings = find_failures(self.run, self.log, calibration, compute_share=compute_share)
        best = self.setup.best
        content |= {"warnings": warnings, "best": None}
        if best is not None:
            # The network keeps these weights.
            self.setup.network.load_state_dict(best.weights)
            predictions = {"val": self._predict("val"), "test": self._predict("test")}
            self._save(predictions, best=True)
            chosen = {"select": best.select, "epoch": best.epoch, "figure": best.figure}
            content["best"] = {**chosen, **judged(predictions)}
        # The last file: from now on the run counts as finished.
        write_json(self.run.summary_path, content)

    def _save(self, predictions: dict[Split, Predictions], *, best: bool = False) -> None:
        for split, prediction in predictions.items():
            prediction.save(self.run.predictions_path(split, best=best))


def state_of(folder: Path, recipe: Recipe) -> Literal["new", "stopped", "finished"]:
    """How far the run in `folder` is; one that was made by another recipe is refused."""
    run, here = Run.of(folder), recipe.with_code_digests().compared()
    if run is None:
        return "new"
    there = run.recipe.compared()
    if (key := first_difference(there, here)) is not None:
        raise InvalidInput(
            f"run {folder} was made with {key} = {there.get(key)}, now it is {here.get(key)}. "
            "Choose another --out, or remove that run."
        )
    return "finished" if run.finished else "stopped"


def train_or_resume(
    recipe: Recipe,
    folder: Path,
    *,
    data_dir: Path | None = None,
    reporter: Reporter | None = None,
    trust_code: bool = False,
) -> Run:
    """Train by `recipe` into `folder`; a stopped run is continued, a finished one is returned as it is."""
    # A finished run is returned by `resume` as it is.
    if state_of(folder, recipe) != "new":
        return resume(folder, data_dir=data_dir, reporter=reporter, trust_code=trust_code)
    return train(recipe, folder, data_dir=data_dir, reporter=reporter, trust_code=trust_code)
