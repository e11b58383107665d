"""What a calibrator was fitted on and applied to, so that later steps can tell what belongs to it."""

import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from calibrant.display import ShownFields
from calibrant.errors import CalibrantWarning
from calibrant.predictions import Kind, Origin, Predictions, RowsPart


@dataclass(frozen=True)
class Provenance(ShownFields):
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

    def in_sample(self, origin: Origin) -> str:
        """One sentence where calibrated scores of these predictions are in-sample; empty where nothing says so.

        Args:
            origin: Of the predictions that the calibrator is applied to, or of those that it made.
        """
        if self.fitted_on is None or origin.sha256 is None:
            return ""
        source = self.applied_to if origin.sha256 == self.made else origin.sha256
        if source != self.fitted_on:
            return ""
        if self.part is not None and origin.part == replace(self.part, index=1 - self.part.index):
            return ""
        some = "these cases" if self.part is None else "some of these cases"
        return f"In-sample: the calibrator was fitted on {some}, so its numbers look better here than on new cases."

    def to_dict(self) -> dict[str, Any]:
        """What is known, as plain JSON values."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


def warn_if_in_sample(provenance: Provenance, origin: Origin) -> None:
    """Warn where the calibrated scores of predictions are in-sample."""
    if sentence := provenance.in_sample(origin):
        where = "" if origin.path is None else f"{origin.path}: "
        warnings.warn(f"{where}{sentence}", CalibrantWarning, stacklevel=2)
