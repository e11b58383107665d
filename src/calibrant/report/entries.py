"""What the page is about: named predictions, with the run they come from where there is one."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from calibrant.errors import InvalidInput, invalid
from calibrant.predictions import Kind, Predictions, require_predictions
from calibrant.report.thumbnails import Pixels, read_images

if TYPE_CHECKING:
    from calibrant.training import Run

_FOR_ONE = 'For one model write {"its name": predictions}.'


class ReportEntry(NamedTuple):
    """One method on the page. A plain tuple does as well: `("nll", predictions)`.

    Attributes:
        name: How the method is called on the page.
        predictions: What it said about the test set.
        run: The run it comes from, for its recipe, environment, costs and pruning; None for predictions made elsewhere.
        images: uint8, (n, H, W) or (n, H, W, C), in the order of the predictions; without them the page shows those of
            the run's data set where that is on this machine.
    """

    name: str
    predictions: Predictions
    run: "Run | None" = None
    images: Pixels | None = None


def read_entries(
    sources: Sequence[str | Path],
    *,
    names: Sequence[str] = (),
    images: str | Path | None = None,
    kind: Kind | None = None,
) -> list[ReportEntry]:
    """Read run folders and prediction files.

    Args:
        sources: Run folders (their test predictions are read) and files that `Predictions.load` reads.
        names: One name a source; without them a run is called after its method and a file after itself.
        images: `.npz` with the images of the test set, for thumbnails.
        kind: What the scores are, for files that do not say.
    """
    if not sources:
        raise InvalidInput("report needs at least one run folder or file with predictions.")
    if names and len(names) != len(sources):
        raise invalid("name", f"be given once for each of the {len(sources)} sources, or not at all", len(names))
    given = None if images is None else read_images(images)
    entries = [_read(Path(source), given, kind) for source in sources]
    wanted = list(names) or _distinct([entry.name for entry in entries], [Path(source) for source in sources])
    return [entry._replace(name=name) for entry, name in zip(entries, wanted, strict=True)]


Entries = Iterable[ReportEntry | tuple[str, Predictions]] | Mapping[str, Predictions]


def check_entries(entries: Entries) -> list[ReportEntry]:
    """Plain tuples and the items of a mapping become entries; none, an empty name and a name twice are refused."""
    if not isinstance(entries, Iterable):
        raise _no_entries(entries)
    made = [_entry(entry) for entry in (entries.items() if isinstance(entries, Mapping) else entries)]
    if not made:
        raise InvalidInput("entries must hold at least one method, got none.")
    seen: set[str] = set()
    for entry in made:
        if not entry.name.strip() or entry.name in seen:
            raise invalid("entry names", "be distinct and not empty", repr(entry.name))
        seen.add(entry.name)
    return made


def check_methods(methods: Mapping[str, Predictions]) -> None:
    """Refuse what is no mapping from name to predictions, and an empty one."""
    if not isinstance(methods, Mapping):
        raise invalid("methods", "map names to predictions", type(methods).__name__, _FOR_ONE)
    if not methods:
        raise invalid("methods", "hold at least one method", "an empty mapping")
    for name, predictions in methods.items():
        require_predictions(predictions, f"predictions of {name!r}")


def _entry(given: ReportEntry | tuple[str, Predictions]) -> ReportEntry:
    if not isinstance(given, tuple) or not 2 <= len(given) <= len(ReportEntry._fields) or not isinstance(given[0], str):
        raise _no_entries(given)
    require_predictions(given[1], f"predictions of {given[0]!r}")
    return ReportEntry(*given)


def _no_entries(given: object) -> InvalidInput:
    return invalid("entries", "map names to predictions, or be pairs of them", type(given).__name__, _FOR_ONE)


def _read(source: Path, images: Pixels | None, kind: Kind | None) -> ReportEntry:
    from calibrant.training import Run

    # Also of RUN/predictions/test.npz: the file alone would be called "test" and lose its recipe.
    run = Run.of(source)
    if run is None:
        return ReportEntry(source.stem, Predictions.load(source, kind=kind), None, images)
    predictions = run.predictions("test") if source.is_dir() else Predictions.load(source, kind=kind)
    return ReportEntry(run.recipe.method.name, predictions, run, images)


def _distinct(names: list[str], sources: list[Path]) -> list[str]:
    """Names that occur twice get the folder they lie in, and a number where even that does not tell them apart."""
    told = [
        f"{name} ({source.name if source.is_dir() else source.parent.name})" if names.count(name) > 1 else name
        for name, source in zip(names, sources, strict=True)
    ]
    return [f"{name} #{told[: i + 1].count(name)}" if told.count(name) > 1 else name for i, name in enumerate(told)]
