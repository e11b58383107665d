"""A run is a folder. This is its reader and writer; the engine and everything after it go through here."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from calibrant.errors import InvalidInput
from calibrant.files import output_error, read_json, write_json, write_text
from calibrant.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from calibrant.predictions import Predictions

Split = Literal["val", "test"]


class Run:
    """A run folder.

    `recipe.toml` what was asked; `metrics.jsonl` a line an epoch; `checkpoints/`; `predictions/{val,test}.npz`;
    `pruning.npz` who left when; `summary.json` written last, so its presence says that the run is complete.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self.recipe = recipe

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe) -> "Run":
        """Make a new run folder; an existing non-empty one is never touched."""
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(
                f"out must be a new or empty folder, got {folder}, which holds something. "
                "Continue it with --resume, or choose another folder."
            )
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            (folder / "predictions").mkdir(exist_ok=True)
        except OSError as error:
            raise output_error(folder, error) from error
        recipe.save(folder / "recipe.toml")
        return cls(folder, recipe)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open an existing run folder."""
        folder = Path(path)
        if not (folder / "recipe.toml").is_file():
            raise InvalidInput(f"run must be a run folder with a recipe.toml, got {folder}.")
        return cls(folder, Recipe.load(folder / "recipe.toml"))

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        """Whether the run reached its end."""
        return (self.path / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """Final metrics, environment and costs."""
        if not self.finished:
            raise InvalidInput(f"run {self.path} is not finished. Continue it with: calibrant train --resume {self.path}")
        content: dict[str, Any] = read_json(self.path / "summary.json")
        return content

    def predictions_path(self, split: Split) -> Path:
        """Where the predictions of a split lie."""
        return self.path / "predictions" / f"{split}.npz"

    def predictions(self, split: Split) -> "Predictions":
        """Predictions of the finished model."""
        from calibrant.predictions import Predictions

        path = self.predictions_path(split)
        if not path.is_file():
            raise InvalidInput(f"run {self.path} has no {split} predictions yet. Continue it with --resume.")
        return Predictions.load(path)

    def load_model(self) -> "nn.Module":
        """The network with the newest checkpoint's weights, in evaluation mode."""
        from calibrant.models import build_model
        from calibrant.training.checkpoint import load_newest

        checkpoint = load_newest(self.checkpoints)
        if checkpoint is None:
            raise InvalidInput(f"run {self.path} has no readable checkpoint.")
        shape = checkpoint.values["image_shape"]
        model = build_model(
            self.recipe.model.name, classes=checkpoint.values["classes"], image_shape=(shape[0], shape[1], shape[2])
        )
        weights = {n.removeprefix("model."): t for n, t in checkpoint.tensors.items() if n.startswith("model.")}
        model.load_state_dict(weights)
        return model.eval()

    # The log: one JSON object a line, one line an epoch.

    @property
    def log_path(self) -> Path:
        """The epoch log."""
        return self.path / "metrics.jsonl"

    def epochs(self) -> list[dict[str, Any]]:
        """The epoch log; a line torn by a kill is left out."""
        if not self.log_path.is_file():
            return []
        lines = []
        for text in self.log_path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
        return lines

    def log_epoch(self, line: dict[str, Any]) -> None:
        """Append one epoch's line."""
        try:
            with self.log_path.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(line, allow_nan=False) + "\n")
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise output_error(self.log_path, error) from error

    def cut_log(self, epoch: int) -> None:
        """Drop lines after `epoch`: epochs that were logged but whose checkpoint was not reached."""
        kept = [line for line in self.epochs() if line["epoch"] <= epoch]
        write_text(self.log_path, "".join(json.dumps(line) + "\n" for line in kept))

    def write_summary(self, content: dict[str, Any]) -> None:
        """Write the summary; from now on the run counts as finished."""
        write_json(self.path / "summary.json", content)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: two processes that write one run would spoil it."""
        try:
            handle = (self.path / ".lock").open("w")
        except OSError as error:
            raise output_error(self.path / ".lock", error) from error
        with handle:
            try:
                # Released by the system when the process ends, however it ends.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidInput(f"run {self.path} is being written by another process. Wait for it to end.") from error
            yield
