"""Where predictions come from: what a calibrator or a rule that is fitted on them can say about itself later."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from calibrant.files import sha256_of
from calibrant.predictions.reader import parquet_parts


@dataclass(frozen=True)
class RowsPart:
    """One of the two parts that `Predictions.split` makes.

    Attributes:
        share: The first part's share of the rows.
        seed: Seed of the random choice.
        index: 0 for the first part, 1 for the rest.
    """

    share: float
    seed: int
    index: int


@dataclass(frozen=True)
class Origin:
    """A file, and what was done to the predictions that were read from it; everything is None where it is not known.

    Attributes:
        path: The file; None for predictions made in memory, and for rows of a file that were picked by hand.
        part: The part of its rows; None for all of them.
        calibrated_by: Digest of the calibrator that made the scores of those in the file; None for the file's own.
    """

    path: Path | None = None
    part: RowsPart | None = None
    calibrated_by: str | None = None

    @cached_property
    def sha256(self) -> str | None:
        """Digest of the file, or of the digests of its parts, read when it is first asked for."""
        if self.path is None:
            return None
        if self.path.is_file():
            return sha256_of(self.path)
        parts = "".join(sha256_of(part) for part in parquet_parts(self.path))
        return hashlib.sha256(parts.encode()).hexdigest()
