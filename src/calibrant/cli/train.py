"""`calibrant train`: a recipe file, flags, or both (flags win)."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from calibrant.cli._flags import TrustCode
from calibrant.cli._say import say_json
from calibrant.cli._settings import assignment
from calibrant.data import anchored
from calibrant.errors import CalibrantError, CalibrantWarning, InvalidInput
from calibrant.own_code import trust_named
from calibrant.training import (
    LiveBar,
    PlainLines,
    ProcessLost,
    Recipe,
    Reporter,
    Run,
    TensorBoard,
    default_recipe,
    is_first_process,
    stopped_message,
)

# Flags whose value goes to one key of the recipe, and those that change the method's own settings.
_RECIPE_FLAGS = {
    "seed": "seed",
    "epochs": "epochs",
    "model": "model.name",
    "method": "method.name",
    "batch_size": "optimiser.batch_size",
    "lr": "optimiser.lr",
    "accelerator": "engine.accelerator",
    "devices": "engine.devices",
    "precision": "engine.precision",
    "mode": "engine.mode",
    "data_path": "engine.data_path",
    "workers": "engine.workers",
}


def train(
    *,
    recipe: Path | None = None,
    data: str | None = None,
    model: str | None = None,
    method: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    data_dir: Path | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    lambda_: Annotated[float | None, Parameter(name="--lambda")] = None,
    prune_fraction: float | None = None,
    prune_interval: int | None = None,
    prune_start: int | None = None,
    prune_ema: float | None = None,
    prune_drop: float | None = None,
    prune_share: float | None = None,
    prune_anneal: float | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    accelerator: Literal["auto", "cpu", "cuda"] | None = None,
    devices: int | None = None,
    precision: Literal["auto", "bf16-mixed", "32-true", "64-true"] | None = None,
    mode: Literal["auto", "eager", "compiled", "graphed"] | None = None,
    data_path: Literal["auto", "resident", "loader"] | None = None,
    workers: int | None = None,
    tensorboard: Annotated[bool, Parameter(negative="")] = False,
    trust_code: TrustCode = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a classifier and leave a run folder; a stopped run goes on with --resume.

    Parameters
    ----------
    recipe:
        TOML file with all settings; flags below override it.
    data:
        Data set: digits, cifar10, cifar100, ..., arrays:FILE.npz or folder:DIR. See `calibrant data list`.
    model:
        Network: tiny, resnet32, resnet50, torchvision:NAME, or module:factory.
    method:
        Training objective and pruning plan: see `calibrant methods`; or module:function, a loss of your own.
    epochs:
        Number of epochs; schedules and pruning plans scale with it.
    seed:
        Seed of initialisation, order, augmentation and pruning.
    out:
        New run folder; by default runs/DATA-MODEL-METHOD-seedN.
    resume:
        Run folder to continue; nothing else about the run can be changed then.
    data_dir:
        Where image sets lie; by default CALIBRANT_DATA, then the user's cache.
    batch_size:
        Samples a step, over all processes.
    lr:
        Initial learning rate.
    lambda_:
        Weight of the calibration term.
    prune_fraction:
        Share of each class that leaves at each pruning.
    prune_interval:
        Epochs between prunings.
    prune_start:
        First epoch after which is pruned.
    prune_ema:
        Weight of the newest confidence in the moving average (kappa).
    prune_drop:
        Unbiased plans: share of the well-learned samples that rests in an epoch.
    prune_share:
        Unbiased plans: share of each class that counts as well learned.
    prune_anneal:
        Final epochs (or share of the run) on all data.
    set_:
        Any other setting, as key=value: --set schedule.kind=cosine --set method.options.gamma=2. Repeatable.
    accelerator:
        Device to train on.
    devices:
        Number of processes; torchrun works too.
    precision:
        Number format; auto is bf16-mixed on a GPU, 32-true on a CPU.
    mode:
        How a step runs; auto captures it in a CUDA graph where it can.
    data_path:
        Whether the set lives on the device or comes through a loader.
    workers:
        Loader processes.
    tensorboard:
        Also write TensorBoard scalars into the run folder.
    json:
        Print the summary as JSON.
    """
    given = {key: value for key, value in locals().items() if key in _RECIPE_FLAGS and value is not None}
    options = {
        "fraction": prune_fraction,
        "interval": prune_interval,
        "start": prune_start,
        "ema": prune_ema,
        "drop": prune_drop,
        "share": prune_share,
        "anneal": prune_anneal,
    }
    changes: dict[str, Any] = {_RECIPE_FLAGS[key]: value for key, value in given.items()}
    changes |= {f"method.options.{key}": value for key, value in options.items() if value is not None}
    changes |= dict(assignment(text, method_options=True) for text in set_ or [])
    trust_named(changes.get("method.name"), changes.get("model.name"))
    if trust_code:
        trust_named(*_recipe(recipe, data).own_names())
    if lambda_ is not None:
        chosen = method or (_recipe(recipe, data).method.name)
        changes[f"method.options.{_calibration_weight(chosen)}"] = lambda_
    if resume is not None and (changes or any(value is not None for value in (recipe, data, out))):
        raise InvalidInput("--resume continues a run as it was begun: leave out the other settings.")
    with _first_process_speaks(), _plain_warnings():
        reporter = make_reporter(tensorboard=tensorboard)
        if resume is not None:
            run = _resume(resume, data_dir, reporter, trust_code=trust_code)
        else:
            wanted = _recipe(recipe, data).changed(changes)
            # A run may be resumed from another folder than the one it began in.
            from_anywhere = wanted.changed({"data.name": anchored(wanted.data.name)})
            run = _train(from_anywhere, out or default_folder(wanted), data_dir, reporter)
        report(run, as_json=json)


