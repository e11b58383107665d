"""A search by Optuna with three objectives: validation error, validation ECE or NLL after scaling, and samples seen."""

import json
import sqlite3
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, Field, ValidationError

from calibrant.errors import CalibrantError, CalibrantWarning, InvalidInput, importing, invalid
from calibrant.files import as_path, content_digest, output_error, parse_json, read_toml, write_text
from calibrant.studies.search import (
    Figures,
    RungReporter,
    TrialStopped,
    figures_at_rungs,
    is_dominated,
    recipe_key,
    search_space,
)
from calibrant.tables import Displayed, Table, counted
from calibrant.training import Recipe, Reporter, Run, TrainingDiverged, paper_recipe, train_or_resume
from calibrant.training.final_weights import selection_figure
from calibrant.training.recipe import Settings
from calibrant.training.setup import load_data

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna import Trial
    from optuna.trial import FrozenTrial

CALIBRATION = {"ece": "validation ECE", "scaled-nll": "validation NLL +TS"}
# Reason of a trial that was given up because another worker was training the same settings.
SAME_SETTINGS = "another worker is on the same settings"
# A worker that is silent for the grace period counts as lost. Its trial is then begun again by another worker.
_HEARTBEAT_SECONDS = 15
_GRACE_SECONDS = 60
_POLL_SECONDS = 2.0


