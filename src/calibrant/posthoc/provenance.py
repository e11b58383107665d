"""What a calibrator was fitted on and applied to, so that later steps can tell what belongs to it."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from calibrant.predictions import Kind, Origin, Predictions, RowsPart


@dataclass(frozen=True)
class Provenance:
    """Everything is None where it is not known: for a fit on arrays, or for a file that does not say.

    Attributes:
        kind: What the scores of the fit set were.
        class_names: The classes of the fit set in their order; empty for classes without names.
        fitted_on: SHA-256 of the file that the fit set was read from.
        part: Which rows of that file; None for all.
        applied_to: SHA-256 of predictions that it was applied to.
        made: SHA-256 of the predictions that came out.
    """

    kind: Kind | None = None
    class_names: tuple[str, ...] | None = None
    fitted_on: str | None = None
    part: RowsPart | None = None
    applied_to: str | None = None
    made: str | None = None

    @classmethod
    def of(cls, predictions: Predictions) -> Self:
        """What predictions say about themselves."""
        origin = predictions.origin
        return cls(predictions.kind, predictions.class_names or (), origin.sha256, origin.part)

    def applied(self, source: str | Path | None, target: str | Path | None) -> Self:
        """The same with digests of two files: predictions, and what the calibrator made of them."""
        return replace(
            self,
            applied_to=self.applied_to if source is None else Origin(Path(source)).sha256,
            made=self.made if target is None else Origin(Path(target)).sha256,
        )

    def to_dict(self) -> dict[str, Any]:
        """What is known, as plain JSON values."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}
