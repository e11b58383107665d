"""`calibrant report`: one page from runs and prediction files."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calibrant.cli._shared import (
    DataDir,
    Json,
    NBins,
    Out,
    PolicyFile,
    Reading,
    Repeated,
    Switch,
    answer,
    refuse_with_labels,
)
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid

if TYPE_CHECKING:
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
    groups: str | None = None,
    as_json: Json = False,
) -> None:
    """Write a self-contained page: what may be decided alone, how sure that is, where the model fails.

    Args:
        sources: Run folders and files with predictions; the first one is shown first.
        out: The page. Default: report.html in the run folder, for several sources in the working directory.
        name: Name of a source; give it once for each, or not at all.
        policy: Written by "calibrant route"; its promise is the headline. Default: the run's own.
        raw: Do not use the policy of the run.
        images: .npz with the test images (array images or x_test), for thumbnails of the mistakes.
        title: Heading of the page.
        threshold: Where the slider starts and what the table compares. Default: the rule's, else 0.95.
        n_resamples: Resamples behind the intervals; 0 for none. Default: 1000, and none above 100,000 cases.
        pictures: Whether images of single cases are shown.
        groups: A column: each model group by group too, with the worst group named.
    """
    from calibrant.decisions import MultiLabel, read_labels
    from calibrant.report import read_entries, write_label_report, write_report

    rules = MultiLabel.of_file(policy)
    if rules is not None:
        refuse_with_labels(name=name, images=images, title=title, **vars(reading))
        refuse_with_labels(threshold=threshold, groups=groups, raw=raw)
        if len(sources) != 1:
            raise invalid("sources", "be one table for rules of several labels", f"{len(sources)} of them")
        page = write_label_report(rules, read_labels(sources[0], rules.labels), out or Path("report.html"))
        answer(f"report: {page}", {"pages": [str(page)]}, as_json=as_json)
        return
    entries = _with_pictures(read_entries(sources, names=name or (), images=images, **reading.options()))
    settings: dict[str, Any] = {"threshold": threshold, "n_bins": n_bins, "n_resamples": n_resamples, "groups": groups}
    if title is not None:
        settings["title"] = title
    page = write_report(entries, out, policy=policy, raw=raw, pictures=pictures, data_dir=data_dir, **settings)
    answer(f"report: {page}", {"pages": [str(page)]}, as_json=as_json)


def _with_pictures(entries: "list[ReportEntry]") -> "list[ReportEntry]":
    """Open runs with the training half if it is installed: it can read the images of their data sets."""
    if find_spec("torch") is None or all(entry.run is None for entry in entries):
        return entries
    from calibrant.training import Run

    return [entry if entry.run is None else entry._replace(run=Run(entry.run.path)) for entry in entries]
