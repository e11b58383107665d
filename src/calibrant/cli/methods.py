"""`calibrant methods`: what can be trained, and with which numbers."""

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from calibrant import methods


def main(
    *,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the training methods: loss, pruning, source.

    Args:
        data: Show the settings used for this data set.
        model: Show the settings used for this network.
        epochs: Show the settings used for a training of this length.
        as_json: Print everything as JSON, with the origin of each setting.
    """
    rows = [_row(name, data, model, epochs) for name in methods.names()]
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table(title="Methods", title_justify="left")
    for column in ("name", "loss", "pruning", "settings", "source"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for row in rows:
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        table.add_row(row["name"], row["loss"], row["pruning"], settings or "none", row["source"])
    Console().print(table)


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
