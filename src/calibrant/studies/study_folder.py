"""A study on disk: plan it, run what is not finished, and read its results."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calibrant.errors import CheckFailed, InvalidInput, invalid, naming, printable
from calibrant.files import as_path, locked, output_error, write_json
from calibrant.predictions import Predictions
from calibrant.scale import Executor, Task, run_tasks
from calibrant.scale.work import Ended
from calibrant.studies.controls import check_plan, check_plans, with_controls
from calibrant.studies.records import Record, digests, record_run
from calibrant.studies.referee import check_deciding_metric
from calibrant.studies.study_results import Results, summarise
from calibrant.studies.study_spec import PlannedRun, StudySpec
from calibrant.tables import counted
from calibrant.training import Run
from calibrant.training.checkpoint import trained_data
from calibrant.training.default_recipes import method_settings
from calibrant.training.engine import state_of
from calibrant.training.final_weights import scaled_by
from calibrant.training.recipe import flatten
from calibrant.training.settings import check_inputs
from calibrant.training.summary import CONCURRENT_RUNS


def plan_study(
    folder: str | Path,
    *,
    file: str | Path | None = None,
    lists: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    defaults: Mapping[str, str] | None = None,
    control: bool = False,
) -> "Study":
    """Return the study that a file and settings describe. Without any, return the one in the folder.

    Args:
        folder: Folder of the study.
        file: A study as TOML.
        lists: `methods`, `seeds`, `data`, `models`, `baseline`, `decides`. They override the file. None is not set.
        recipe: Dotted recipe keys that all runs share. They override the file.
        defaults: `data` and `model` if neither the file nor `lists` names any.
        control: Whether each plan gets its control: all data for as many updates in fewer epochs.
    """
    settings = {key: value for key, value in (lists or {}).items() if value is not None}
    out = Path(folder)
    if file is None and not settings and not recipe:
        return Study(out, None)
    if file is None and "methods" not in settings and (out / "study.toml").is_file():
        raise InvalidInput("Name --methods to change a study. Leave out all settings to continue it as it is.")
    content = {}
    if file is not None:
        content = StudySpec.load(file).model_dump(exclude_unset=True)
    named = {key: (name,) for key, name in (defaults or {}).items()}
    if "model" in named:
        named["models"] = named.pop("model")
    merged = {**named, **content, **settings}
    merged["recipe"] = {**flatten(content.get("recipe", {})), **(recipe or {})}
    if "derived" not in merged:
        merged["derived"] = {}
        for data in merged.get("data", ()):
            # If the data set is unknown, running the study says so before anything is written.
            with contextlib.suppress(InvalidInput):
                derived = method_settings(data)
                if derived:
                    merged["derived"][data] = derived
    spec = StudySpec.parse(merged)
    check_plans(spec)
    return Study(out, with_controls(spec) if control else spec)


class Study:
    """A study folder.

    It holds `study.toml`, the settings; `runs/NAME/`, the run folders; `recipes/NAME.toml`; `logs/NAME.log`, the output
    of each process; `records/NAME.json`, what each run measured; and tables and pages.

    Args:
        path: The folder. It is made if it does not exist.
        spec: What to run. None: read the folder's `study.toml`.
    """

    def __init__(self, path: str | Path, spec: StudySpec | None = None) -> None:
        self.path = as_path(path)
        if not isinstance(spec, StudySpec | None):
            raise invalid("spec", "be a StudySpec", type(spec).__name__, "Make one: StudySpec(methods=...).")
        if spec is None:
            if not (self.path / "study.toml").is_file():
                raise InvalidInput(
                    f"{self.path} has no study.toml yet. Say what to compare: --methods nll flsd, or a file."
                )
            spec = StudySpec.load(self.path / "study.toml")
        check_deciding_metric(spec.decides)
        self.spec = spec
        self.runs = spec.runs()

    def folder(self, planned: PlannedRun) -> Path:
        """Return the folder of a run."""
        return self.path / "runs" / planned.name

    def finished(self) -> list[PlannedRun]:
        """Return the runs that are finished. Raise if a folder holds a run with other settings."""
        return [run for run in self.runs if state_of(self.folder(run), run.recipe) == "finished"]

    def pending(self) -> list[PlannedRun]:
        """Return the runs that are not finished."""
        finished = self.finished()
        return [run for run in self.runs if run not in finished]

    def run(
        self,
        *,
        jobs: int | None = None,
        data_dir: str | Path | None = None,
        trust_code: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Run what is not finished yet, each run in a process of its own.

        Args:
            jobs: How many run at once; several can share one GPU if they fit into its memory. None: one, or as many
                as the executor can run at once.
            data_dir: Folder of the image sets.
            trust_code: Whether to run methods and networks `module:name` that you have not used on this machine before.
            executor: Where the runs are made. None: this machine. Other machines must see the folder of the study.

        Raises:
            InvalidInput: A data set or a network does not exist. Nothing has been run or written.
            CheckFailed: One or more runs failed. The others have been run.
        """
        pending = self.pending()
        for planned in pending:
            planned.recipe.with_trusted_code(trust_code=trust_code).within_budget().plan()
            with naming(planned.name):
                check_plan(planned.recipe)
        check_inputs((planned.recipe for planned in pending), data_dir=data_dir)
        with self._locked():
            self.spec.save(self.path / "study.toml")
            if executor is not None:
                executor.check_shared(self.path.absolute() / "study.toml")
            environment = {}
            if executor is None:
                environment[CONCURRENT_RUNS] = str(min(jobs or 1, max(len(pending), 1)))
            tasks = [self._task(planned, data_dir, environment) for planned in pending]
            finished = len(self.runs) - len(pending)
            _say(f"{counted(len(self.runs), 'run')}, {finished} of them finished before, {len(pending)} to run")
            ended = run_tasks(tasks, jobs=jobs, watch=self._say_how_it_ended, executor=executor)
        failed = [f"{task.task}: {task.message}" for task in ended if task.code]
        if failed:
            raise CheckFailed(
                f"{len(failed)} of {len(self.runs)} runs failed: {'; '.join(failed)} (logs in {self.path / 'logs'})"
            )

    def _say_how_it_ended(self, task: Ended) -> None:
        outcome = "failed"  # the reason is in the error at the end, where nobody misses it
        if not task.code:
            test = Run(self.path / "runs" / task.task).summary["test"]
            outcome = f"test error {test['test_error']:.2%}, ECE {test['ece']:.2%}"
        _say(f"{task.task}: {outcome}")

    def _task(self, planned: PlannedRun, data_dir: str | Path | None, environment: Mapping[str, str]) -> Task:
        recipe = self.path / "recipes" / f"{planned.name}.toml"
        # The saved recipe has the digest of your own code. If you edit the code while a long study runs, the later runs
        # fail, and do not mix with the earlier ones.
        planned.recipe.with_code_digests().save(recipe)
        arguments = ["train", str(recipe), str(self.folder(planned))]
        if data_dir is not None:
            arguments.append(str(data_dir))
        engine = planned.recipe.engine
        return Task(
            planned.name,
            "calibrant.studies",
            tuple(arguments),
            self.path / "logs" / f"{planned.name}.log",
            accelerator=engine.accelerator,
            devices=engine.devices,
            cpus=1 + engine.workers,
            environment=environment,
            lock=Run(self.folder(planned), planned.recipe).lock_path,
        )

    # Results.

    def record(self, planned: PlannedRun) -> Record:
        """Return what a finished run measured. It is computed once and kept in `records/`."""
        path = self.path / "records" / f"{planned.name}.json"
        run = Run(self.folder(planned))
        if path.is_file():
            with contextlib.suppress(InvalidInput):  # a damaged file is written again
                kept = Record.load(path)
                if kept.automation is not None and kept.predictions_sha256 == digests(run):
                    return kept
        record = record_run(run)
        write_json(path, record.to_dict())
        return record

    def results(self) -> list[Results]:
        """Return the results for each data set and network that has finished runs."""
        groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
        folders: dict[str, Path] = {}
        finished = self.finished()
        self._check_same_data(finished)
        for planned in finished:
            record = self.record(planned)
            groups.setdefault(planned.place, {}).setdefault(planned.label, []).append(record)
            folders[record.predictions_sha256["test"]] = self.folder(planned)

        def predictions_of(record: Record, scaled: bool) -> Predictions:
            test = Run(folders[record.predictions_sha256["test"]]).predictions("test")
            return scaled_by(test, record.temperature) if scaled else test

        unfinished: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}  # a table must say what it leaves out
        for planned in self.pending():
            seeds = unfinished.setdefault(planned.place, {})
            seeds[planned.label] = (*seeds.get(planned.label, ()), planned.recipe.seed)
        return [
            summarise(
                group,
                self.spec.baseline_label(),
                predictions_of=predictions_of,
                decides=self.spec.decides,
                unfinished=unfinished.get(place),
            )
            for place, group in groups.items()
        ]

    def _check_same_data(self, runs: list[PlannedRun]) -> None:
        """Raise if runs share the name of their data but not the data: a file may change while a study grows."""
        seen: dict[str, tuple[PlannedRun, str]] = {}
        for planned in runs:
            digest = trained_data(self.folder(planned) / "checkpoints")
            if digest is None:
                continue
            first, first_digest = seen.setdefault(planned.recipe.data.model_dump_json(), (planned, digest))
            if first_digest != digest:
                raise InvalidInput(
                    f"runs {first.name} and {planned.name} were trained on different data: "
                    f"{planned.recipe.data.name} has changed in between. Remove the older ones from "
                    f"{self.path / 'runs'} and run the study again."
                )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the folder: two processes that run one study would run everything twice."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(self.path, error) from error
        busy = f"study {self.path} is being run by another process. Wait for it to end."
        with locked(self.path / ".lock", busy=busy):
            # Remove drafts of a process that was killed. A run removes its own when it is resumed.
            for folder in (self.path, self.path / "recipes", self.path / "records"):
                for draft in folder.glob(".*.tmp"):
                    draft.unlink(missing_ok=True)
            yield


def _say(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")
