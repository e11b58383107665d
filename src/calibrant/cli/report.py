"""`calibrant report`: one page from runs and prediction files."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from calibrant.cli._flags import KindFlag


def report(
    *sources: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("report.html"),
    name: Annotated[list[str] | None, Parameter(negative=())] = None,
    images: Path | None = None,
    kind: KindFlag = None,
    title: str = "What may the model decide alone?",
    threshold: float = 0.95,
    bins: int = 10,
    resamples: int = 1000,
    pictures: bool = True,
    figures: Path | None = None,
) -> None:
    """Write a self-contained page: what may be decided alone, how sure that is, where the model fails.

    Args:
        sources: Run folders and files with predictions; the first one is shown first.
        output: The page to write.
        name: Name of a source on the page; give it once for each source, or not at all.
        images: .npz with the test images (array images or x_test), for thumbnails of the mistakes.
        kind: What the scores are, for files that do not say.
        title: Heading of the page.
        threshold: Where the slider starts and what the table compares.
        bins: Bins of the reliability diagram and of every binned metric.
        resamples: Bootstrap resamples behind the intervals, at least 20; 0 for none.
        pictures: Whether images of single cases are shown; leave them out where they are private.
        figures: Folder for the same pictures as SVG and PNG files.
    """
    from calibrant.report import read_entries, save_figures, write_report

    console = Console()
    entries = read_entries(sources, names=name or (), images=images, kind=kind)
    with console.status(f"Measuring {len(entries)} method{'s' if len(entries) > 1 else ''} ..."):
        settings: dict[str, Any] = {"threshold": threshold, "n_bins": bins, "n_resamples": resamples}
        page = write_report(entries, output, title=title, pictures=pictures, **settings)
        made = [] if figures is None else save_figures(entries, figures, n_bins=bins)
    console.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)
    if made:
        console.print(f"figures: {len(made)} files in {figures}", soft_wrap=True, highlight=False, markup=False)
