"""`calibrant record`: finished runs as JSON files for `results/`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calibrant.cli._say import say, say_json
from calibrant.errors import InvalidInput, invalid


def record(
    *runs: Path,
    out: Path = Path("results"),
    concurrent: int | None = None,
    replace: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure finished runs (10 and 15 bins, with and without temperature scaling) and write one JSON each.

    The files carry recipe, seed, metrics, costs, versions, device and commit, and neither paths nor host names.

    Args:
        runs: Run folders.
        out: Folder of the records.
        concurrent: How many runs shared the machine, these included; times are only compared where this is 1.
        replace: Replace a record of the same settings and seed whose outcome differs.
        json: Print the records as JSON.
    """
    from calibrant.study import record_run, write_record
    from calibrant.training import Run

    if not runs:
        raise InvalidInput("record needs at least one run folder. For example: calibrant record runs/* --out results")
    if concurrent is not None and concurrent < 1:
        raise invalid("--concurrent", "count the runs themselves, so be at least 1", concurrent)
    made, unfinished = [], []
    for path in runs:
        run = Run.open(path)
        if not run.finished:
            unfinished.append(str(path))
            continue
        measured = record_run(run, concurrent_runs=concurrent)
        where = write_record(measured, out, replace=replace)
        made.append(measured)
        if not json:
            say(f"{path} -> {where}")
    if json:
        say_json([each.to_dict() for each in made])
    if unfinished:
        way_out = "Continue them with: calibrant train --resume RUN"
        raise InvalidInput(f"not finished, so not recorded: {', '.join(unfinished)}. {way_out}")
