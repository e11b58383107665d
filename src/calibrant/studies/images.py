"""How much of a difference the choice of test images alone explains, for runs of several seeds at once."""

from collections.abc import Callable, Sequence

import numpy as np

from calibrant.metrics import Comparison, Resampled, compare, evaluate, percentiles, resample_models
from calibrant.predictions import Predictions
from calibrant.studies.record import Record

PredictionsOf = Callable[[Record, bool], Predictions]
"""Test predictions of a record's run, temperature-scaled or not."""
N_RESAMPLES = 400


class ImageNoise:
    """Paired differences over test images. Each run is resampled once, all of them by the same draws.

    Args:
        predictions_of: Where test predictions come from.
    """

    def __init__(self, predictions_of: PredictionsOf) -> None:
        self._predictions_of = predictions_of
        self._resampled: dict[tuple[str, bool], Resampled] = {}
        self._compared: dict[tuple[str, str, bool], Comparison] = {}

    def comparison(self, ours: Record, theirs: Record, *, scaled: bool) -> Comparison:
        """What `compare` says of one run and another, made once for all metrics."""
        key = (ours.predictions_sha256["test"], theirs.predictions_sha256["test"], scaled)
        if key not in self._compared:
            both = (self._predictions_of(each, scaled) for each in (theirs, ours))
            self._compared[key] = compare(*both, n_bins=10, n_resamples=N_RESAMPLES)
        return self._compared[key]

    def half_width(self, metric: str, ours: Sequence[Record], theirs: Sequence[Record], *, scaled: bool) -> float:
        """How far chance may move the mean difference over pairs of runs to either side; 0 where it is not defined.

        Where draws cannot be trusted (calibration errors, high-confidence sets) it is that of one pair, on average: the
        noise of the images is taken to be the same in every seed.
        """
        pairs = [(self._of(b, scaled), self._of(a, scaled)) for b, a in zip(ours, theirs, strict=True)]
        if all(each.range(metric) is None for pair in pairs for each in pair):
            ends = percentiles(np.mean([b.draws[metric] - a.draws[metric] for b, a in pairs], axis=0), 0.95)
            return 0.0 if ends is None else (ends[1] - ends[0]) / 2
        distances = []
        for b, a in pairs:
            own, base = (each.evaluation.values()[metric] for each in (b, a))
            ends = b.difference(a, metric)
            if ends is None or own is None or base is None:
                return 0.0
            distances.append(max(own - base - ends[0], ends[1] - (own - base)))
        return float(np.mean(distances))

    def _of(self, record: Record, scaled: bool) -> Resampled:
        key = (record.predictions_sha256["test"], scaled)
        if key not in self._resampled:
            predictions = self._predictions_of(record, scaled)
            evaluation = evaluate(predictions, 10, thresholds=(0.95,))
            (self._resampled[key],) = resample_models([predictions], [evaluation], n_resamples=N_RESAMPLES)
        return self._resampled[key]
