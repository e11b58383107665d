"""Flags that several commands share, each with one name and one explanation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter, Token
from cyclopts.validators import mutually_exclusive

from calibrant.defaults import Kind
from calibrant.scale import ExecutorName


def _columns(_: type, tokens: Sequence[Token]) -> dict[str, str]:
    from calibrant.predictions import parse_columns

    return parse_columns(tokens[0].value)


Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, in fractions, for machines.")]
KindFlag = Annotated[
    Kind | None, Parameter(name="--kind", help="What the scores are, for files that do not say: logits, probabilities.")
]
Columns = Annotated[
    dict[str, str] | None,
    Parameter(
        name="--columns",
        converter=_columns,
        n_tokens=1,
        accepts_keys=False,
        help="Columns with other names, in tables: target=label,id=case.",
    ),
]
NBins = Annotated[int, Parameter(help="Bins of every binned metric.")]
OutOr = Parameter(name=["--out", "-o"])
Out = Annotated[Path | None, OutOr]
Switch = Parameter(negative="")
# At most one of the flags of a command that carry it.
OneOf = Parameter(group=("Parameters", Group("exclusive flags", show=False, validator=mutually_exclusive)))
Many = Parameter(consume_multiple=True, negative="")
Repeated = Parameter(negative="")
Assignments = Annotated[list[str] | None, Parameter(name="--set", negative="")]
TrustCode = Annotated[
    bool,
    Parameter(
        name="--trust-code",
        negative="",
        help="Run code of your own (module:name) that a file names and that you have not used on this machine before.",
    ),
]
DataDir = Annotated[
    Path | None,
    Parameter(help="Where image sets lie; then CALIBRANT_DATA, then the user's cache are looked in."),
]
ExecutorFlag = Annotated[
    ExecutorName, Parameter(name="--executor", help="Where the work is done: local, or ray for a Ray cluster.")
]
Address = Annotated[
    str | None,
    Parameter(
        name="--address",
        help="Of the Ray cluster of this machine: HOST:PORT or auto. By default Ray starts on this machine alone.",
    ),
]
PolicyFile = Annotated[
    Path | None, Parameter(help="Written by calibrate or route: how scores become decisions. Default: the run's own.")
]
