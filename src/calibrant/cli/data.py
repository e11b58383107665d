"""`calibrant data`: which image sets there are, where they lie, and getting them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table

from calibrant.cli._say import say, say_json
from calibrant.errors import CheckFailed, InvalidInput

app = App(name="data", help="List, download and check image sets.")
DataDir = Annotated[Path | None, Parameter(help="Folder to look in first; then CALIBRANT_DATA, then the user's cache.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for machines.")]

# The set that needs no file: it lies inside scikit-learn.
_DIGITS: dict[str, Any] = {
    "name": "digits",
    "title": "Handwritten digits, 8x8 grey",
    "train": 1198,
    "test": 599,
    "classes": 10,
    "found": "inside scikit-learn",
    "problem": None,
    "download_bytes": 0,
    "files": [],
    "licence": "CC BY 4.0",
    "citation": "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
    "homepage": "https://archive.ics.uci.edu/dataset/80",
}


@app.command(name="list")
def list_(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the sets: what they are, where they were found on this machine, how large, under which licence."""
    from calibrant.data import data_dirs

    rows = _rows(data_dir)
    folders = [str(folder) for folder in data_dirs(data_dir)]
    if as_json:
        say_json({"folders": folders, "sets": rows})
        return
    table = Table("name", "train", "test", "classes", Column("found", overflow="fold"))
    for row in rows:
        found = row["found"] or row["problem"] or f"no; {row['download_bytes'] / 1e6:,.0f} MB to fetch"
        table.add_row(row["name"], f"{row['train']:,}", f"{row['test']:,}", str(row["classes"]), found)
    console = Console()
    console.print(table)
    for row in rows:
        console.print(
            f"[bold]{row['name']}[/bold]: {row['title']}. {row['citation']}. Licence: {row['licence']}.",
            highlight=False,
        )
    console.print(f"Looked in: {', '.join(folders)}. Your own: arrays:FILE.npz and folder:DIR.", highlight=False)


@app.command
def fetch(
    name: str,
    /,
    *,
    data_dir: DataDir = None,
    mirror: Annotated[str | None, Parameter(help="Address of a folder with copies of the official files.")] = None,
) -> None:
    """Download a set. A broken download goes on where it ended; digests are checked.

    NAME is one of the sets that `calibrant data list` names.
    """
    from calibrant.data import catalogue_entry, fetch_dataset

    entry = catalogue_entry(name)
    console = Console(stderr=True)
    console.print(f"{entry.title}. Licence: {entry.licence}. {entry.homepage}", highlight=False)
    with _bars(console, "bytes") as bar:
        paths = fetch_dataset(name, data_dir=data_dir, mirror=mirror, progress=bar)
    for path in paths:
        say(str(path))
    for file in entry.files:
        if not file.digest:
            console.print(f"{file.name}: no digest is published, its size fits.", highlight=False)


@app.command
def check(name: str, /, *, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Read a set from disk and compare it with what is published. Exit code 1 where it does not fit.

    NAME is a set that `calibrant data list` names, or arrays:FILE.npz, folder:DIR.
    """
    from calibrant.data import find_named, load_dataset

    # A set that is not there is a mistake in the question; one that does not fit is the answer "no".
    named = find_named(name, data_dir=data_dir) is not None
    try:
        with _bars(Console(stderr=True), "images") as bar:
            dataset = load_dataset(name, data_dir=data_dir, progress=bar("reading"))
    except InvalidInput as error:
        if not named:
            raise
        raise CheckFailed(str(error)) from error
    result = {
        "name": dataset.name,
        "origin": dataset.origin,
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": dataset.n_classes,
        "image_shape": list(dataset.image_shape),
        "verified": dataset.verified or "nothing is published to compare it with",
    }
    if as_json:
        say_json(result)
        return
    for key, value in result.items():
        say(f"{key.replace('_', ' ')}: {value}")


def _rows(data_dir: Path | None) -> list[dict[str, Any]]:
    from calibrant.data import CATALOGUE, locate

    rows = [_DIGITS]
    for entry in CATALOGUE.values():
        source, problem = None, None
        try:
            source = locate(entry.name, entry.reader, data_dir=data_dir, system=entry.system)
        except InvalidInput as error:
            problem = str(error)
        rows.append(
            {
                "name": entry.name,
                "title": entry.title,
                "train": entry.train,
                "test": entry.test,
                "classes": entry.n_classes,
                "found": source.place if source else None,
                "problem": problem,
                "download_bytes": sum(file.size for file in entry.files),
                "files": [file.name for file in entry.files],
                "licence": entry.licence,
                "citation": entry.citation,
                "homepage": entry.homepage,
            }
        )
    return rows


@contextmanager
def _bars(console: Console, unit: Literal["bytes", "images"]) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """One progress bar for each name that is asked for; silent where nobody watches."""
    count = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def start(description: str) -> Callable[[int, int], None]:
            task = bars.add_task(description, total=None)

            def update(done: int, total: int) -> None:
                bars.update(task, completed=done, total=total or None)

            return update

        yield start
