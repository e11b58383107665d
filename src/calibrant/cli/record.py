"""`calibrant record`: finished runs as JSON files for `results/`."""

from pathlib import Path
from typing import Annotated

from calibrant.cli._shared import Json, OutOr, Switch, say, say_json


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
        concurrent: How many runs shared the machine, these included; times are only compared where this is 1.
        replace: Replace a record of the same settings and seed whose outcome differs.
        as_json: Print the records as JSON.
    """
    from calibrant.studies import record_runs

    recorded = record_runs(runs, out, concurrent=concurrent, replace=replace)
    if as_json:
        say_json([each.to_dict() for each in recorded.records])
    else:
        for line in recorded.lines:
            say(line)
    recorded.raise_unfinished()
