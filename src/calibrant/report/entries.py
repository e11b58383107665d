"""What the page is about: named predictions, with the run they come from where there is one."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from calibrant.errors import InvalidInput, invalid, printable
from calibrant.predictions import Kind, Predictions, require_predictions
from calibrant.report.thumbnails import Pixels, read_images
from calibrant.runs import RunFolder


class ReportEntry(NamedTuple):
    """One method on the page.

    Attributes:
        name: How the method is called on the page.
        predictions: What it said about the test set.
        run: The run it comes from, for its recipe, environment, costs and pruning; None for predictions made elsewhere.
        images: uint8, (n, H, W) or (n, H, W, C), in the order of the predictions; without them the page shows those of
            the run's data set where that is on this machine.
    """

    name: str
    predictions: Predictions
    run: RunFolder | None = None
    images: Pixels | None = None


Source = RunFolder | Predictions | str | Path | ReportEntry
Sources = Source | Iterable[Source | tuple[str, Source]] | Mapping[str, Source]
_FOR_ONE = 'For one model write {"its name": predictions}.'
_ALLOWED = "be a run, a path, predictions, or a list of these"


def read_entries(
    sources: Sources,
    *,
    names: Sequence[str] = (),
    images: str | Path | None = None,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[ReportEntry]:
    """Read runs and predictions.

    Args:
        sources: A run, its folder, a file that `Predictions.load` reads, predictions, a `ReportEntry`, or several of
            these; a mapping or pairs give them names. Of a run the test predictions are read.
        names: One name for each source; without them a run is called after its method and a file after itself.
        images: `.npz` with the images of the test set, for thumbnails.
        kind: What the scores are, for files that do not say.
        columns: Where the target and the id have other names in tables: `{"target": "label", "id": "case"}`.
    """
    given = None if images is None else read_images(images)
    entries = [_entry(source, kind, columns) for source in _listed(sources)]
    if not entries:
        raise InvalidInput("report needs at least one run or file with predictions.")
    if names and len(names) != len(entries):
        raise invalid("name", f"be given once for each of the {len(entries)} sources, or not at all", len(names))
    called = [printable(name) for name in names or _distinct(entries)]
    if any(not name.strip() for name in called) or len(set(called)) < len(called):
        raise invalid("names", "be distinct and not empty", called)
    made = [entry._replace(name=name) for entry, name in zip(entries, called, strict=True)]
    return made if given is None else [entry._replace(images=given) for entry in made]


def check_methods(methods: Mapping[str, Predictions]) -> None:
    """Refuse what is no mapping from name to predictions, and an empty one."""
    if not isinstance(methods, Mapping):
        raise invalid("methods", "map names to predictions", type(methods).__name__, _FOR_ONE)
    if not methods:
        raise invalid("methods", "hold at least one method", "an empty mapping")
    for name, predictions in methods.items():
        require_predictions(predictions, f"predictions of {name!r}")


def _listed(sources: Sources) -> list[Source | tuple[str, Source]]:
    if isinstance(sources, RunFolder | Predictions | str | Path | ReportEntry):
        return [sources]
    if isinstance(sources, Mapping):
        return list(sources.items())
    if not isinstance(sources, Iterable):
        raise invalid("sources", _ALLOWED, type(sources).__name__)
    return list(sources)


def _entry(source: Source | tuple[str, Source], kind: Kind | None, columns: Mapping[str, str] | None) -> ReportEntry:
    if isinstance(source, ReportEntry):
        require_predictions(source.predictions, f"predictions of {source.name!r}")
        return source
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], str):
        return _entry(source[1], kind, columns)._replace(name=source[0])
    if isinstance(source, RunFolder):
        return ReportEntry(source.method, source.predictions("test"), source)
    if isinstance(source, Predictions):
        where = source.origin.path
        return ReportEntry("the model" if where is None else where.stem, source)
    if not isinstance(source, str | Path):
        raise invalid("sources", _ALLOWED, type(source).__name__)
    return _read(Path(source), kind, columns)


def _read(path: Path, kind: Kind | None, columns: Mapping[str, str] | None) -> ReportEntry:
    # Also of RUN/predictions/test.npz: the file alone would be called "test" and lose its recipe.
    run = RunFolder.of(path)
    if run is None:
        return ReportEntry(path.stem, Predictions.load(path, kind=kind, columns=columns))
    if path.is_dir():
        return _entry(run, kind, columns)
    return ReportEntry(run.method, Predictions.load(path, kind=kind, columns=columns), run)


def _distinct(entries: list[ReportEntry]) -> list[str]:
    """Names that occur twice get the folder they lie in, and a number where even that does not tell them apart."""
    names = [entry.name for entry in entries]
    told = [_told(entry) if names.count(entry.name) > 1 else entry.name for entry in entries]
    return [f"{name} #{told[: i + 1].count(name)}" if told.count(name) > 1 else name for i, name in enumerate(told)]


def _told(entry: ReportEntry) -> str:
    if entry.run is not None:
        return f"{entry.name} ({entry.run.path.name})"
    where = entry.predictions.origin.path
    return entry.name if where is None else f"{entry.name} ({where.parent.name})"
