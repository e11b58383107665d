"""Where a run keeps what is made from it, and which files a command may not write."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from calibrant.errors import invalid
from calibrant.files import read_json, sha256_of

CALIBRATOR = "calibrator.json"
RULE = "rule.json"
SHORTLIST = "shortlist.json"


def run_of(path: Path) -> Path | None:
    """The run folder that `path` is, or that it holds predictions of; None for a file of no run.

    >>> run_of(Path("somewhere/val.npz")) is None
    True
    """
    from calibrant.training import Run

    run = Run.of(path)
    return None if run is None else run.path


@dataclass(frozen=True)
class Origin:
    """What `calibrant calibrate` notes in a calibrator's file: SHA-256 of predictions; None where it does not say.

    Attributes:
        fitted_on: Those that it was fitted on.
        applied_to: Those that it was applied to.
        made: Those that came out.
        kind: "logits" or "probabilities": what it was fitted on.
    """

    fitted_on: str | None
    applied_to: str | None
    made: str | None
    kind: str | None

    @classmethod
    def of(cls, calibrator: Path) -> Self:
        """Read it from the file."""
        content = read_json(calibrator)
        known = content if isinstance(content, dict) else {}
        return cls(*(known[f.name] if isinstance(known.get(f.name), str) else None for f in fields(cls)))


def made_by(calibrator: Path) -> str | None:
    """SHA-256 of the predictions that `calibrant calibrate` wrote beside this calibrator; None where it did not."""
    return Origin.of(calibrator).made


def refuse_stale(run: Path, path: Path, fitted_on: str | None, *, calibrated: str | None = None) -> None:
    """Refuse what lies in a run and was fitted on predictions that are not the run's (any more).

    Args:
        run: The run folder.
        path: A calibrator or a rule.
        fitted_on: What it was fitted on; None where it does not say.
        calibrated: What the calibrator in use made, which a rule may be fitted on.
    """
    if fitted_on is None or fitted_on == calibrated or path.resolve().parent != run.resolve():
        return
    own = (run / "predictions" / f"{split}.npz" for split in ("val", "test"))
    if fitted_on not in {sha256_of(each) for each in own if each.is_file()}:
        command = "calibrate" if path.name == CALIBRATOR else "route fit"
        got = "others: of an earlier training, or calibrated by what is not here"
        way_out = f"Fit it again (calibrant {command} {run}), or move it away."
        raise invalid(str(path), "be fitted on predictions of its run", got, way_out)
