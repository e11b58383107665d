"""`calibrant data`: which image sets there are, where they lie, and getting them."""

from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from calibrant.cli._shared import DataDir, Json, answer, say, say_json, say_table, steps
from calibrant.errors import CheckFailed

app = App(name="data", help="List, download and check image sets.")


@app.command(name="list")
def list_(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the sets: what they are, where they were found on this machine, how large, under which licence."""
    from calibrant.training.data import data_dirs, list_datasets
    from calibrant.training.data.inventory import describe_place

    rows = list_datasets(data_dir)
    folders = [str(folder) for folder in data_dirs(data_dir)]
    if as_json:
        say_json({"folders": folders, "sets": rows})
        return
    cells = [
        (row["name"], f"{row['train']:,}", f"{row['test']:,}", str(row["classes"]), describe_place(row)) for row in rows
    ]
    say_table(("name", "train", "test", "classes", "found"), cells)
    for row in rows:
        say(f"{row['name']}: {row['title']}. {row['citation']}. Licence: {row['licence']}.")
    say(f"Looked in: {', '.join(folders)}. Your own: arrays:FILE.npz and folder:DIR.")


@app.command
def fetch(
    name: str,
    /,
    *,
    data_dir: DataDir = None,
    source: Annotated[str | None, Parameter(help="Address of a folder with copies of the official files.")] = None,
) -> None:
    """Download a set and check its digests.

    NAME is one of the sets that `calibrant data list` names.
    """
    from calibrant.training.data import fetch_dataset
    from calibrant.training.data.public_sets import catalogue_entry

    entry = catalogue_entry(name)
    console = Console(stderr=True)
    console.print(f"{entry.title}. Licence: {entry.licence}. {entry.homepage}", highlight=False)
    for path in fetch_dataset(name, data_dir=data_dir, mirror=source):
        say(str(path))
    for file in entry.files:
        if not file.digest:
            console.print(f"{file.name}: no digest is published, its size fits.", highlight=False)


@app.command
def check(name: str, /, *, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Read a set from disk and compare it with what is published. Exit code 1 if it does not fit.

    Prints the training and test images of each class, and every picture of a folder that cannot be read.

    NAME is a set that `calibrant data list` names, or arrays:FILE.npz, folder:DIR.
    """
    from calibrant.training.data import check_dataset
    from calibrant.training.data.inventory import describe_content

    with steps() as progress:
        result = check_dataset(name, data_dir=data_dir, progress=lambda done, total: progress("reading", done, total))
    answer("\n".join(describe_content(result)), result, as_json=as_json)
    if result["problem"]:
        raise CheckFailed(result["problem"])
