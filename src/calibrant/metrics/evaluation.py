"""`evaluate`: every metric of one set of predictions in one typed result."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from calibrant.metrics.binning import check_bins, reliability_bins
from calibrant.metrics.confident import ConfidentSet, confident_set
from calibrant.metrics.errors import debiased_calibration_error, equal_mass_calibration_error
from calibrant.metrics.noise import noise_floor
from calibrant.metrics.proper import error_rate, negative_log_likelihood
from calibrant.metrics.ranking import aurc_of, auroc_of, ks_of, sort_rows
from calibrant.metrics.smooth import smooth_calibration_error
from calibrant.metrics.totals import class_totals
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class Evaluation:
    """All metrics as fractions. `auroc` is None where all rows are right or all wrong."""

    n: int
    classes: int
    n_bins: int
    test_error: float
    nll: float
    brier: float
    ece: float
    ece_equal_mass: float
    mce: float
    classwise_ece: float
    smooth_ece: float
    debiased_ece: float
    ks: float
    auroc: float | None
    aurc: float
    noise_floor: float
    noise_floor_95: float
    thresholds: tuple[ConfidentSet, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite NLL becomes None because JSON has no infinity."""
        content = asdict(self)
        content["thresholds"] = list(content["thresholds"])
        if math.isinf(self.nll):
            content["nll"] = None
        return content

    def to_json(self) -> str:
        """The result as JSON, in fractions."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        content["thresholds"] = tuple(ConfidentSet(**row) for row in content["thresholds"])
        content["nll"] = math.inf if content["nll"] is None else content["nll"]
        return cls(**content)


def evaluate(
    predictions: Predictions, n_bins: int = 10, *, thresholds: Sequence[float] = (0.95, 0.99), seed: int = 0
) -> Evaluation:
    """Compute every metric.

    Args:
        predictions: What the model said.
        n_bins: Bins of every binned metric; the paper uses 10.
        thresholds: The deltas of the high-confidence sets.
        seed: Of the noise floor's simulation.
    """
    check_bins(n_bins)
    bins = reliability_bins(predictions, n_bins)
    totals = class_totals(predictions, n_bins)
    rows = sort_rows(predictions)
    floor = noise_floor(predictions, n_bins, seed=seed)
    return Evaluation(
        n=len(predictions),
        classes=predictions.classes,
        n_bins=n_bins,
        test_error=error_rate(predictions),
        nll=negative_log_likelihood(predictions),
        brier=float(totals.brier.mean()),
        ece=bins.expected_error,
        ece_equal_mass=equal_mass_calibration_error(predictions, n_bins),
        mce=bins.maximum_error,
        classwise_ece=totals.classwise_error,
        smooth_ece=smooth_calibration_error(predictions),
        debiased_ece=debiased_calibration_error(predictions, n_bins),
        ks=ks_of(rows),
        auroc=auroc_of(rows),
        aurc=aurc_of(rows),
        noise_floor=floor.mean,
        noise_floor_95=floor.upper,
        thresholds=tuple(confident_set(predictions, delta, n_bins=n_bins) for delta in thresholds),
    )
