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
    if name:
        row = _row(name, data, model, epochs)
        if as_json:
            say_json(row)
            return
        for key in ("name", "loss", "pruning", "source"):
            say(f"{key:<8} {row[key]}")
        if row["settings"]:
            cells = [(key, str(value), row["sources"][key]) for key, value in row["settings"].items()]
            say_table(("setting", "value", "where it comes from"), cells)
        return
    rows = [_row(each, data, model, epochs) for each in methods.names()]
    if as_json:
        say_json(rows)
        return
    columns = ("name", "loss", "pruning", "source")
    say_table(columns, [[row[column] for column in columns] for row in rows])
    say("Names compose, LOSS[+TERM...][+PLAN], also of your own module:name parts:")
    for kind, found in methods.parts().items():
        say(f"  {kind}: {', '.join(found)}")
    say("One method's settings: calibrant methods NAME")


def _row(name: str, data: str | None, model: str | None, epochs: int | None) -> dict[str, Any]:
    from calibrant.training import methods

    method, plan = methods.describe(name), methods.resolve(name, data=data, model=model, epochs=epochs)
    return {
        "name": name,
        "loss": method.formula,
        "pruning": method.pruning,
        "source": method.source,
        "settings": plan.settings,
        "sources": plan.sources,
    }