def _calibration_weight(method: str) -> str:
    """The setting that --lambda means: the weight of the method's calibration term."""
    from calibrant import methods

    weights = [key for key in methods.describe(method).settings if key.endswith("_weight")]
    if not weights:
        raise InvalidInput(f"--lambda: the method '{method}' has no calibration term to weigh.")
    return weights[0]


def _recipe(path: Path | None, data: str | None) -> Recipe:
    if path is None:
        return default_recipe(data or "digits")
    loaded = Recipe.load(path)
    return loaded if data is None else loaded.changed({"data.name": data})


def _train(recipe: Recipe, out: Path, data_dir: Path | None, reporter: Reporter) -> Run:
    from calibrant.training import train as run_training

    try:
        return run_training(recipe, out, data_dir=data_dir, reporter=reporter)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(stopped_message(out)) from error


def _resume(path: Path, data_dir: Path | None, reporter: Reporter, *, trust_code: bool) -> Run:
    from calibrant.training import resume as go_on

    if Run.open(path).finished:
        sys.stderr.write(f"run {path} is finished already: nothing to do\n")
    try:
        return go_on(path, data_dir=data_dir, reporter=reporter, trust_code=trust_code)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(stopped_message(path)) from error


@contextmanager
def _first_process_speaks() -> Iterator[None]:
    """Let only the first of several processes say what went wrong: they all know the same."""
    try:
        yield
    except (CalibrantError, KeyboardInterrupt) as error:
        # Where a process was lost, the first one may be the one that is gone.
        if is_first_process() or isinstance(error, ProcessLost):
            raise
        raise SystemExit(2) from error


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show this package's warnings as one line, without file and line number."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, CalibrantWarning):
                sys.stderr.write(f"calibrant: warning: {message}\n")
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def default_folder(recipe: Recipe) -> Path:
    """runs/DATA-MODEL-METHOD-seedN, with a number behind it where that is taken."""
    words = (recipe.data.name, recipe.model.name, recipe.method.name, f"seed{recipe.seed}")
    name = "-".join("".join(c if c.isalnum() or c in "+-_." else "_" for c in word) for word in words)
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def make_reporter(*, tensorboard: bool = False) -> Reporter:
    """A live bar on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    reporter: Reporter = LiveBar(console) if console.is_terminal else PlainLines()
    return TensorBoard(reporter) if tensorboard else reporter


def report(run: Run, *, as_json: bool) -> None:
    """Print what came out (only the first process does)."""
    from calibrant.distributed import rank
    from calibrant.metrics import Evaluation

    if rank() != 0:
        return
    if as_json:
        say_json({"run": str(run.path), **run.summary})
        return
    summary, console = run.summary, Console()
    console.print(Evaluation.from_dict(summary["test"]).table())
    console.print(
        f"trained on {summary['seen_share']:.1%} of the sample updates in {summary['timing']['train_seconds']:.1f} s; "
        f"run folder: {run.path}",
        soft_wrap=True,
        highlight=False,
    )
