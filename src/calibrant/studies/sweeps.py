"""A search by Optuna with three objectives: validation error, validation ECE or NLL after scaling, and samples seen.

`SweepSpec` says what is searched, `Sweep` is the search on disk, `run_sweep` runs it and writes the Pareto front.
"""

import json
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from calibrant.checks import whole
from calibrant.errors import CalibrantError, InvalidInput, importing, invalid
from calibrant.files import as_path, content_digest, output_error, write_json
from calibrant.scale import Executor, Task, run_tasks
from calibrant.studies.study_outputs import Outcome
from calibrant.studies.study_spec import TomlSettings
from calibrant.tables import Table, counted, short
from calibrant.training import Recipe, Reporter, TrainingDiverged, make_reporter, methods, paper_recipe, train_or_resume
from calibrant.training.final_weights import selection_figure
from calibrant.training.recipe import recipe_keys, suggest_key
from calibrant.training.settings import literal
from calibrant.training.setup import load_data

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna import Trial
    from optuna.trial import FrozenTrial

CALIBRATION = {"ece": "validation ECE", "scaled-nll": "validation NLL +TS"}
# A worker that is silent for the grace period counts as lost. Its trial is then begun again by another worker.
_HEARTBEAT_SECONDS = 15
_GRACE_SECONDS = 60


