"""A study on disk: `study.toml`, one folder a run, and what came out of them."""

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from calibrant.errors import CheckFailed, InvalidInput, invalid
from calibrant.files import as_path, output_error, read_json, write_json
from calibrant.predictions import Predictions
from calibrant.study.execute import state_of
from calibrant.study.inputs import check_inputs
from calibrant.study.launch import Task, run_tasks
from calibrant.study.progress import Silent, StudyProgress
from calibrant.study.record import Record, digests, record_run
from calibrant.study.spec import Cell, StudySpec
from calibrant.study.summary import Comparison, summarise
from calibrant.study.temperature import scaled_by
from calibrant.training import Run, trained_data


class Study:
    """A study folder.

    `study.toml` what was asked; `runs/NAME/` run folders; `recipes/NAME.toml`; `logs/NAME.log` what each process said;
    `records/NAME.json` what each run measured; tables and pages beside them.

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
        self.cells = self.spec.cells()

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell."""
        return self.path / "runs" / cell.name

    def pending(self) -> list[Cell]:
        """The runs that are not finished; one made by other settings is refused."""
        return [cell for cell in self.cells if state_of(self.folder(cell), cell.recipe) != "finished"]

    def run(self, *, jobs: int = 1, data_dir: str | Path | None = None, progress: StudyProgress | None = None) -> None:
        """Run what is not finished yet, each in a process of its own.

        Args:
            jobs: How many at once; several on one GPU are fine as long as they fit into its memory.
            data_dir: Where image sets lie.
            progress: Who is told.

        Raises:
            InvalidInput: A data set or a network does not exist; nothing has been run or written.
            CheckFailed: One or more runs failed; the others have been run.
        """
        pending = self.pending()
        check_inputs((cell.recipe for cell in pending), data_dir=data_dir)
        with self._locked():
            self.spec.save(self.path / "study.toml")
            shown = progress or Silent()
            with shown.over(self, pending):
                tasks = [self._task(cell, data_dir) for cell in pending]
                ended = run_tasks(tasks, jobs=jobs, watch=shown.update, company=self._note_concurrency)
        failed = [one for one in ended if one.code]
        if failed:
            told = "; ".join(f"{one.task}: {one.message}" for one in failed)
            raise CheckFailed(f"{len(failed)} of {len(self.cells)} runs failed: {told} (logs in {self.path / 'logs'})")

    def _task(self, cell: Cell, data_dir: str | Path | None) -> Task:
        recipe = self.path / "recipes" / f"{cell.name}.toml"
        # Sealed: code of yours that is edited while a long study runs stops the later runs instead of mixing with them.
        cell.recipe.with_code_digests().save(recipe)
        arguments = [str(recipe), str(self.folder(cell))]
        if data_dir is not None:
            arguments.append(str(data_dir))
        return Task(cell.name, "calibrant.study.worker", tuple(arguments), self.path / "logs" / f"{cell.name}.log")

    # What came out.

    def finished(self) -> list[Cell]:
        """Cells whose run is complete."""
        return [cell for cell in self.cells if state_of(self.folder(cell), cell.recipe) == "finished"]

    def record(self, cell: Cell) -> Record:
        """What a finished run measured; computed once, kept in `records/`."""
        path = self.path / "records" / f"{cell.name}.json"
        run = Run.open(self.folder(cell))
        if path.is_file():
            with contextlib.suppress(InvalidInput):  # written by an older version: measured again
                kept = Record.load(path)
                if kept.takeover is not None and kept.predictions_sha256 == digests(run):
                    return kept
        made = record_run(run, concurrent_runs=self._concurrency().get(cell.name))
        write_json(path, made.to_json())
        return made

    def comparisons(self) -> list[Comparison]:
        """One comparison for each data set and network with finished runs."""
        groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
        folders: dict[str, Path] = {}
        finished = self.finished()
        self._check_same_data(finished)
        for cell in finished:
            record = self.record(cell)
            place = (cell.recipe.data.name, cell.recipe.model.name)
            groups.setdefault(place, {}).setdefault(cell.label, []).append(record)
            folders[record.predictions_sha256["test"]] = self.folder(cell)

        def predictions_of(record: Record, scaled: bool) -> Predictions:
            test = Run.open(folders[record.predictions_sha256["test"]]).predictions("test")
            return scaled_by(test, record.temperature) if scaled else test

        baseline = self.spec.baseline_label()
        made = [summarise(group, baseline, predictions_of=predictions_of) for group in groups.values()]
        return [replace(each, unfinished=self._unfinished(place)) for place, each in zip(groups, made, strict=True)]

    def _unfinished(self, place: tuple[str, str]) -> dict[str, tuple[int, ...]]:
        """Row to the seeds that have not finished: what a table leaves out, it must say."""
        done = {cell.name for cell in self.finished()}
        seeds: dict[str, tuple[int, ...]] = {}
        for cell in self.cells:
            if cell.name not in done and place == (cell.recipe.data.name, cell.recipe.model.name):
                seeds[cell.label] = (*seeds.get(cell.label, ()), cell.recipe.seed)
        return seeds

    def _check_same_data(self, cells: list[Cell]) -> None:
        """Refuse runs that share the name of their data but not the data: a file may change while a study grows."""
        seen: dict[str, tuple[Cell, str]] = {}
        for cell in cells:
            digest = trained_data(self.folder(cell) / "checkpoints")
            if digest is None:
                continue
            first, there = seen.setdefault(cell.recipe.data.model_dump_json(), (cell, digest))
            if there != digest:
                raise InvalidInput(
                    f"runs {first.name} and {cell.name} were trained on different data: {cell.recipe.data.name} has "
                    f"changed in between. Remove the older ones from {self.path / 'runs'} and run the study again."
                )

    # Bookkeeping.

    def _concurrency(self) -> dict[str, int]:
        path = self.path / "concurrency.json"
        return dict(read_json(path)) if path.is_file() else {}

    def _note_concurrency(self, together: dict[str, int]) -> None:
        """Keep the largest number for each run, at once: a run that is stopped and continued was still in company."""
        known = self._concurrency()
        if any(count > known.get(name, 0) for name, count in together.items()):
            larger = {name: max(count, known.get(name, 0)) for name, count in together.items()}
            write_json(self.path / "concurrency.json", known | larger)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder: two processes that run one study would run everything twice."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / ".lock").open("w")
        except OSError as error:
            raise output_error(self.path, error) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidInput(f"study {self.path} is being run by another process. Wait for it to end.") from error
            yield