class SweepSpec(Settings):
    """The settings of a sweep, as `sweep.toml` has them."""

    key_name = "sweep key"
    method: str = "flsd+h+unbiased"
    data: str = "digits"
    model: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    recipe: dict[str, Any] = Field(default_factory=dict)
    search: tuple[str, ...] = ()
    name: str = "sweep"
    dominators: Annotated[int, Field(ge=0)] = 3
    objective: Literal["ece", "scaled-nll"] = "ece"

    @property
    def objectives(self) -> tuple[str, str, str]:
        """The names of the three objectives. All of them are minimised."""
        return "validation error", CALIBRATION[self.objective], "share of sample updates"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a `sweep.toml`."""
        return cls.parse(read_toml(path, "sweep"))

    def save(self, path: Path) -> None:
        """Write as TOML."""
        write_text(path, tomli_w.dumps(self.model_dump(mode="json", exclude_none=True)))

    def base(self) -> Recipe:
        """Return the recipe before anything is varied."""
        own = {"method.name": self.method, "seed": self.seed, "data.name": self.data}
        if self.model is not None:
            own["model.name"] = self.model
        recipe = paper_recipe(self.data).changed({**self.recipe, **own})
        if recipe.engine.devices > 1:
            raise invalid("engine.devices", "be 1 in a sweep", recipe.engine.devices, "Start more workers: --jobs.")
        return recipe


class Sweep(Displayed):
    """A sweep on disk: `sweep.toml`, `sweep.db` (unless another storage is named), `runs/trial-DIGEST/`.

    Args:
        path: The folder.
        spec: What to search. None: read the folder's `sweep.toml`.
        storage: Optuna storage URL, which workers on several machines can share. None: SQLite in the folder.
        sampler_seed: Makes the choices of a single worker repeatable. Leave it out with several workers.
        trust_code: Whether to run a method or network `module:name` that you have not used on this machine before.
    """

    def __init__(
        self,
        path: str | Path,
        spec: SweepSpec | None = None,
        *,
        storage: str | None = None,
        sampler_seed: int | None = None,
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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(self.path, error) from error
        self._url = storage or f"sqlite:///{self.path / 'sweep.db'}"
        self.study = self._open(self._url, sampler_seed)
        # Last: if the storage refuses this search, the settings of the other one must stay.
        spec.save(settings)

    def _overview(self) -> Table:
        from calibrant.studies.sweep_outputs import front_table

        front = front_table(self)
        return Table(f"{self.path}, {len(self.finished())} trials finished. {front.title}", front.rows, front.columns)

    def _open(self, url: str, sampler_seed: int | None) -> "OptunaStudy":
        optuna = load_optuna()
        with _quiet(optuna), _storage_errors(url, ImportError, ValueError):  # of drivers and of URLs
            make_tables(url)
            storage = optuna.storages.RDBStorage(
                url,
                heartbeat_interval=_HEARTBEAT_SECONDS,
                grace_period=_GRACE_SECONDS,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
            )
            study: OptunaStudy = optuna.create_study(
                storage=storage,
                study_name=self.spec.name,
                directions=["minimize"] * len(self.spec.objectives),
                sampler=optuna.samplers.TPESampler(seed=sampler_seed),
                load_if_exists=True,
            )
            self._check_same(study)
        return study

    def _check_same(self, study: "OptunaStudy") -> None:
        """Raise if the study in the storage has another recipe, space or objective."""
        ours = {"recipe": _essence(self.recipe), "space": repr(self.space), "objective": self.spec.objective}
        stored = study.user_attrs.get("sweep")
        if stored is None:
            study.set_user_attr("sweep", json.dumps(ours, sort_keys=True))
        elif _parse_search(stored) != ours:
            raise InvalidInput(
                f"study {self.spec.name!r} in this storage searches something else. Choose another --name or --out."
            )

    # Running.

    def run(
        self,
        *,
        trials: int,
        timeout: float | None = None,
        data_dir: str | Path | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """Work on the study until it has `trials` trials over all workers, finished or stopped early.

        Args:
            trials: Number of trials in all, including those of earlier calls.
            timeout: Seconds after which no new trial begins.
            data_dir: Folder of the image sets.
            reporter: Receives the progress of each training.
        """
        if trials < 1:
            raise invalid("trials", "be at least 1", trials)
        # If data are missing, every trial would fail: raise before the first.
        load_data(self.recipe, data_dir)
        optuna = load_optuna()
        deadline = None if timeout is None else time.monotonic() + timeout
        folder = None if data_dir is None else Path(data_dir)
        worker = uuid.uuid4().hex

        def objective(trial: "Trial") -> tuple[float, float, float]:
            trial.set_user_attr("worker", worker)
            trial.set_user_attr("begun", trial.number)
            if self._count(before=trial.number) >= trials:
                raise _Surplus
            return self._train(trial, folder, reporter or Reporter())

        warned = False
        with _quiet(optuna), _storage_errors(self._url):
            while deadline is None or time.monotonic() < deadline:
                self._fail_lost_trials()
                if self._count() < trials:
                    self.study.optimize(objective, n_trials=1, catch=(_Surplus,))
                    continue
                running = len(self._running())
                if running == 0:
                    break
                # Other workers train the last trials. If one of them is lost, this worker takes over its trial.
                if not warned:
                    warned = True
                    _warn_of_waiting(running)
                time.sleep(_POLL_SECONDS)

    def _train(self, trial: "Trial", data_dir: Path | None, reporter: Reporter) -> tuple[float, float, float]:
        from torch import OutOfMemoryError

        changes = {recipe_key(key): where.suggest(trial, key) for key, where in self.space.items()}
        try:
            recipe = self.recipe.changed(changes)
            recipe.plan()
        except InvalidInput as error:
            raise _give_up(trial, f"not possible: {error}") from error
        if self._has_twin(trial):
            raise _give_up(trial, SAME_SETTINGS)
        folder = self.path / "runs" / f"trial-{content_digest(_essence(recipe))[:12]}"
        trial.set_user_attr("run", folder.name)
        watched = RungReporter(self._is_dominated, reporter)
        try:
            run = train_or_resume(recipe, folder, data_dir=data_dir, reporter=watched)
        except (TrialStopped, TrainingDiverged) as error:
            raise _give_up(trial, str(error)) from error
        except (InvalidInput, OutOfMemoryError) as error:
            # For example a batch larger than the data or the memory, which is known only now.
            raise _give_up(trial, f"not possible: {error}") from error
        except KeyboardInterrupt:
            # Optuna marks the trial as failed. The next call trains the same settings and continues the run folder.
            self.study.enqueue_trial(trial.params)
            raise
        return self._values(trial, run)

    def _values(self, trial: "Trial", run: Run) -> tuple[float, float, float]:
        summary = run.summary
        trial.set_user_attr("rungs", figures_at_rungs(run.epochs(), run.trained_epochs))
        test = summary["test"]
        trial.set_user_attr("test", {"test_error": test["test_error"], "ece": test["ece"]})
        validation = summary["validation"]
        # Relative to the recipe before anything is varied: if epochs are searched, fewer of them cost less.
        seen = summary["seen_share"] * (run.recipe.epochs / self.recipe.epochs)
        # An update that takes two gradients (`optimiser.sam`) costs two.
        seen *= run.recipe.gradients_per_update / self.recipe.gradients_per_update
        calibration = validation["ece"]
        if self.spec.objective == "scaled-nll":
            calibration = selection_figure("best:scaled-nll", run.predictions("val"))
        return validation["test_error"], calibration, seen

    def _is_dominated(self, epoch: int, figures: Figures) -> bool:
        if not self.spec.dominators:
            return False
        finished = (trial.user_attrs.get("rungs", {}).get(str(epoch)) for trial in self.finished())
        return is_dominated(figures, (rung for rung in finished if rung), dominators=self.spec.dominators)

    def _count(self, before: int | None = None) -> int:
        """Return the number of trials that are finished, stopped or running."""
        states = load_optuna().trial.TrialState
        trials = self.study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED, states.RUNNING))
        return sum(before is None or trial.number < before for trial in trials)

    def _running(self) -> "list[FrozenTrial]":
        return self.study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.RUNNING,))

    def _has_twin(self, trial: "Trial") -> bool:
        return any(other.number < trial.number and other.params == trial.params for other in self._running())

    def _fail_lost_trials(self) -> None:
        """Mark trials of lost workers as failed. Optuna queues their settings again, so their runs are continued."""
        optuna = load_optuna()
        optuna.storages.fail_stale_trials(self.study)
        # A worker that is killed before its first heartbeat is invisible to Optuna.
        oldest = datetime.now() - timedelta(seconds=_GRACE_SECONDS)  # noqa: DTZ005 (Optuna stores local times)
        for trial in self._running():
            begun = trial.user_attrs.get("begun") == trial.number
            if not begun and trial.datetime_start is not None and trial.datetime_start < oldest:
                # Another worker may have done the same in the meantime.
                with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
                    self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    # Results.

    def finished(self) -> "list[FrozenTrial]":
        """Return the trials that ran to their end."""
        with _storage_errors(self._url):
            trials = self.study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.COMPLETE,))
        for trial in trials:
            _check_attributes(trial)
        return trials

    def stopped(self) -> "list[FrozenTrial]":
        """Return the trials that were stopped early, diverged or were not possible."""
        with _storage_errors(self._url):
            return self.study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.PRUNED,))

    def front(self) -> "list[FrozenTrial]":
        """Return the Pareto front, sorted by validation error. Of trials with the same settings it has the first."""
        self.finished()  # raises for trials that are not ours
        first: dict[str, FrozenTrial] = {}
        for trial in sorted(self.study.best_trials, key=lambda trial: (trial.values, trial.number)):
            first.setdefault(json.dumps(trial.params, sort_keys=True), trial)
        return list(first.values())


def _warn_of_waiting(running: int) -> None:
    warnings.warn(
        f"Waiting for {counted(running, 'running trial')} of other workers. If a worker was killed, its trial begins "
        f"again {_GRACE_SECONDS} seconds after its last heartbeat.",
        CalibrantWarning,
        stacklevel=3,
    )


class _Surplus(Exception):
    """Another worker began the last trial at the same moment."""


def _give_up(trial: "Trial", reason: str) -> Exception:
    trial.set_user_attr("stopped", reason)
    pruned: Exception = load_optuna().TrialPruned(reason)
    return pruned


def _essence(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a search depends on: not how a run is executed, nor what is fitted after it."""
    return recipe.model_dump(mode="json", exclude={"engine", "calibration"}, exclude_none=True)


