"""Report how a run is going: a live bar on a terminal, one line per epoch elsewhere, and trackers beside them."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from calibrant.errors import CalibrantWarning, InvalidInput, importing, one_line, printable
from calibrant.metrics import evaluate
from calibrant.training.recipe import flatten
from calibrant.training.run import Run


class Reporter:
    """Gets the progress of a run, and shows nothing itself."""

    def start(self, run: Run, done: int) -> None:
        """A run begins, or continues after `done` finished epochs."""

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """An epoch with that many steps begins."""

    def step(self) -> None:
        """A step begins."""

    def end_epoch(self, line: dict[str, Any]) -> None:
        """An epoch is over; `line` is what the log says about it."""

    def stop(self) -> None:
        """The run is over or was stopped."""


class PlainLines(Reporter):
    """One line per epoch, for logs and pipes."""

    def __init__(self, write: Any = None) -> None:
        self._write = write or (lambda text: sys.stderr.write(printable(text) + "\n"))
        self._epochs = 0

    def start(self, run: Run, done: int) -> None:
        """Say what begins."""
        self._epochs = run.recipe.epochs
        recipe = run.recipe
        what = f"{recipe.method.name} on {recipe.data.name} with {recipe.model.name}"
        text = f"{what}, {recipe.epochs} epochs, seed {recipe.seed}"
        if done:
            text += f", going on after epoch {done}"
        self._write(text)
        for line in _derived(run, done):
            self._write(line)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Say how the epoch went."""
        self._write(f"epoch {line['epoch']}/{self._epochs}: {describe(line)}")


def _derived(run: Run, done: int) -> list[str]:
    """What a new run's recipe takes from the data, and why."""
    if done:
        return []
    return [f"  {key}: {reason}" for key, reason in run.recipe.reasons.items()]


class LiveBar(Reporter):
    """A bar over epochs with the time left, and below it the newest figures."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )
        # A line of its own: beside the bar the figures would be cut off on most terminals.
        self._figures = Text(style="dim")
        self._live = Live(Group(self._progress, self._figures), console=console, transient=True)

    def start(self, run: Run, done: int) -> None:
        """Show the bar."""
        for line in _derived(run, done):
            self._console.print(Text(printable(line), style="dim"))
        self._task = self._progress.add_task(run.recipe.method.name, total=run.recipe.epochs, completed=done)
        self._live.start(refresh=True)

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Move to an epoch."""
        self._progress.update(self._task, completed=epoch - 1)
        self._share = 1 / max(steps, 1)

    def step(self) -> None:
        """Move a little. The bar is drawn anew a few times per second, however fast the steps are."""
        self._progress.advance(self._task, self._share)

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Show the newest figures."""
        self._progress.update(self._task, completed=line["epoch"])
        self._figures.plain = describe(line)
        self._live.refresh()

    def stop(self) -> None:
        """Remove the bar."""
        self._live.stop()


def describe(line: dict[str, Any]) -> str:
    """An epoch's figures in one line, in percent."""
    parts = [f"loss {line['loss']:.3f}"]
    if len(line["terms"]) > 1:
        parts.append("(" + ", ".join(f"{name} {value:.4f}" for name, value in line["terms"].items()) + ")")
    parts += [f"accuracy {line['accuracy']:.1%}", f"ECE {line['ece']:.2%}"]
    if "validation" in line:
        parts.append(f"validation {line['validation']['accuracy']:.1%}, ECE {line['validation']['ece']:.2%}")
    parts += [f"kept {line['kept_share']:.0%}", f"{line['samples_per_second']:,.0f} samples/s"]
    return ", ".join(parts).replace(", (", " (")


# trackers -------------------------------------------------------------------------------------------------------------

Tracker = Literal["tensorboard", "mlflow", "wandb"]


