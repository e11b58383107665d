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

    rows = list_datasets(data_dir)
    folders = [str(folder) for folder in data_dirs(data_dir)]
    if as_json:
        say_json({"folders": folders, "sets": rows})
        return
    cells = []
    for row in rows:
        place = row["found"] or f"no; {row['download_bytes'] / 1e6:,.0f} MB to fetch"
        cells.append((row["name"], f"{row['train']:,}", f"{row['test']:,}", str(row["classes"]), place))
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
    from calibrant.training.data.public_sets import downloadable

    entry = downloadable(name)
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

    with steps() as progress:
        result = check_dataset(name, data_dir=data_dir, progress=lambda done, total: progress("reading", done, total))
    lines = []
    for key, value in result.items():
        if key not in ("images_per_class", "unreadable", "problem"):
            lines.append(f"{key.replace('_', ' ')}: {value or 'not known'}")
    for label, (train, test) in result["images_per_class"].items():
        lines.append(f"class {label}: {train} to train on, {test} to test on")
    answer("\n".join([*lines, *result["unreadable"]]), result, as_json=as_json)
    if result["problem"]:
        raise CheckFailed(result["problem"])