def _parse_search(content: str) -> dict[str, Any]:
    try:
        search = parse_json(content, "the study")
        return {**search, "recipe": _essence(Recipe.parse(search["recipe"]))}
    except (ValueError, TypeError, KeyError):
        return {}  # somebody else's study


class _Attributes(BaseModel):
    """What a finished trial says about its run. Anybody who can write to the storage may have written it."""

    run: Annotated[str, Field(pattern="^trial-[0-9a-f]{12}$")]
    test: dict[Literal["test_error", "ece"], Annotated[float, Field(ge=0, le=1)]]
    rungs: dict[str, tuple[float, float, float]]


def _check_attributes(trial: "FrozenTrial") -> None:
    try:
        attributes = _Attributes.model_validate(trial.user_attrs)
    except ValidationError as error:
        raise invalid(f"trial {trial.number}", "be one of ours", "attributes of other types") from error
    if len(attributes.test) != 2 or len(trial.values or ()) != 3:
        raise invalid(f"trial {trial.number}", "be one of ours", "other figures")


# Optuna and its storages.


def load_optuna() -> Any:
    """Import Optuna. Raise one line that says how to install it if it is missing."""
    with importing("a sweep", "Optuna", "study"):
        import optuna
    return optuna


def make_tables(url: str) -> None:
    """Make the tables of a new SQLite storage, all or none of them.

    Optuna makes them one by one. If it is killed in between, a later start finds the table of studies and does not
    make the index that keeps their names unique. Every further start would then add a study of the same name.
    """
    from sqlalchemy.engine import make_url

    place = make_url(url)
    if place.get_backend_name() != "sqlite" or not place.database or place.database.startswith("file:"):
        return
    with closing(sqlite3.connect(place.database)) as target:
        if target.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return
        pattern = load_optuna().storages.RDBStorage("sqlite://").engine.raw_connection().driver_connection
        # One transaction. If another worker was faster, its first statement fails and nothing changes.
        with suppress(sqlite3.OperationalError):
            target.executescript("\n".join(pattern.iterdump()))


@contextmanager
def _storage_errors(url: str, *more: type[Exception]) -> Iterator[None]:
    """Turn errors of a storage into one line. The message leaves out the URL, which may contain a password."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except CalibrantError:
        raise
    except (SQLAlchemyError, sqlite3.Error, load_optuna().exceptions.OptunaError, *more) as error:
        cause = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        reason = str(getattr(cause, "orig", None) or cause).splitlines()[0][:200]
        kind, _, rest = url.partition(":")
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
