"""Flags that several commands share, each with one name and one explanation."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calibrant.predictions import Kind

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, in fractions, for machines.")]
KindFlag = Annotated[
    Kind | None, Parameter(name="--kind", help="What the scores are, for files that do not say: logits, probabilities.")
]
Out = Annotated[Path | None, Parameter(name=["--out", "-o"])]
Switch = Parameter(negative="")
Many = Parameter(consume_multiple=True, negative="")
Repeated = Parameter(negative="")
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
