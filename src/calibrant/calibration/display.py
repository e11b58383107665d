"""What a notebook shows of a calibrator."""

from typing import TYPE_CHECKING

from calibrant.display import Overview

if TYPE_CHECKING:
    from calibrant.calibration.base import Calibrator


def calibrator_html(calibrator: "Calibrator") -> str:
    """Its parameters, and what its fit came to."""
    rows: list[tuple[str, object]] = list(calibrator.get_params().items())
    if not hasattr(calibrator, "summary_"):
        return Overview(f"{type(calibrator).__name__}, not fitted yet", rows).html()
    summary = calibrator.summary_
    temperature = getattr(calibrator, "temperature_", None)
    rows += [
        ("classes", calibrator.n_classes_),
        *([] if temperature is None else [("temperature", f"{temperature:.4f}")]),
        ("fitted on", f"{summary.cases:,} cases"),
        ("their NLL before", f"{summary.nll_before:.4f}"),
        # The same cases: what it is worth on others is not known from them.
        ("their NLL after", f"{summary.nll_after:.4f} (the cases of the fit themselves)"),
        *([("map", "changes nothing")] if calibrator.identity_ else []),
        *([("fit", "did not converge")] if not summary.converged else []),
        *(("note", note) for note in summary.notes),
    ]
    return Overview(type(calibrator).__name__, rows).html()
