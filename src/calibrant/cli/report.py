"""`calibrant report`: one page from runs and prediction files."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from calibrant.cli._flags import KindFlag


def report(
    *sources: Path,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    name: Annotated[list[str] | None, Parameter(negative=())] = None,
    calibrator: Path | None = None,
    rule: Path | None = None,
    shortlist: Path | None = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    images: Path | None = None,
    kind: KindFlag = None,
    title: str = "What may the model decide alone?",
    threshold: float | None = None,
    n_bins: int = 15,
    n_resamples: int = 1000,
    pictures: bool = True,
    data_dir: Path | None = None,
    figures: Path | None = None,
) -> None:
    """Write a self-contained page: what may be decided alone, how sure that is, where the model fails.

    Args:
        sources: Run folders and files with predictions; the first one is shown first.
        out: The page to write. Default: report.html in the run folder, for several sources in the working directory.
        name: Name of a source on the page; give it once for each source, or not at all.
        calibrator: Written by "calibrant calibrate". Default: the run's own.
        rule: Written by "calibrant route fit"; its promise is the headline. Default: the run's own.
        shortlist: Written by "calibrant route shortlist" with this rule. Default: the run's own.
        raw: Leave out the calibrator, the rule and the shortlist that lie in the run.
        images: .npz with the test images (array images or x_test), for thumbnails of the mistakes.
        kind: What the scores are, for files that do not say.
        title: Heading of the page.
        threshold: Where the slider starts and what the table compares. Default: the rule's, else 0.95.
        n_bins: Bins of the reliability diagram and of every binned metric.
        n_resamples: Bootstrap resamples behind the intervals, at least 20; 0 for none.
        pictures: Whether images of single cases are shown; leave them out where they are private.
        data_dir: Where image sets lie; by default CALIBRANT_DATA, then the user's cache.
        figures: Folder for the same pictures as SVG and PNG files.
    """
    from calibrant.report import read_entries, save_figures, write_report

    console = Console()
    entries = read_entries(sources, names=name or (), images=images, kind=kind)
    parts: dict[str, Any] = {"calibrator": calibrator, "rule": rule, "raw": raw, "n_bins": n_bins}
    with console.status(f"Measuring {len(entries)} model{'s' if len(entries) > 1 else ''} ..."):
        page = write_report(
            entries,
            out,
            shortlist=shortlist,
            title=title,
            threshold=threshold,
            n_resamples=n_resamples,
            pictures=pictures,
            data_dir=data_dir,
            **parts,
        )
        made = [] if figures is None else save_figures(entries, figures, **parts)
    console.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)
    if made:
        console.print(f"figures: {len(made)} files in {figures}", soft_wrap=True, highlight=False, markup=False)
