"""Flags that several commands share, each with one name and one explanation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from calibrant.errors import invalid
from calibrant.predictions import Kind


def _columns(_: type, tokens: Sequence[Token]) -> dict[str, str]:
    """`target=label,id=case` as a mapping."""
    pairs = [pair.partition("=") for token in tokens for pair in token.value.split(",")]
    for key, sign, name in pairs:
        if not (key and sign and name):
            raise invalid("--columns", "be pairs as in target=label,id=case", repr(tokens[0].value))
    names = {key: name for key, _, name in pairs}
    if len(names) < len(pairs):
        raise invalid("--columns", "map each column once", repr(tokens[0].value))
    return names


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
Out = Annotated[Path | None, Parameter(name=["--out", "-o"])]
Switch = Parameter(negative="")
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
    Parameter(help="Where image sets lie; by default CALIBRANT_DATA, then the user's cache."),
]
CalibratorFile = Annotated[
    Path | None,
    Parameter(help="Calibrate the scores first; a rule must have been chosen on what this calibrator made."),
]
