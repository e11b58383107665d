"""A search by Optuna with three objectives: validation error, validation ECE or NLL after scaling, and samples seen."""

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, Field, ValidationError

from calibrant.display import Displayed, Overview
from calibrant.errors import InvalidInput, invalid
from calibrant.files import as_path, content_digest, output_error, parse_json, read_toml, write_text
from calibrant.studies.liveness import is_dead, living_worker
from calibrant.studies.optuna_storage import load_optuna, make_tables, quiet, storage_faults
from calibrant.studies.space import recipe_key, search_space
from calibrant.studies.stopping import Figures, RungReporter, TrialStopped, figures_at_rungs, is_dominated
from calibrant.training import (
    Quiet,
    Recipe,
    Reporter,
    Run,
    Settings,
    TrainingDiverged,
    load_data,
    paper_recipe,
    selection_figure,
    train_or_resume,
)

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna import Trial
    from optuna.trial import FrozenTrial

CALIBRATION = {"ece": "validation ECE", "scaled-nll": "validation NLL +TS"}
# Why a trial was given up whose settings another worker trains at that moment.
SAME_SETTINGS = "another worker is on the same settings"
# A worker on another machine counts as dead after this silence; one of this folder is known at once (see `liveness`).
_HEARTBEAT_SECONDS, _GRACE_SECONDS = 30, 120


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
        """What is minimised, in words."""
        return "validation error", CALIBRATION[self.objective], "share of sample updates"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a `sweep.toml`."""
        return cls.parse(read_toml(path, "sweep"))

    def save(self, path: Path) -> None:
        """Write as TOML."""
        write_text(path, tomli_w.dumps(self.model_dump(mode="json", exclude_none=True)))

    def base(self) -> Recipe:
        """The recipe before anything is varied."""
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
        spec: What is searched; None reads the folder's `sweep.toml`.
        storage: Optuna storage URL; by default SQLite in the folder. Workers on many machines share one.
        sampler_seed: Makes the choice of a single worker repeatable; leave it out with several workers.
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
        if spec is None and not (self.path / "sweep.toml").is_file():
            raise InvalidInput(f"{self.path} has no sweep.toml yet. Say what to search: --method and --data.")
        self.spec = spec if spec is not None else SweepSpec.load(self.path / "sweep.toml")
        self.recipe = self.spec.base().with_trusted_code(trust_code=trust_code)
        self.space = search_space(self.spec.method, self.spec.search)
        self.recipe.plan()
        if storage is None and (self.path / "sweep.toml").is_file() and not (self.path / "sweep.db").is_file():
            # Going on without it would begin a second, empty study beside the one that is wanted.
            raise InvalidInput(
                f"the trials of the sweep in {self.path} are in another storage. Name it (--storage or "
                "CALIBRANT_STORAGE), or choose another --out to begin anew."
            )
        load_optuna()  # before the folder: where it is missing, nothing is left behind
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(self.path, error) from error
        self._url = storage or _own_storage(self.path)
        self.study = self._open(self._url, sampler_seed)
        # Last: a search that the storage refuses must not replace the one that is there.
        self.spec.save(self.path / "sweep.toml")

    def _overview(self) -> Overview:
        from calibrant.studies.sweep_output import front_table

        front = front_table(self)
        return Overview(
            f"{self.path}, {len(self.finished())} trials finished. {front.title}", front.rows, front.columns
        )

    def _open(self, url: str, sampler_seed: int | None) -> "OptunaStudy":
        optuna = load_optuna()
        with quiet(optuna), storage_faults(url, ImportError, ValueError):  # of drivers and of URLs
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
        """Refuse to mix trials of different recipes or spaces in one study."""
        ours = {"recipe": _essence(self.recipe), "space": repr(self.space)}
        if self.spec.objective != "ece":  # left out else: sweeps of older versions have no such entry
            ours["objective"] = self.spec.objective
        theirs = study.user_attrs.setdefault("sweep", None)
        if theirs is None:
            study.set_user_attr("sweep", json.dumps(ours, sort_keys=True))
        elif _as_of_today(theirs) != ours:
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
        """Work on the study until it has `trials` trials, finished or stopped early, over all workers.

        Args:
            trials: How many in all, those of earlier calls included.
            timeout: Seconds after which no new trial begins.
            data_dir: Where image sets lie.
            reporter: Who is told about each training.
        """
        if trials < 1:
            raise invalid("trials", "be at least 1", trials)
        # Data that are missing are missing for every trial: say so before the first.
        load_data(self.recipe, data_dir)
        optuna = load_optuna()
        ends = None if timeout is None else time.monotonic() + timeout
        place = Path(data_dir) if data_dir is not None else None
        with quiet(optuna), storage_faults(self._url), living_worker(self.path / "workers") as name:
            self._revive(name)
            while self._count() < trials and (ends is None or time.monotonic() < ends):
                self.study.optimize(
                    lambda trial: self._trial(trial, name, trials, place, reporter or Quiet()),
                    n_trials=1,
                    catch=(_Surplus,),
                )

    def _trial(
        self, trial: "Trial", name: str, trials: int, data_dir: Path | None, reporter: Reporter
    ) -> tuple[float, float, float]:
        trial.set_user_attr("worker", name)
        if self._count(before=trial.number) >= trials:
            raise _Surplus
        pruned = load_optuna().TrialPruned
        changes = {recipe_key(key): where.suggest(trial, key) for key, where in self.space.items()}
        try:
            recipe = self.recipe.changed(changes)
            recipe.plan()
        except InvalidInput as error:
            raise self._give_up(trial, f"not possible: {error}", pruned) from error
        if self._twin(trial):
            raise self._give_up(trial, SAME_SETTINGS, pruned)
        folder = self.path / "runs" / f"trial-{content_digest(_essence(recipe))[:12]}"
        trial.set_user_attr("run", folder.name)
        from torch import OutOfMemoryError

        try:
            run = train_or_resume(
                recipe, folder, data_dir=data_dir, reporter=RungReporter(self._is_dominated, reporter)
            )
        except (TrialStopped, TrainingDiverged) as error:
            raise self._give_up(trial, str(error), pruned) from error
        except (InvalidInput, OutOfMemoryError) as error:
            # Such as a batch larger than the data or than the memory: known only once the data are there.
            raise self._give_up(trial, f"not possible: {error}", pruned) from error
        except KeyboardInterrupt:
            # Optuna counts it as failed; the same settings wait for the next call and continue their run folder.
            self.study.enqueue_trial(trial.params)
            raise
        return self._values(trial, run)

    def _values(self, trial: "Trial", run: Run) -> tuple[float, float, float]:
        summary = run.summary
        trial.set_user_attr("rungs", figures_at_rungs(run.epochs(), run.trained_epochs))
        test = summary["test"]
        trial.set_user_attr("test", {"test_error": test["test_error"], "ece": test["ece"]})
        validation = summary["validation"]
        # Of the updates of the recipe before anything is varied: where epochs are searched, fewer of them are cheaper.
        seen = summary["seen_share"] * (run.recipe.epochs / self.recipe.epochs)
        # An update that takes two gradients (`optimiser.sam`) costs two.
        seen *= run.recipe.gradients_per_update / self.recipe.gradients_per_update
        if self.spec.objective == "scaled-nll":
            return validation["test_error"], selection_figure("best:scaled-nll", run.predictions("val")), seen
        return validation["test_error"], validation["ece"], seen

    @staticmethod
    def _give_up(trial: "Trial", reason: str, kind: type[Exception]) -> Exception:
        trial.set_user_attr("stopped", reason)
        return kind(reason)

    def _is_dominated(self, epoch: int, figures: Figures) -> bool:
        if not self.spec.dominators:
            return False
        finished = (trial.user_attrs.get("rungs", {}).get(str(epoch)) for trial in self.finished())
        return is_dominated(figures, (each for each in finished if each), dominators=self.spec.dominators)

    def _count(self, before: int | None = None) -> int:
        """The number of trials that are finished, stopped or running."""
        states = load_optuna().trial.TrialState
        wanted = (states.COMPLETE, states.PRUNED, states.RUNNING)
        found = self.study.get_trials(deepcopy=False, states=wanted)
        return sum(before is None or trial.number < before for trial in found)

    def _twin(self, trial: "Trial") -> bool:
        running = self.study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.RUNNING,))
        return any(other.number < trial.number and other.params == trial.params for other in running)

    def _revive(self, name: str) -> None:
        """Mark trials of killed workers as failed, and queue their settings, so that their runs are continued."""
        optuna = load_optuna()
        states = optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            # A worker that was killed before it could write its name is known by being the only one of this folder.
            nameless = "worker" not in trial.user_attrs and self._alone(name)
            if not nameless and not is_dead(self.path / "workers", trial.user_attrs.get("worker", "")):
                continue
            # Another worker that starts at the same time may be faster.
            with contextlib.suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
                self.study.tell(trial.number, state=states.FAIL)
                if trial.params:
                    self.study.enqueue_trial(trial.params)

    def _alone(self, name: str) -> bool:
        """Whether no other worker can be at work: the trials are in this folder, and nobody else holds a lock in it."""
        if self._url != _own_storage(self.path):
            return False
        others = (path.stem for path in (self.path / "workers").glob("*.lock") if path.stem != name)
        return all(is_dead(self.path / "workers", other) for other in others)

    # Results.

    def finished(self) -> "list[FrozenTrial]":
        """Trials that ran to their end."""
        with storage_faults(self._url):
            found = self.study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.COMPLETE,))
        for trial in found:
            _check_attributes(trial)
        return found

    def stopped(self) -> "list[FrozenTrial]":
        """Trials that were stopped early, diverged or were not possible."""
        with storage_faults(self._url):
            return self.study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.PRUNED,))

    def front(self) -> "list[FrozenTrial]":
        """The Pareto front, sorted by validation error; of several trials with the same settings only the first."""
        self.finished()  # refuses trials that are not ours
        kept: dict[str, FrozenTrial] = {}
        for trial in sorted(self.study.best_trials, key=lambda trial: (trial.values, trial.number)):
            kept.setdefault(json.dumps(trial.params, sort_keys=True), trial)
        return list(kept.values())


def _own_storage(folder: Path) -> str:
    return f"sqlite:///{folder / 'sweep.db'}"


class _Surplus(Exception):
    """Another worker began the last trial at the same moment."""


def _essence(recipe: Recipe) -> dict[str, Any]:
    # How a run is executed and what is fitted after it do not change what is searched. Own code is left out where there
    # is none, so that sweeps which are older than that section go on.
    left_out = {"engine", "calibration"} | (set() if recipe.own_code else {"own_code"})
    return recipe.model_dump(mode="json", exclude=left_out, exclude_none=True)


def _as_of_today(content: str) -> dict[str, Any]:
    """What a study says it searches; settings that its recipe did not know yet have the values that change nothing."""
    try:
        found = parse_json(content, "the study")
        return {**found, "recipe": _essence(Recipe.parse(found["recipe"]))}
    except (ValueError, TypeError, KeyError):
        return {}  # not a description of ours: something else


class _Attributes(BaseModel):
    """What a finished trial says about its run; whoever can write to the storage may have written it."""

    run: Annotated[str, Field(pattern="^trial-[0-9a-f]{12}$")]
    test: dict[Literal["test_error", "ece"], Annotated[float, Field(ge=0, le=1)]]
    rungs: dict[str, tuple[float, float, float]]


def _check_attributes(trial: "FrozenTrial") -> None:
    try:
        found = _Attributes.model_validate(trial.user_attrs)
    except ValidationError as error:
        raise invalid(f"trial {trial.number}", "be one of ours", "attributes of other types") from error
    if len(found.test) != 2 or len(trial.values or ()) != 3:
        raise invalid(f"trial {trial.number}", "be one of ours", "other figures")
