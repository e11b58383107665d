"""Do our numbers agree with the paper's, as far as noise lets one say?"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calibrant.errors import did_you_mean, invalid
from calibrant.files import read_toml
from calibrant.studies import Record
from calibrant.studies.study_results import Estimate, estimate
from paper.numbers import METRICS, PaperRow, paper_rows

Verdict = Literal["agrees", "ours is lower", "ours is higher", "not defined"]
_ROUNDING = 0.00005


@dataclass(frozen=True)
class Agreement:
    """One number of the paper beside ours, as fractions.

    Attributes:
        metric: Flat name.
        paper: As printed.
        ours: Mean and spread of our runs.
        tolerance: What two honest experiments may differ by; None where ours is not defined.
        verdict: The outcome.
    """

    metric: str
    paper: float
    ours: Estimate
    tolerance: float | None
    verdict: Verdict


RULE = (
    "The paper's number is one run, ours the mean of n. With s the standard deviation of one run (the larger of the "
    "spread over our seeds and the standard error over test images, which is the width of a 95 % interval divided by "
    "3.92; where that interval lies is not used), they agree if they differ by no more than "
    "1.96 s √(1 + 1/n) plus half a printed digit, or, for ECE, if both lie below the 95 % quantile of what "
    "perfect calibration shows by chance."
)


def agreement(row: PaperRow, records: Sequence[Record], metric: str) -> Agreement:
    """Compare one number; `RULE` says how."""
    paper = row.value(metric)
    deviations = [record.deviation(metric) for record in records]
    ours = estimate([record.value(metric) for record in records], deviations)
    if ours.mean is None:
        return Agreement(metric, paper, ours, None, "not defined")
    known = [each for each in deviations if each is not None]
    deviation = max(
        ours.spread if ours.over == "seeds" and ours.spread is not None else 0.0,
        statistics.fmean(known) if known else 0.0,
    )
    tolerance = 1.96 * deviation * math.sqrt(1.0 + 1.0 / len(records)) + _ROUNDING
    difference = ours.mean - paper
    floor = min(record.evaluation().noise_floor_95 for record in records)
    both_chance = metric == "ece" and max(paper, ours.mean) <= floor
    if both_chance or abs(difference) <= tolerance:
        return Agreement(metric, paper, ours, tolerance, "agrees")
    return Agreement(metric, paper, ours, tolerance, "ours is lower" if difference < 0 else "ours is higher")


Reasons = Mapping[str, Mapping[str, str]]


def reason(reasons: Reasons, row: PaperRow, metric: str) -> str:
    """Why a number differs, for that metric or for the whole row; empty where nobody has said so yet."""
    found = reasons.get(key_of(row), {})
    return found.get(metric, found.get("all", ""))


def of_table(reasons: Reasons, data: str, model: str) -> str:
    """What explains numbers of every row on a data set; empty where nothing does."""
    return reasons.get(f"{data}/{model}", {}).get("all", "")


def key_of(row: PaperRow) -> str:
    """How `reasons.toml` names a row of the paper."""
    return f"{row.data}/{row.model}/{row.method}"


def load_reasons(path: str | Path) -> Reasons:
    """Read `reasons.toml`: for each row of the paper, or for a data set and a network, sentences by metric or `all`."""
    if not Path(path).exists():
        return {}
    content = read_toml(path, "reasons")
    tables = {f"{row.data}/{row.model}" for row in paper_rows()}
    rows, metrics = [*(key_of(row) for row in paper_rows()), *sorted(tables)], (*METRICS, "all")
    for key, sentences in content.items():
        if key not in rows:
            raise invalid(str(path), "name rows of the paper", repr(key), did_you_mean(key, rows))
        if not isinstance(sentences, dict):
            raise invalid(f"{path}, {key}", "be a table of sentences", repr(sentences))
        for metric, sentence in sentences.items():
            if metric not in metrics or not isinstance(sentence, str):
                raise invalid(f"{path}, {key}", f"map {', '.join(metrics)} to sentences", f"{metric!r} = {sentence!r}")
    return content
