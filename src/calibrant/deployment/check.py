"""Whether a written file decides as Python does, case by case."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.deployment.decider import Decider
from calibrant.deployment.graph import output_names
from calibrant.deployment.inputs import Arrays
from calibrant.deployment.onnx_file import open_session
from calibrant.errors import CheckFailed
from calibrant.predictions.rows import probabilities_of
from calibrant.tables import ShownFields

# Between the probabilities of two libraries for the same network.
TOLERANCE = 1e-5
# Between what the file and what Python make of the same scores; the file gives probabilities in float32.
_HEAD_TOLERANCE = 1e-6
_AT_ONCE = 256


@dataclass(frozen=True)
class ExportCheck(ShownFields):
    """How a file compares with Python on the same cases.

    Attributes:
        cases: How many were compared.
        automated: How many of them the rule automates.
        largest_difference: Of any probability of the network.
        decisions_differ: Cases whose decision differs, because a threshold lies between two roundings.
    """

    cases: int
    automated: int
    largest_difference: float
    decisions_differ: int


def compare_onnx(path: str | Path, decider: Decider, arrays: Arrays, *, name: str = "") -> ExportCheck:
    """Run a file with onnxruntime and compare it with a decider: the network's scores, then what is made of them.

    Args:
        path: The file.
        decider: The same model in Python.
        arrays: Cases by input. They need not lie in the ranges of the inputs; what the rule would automate and the file
            does not, because it was exported for other numbers, is a difference.
        name: What to call the file in messages.

    Raises:
        CheckFailed: The file computes something else, or automates nothing although the rule does.
    """
    place = name or str(path)
    session = open_session(Path(path).read_bytes(), place)
    total = len(next(iter(arrays.values())))
    automated = by_file = differ = 0
    largest = 0.0
    # The first alone as well: a batch of one takes other paths in the runtime.
    for rows in (slice(0, 1), *(slice(at, at + _AT_ONCE) for at in range(0, total, _AT_ONCE))):
        part = {key: values[rows] for key, values in arrays.items()}
        gap, python, file = _compare(session, decider, part, place)
        largest = max(largest, gap)
        if rows != slice(0, 1):
            automated, by_file = automated + int(python.sum()), by_file + int(file.sum())
            differ += int((python != file).sum())
    if automated and not by_file:
        why = "it differs"
        if _strange(decider, arrays):
            why = "the cases lie outside the ranges that it was exported for"
        raise CheckFailed(
            f"{place} was not written: the rule automates {automated} of {total} cases and the file none: {why}."
        )
    return ExportCheck(total, automated, largest, differ)


def _compare(
    session: Any, decider: Decider, part: Arrays, place: str
) -> tuple[float, NDArray[np.bool_], NDArray[np.bool_]]:
    """The largest difference, and which cases Python and the file automate."""
    contents = decider.contents
    probabilities, predicted, automate, scores, *listed = session.run(output_names(contents.policy), part)
    own = decider.score(part)
    gap = float(np.abs(probabilities_of(scores, contents.kind) - probabilities_of(own, contents.kind)).max())
    if not gap <= TOLERANCE:
        raise _disagree(place, f"probabilities differ by up to {gap:.2g} (allowed: {TOLERANCE:g})")
    judged = contents.judge(scores)
    routed = judged.routed
    inside = np.logical_and.reduce([spec.inside(part[spec.name]) for spec in contents.inputs])
    off = float(np.abs(judged.probabilities - probabilities).max())
    # A decision may differ only if the probability is the threshold itself, or two classes are equally probable.
    near = np.abs(routed.confidence - contents.policy.routing.thresholds[routed.predicted]) <= _HEAD_TOLERANCE
    top = np.sort(judged.probabilities, axis=1)
    tied = top[:, -1] - top[:, -2] <= _HEAD_TOLERANCE
    wrong = (automate != (routed.automate & inside)) & ~near & ~tied
    if not off <= _HEAD_TOLERANCE or wrong.any() or ((predicted != routed.predicted) & ~tied).any():
        raise _disagree(place, f"calibrated probabilities by up to {off:.2g}, decisions in {int(wrong.sum())} cases")
    if contents.policy.shortlist is not None:
        edge = np.abs(judged.probabilities - contents.policy.shortlist.least).min(axis=1) <= _HEAD_TOLERANCE
        if ((listed[0] != judged.listed).any(axis=1) & inside & ~edge & ~near & ~tied).any():
            raise _disagree(place, "shortlists differ")
    return gap, contents.judge(own).routed.automate, automate


def _strange(decider: Decider, arrays: Arrays) -> bool:
    return any(not spec.inside(arrays[spec.name]).all() for spec in decider.contents.inputs)


def _disagree(place: str, what: str) -> CheckFailed:
    return CheckFailed(f"{place} was not written: ONNX and Python disagree, {what}.")
