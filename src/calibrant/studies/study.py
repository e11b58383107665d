"""A study on disk: `study.toml`, one folder per run, and their results."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from calibrant.display import Displayed, Overview
from calibrant.errors import CheckFailed, InvalidInput, invalid
from calibrant.files import as_path, output_error, read_json, write_json
from calibrant.lock import locked
from calibrant.predictions import Predictions
from calibrant.scale import Executor, Task, run_tasks
from calibrant.studies.control import against_controls, plans_without_control
from calibrant.studies.images import ImageNoise
from calibrant.studies.progress import Silent, StudyProgress
from calibrant.studies.record import Record, digests, record_run
from calibrant.studies.spec import PlannedRun, StudySpec
from calibrant.studies.summary import Results, summarise
from calibrant.studies.temperature import scaled_by
from calibrant.training import Run, check_inputs, state_of, trained_data

_CONCURRENCY = TypeAdapter(dict[str, Annotated[int, Field(ge=1, lt=2**31)]])


class Study(Displayed):
    """A study folder.

    It holds `study.toml`, the settings; `runs/NAME/`, the run folders; `recipes/NAME.toml`; `logs/NAME.log`, the output
    of each process; `records/NAME.json`, what each run measured; and tables and pages.

    Args:
        path: The folder; made where it does not exist.
        spec: What to run; None reads the folder's `study.toml`.
    """

    def __init__(self, path: str | Path, spec: StudySpec | None = None) -> None:
        self.path = as_path(path)
        if not isinstance(spec, StudySpec | None):
            raise invalid("spec", "be a StudySpec", type(spec).__name__, "Make one: StudySpec(methods=...).")
        if spec is None and not (self.path / "study.toml").is_file():
            raise InvalidInput(
                f"{self.path} has no study.toml yet. Say what to compare: --methods nll flsd, or a file."
            )
        self.spec = spec if spec is not None else StudySpec.load(self.path / "study.toml")
        self.runs = self.spec.runs()

    def _overview(self) -> Overview:
        """How many runs of each row are finished; a run that was made by other settings is not."""
        rows: dict[tuple[str, str, str], list[bool]] = {}
        for planned in self.runs:
            try:
                done = state_of(self.folder(planned), planned.recipe) == "finished"
            except InvalidInput:
                done = False
            rows.setdefault((*planned.place, planned.label), []).append(done)
        told = [(label, data, model, f"{sum(done)} of {len(done)}") for (data, model, label), done in rows.items()]
        return Overview(str(self.path), told, ("row", "data", "model", "runs finished"))

    def folder(self, planned: PlannedRun) -> Path:
        """The folder of a run."""
        return self.path / "runs" / planned.name

    def pending(self) -> list[PlannedRun]:
        """The runs that are not finished; one made by other settings is refused."""
        return [planned for planned in self.runs if state_of(self.folder(planned), planned.recipe) != "finished"]

    def run(
        self,
        *,
        jobs: int | None = None,
        data_dir: str | Path | None = None,
        progress: StudyProgress | None = None,
        trust_code: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Run what is not finished yet, each in a process of its own.

        Args:
            jobs: How many at once; several on one GPU are fine as long as they fit into its memory. None for one here,
                and for as many as the executor has room for.
            data_dir: Where image sets lie.
            progress: Is told how it goes.
            trust_code: Whether to run methods and networks `module:name` that you have not used on this machine before.
            executor: Where the runs are made; None for processes of this machine. Others must see the study's folder.

        Raises:
            InvalidInput: A data set or a network does not exist; nothing has been run or written.
            CheckFailed: One or more runs failed; the others have been run.
        """
        pending = self.pending()
        for planned in pending:
            planned.recipe.with_trusted_code(trust_code=trust_code).within_budget().plan()
        check_inputs((planned.recipe for planned in pending), data_dir=data_dir)
        with self._locked():
            self.spec.save(self.path / "study.toml")
            if executor is not None:
                executor.check_shared(self.path.absolute() / "study.toml")
            shown = progress or Silent()
            with shown.over(self, pending):
                tasks = [self._task(planned, data_dir) for planned in pending]
                ended = run_tasks(
                    tasks, jobs=jobs, watch=shown.update, on_concurrency=self._note_concurrency, executor=executor
                )
        failed = [one for one in ended if one.code]
        if failed:
            told = "; ".join(f"{one.task}: {one.message}" for one in failed)
            raise CheckFailed(f"{len(failed)} of {len(self.runs)} runs failed: {told} (logs in {self.path / 'logs'})")

    def _task(self, planned: PlannedRun, data_dir: str | Path | None) -> Task:
        recipe = self.path / "recipes" / f"{planned.name}.toml"
        # The saved recipe has the digest of your own code: when that code is edited while a long study runs, the later
        # runs are refused instead of mixing with the earlier ones.
        planned.recipe.with_code_digests().save(recipe)
        arguments = [str(recipe), str(self.folder(planned))]
        if data_dir is not None:
            arguments.append(str(data_dir))
        engine = planned.recipe.engine
        return Task(
            planned.name,
            "calibrant.studies.run_one",
            tuple(arguments),
            self.path / "logs" / f"{planned.name}.log",
            accelerator=engine.accelerator,
            devices=engine.devices,
            cpus=1 + engine.workers,
            lock=Run(self.folder(planned), planned.recipe).lock_path,
        )

    # Results.

    def finished(self) -> list[PlannedRun]:
        """Cells whose run is complete."""
        return [planned for planned in self.runs if state_of(self.folder(planned), planned.recipe) == "finished"]

    def record(self, planned: PlannedRun) -> Record:
        """What a finished run measured; computed once, kept in `records/`."""
        path = self.path / "records" / f"{planned.name}.json"
        run = Run.open(self.folder(planned))
        if path.is_file():
            with contextlib.suppress(InvalidInput):  # written by an older version: measured again
                kept = Record.load(path)
                if kept.automation is not None and kept.predictions_sha256 == digests(run):
                    return kept
        made = record_run(run, concurrent_runs=self._concurrency().get(planned.name))
        write_json(path, made.to_dict())
        return made

    def results(self) -> list[Results]:
        """The results on each data set and network that has finished runs."""
        groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
        folders: dict[str, Path] = {}
        finished = self.finished()
        self._check_same_data(finished)
        for planned in finished:
            record = self.record(planned)
            groups.setdefault(planned.place, {}).setdefault(planned.label, []).append(record)
            folders[record.predictions_sha256["test"]] = self.folder(planned)

        def predictions_of(record: Record, scaled: bool) -> Predictions:
            test = Run.open(folders[record.predictions_sha256["test"]]).predictions("test")
            return scaled_by(test, record.temperature) if scaled else test

        baseline = self.spec.baseline_label()
        made = [summarise(group, baseline, predictions_of=predictions_of) for group in groups.values()]
        noise = ImageNoise(predictions_of)
        results = []
        for (place, group), each in zip(groups.items(), made, strict=True):
            beside = against_controls(group, noise)
            lacking = plans_without_control(group, beside)
            results.append(replace(each, unfinished=self._unfinished(place), controls=beside, uncontrolled=lacking))
        return results

    def _unfinished(self, place: tuple[str, str]) -> dict[str, tuple[int, ...]]:
        """Seeds that have not finished, by row: a table must say what it leaves out."""
        done = {planned.name for planned in self.finished()}
        seeds: dict[str, tuple[int, ...]] = {}
        for planned in self.runs:
            if planned.name not in done and place == planned.place:
                seeds[planned.label] = (*seeds.get(planned.label, ()), planned.recipe.seed)
        return seeds

    def _check_same_data(self, runs: list[PlannedRun]) -> None:
        """Refuse runs that share the name of their data but not the data: a file may change while a study grows."""
        seen: dict[str, tuple[PlannedRun, str]] = {}
        for planned in runs:
            digest = trained_data(self.folder(planned) / "checkpoints")
            if digest is None:
                continue
            first, there = seen.setdefault(planned.recipe.data.model_dump_json(), (planned, digest))
            if there != digest:
                raise InvalidInput(
                    f"runs {first.name} and {planned.name} were trained on different data: "
                    f"{planned.recipe.data.name} has changed in between. Remove the older ones from "
                    f"{self.path / 'runs'} and run the study again."
                )

    # Bookkeeping.

    def _concurrency(self) -> dict[str, int]:
        path = self.path / "concurrency.json"
        if not path.is_file():
            return {}
        try:
            return _CONCURRENCY.validate_python(read_json(path))
        except ValidationError as error:
            raise invalid(str(path), "map names of runs to numbers", "something else", "Remove it.") from error

    def _note_concurrency(self, together: dict[str, int]) -> None:
        """Keep the largest number for each run, written at once: a run that is continued later must not lose it."""
        known = self._concurrency()
        if any(count > known.get(name, 0) for name, count in together.items()):
            larger = {name: max(count, known.get(name, 0)) for name, count in together.items()}
            write_json(self.path / "concurrency.json", known | larger)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder: two processes that run one study would run everything twice."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise output_error(self.path, error) from error
        busy = f"study {self.path} is being run by another process. Wait for it to end."
        with locked(self.path / ".lock", busy=busy):
            # Drafts of a process that was killed; those in runs/ are removed by the run that is resumed.
            for folder in (self.path, self.path / "recipes", self.path / "records"):
                for draft in folder.glob(".*.tmp"):
                    draft.unlink(missing_ok=True)
            yield