# What is varied.


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: integers if both ends are, on a logarithmic scale with `log`."""

    low: float
    high: float
    log: bool = False


Space = dict[str, Range | tuple[Any, ...]]
"""The values of each setting: a range, or one of a few."""


# Ranges for settings of methods: the paper's grids, and values around our own measurements.
_USUAL: Space = {
    "huber_weight": Range(0.1, 50.0, log=True),
    "gamma": Range(0.5, 5.0),
    "dca_weight": Range(0.05, 10.0, log=True),
    "mdca_weight": Range(0.5, 10.0, log=True),
    "mmce_weight": Range(0.005, 1.0, log=True),
    "entropy_weight": Range(0.01, 1.0, log=True),
    "margin_weight": Range(0.01, 1.0, log=True),
    "label_smoothing": Range(0.01, 0.2, log=True),
    "fraction": Range(0.02, 0.3),
    "rest": Range(0.1, 0.8),
    "share": Range(0.3, 0.9),
    "drop": Range(0.2, 0.9),
    "ratio": Range(0.2, 0.8),
    "easy": Range(0.3, 0.95),
    "pool": Range(0.6, 1.0),
}


def search_space(method: str, asked: Sequence[str] = ()) -> Space:
    """Return the settings that a sweep varies. Without words: every setting of the method that has a usual range.

    >>> search_space("flsd+h+unbiased", ["drop=0.3:0.8", "share"])
    {'drop': Range(low=0.3, high=0.8, log=False), 'share': Range(low=0.3, high=0.9, log=False)}
    """
    settings = methods.describe(method).settings
    if asked:
        return dict(_parse(word, settings) for word in asked)
    space = {name: values for name, values in _USUAL.items() if name in settings}
    if not space:
        raise InvalidInput(
            f"method {method!r} has no setting with a usual range. Say what to vary: --search optimiser.lr=0.01:0.3:log"
        )
    return space


def _parse(word: str, settings: Any) -> tuple[str, Range | tuple[Any, ...]]:
    name, sign, text = word.partition("=")
    if name not in [*settings, *recipe_keys()]:
        hint = suggest_key(name, *settings)
        raise invalid("search", "name a setting of the method or a recipe key", repr(name), hint)
    if not sign and name in _USUAL:
        return name, _USUAL[name]
    if ":" not in text:
        values = tuple(literal(part) for part in text.split(","))
        if len(values) > 1:
            return name, values
        hint = f"For example {name}=LOW:HIGH or {name}=A,B."
        raise invalid("search", "offer at least two values", repr(word), hint)
    low, high, *log = map(literal, text.split(":"))
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not numbers or low >= high or log not in ([], ["log"]) or (log and low <= 0):
        rule = "be NAME=LOW:HIGH with LOW < HIGH, or NAME=LOW:HIGH:log with LOW above 0"
        raise invalid("search", rule, repr(word))
    return name, Range(low, high, log=bool(log))


# The search.


class SweepSpec(TomlSettings):
    """The settings of a sweep, as `sweep.toml` has them."""

    key_name = "sweep key"
    method: str = "flsd+h+unbiased"
    data: str = "digits"
    model: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    recipe: dict[str, Any] = Field(default_factory=dict)
    search: tuple[str, ...] = ()
    name: str = "sweep"
    objective: Literal["ece", "scaled-nll"] = "ece"

    @property
    def objectives(self) -> tuple[str, str, str]:
        """The names of the three objectives. All of them are minimised."""
        return "validation error", CALIBRATION[self.objective], "share of sample updates"

    def base(self) -> Recipe:
        """Return the recipe before anything is varied."""
        own = {"method.name": self.method, "seed": self.seed, "data.name": self.data}
        if self.model is not None:
            own["model.name"] = self.model
        recipe = paper_recipe(self.data).changed({**self.recipe, **own})
        if recipe.engine.devices > 1:
            raise invalid("engine.devices", "be 1 in a sweep", recipe.engine.devices, "Start more workers: --jobs.")
        return recipe


class Sweep:
    """A sweep on disk: `sweep.toml`, `sweep.db` (unless another storage is named), `runs/trial-DIGEST/`.

    Args:
        path: The folder.
        spec: What to search. None: read the folder's `sweep.toml`.
        storage: Optuna storage URL, which workers on several machines can share. None: SQLite in the folder.
        trust_code: Whether to run a method or network `module:name` that you have not used on this machine before.
    """

    def __init__(
        self,
        path: str | Path,
        spec: SweepSpec | None = None,
        *,
        storage: str | None = None,
        trust_code: bool = False,
    ) -> None:
        self.path = as_path(path)
        settings = self.path / "sweep.toml"
        if spec is None:
            if not settings.is_file():
                raise InvalidInput(f"{self.path} has no sweep.toml yet. Say what to search: --method and --data.")
            spec = SweepSpec.load(settings)
        self.spec = spec
        self.recipe = spec.base().with_trusted_code(trust_code=trust_code)
        self.space = search_space(spec.method, spec.search)
        self.recipe.plan()
        if storage is None and settings.is_file() and not (self.path / "sweep.db").is_file():
            # Without it, Optuna would begin a second, empty study.
            raise InvalidInput(
                f"The trials of the sweep in {self.path} are in another storage. Name it (--storage or "
                "CALIBRANT_STORAGE), or choose another --out for a new sweep."
            )
        load_optuna()  # first: if Optuna is missing, no folder is made
        self.storage = storage
        self._url = storage or f"sqlite:///{self.path / 'sweep.db'}"
        self.title = f"{self.recipe.data.name}, {self.recipe.model.name}, {spec.method}"
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.study = self._open()
        except OSError as error:
            raise output_error(self.path, error) from error
        except BaseException:
            if made and not any(self.path.iterdir()):
                self.path.rmdir()
            raise
        # Last: if the storage refuses this search, the settings of the other one must stay.
        spec.save(settings)

    def _open(self) -> "OptunaStudy":
        optuna = load_optuna()
        with _quiet(optuna), _storage_errors(self._url, ImportError, ValueError):  # of drivers and of URLs
            storage = optuna.storages.RDBStorage(
                self._url,
                heartbeat_interval=_HEARTBEAT_SECONDS,
                grace_period=_GRACE_SECONDS,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
            )
            study: OptunaStudy = optuna.create_study(
                storage=storage,
                study_name=self.spec.name,
                directions=["minimize"] * len(self.spec.objectives),
                load_if_exists=True,
            )
            search = {"recipe": _essence(self.recipe), "space": repr(self.space), "objective": self.spec.objective}
            if "sweep" not in study.user_attrs:
                study.set_user_attr("sweep", search)
            elif study.user_attrs["sweep"] != search:
                raise InvalidInput(
                    f"study {self.spec.name!r} in this storage searches something else. Choose another --name or --out."
                )
        return study

    # Running.

    def run(
        self,
        *,
        trials: int,
        data_dir: str | Path | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """Work on the study until it has `trials` trials over all workers.

        Trials that other workers are training count. If one of these workers is lost, the next call begins its trial
        again.

        Args:
            trials: Number of trials in all, including those of earlier calls.
            data_dir: Folder of the image sets.
            reporter: Receives the progress of each training.
        """
        whole("trials", trials, 1)
        # If data are missing, every trial would fail: raise before the first.
        load_data(self.recipe, data_dir)
        optuna = load_optuna()
        states = optuna.trial.TrialState
        counted_states = (states.COMPLETE, states.PRUNED, states.RUNNING)
        folder = None if data_dir is None else Path(data_dir)
        with _quiet(optuna), _storage_errors(self._url):
            # Optuna queues the settings of lost workers again, so their runs are continued.
            optuna.storages.fail_stale_trials(self.study)
            if len(self.study.get_trials(deepcopy=False, states=counted_states)) >= trials:
                return
            self.study.optimize(
                lambda trial: self._train(trial, folder, reporter or Reporter()),
                callbacks=[optuna.study.MaxTrialsCallback(trials, states=counted_states)],
            )

    def _train(self, trial: "Trial", data_dir: Path | None, reporter: Reporter) -> tuple[float, float, float]:
        from torch import OutOfMemoryError

        changes: dict[str, Any] = {}
        for name, values in self.space.items():
            # A name that is no recipe key is a setting of the method.
            key = name if name in recipe_keys() else f"method.options.{name}"
            if isinstance(values, tuple):
                changes[key] = trial.suggest_categorical(name, values)
            elif isinstance(values.low, int) and isinstance(values.high, int):
                changes[key] = trial.suggest_int(name, values.low, values.high, log=values.log)
            else:
                changes[key] = trial.suggest_float(name, values.low, values.high, log=values.log)
        try:
            recipe = self.recipe.changed(changes)
            recipe.plan()
            folder = self.path / "runs" / f"trial-{content_digest(_essence(recipe))[:12]}"
            trial.set_user_attr("run", folder.name)
            run = train_or_resume(recipe, folder, data_dir=data_dir, reporter=reporter)
        except (TrainingDiverged, InvalidInput, OutOfMemoryError) as error:
            reason = str(error)
            if not isinstance(error, TrainingDiverged):
                # For example a batch larger than the data or the memory, which is known only now.
                reason = f"not possible: {error}"
            trial.set_user_attr("stopped", reason)
            raise load_optuna().TrialPruned(reason) from error
        except KeyboardInterrupt as error:
            # Optuna marks the trial as failed. The next call trains the same settings and continues the run folder.
            self.study.enqueue_trial(trial.params)
            raise KeyboardInterrupt("stopped; run the same command again to continue") from error
        summary = run.summary
        test = summary["test"]
        trial.set_user_attr("test", {"test_error": test["test_error"], "ece": test["ece"]})
        validation = summary["validation"]
        # Relative to the recipe before anything is varied: if epochs are searched, fewer of them cost less.
        seen = summary["seen_share"] * (run.recipe.epochs / self.recipe.epochs)
        calibration = validation["ece"]
        if self.spec.objective == "scaled-nll":
            calibration = selection_figure("best:scaled-nll", run.predictions("val"))
        return validation["test_error"], calibration, seen

    # Results.

    def finished(self) -> "list[FrozenTrial]":
        """Return the trials that ran to their end."""
        return self._trials(load_optuna().trial.TrialState.COMPLETE)

    def stopped(self) -> "list[FrozenTrial]":
        """Return the trials that diverged or were not possible."""
        return self._trials(load_optuna().trial.TrialState.PRUNED)

    def _trials(self, state: Any) -> "list[FrozenTrial]":
        with _storage_errors(self._url):
            return self.study.get_trials(deepcopy=False, states=(state,))

    def front(self) -> "list[FrozenTrial]":
        """Return the Pareto front, sorted by validation error. Of trials with the same settings it has the first."""
        first: dict[str, FrozenTrial] = {}
        for trial in sorted(self.study.best_trials, key=lambda trial: (trial.values, trial.number)):
            first.setdefault(json.dumps(trial.params, sort_keys=True), trial)
        return list(first.values())


def _essence(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a search depends on: not how a run is executed, nor what is fitted after it."""
    return recipe.model_dump(mode="json", exclude={"engine", "calibration"}, exclude_none=True)


