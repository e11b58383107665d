"""Where a run keeps what is made from it, and which files a command may not write."""

from collections.abc import Iterable
from pathlib import Path

from calibrant.errors import invalid
from calibrant.files import read_json, sha256_of

CALIBRATOR = "calibrator.json"
RULE = "rule.json"


def run_of(path: Path) -> Path | None:
    """The run folder that `path` is, or that it holds predictions of; None for a file of no run.

    >>> run_of(Path("somewhere/val.npz")) is None
    True
    """
    if path.is_dir():
        return path
    run = path.parent.parent
    return run if path.parent.name == "predictions" and (run / "recipe.toml").is_file() else None


def made_by(calibrator: Path) -> str | None:
    """SHA-256 of the predictions that `calibrant calibrate` wrote beside this calibrator; None where it did not."""
    return _note(calibrator, "made")


def refuse_stale(run: Path, path: Path, fitted_on: str | None) -> None:
    """Refuse what lies in a run and was fitted on predictions that the run no longer holds: it was trained again."""
    if path.parent != run or fitted_on is None:
        return
    if fitted_on not in {sha256_of(each) for each in (run / "predictions").glob("*.npz")}:
        command = "calibrate" if path.name == CALIBRATOR else "route fit"
        way_out = f"Fit it again (calibrant {command} {run}), or move it away."
        raise invalid(
            str(path), "be fitted on predictions of its run", "others, of an earlier training perhaps", way_out
        )


def calibrator_fitted_on(calibrator: Path) -> str | None:
    """SHA-256 of the predictions that `calibrant calibrate` fitted this calibrator on; None where it does not say."""
    return _note(calibrator, "fitted_on")


def _note(calibrator: Path, key: str) -> str | None:
    content = read_json(calibrator)
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, str) else None


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse an output that is one of the command's inputs, also by another name (a link, another spelling)."""
    read = list(inputs)
    for output in outputs:
        for given in read:
            if _same(output, given):
                rule = f"not be {given}, which this command reads"
                raise invalid("--out", rule, str(output), "Name another file.")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()
