"""`calibrant report`: one page from runs and prediction files."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calibrant.cli._shared import (
    DataDir,
    Json,
    NBins,
    OneOf,
    Out,
    PolicyFile,
    Reading,
    Repeated,
    Switch,
    answer,
    refuse_with_labels,
    steps,
)
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid

if TYPE_CHECKING:
    from calibrant.decisions import MultiLabel
    from calibrant.report import ReportEntry


def report(
    *sources: Path,
    out: Out = None,
    name: Annotated[list[str] | None, Repeated] = None,
    policy: PolicyFile = None,
    raw: Annotated[bool, Switch] = False,
    images: Path | None = None,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    title: str | None = None,
    threshold: float | None = None,
    n_bins: NBins = DEFAULT_N_BINS,
    n_resamples: int | None = None,
    pictures: bool = True,
    data_dir: DataDir = None,
    groups: Annotated[str | None, OneOf] = None,
    group_file: Annotated[Path | None, OneOf] = None,
    figures: Path | None = None,
    as_json: Json = False,
) -> None:
    """Write a self-contained page: what may be decided alone, how sure that is, where the model fails.

    Args:
        sources: Run folders and files with predictions; the first one is shown first. Or the folder of one study.
        out: The page to write. Default: report.html in the run folder, for several sources in the working directory.
        name: Name of a source on the page; give it once for each source, or not at all.
        policy: Written by "calibrant route fit" or "calibrant route labels"; its promise is the headline. Default: the
            run's own.
        raw: Do not use the policy of the run.
        images: .npz with the test images (array images or x_test), for thumbnails of the mistakes.
        title: Heading of the page.
        threshold: Where the slider starts and what the table compares. Default: the rule's, else 0.95.
        n_bins: Bins of the reliability diagram and of every binned metric.
        n_resamples: Resamples behind the intervals, at least 20; 0 for none. Default: 1000, and none above 100,000
            cases.
        pictures: Whether images of single cases are shown; leave them out if they are private.
        groups: A column of the predictions: each model group by group too, with the worst group named. Of a study the
            means over seeds.
        group_file: The same, if that column lies elsewhere: a CSV file with a column group, one row for each case in
            order.
        figures: Folder for the same pictures as SVG and PNG files.
    """
    from calibrant.decisions import MultiLabel
    from calibrant.report import read_entries, read_groups, save_figures, write_report
    from calibrant.report.style import require_matplotlib

    shared: dict[str, Any] = {"threshold": threshold, "n_resamples": n_resamples, "pictures": pictures}
    shared |= {"data_dir": data_dir, "n_bins": n_bins, "groups": groups}
    if title is not None:
        shared["title"] = title
    if group_file is not None:
        shared["groups"] = read_groups(group_file)
    if any((path / "study.toml").is_file() for path in sources):
        from calibrant.studies import Study, report_study

        if len(sources) > 1:
            raise invalid("sources", "be one study alone, or runs and files", f"{len(sources)} sources")
        not_for_studies = {"policy": policy, "name": name, "images": images, "figures": figures}
        for argument, value in (not_for_studies | reading.options()).items():
            if value is not None:
                raise invalid(argument, "be left out for a study, whose runs have their own", str(value))
        _say_written(report_study(Study(sources[0]), out, raw=raw, **shared), [], as_json=as_json)
        return
    rules = MultiLabel.of_file(policy)
    if rules is not None:
        refuse_with_labels(name=name, images=images, title=title, **vars(reading))
        refuse_with_labels(threshold=threshold, groups=groups, group_file=group_file, figures=figures, raw=raw)
        _say_written([_page_of_labels(rules, sources, out)], [], as_json=as_json)
        return
    if figures is not None:
        require_matplotlib()
    entries = _with_pictures(read_entries(sources, names=name or (), images=images, **reading.options()))
    parts: dict[str, Any] = {"policy": policy, "raw": raw}
    made: Sequence[Path] = []
    with steps() as progress:
        progress("Measuring", 0, None)
        page = write_report(entries, out, **shared, **parts)
        if figures is not None:
            made = save_figures(entries, figures, n_bins=n_bins, groups=shared["groups"], **parts)
    _say_written([page], made, as_json=as_json)


def _page_of_labels(rules: "MultiLabel", sources: Sequence[Path], out: Path | None) -> Path:
    from calibrant.report import write_label_report

    if len(sources) != 1:
        raise invalid("sources", "be one table for rules of several labels", f"{len(sources)} of them")
    return write_label_report(rules, rules.read(sources[0]), out or Path("report.html"))


def _with_pictures(entries: "list[ReportEntry]") -> "list[ReportEntry]":
    """Open runs with the training half if it is installed: it can read the images of their data sets."""
    if find_spec("torch") is None or all(entry.run is None for entry in entries):
        return entries
    from calibrant.training import Run

    shown = []
    for entry in entries:
        if entry.run is not None:
            entry = entry._replace(run=Run(entry.run.path))  # noqa: PLW2901
        shown.append(entry)
    return shown


def _say_written(pages: Sequence[Path], figures: Sequence[Path], *, as_json: bool) -> None:
    lines = [*(f"report: {page}" for page in pages), *(f"figure: {figure}" for figure in figures)]
    answer("\n".join(lines), {"pages": [*map(str, pages)], "figures": [*map(str, figures)]}, as_json=as_json)