# Running it, here or in several processes.


def run_sweep(
    sweep: Sweep,
    *,
    trials: int,
    jobs: int | None = None,
    data_dir: Path | None = None,
    executor: Executor | None = None,
) -> Outcome:
    """Search, here or in several processes, and write the results.

    Args:
        sweep: The sweep.
        trials: Number of trials in all, over all processes and earlier calls.
        jobs: Number of processes. None or 1: one, which is this one unless there is an executor.
        data_dir: Folder of the image sets.
        executor: Where the processes run. None: this machine. Other machines must see the folder of the sweep.
    """
    outcome = Outcome()
    if executor is None and jobs in (None, 1):
        sweep.run(trials=trials, data_dir=data_dir, reporter=make_reporter())
    else:
        outcome.failed = _run_workers(sweep, trials, jobs, data_dir, executor)
    failed = failures(sweep)
    if failed and not outcome.failed and not sweep.finished():
        outcome.failed = f"no trial finished, {len(failed)} failed. The first: {failed[0]}"
    outcome.text = [f"{front_table(sweep).terminal()}\n"]
    outcome.files = [sweep.path / "sweep.json"]
    outcome.content = sweep_json(sweep)
    write_json(outcome.files[0], outcome.content)
    return outcome


def _run_workers(sweep: Sweep, trials: int, jobs: int | None, data_dir: Path | None, executor: Executor | None) -> str:
    """Search in several processes, and return why some of them failed."""
    environment = {}
    if sweep.storage is not None:
        # A variable, because every user of a machine can read arguments, and the URL may contain a password.
        environment["CALIBRANT_STORAGE"] = sweep.storage
    arguments = ["search", str(sweep.path), str(trials)]
    if data_dir is not None:
        arguments.append(str(data_dir))
    engine = sweep.recipe.engine
    log = sweep.path / "logs" / "worker-1.log"
    worker = Task(
        "worker 1",
        "calibrant.studies",
        tuple(arguments),
        log,
        accelerator=engine.accelerator,
        cpus=1 + engine.workers,
        environment=environment,
    )
    if executor is not None:
        executor.check_shared(sweep.path.absolute() / "sweep.toml")
    numbers = range(1, (jobs or 1) + 1)
    workers = [replace(worker, name=f"worker {n}", log=log.with_name(f"worker-{n}.log")) for n in numbers]
    ended = run_tasks(workers, jobs=jobs, executor=executor)
    broken = [f"{one.task}: {one.message}" for one in ended if one.code]
    if not broken:
        return ""
    return f"{len(broken)} of {len(workers)} workers failed: {'; '.join(broken)}"


