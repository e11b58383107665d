"""A run is a folder. This is its reader and writer; the engine and everything after it go through here."""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.decisions import PolicyLike
from calibrant.errors import CalibrantError, InvalidInput
from calibrant.files import locked, output_error, refuse_overwriting
from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.evaluation import evaluations_table
from calibrant.metrics.metric import label
from calibrant.own_code import is_own, require
from calibrant.runs import RECIPE, RunFolder, Sample, is_run
from calibrant.tables import Table
from calibrant.training.checkpoint import Checkpoint, Line, newest_checkpoint, read_log
from calibrant.training.data import Dataset, load_dataset, split_validation
from calibrant.training.models import AveragedViews, ModelInput, build_model
from calibrant.training.recipe import Recipe

if TYPE_CHECKING:
    from calibrant.deployment.onnx_export import Exported

# How many images an exported file is compared on.
_REAL_IMAGES = 512
_NOISE_IMAGES = 64


class Run(RunFolder):
    """A run folder with all that needs torch: the engine writes it through here, and the network is loaded from it."""

    def __init__(self, path: str | Path, recipe: Recipe | None = None) -> None:
        """Open the folder `path`; with a recipe, name a folder that need not exist yet."""
        super().__init__(path)
        if recipe is None and not is_run(self.path):
            raise InvalidInput(f"run must be a run folder with a {RECIPE}, got {self.path}.")
        self.recipe = recipe or Recipe.load(self.recipe_path)

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> "Run":
        """Make a new run folder; one that already holds something is never touched."""
        run = cls(Path(path), recipe)
        run.refuse_if_used()
        existed = run.path.exists()
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            # Under the lock, and the recipe last: of two processes that begin the same folder one is refused, and a
            # kill in between leaves a folder that can be begun anew.
            with run.locked():
                run.refuse_if_used()
                run.checkpoints.mkdir(exist_ok=True)
                run.predictions_path("test").parent.mkdir(exist_ok=True)
                recipe.save(run.recipe_path)
        except OSError as error:
            if not existed:
                shutil.rmtree(run.path, ignore_errors=True)
            if isinstance(error, CalibrantError):
                raise
            raise output_error(run.path, error) from error
        return run

    def discard(self) -> None:
        """Remove what `create` and the first epoch made: one that failed in it would fail again.

        The folder itself stays, empty, so that the corrected call can have it.
        """
        for path in (self.recipe_path, self.log_path, self.lock_path):
            path.unlink(missing_ok=True)
        for folder in (self.checkpoints, self.predictions_path("test").parent):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def refuse_if_used(self) -> None:
        """Raise if the folder holds something already."""
        folder = self.path
        try:
            # Hidden files are the lock and drafts of a process that was killed before the recipe was there.
            used = folder.exists() and (
                not folder.is_dir() or any(not p.is_dir() and not p.name.startswith(".") for p in folder.rglob("*"))
            )
        except OSError as error:
            raise output_error(folder, error) from error
        if used:
            raise InvalidInput(
                f"out must be a new or empty folder, got {folder}, which holds something. "
                "Continue it with --resume, or choose another folder."
            )

    def describe(self) -> str:
        """What came out of a finished run, for a person."""
        summary = self.summary
        cost = f"{summary['seen_share']:.1%} of the sample updates in {summary['timing']['train_seconds']:.1f} s"
        warned = "".join(f"\nwarning: {text}" for text in summary.get("warnings", ()))
        # The summary's own figures have 10 bins, as the paper's tables.
        test, policy = self.predictions("test"), self.policy()
        results = {"raw": evaluate(test)}
        if policy is not None and policy.calibrated:
            results = {"calibrated": evaluate(policy.calibrate(test)), **results}
        return f"{evaluations_table(results)}\ntrained on {cost}; run folder: {self.path}{warned}"

    def _overview(self) -> Table:
        """The settings and, if the run is finished, the results. A damaged folder is shown with its damage."""
        recipe = self.recipe
        rows: list[tuple[str, object]] = [("data", recipe.data.name), ("model", recipe.model.name)]
        rows += [("method", self.method), ("seed", recipe.seed)]
        try:
            if not self.finished:
                rows.append(("state", f"{len(self.epochs())} of {recipe.epochs} epochs done"))
                return Table(str(self.path), rows)
            summary = self.summary
            test = Evaluation.from_dict(summary["test"])
        except (CalibrantError, OSError) as error:
            return Table(str(self.path), [*rows, ("damaged", error)])
        rows += [
            ("state", f"finished, {self.trained_epochs} epochs"),
            ("sample updates", f"{summary['seen_share']:.1%}"),
            (label("test_error"), f"{100 * test.test_error:.2f} %"),
            (label("nll"), f"{test.nll:.4f}"),
            (label("ece"), f"{100 * summary.get('test_ece_15_bins', test.ece):.2f} %"),
            *(("warning", text) for text in summary.get("warnings", ())),
        ]
        return Table(str(self.path), rows)

    def test_images(self, targets: NDArray[np.int64], data_dir: str | Path | None = None) -> NDArray[np.uint8] | None:
        """The test images of the data set, (n, H, W, C); None if they are not at hand or do not fit the targets."""
        dataset = _dataset(self.recipe.data.name, data_dir)
        # Predictions of another split, or of a set that has changed: a wrong picture is worse than none.
        if dataset is None or not np.array_equal(dataset.test.labels.numpy(), targets):
            return None
        images: NDArray[np.uint8] = dataset.test.images.permute(0, 2, 3, 1).numpy()
        return images

    def training_samples(
        self, targets: NDArray[np.int64], positions: NDArray[np.int64], data_dir: str | Path | None = None
    ) -> list[Sample] | None:
        """Some of the samples that the run trained on; None if the data set is not at hand or has other labels.

        `targets` are the labels of all of them in the order of its pruning audit, `positions` those that are wanted.
        """
        dataset = _dataset(self.recipe.data.name, data_dir)
        if dataset is None:
            return None
        settings = self.recipe.data
        known = dataset.train.labels
        rows, _ = split_validation(known, fraction=settings.validation, seed=settings.split_seed)
        if not np.array_equal(known[rows].numpy(), targets):
            return None
        wanted = dataset.train.take(rows[positions])
        images = wanted.images.permute(0, 2, 3, 1).numpy()
        return [Sample(*pair) for pair in zip(wanted.ids, images, strict=True)]

    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint that is not damaged."""
        newest = newest_checkpoint(self.checkpoints)
        if newest is None:
            raise InvalidInput(f"run {self.path} has no checkpoint yet. Continue it with --resume.")
        return newest

    def load_model(self, checkpoint: Checkpoint | None = None, *, trust_code: bool = False) -> nn.Module:
        """The network with the weights of a checkpoint, by default the newest, and the run's views; evaluation mode.

        Args:
            checkpoint: Where the weights come from.
            trust_code: Whether to import a network `module:name` that you have not used on this machine before. It must
                be the file that the run was trained with in any case.
        """
        checkpoint = checkpoint or self.checkpoint()
        channels, height, width = checkpoint.values["image_shape"]
        name = self.recipe.model.name
        if is_own(name):
            require(name, expected=self.recipe.own_code.get(name.partition(":")[0]), trusted=trust_code)
        expected = None
        if stated := checkpoint.values.get("model_input"):
            expected = ModelInput(**{key: tuple(value) for key, value in stated.items() if value is not None})
        model = build_model(
            name,
            n_classes=checkpoint.values["classes"],
            image_shape=(channels, height, width),
            pretrained=False,
            expected=expected,
        )
        weights = {n.removeprefix("model."): t for n, t in checkpoint.tensors.items() if n.startswith("model.")}
        if self.recipe.engine.precision == "64-true":
            model = model.double()
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[0][:200]
            message = f"the newest checkpoint of run {self.path} does not fit its network: {reason}"
            raise InvalidInput(message) from error
        if self.recipe.model.views != "none":
            model = AveragedViews(model, self.recipe.model.views)
        return model.eval()

    def export_to_onnx(
        self,
        path: str | Path | None = None,
        *,
        policy: PolicyLike | None = None,
        raw: bool = False,
        trust_code: bool = False,
        class_names: Sequence[str] | None = None,
    ) -> "Exported":
        """Write the network of a finished run and its policy as one ONNX file, and compare it with Python first.

        Args:
            path: Where to write, `.onnx`; by default `model.onnx` in the run.
            policy: A policy or its file; by default the run's.
            raw: Do not use the run's policy: nothing is calibrated or automated.
            trust_code: Whether to import a network `module:name` that you have not used on this machine before.
            class_names: Kept in the file's metadata; the policy's names are the default.

        Raises:
            CheckFailed: The file computes something else than Python, or automates nothing although the rule does.
        """
        from calibrant.deployment.networks import IMAGE_SLACK, IMAGES, normalised
        from calibrant.deployment.onnx_export import export_onnx, require_libraries

        require_libraries()
        # The weights of an unfinished run are not what its figures will be about, and averaged weights come at the end.
        self.refuse_unfinished()
        checkpoint = self.checkpoint()
        target = Path(path or self.onnx_path)
        sources = [self.policy_path, *self.checkpoints.glob("*")]
        if isinstance(policy, str | Path):
            sources.append(Path(policy))
        refuse_overwriting([target], sources)
        if policy is None and not raw:
            policy = self.policy()
        network = self.load_model(checkpoint, trust_code=trust_code).cpu().float()
        images, compared = self._images_to_compare(checkpoint.values)
        model = normalised(network, mean=checkpoint.values["mean"], std=checkpoint.values["std"])
        ranges = {IMAGES: (-IMAGE_SLACK, 1.0 + IMAGE_SLACK)}
        return export_onnx(
            model, target, example=images, policy=policy, ranges=ranges, class_names=class_names, compared=compared
        )

    def _images_to_compare(self, values: Mapping[str, Any]) -> tuple[Tensor, str]:
        """Images of the run's data set if it is at hand, and noise around their mean; and what they are, in words."""
        noise = torch.randn(_NOISE_IMAGES, *values["image_shape"], generator=torch.Generator().manual_seed(0))
        centre, spread = (torch.tensor(values[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
        drawn = (centre + spread * noise).clamp(0, 1)
        name = self.recipe.data.name
        # A folder may hold a million photographs, and all of them would be read for a few.
        dataset = None if name.startswith("folder:") else _dataset(name, None)
        if dataset is None or dataset.image_shape != tuple(values["image_shape"]):
            return drawn, f"images (of noise: {name} was not read here)"
        real = dataset.test.images[:_REAL_IMAGES].float() / 255
        return torch.cat([real, drawn]), f"images (test images of {name}, and noise)"

    @property
    def trained_epochs(self) -> int:
        """Epochs of the finished run; a budget may have made them fewer than the recipe's."""
        return self.recipe.epochs if self.recipe.budget == 1 else int(self.summary["epochs"])

    def epochs(self) -> list[Line]:
        """The epoch log; a last line torn by a kill is left out, any other damage is refused."""
        every = self.trained_epochs if self.finished else None
        return read_log(self.log_path, epochs=every)

    def remove_drafts(self) -> None:
        """Remove the temporary files of processes that were killed; only the holder of the lock may do that."""
        for draft in self.path.rglob(".*.tmp"):
            draft.unlink(missing_ok=True)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder: two processes that write one run would spoil it."""
        busy = f"run {self.path} is being written by another process. Wait for it, or choose another folder."
        return locked(self.lock_path, busy=busy, inherited=False)


# The runs of a page mostly share one data set; it is read once.
@lru_cache(maxsize=1)
def _dataset(name: str, data_dir: str | Path | None) -> Dataset | None:
    try:
        return load_dataset(name, data_dir=data_dir)
    except (InvalidInput, ImportError):
        return None
