"""Reporters that tell a tracking tool about a run, beside another reporter: TensorBoard, MLflow, Weights & Biases."""

import os
import time
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrant.errors import CalibrantWarning, InvalidInput, importing, one_line
from calibrant.files import output_error, read_json, write_json
from calibrant.metrics import evaluate
from calibrant.training.progress import ForwardingReporter, LiveBar, PlainLines, Reporter
from calibrant.training.recipe import flatten
from calibrant.training.run import Run


def make_reporter(*, tensorboard: bool = False, mlflow: bool = False, wandb: bool = False) -> Reporter:
    """A live bar on a terminal, plain lines elsewhere; beside it the tracking tools that are asked for."""
    console = Console(stderr=True)
    reporter: Reporter = LiveBar(console) if console.is_terminal else PlainLines()
    asked = {TensorBoard: tensorboard, MLflow: mlflow, WeightsAndBiases: wandb}
    for tracker, wanted in asked.items():
        reporter = tracker(reporter) if wanted else reporter
    return reporter


class TensorBoard(ForwardingReporter):
    """Scalars for TensorBoard, beside another reporter."""

    def __init__(self, inner: Reporter) -> None:
        super().__init__(inner)
        with importing("--tensorboard", "tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._open = SummaryWriter
        self._writer: Any = None
        self._folder = Path()

    def start(self, run: Run, done: int) -> None:
        """Open the event file inside the run folder."""
        self._folder = run.path / "tensorboard"
        try:
            # Epochs that are trained again after a resume replace those that were written before.
            self._writer = self._open(str(self._folder), purge_step=done + 1)
        except OSError as error:
            raise output_error(self._folder, error) from error
        super().start(run, done)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Write the epoch's scalars."""
        try:
            for name, value in _scalars(line).items():
                self._writer.add_scalar(name, value, line["epoch"])
            self._writer.flush()
        except OSError as error:
            raise output_error(self._folder, error) from error
        super().end_epoch(line)

    def stop(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
        super().stop()


class _Service(ForwardingReporter):
    """A tool that keeps runs under ids of its own: settings at the start, scalars per epoch, results at the end.

    The id is kept in the run folder, so that a resumed run goes on under it. A tool that cannot be reached at the start
    ends the run before it has begun; one that fails later is given up with a warning, because the run's own log holds
    the same figures and hours of training are worth more than a copy of them.
    """

    _name: str
    _remedy: str

    def __init__(self, inner: Reporter) -> None:
        super().__init__(inner)
        self._run: Run | None = None

    def start(self, run: Run, done: int) -> None:
        """Begin, or go on with, the tool's run."""
        # Hidden: a folder that holds nothing else may be trained into again.
        kept = run.path / f".{self._name.lower()}.json"
        known = str(read_json(kept)["id"]) if done and kept.is_file() else None
        try:
            identity = self._begin(run, known)
        except Exception as error:  # the errors of these tools have no common base
            reason = one_line(error)[:200].rstrip(".")
            raise InvalidInput(f"{self._name} did not begin a run: {reason}. {self._remedy}") from error
        write_json(kept, {"id": identity})
        self._run = run
        super().start(run, done)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Send the epoch's scalars."""
        self._try(lambda: self._send(_scalars(line), line["epoch"]))
        super().end_epoch(line)

    def stop(self) -> None:
        """Send the results of a finished run, and close the tool's run."""
        self._try(self._end)
        self._run = None
        super().stop()

    def _try(self, send: Any) -> None:
        if self._run is None:
            return
        try:
            send()
        except Exception as error:  # noqa: BLE001 (see above)
            self._run = None
            text = f"{self._name} failed and is told nothing more: {one_line(error)[:200]}"
            warnings.warn(text, CalibrantWarning, stacklevel=3)

    @abstractmethod
    def _begin(self, run: Run, known: str | None) -> str: ...

    @abstractmethod
    def _send(self, scalars: dict[str, float], epoch: int) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


class MLflow(_Service):
    """Settings, scalars per epoch, test metrics and the run's small files in MLflow, beside another reporter.

    Where to is MLflow's own matter: `MLFLOW_TRACKING_URI`, by default a database in the working directory, and
    `MLFLOW_EXPERIMENT_NAME`, by default "calibrant".
    """

    _name = "MLflow"
    _remedy = "Set MLFLOW_TRACKING_URI, for example to sqlite:///mlflow.db."

    def __init__(self, inner: Reporter) -> None:
        super().__init__(inner)
        with importing("--mlflow", "MLflow", "mlflow"):
            from mlflow.tracking import MlflowClient
        self._open = MlflowClient
        self._client: Any = None
        self._id = ""

    def _begin(self, run: Run, known: str | None) -> str:
        from mlflow.entities import Param

        self._client = self._open()
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self._id = known
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "calibrant")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._id = self._client.create_run(experiment, run_name=run.path.name).info.run_id
        settings = [Param(key, str(value)[:500]) for key, value in _settings(run).items()]
        for first in range(0, len(settings), 100):  # no more at once
            self._client.log_batch(self._id, params=settings[first : first + 100])
        return self._id

    def _send(self, scalars: dict[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        # MLflow's names know no "@".
        metrics = [Metric(name.replace("@", " at "), value, now, epoch) for name, value in scalars.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _end(self) -> None:
        assert self._run is not None
        if self._run.finished:
            self._send(_results(self._run), self._run.trained_epochs)
            for path in (self._run.recipe_path, self._run.summary_path, self._run.policy_path):
                if path.is_file():
                    self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, "FINISHED" if self._run.finished else "KILLED")


class WeightsAndBiases(_Service):
    """Settings, scalars per epoch and test metrics in Weights & Biases, beside another reporter.

    Where to is its own matter: `WANDB_MODE=offline` keeps everything on this machine, `WANDB_PROJECT` is "calibrant"
    unless set, `WANDB_DIR` the working directory.
    """

    _name = "wandb"
    _remedy = "Log in with `wandb login`, or set WANDB_MODE=offline."

    def __init__(self, inner: Reporter) -> None:
        super().__init__(inner)
        with importing("--wandb", "wandb", "wandb"):
            import wandb
        self._wandb: Any = wandb
        self._tracked: Any = None

    def _begin(self, run: Run, known: str | None) -> str:
        self._tracked = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "calibrant"),
            name=run.path.name,
            id=known,
            resume=None if known is None else "allow",
            config=_settings(run),
            # Our own reporter writes on the terminal.
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        return str(self._tracked.id)

    def _send(self, scalars: dict[str, float], epoch: int) -> None:
        self._tracked.log(scalars, step=epoch)

    def _end(self) -> None:
        assert self._run is not None
        if self._run.finished:
            self._tracked.summary.update(_results(self._run))
        self._tracked.finish(exit_code=0 if self._run.finished else 1)


def _scalars(line: dict[str, Any]) -> dict[str, float]:
    """The figures of an epoch under the names that the tools show."""
    scalars = {key: line[key] for key in ("loss", "accuracy", "ece", "kept_share", "lr", "samples_per_second")}
    scalars |= {f"terms/{name}": value for name, value in line["terms"].items()}
    return scalars | {f"validation/{name}": value for name, value in line.get("validation", {}).items()}


def _settings(run: Run) -> dict[str, Any]:
    """The recipe as dotted keys; what is not set is left out."""
    return {key: value for key, value in flatten(run.recipe.model_dump()).items() if value is not None}


def _results(run: Run) -> dict[str, float]:
    """Test metrics of a finished run: as the network says it, and behind the run's temperature."""
    test = run.predictions("test")
    results: dict[str, float] = {}
    judged = {"test": test}
    policy = run.policy()
    if policy is not None and policy.calibrator is not None:
        results |= policy.calibrator.fitted_numbers()
        judged["test_calibrated"] = policy.calibrate(test)
    for prefix, predictions in judged.items():
        values = evaluate(predictions).values()
        results |= {f"{prefix}/{name}": float(value) for name, value in values.items() if value is not None}
    return results