class TrackedReporter(Reporter):
    """Sends settings, figures per epoch and test metrics to a logger of Lightning, beside another reporter.

    A logger that fails at the start ends the run before it has begun. One that fails later is given up with a warning:
    the run's own log has the same figures, and hours of training are worth more than a copy of them. A resumed run is
    sent on as a new run, except to TensorBoard, which has it in the run folder.

    Args:
        inner: The other reporter.
        make_logger: Returns the logger for a run that continues after so many epochs. It may be any logger of
            `lightning.pytorch.loggers`.
    """

    def __init__(self, inner: Reporter, make_logger: Callable[[Run, int], Any]) -> None:
        self._inner = inner
        self._make_logger = make_logger
        self._logger: Any = None
        self._run: Run | None = None

    def start(self, run: Run, done: int) -> None:
        """Begin the tracker's run."""
        try:
            self._logger = self._make_logger(run, done)
            settings = flatten(run.recipe.model_dump())
            self._logger.log_hyperparams({key: value for key, value in settings.items() if value is not None})
        except Exception as error:  # the errors of these tools have no common base
            raise InvalidInput(f"The tracker cannot begin a run: {one_line(error)[:200].rstrip('.')}.") from error
        self._run = run
        self._inner.start(run, done)

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Pass it on."""
        self._inner.begin_epoch(epoch, steps)

    def step(self) -> None:
        """Pass it on."""
        self._inner.step()

    def end_epoch(self, line: dict[str, Any]) -> None:
        """Send the figures of the epoch."""
        figures = {key: line[key] for key in ("loss", "accuracy", "ece", "kept_share", "lr", "samples_per_second")}
        figures |= {f"terms/{name}": value for name, value in line["terms"].items()}
        figures |= {f"validation/{name}": value for name, value in line.get("validation", {}).items()}
        self._send(figures, line["epoch"])
        self._inner.end_epoch(line)

    def stop(self) -> None:
        """Send the results of a finished run, and close the tracker's run."""
        if self._run is not None and self._run.finished:
            self._send(_results(self._run), self._run.trained_epochs)
        if self._run is not None:
            self._logger.finalize("success" if self._run.finished else "failed")
            if hasattr(self._logger.experiment, "finish"):  # else the next run would be a part of this one (wandb)
                self._logger.experiment.finish()
        self._run = None
        self._inner.stop()

    def _send(self, figures: dict[str, float], epoch: int) -> None:
        if self._run is None:
            return
        # MLflow allows no "@" in a name.
        named = {name.replace("@", " at "): value for name, value in figures.items()}
        try:
            self._logger.log_metrics(named, step=epoch)
            self._logger.save()
        except Exception as error:  # noqa: BLE001 (see above)
            self._run = None
            text = f"The tracker failed and gets no more figures of this run: {one_line(error)[:200]}"
            warnings.warn(text, CalibrantWarning, stacklevel=4)


def _tracked(inner: Reporter, tracker: Tracker) -> TrackedReporter:
    """A reporter that sends to the place that the tracker's own environment variables name.

    The experiment or project is "calibrant" unless `MLFLOW_EXPERIMENT_NAME` or `WANDB_PROJECT` says otherwise.
    """
    with importing(f"--track {tracker}", tracker, tracker):
        from lightning.pytorch import loggers

        if tracker == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter  # noqa: F401 (Lightning imports it late)

            # Epochs that are trained again after a resume replace those that were written before.
            return TrackedReporter(
                inner, lambda run, done: loggers.TensorBoardLogger(run.path, "", "tensorboard", purge_step=done + 1)
            )
        if tracker == "mlflow":
            import mlflow

            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "calibrant")
            return TrackedReporter(
                inner, lambda run, _: loggers.MLFlowLogger(experiment, run.path.name, mlflow.get_tracking_uri())
            )
        import wandb

        options: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "calibrant"),
            "save_dir": os.environ.get("WANDB_DIR", "."),
            "settings": wandb.Settings(silent=True, console="off"),  # our own reporter writes on the terminal
        }
        return TrackedReporter(inner, lambda run, _: loggers.WandbLogger(run.path.name, **options))


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


def make_reporter(trackers: Sequence[Tracker] = ()) -> Reporter:
    """A live bar on a terminal, plain lines elsewhere; beside it the trackers."""
    console = Console(stderr=True)
    reporter: Reporter = PlainLines()
    if console.is_terminal:
        reporter = LiveBar(console)
    for name in trackers:
        reporter = _tracked(reporter, name)
    return reporter
