"""`calibrant methods`: what can be trained, and with which numbers."""

from typing import Any

from calibrant.cli._shared import Json, say, say_json, say_table
from calibrant.own_code import trust_named


def main(
    name: str | None = None,
    *,
    data: str | None = None,
    model: str | None = None,
    epochs: int | None = None,
    as_json: Json = False,
) -> None:
    """List the training methods, or the settings of one.

    Args:
        name: Show this method's settings and where each comes from; also module:function, your own.
        data: For this data set.
        model: For this network.
        epochs: For a training of this length.
        as_json: Print as JSON, settings and their sources included.
    """
    from calibrant.training import methods

    trust_named(name)
    names = methods.names()
    if name:
        names = (name,)
    rows = []
    for each in names:
        method, plan = methods.describe(each), methods.resolve(each, data=data, model=model, epochs=epochs)
        row = {"name": each, "loss": method.formula, "pruning": method.pruning, "source": method.source}
        rows.append({**row, "settings": plan.settings, "sources": plan.sources})
    if as_json:
        say_json(rows[0] if name else rows)
    elif name:
        _say_one(rows[0])
    else:
        columns = ("name", "loss", "pruning", "source")
        say_table(columns, [[row[column] for column in columns] for row in rows])
        say("Names compose, LOSS[+TERM...][+PLAN], also of your own module:name parts:")
        for kind, found in methods.parts().items():
            say(f"  {kind}: {', '.join(found)}")
        say("One method's settings: calibrant methods NAME")


def _say_one(row: dict[str, Any]) -> None:
    for key in ("name", "loss", "pruning", "source"):
        say(f"{key:<8} {row[key]}")
    if row["settings"]:
        cells = [(key, str(value), row["sources"][key]) for key, value in row["settings"].items()]
        say_table(("setting", "value", "where it comes from"), cells)