# Its outputs.


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Return all trials, and the numbers of those on the front, as plain values."""
    content: dict[str, Any] = {"objectives": sweep.spec.objectives, "front": [trial.number for trial in sweep.front()]}
    for key, trials in (("finished", sweep.finished()), ("stopped", sweep.stopped())):
        content[key] = [
            {"number": trial.number, "settings": trial.params, "values": trial.values, **trial.user_attrs}
            for trial in trials
        ]
    return content


def front_table(sweep: Sweep) -> Table:
    """Return the Pareto front as a table, with test figures, which the search did not use."""
    rows = []
    for trial in sweep.front():
        test = trial.user_attrs["test"]
        figures = [f"{100 * value:.2f}" for value in (*trial.values, test["test_error"], test["ece"])]
        if sweep.spec.objective == "scaled-nll":
            figures[1] = f"{trial.values[1]:.4f}"
        settings = ", ".join(f"{name} {short(value)}" for name, value in trial.params.items())
        rows.append((str(trial.number), *figures, settings))
    ended = f"{counted(len(sweep.finished()), 'trial')} finished"
    failed = failures(sweep)
    if failed:
        ended += f", {len(failed)} failed (the first: {failed[0].rstrip('.')})"
    caption = f"In percent, NLL as it is; {ended}. The search saw the validation columns only."
    heads = ("trial", "validation TE", sweep.spec.objectives[1], "samples seen", "test TE", "test ECE", "settings")
    return Table(f"{sweep.title}: Pareto front", tuple(rows), heads, caption)


def failures(sweep: Sweep) -> list[str]:
    """Return why trials failed: they diverged or were not possible."""
    return [" ".join(trial.user_attrs.get("stopped", "").split()) for trial in sweep.stopped()]


# Optuna and its storages.


def load_optuna() -> Any:
    """Import Optuna. Raise one line that says how to install it if it is missing."""
    with importing("a sweep", "Optuna", "study"):
        import optuna
    return optuna


@contextmanager
def _storage_errors(url: str, *more: type[Exception]) -> Iterator[None]:
    """Turn errors of a storage into one line. The message leaves out the URL, which may contain a password."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except CalibrantError:
        raise
    except (SQLAlchemyError, sqlite3.Error, load_optuna().exceptions.OptunaError, *more) as error:
        cause = error
        if isinstance(error.__cause__, SQLAlchemyError):
            cause = error.__cause__
        kind, _, rest = url.partition(":")
        reason = str(getattr(cause, "orig", None) or cause).splitlines()[0][:200]
        if rest.count("@") > 1:  # the driver takes the rest of the password for the host, and names it
            reason = "write every @ of the password as %40"
        raise InvalidInput(f"storage {kind}:... cannot be used: {type(cause).__name__}: {reason}") from error


@contextmanager
def _quiet(module: Any) -> Iterator[None]:
    """Hide Optuna's log lines and its notes about experimental features while the block runs."""
    level = module.logging.get_verbosity()
    module.logging.set_verbosity(module.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", module.exceptions.ExperimentalWarning)
            yield
    finally:
        module.logging.set_verbosity(level)
