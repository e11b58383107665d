"""`calibrant methods`: what can be trained, and with which numbers."""

from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibrant import methods
from calibrant.cli._say import say_json
from calibrant.own_code import trust_named


def main(
    name: str | None = None,
    *,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the training methods, or the settings of one.

    Args:
        name: Show this method's settings and where each comes from; also module:function, your own.
        data: For this data set.
        model: For this network.
        epochs: For a training of this length.
        as_json: Print as JSON, settings and their sources included.
    """
    trust_named(name)
    rows = [_row(each, data, model, epochs) for each in ([name] if name else methods.names())]
    if as_json:
        say_json(rows[0] if name else rows)
    elif name:
        _print_one(rows[0])
    else:
        _print_all(rows)


def _row(name: str, data: str | None, model: str | None, epochs: int | None) -> dict[str, Any]:
    method, plan = methods.describe(name), methods.resolve(name, data=data, model=model, epochs=epochs)
    return {
        "name": name,
        "loss": method.formula,
        "pruning": method.pruning,
        "source": method.source,
        "settings": plan.settings,
        "sources": plan.sources,
    }


def _print_all(rows: list[dict[str, Any]]) -> None:
    table = Table(show_lines=False)
    table.add_column("name", no_wrap=True)
    for column in ("loss", "pruning", "source"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["loss"], row["pruning"], row["source"])
    Console().print(table, "One method's settings: calibrant methods NAME", markup=False)


def _print_one(row: dict[str, Any]) -> None:
    console = Console()
    for key in ("name", "loss", "pruning", "source"):
        console.print(f"{key:<8} {row[key]}", markup=False, highlight=False)
    table = Table("setting", "value", "where it comes from")
    for key, value in row["settings"].items():
        table.add_row(key, escape(str(value)), escape(row["sources"][key]))
    if row["settings"]:
        console.print(table)
