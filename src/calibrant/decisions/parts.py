"""Apply a policy to a folder of Parquet files, each part by itself: one file of decisions for each of them."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from calibrant.decisions.policy import Policy
from calibrant.decisions.stream import RouteCounts, Router
from calibrant.errors import InvalidInput
from calibrant.files import atomic_folder
from calibrant.predictions import DistinctIds, Kind, Scan
from calibrant.scale import Executor, fold

_Part = tuple[Scan, int, Path]


def route_parts(
    policy: Policy,
    source: str | Path,
    target: str | Path,
    *,
    kind: Kind | None = None,
    columns: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    executor: Executor | None = None,
) -> RouteCounts:
    """Route every row of a folder of Parquet files; the rows of all parts together are those that `route_file` writes.

    Args:
        policy: Calibrates and decides.
        source: As for `route_file`; each file of a folder is a part.
        target: A folder that does not exist yet: `part-00000.parquet` and so on, in the order of the parts. It appears
            when all of them are written.
        kind: What the scores are, for files that do not say.
        columns: Where the id has another name.
        keep: Names of other columns that are written, too.
        executor: Where parts are decided; None for this process, one after the other.
    """
    router = Router(policy, keep)
    opened = router.open(Path(source).absolute(), kind, columns)
    # A part without rows has no decisions.
    parts = [part for part in opened.parts() if part.n_rows != 0]
    if not parts:
        raise InvalidInput(f"{source} must have at least one row, got none.")
    secret = secrets.token_bytes(16)
    routed = _Routed(RouteCounts(0, 0), DistinctIds(secret))
    with atomic_folder(target) as draft:
        if executor is not None:
            executor.check_shared(Path(parts[0].where), draft)
        firsts = accumulate((part.n_rows or 0 for part in parts), initial=0)
        files = (draft / f"part-{number:05}.parquet" for number in range(len(parts)))
        work = partial(_route_part, router=router, secret=secret)
        fold(work, list(zip(parts, firsts, files, strict=False)), routed, executor=executor)
        routed.ids.check(opened.column)
    return routed.counts


@dataclass
class _Routed:
    """How many rows were routed, and their ids, which must be distinct over all parts."""

    counts: RouteCounts
    ids: DistinctIds

    def merge(self, part: "_Routed") -> None:
        """Add the next part."""
        automated = self.counts.automated + part.counts.automated
        self.counts = RouteCounts(self.counts.cases + part.counts.cases, automated)
        self.ids.merge(part.ids)


def _route_part(item: _Part, *, router: Router, secret: bytes) -> _Routed:
    part, first, target = item
    with router.writer(target, part) as write:
        return _Routed(*router.route(part, write, first=first, secret=secret))
