"""`calibrant record`: finished runs as JSON files for `results/`."""

from pathlib import Path
from typing import Annotated

from calibrant.cli._shared import Json, OutOr, Switch, say, say_json
from calibrant.errors import InvalidInput


def record(
    *runs: Path,
    out: Annotated[Path, OutOr] = Path("results"),
    concurrent: int | None = None,
    replace: Annotated[bool, Switch] = False,
    as_json: Json = False,
) -> None:
    """Measure finished runs (10 and 15 bins, with and without temperature scaling) and write one JSON each.

    The files carry recipe, seed, metrics, costs, versions, device and commit, and neither paths nor host names.

    Args:
        runs: Run folders.
        out: Folder of the records.
        concurrent: How many runs shared the machine, these included; times are only compared if this is 1.
        replace: Replace a record of the same settings and seed whose outcome differs.
        as_json: Print the records as JSON.
    """
    from calibrant.checks import whole
    from calibrant.studies import record_run, write_record
    from calibrant.training import Run

    if not runs:
        raise InvalidInput("record needs at least one run folder. For example: calibrant record runs/* --out results")
    if concurrent is not None:
        whole("concurrent", concurrent, 1, "It counts the runs themselves.")
    records = []
    unfinished = []
    for path in runs:
        run = Run(path)
        if not run.finished:
            unfinished.append(str(path))
            continue
        measured = record_run(run, concurrent_runs=concurrent)
        file = write_record(measured, out, replace=replace)
        records.append(measured.to_dict())
        if not as_json:
            say(f"{path} -> {file}")
    if as_json:
        say_json(records)
    if unfinished:
        hint = "Continue them with: calibrant train --resume RUN"
        raise InvalidInput(f"not finished, so not recorded: {', '.join(unfinished)}. {hint}")
