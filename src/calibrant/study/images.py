"""How much of a difference the choice of test images alone explains, for runs of several seeds at once."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from calibrant.predictions import Predictions
from calibrant.study.record import Record

PredictionsOf = Callable[[Record, bool], Predictions]
"""Test predictions of a record's run, temperature-scaled or not."""
N_RESAMPLES = 400


class ImageNoise:
    """Paired bootstrap over test images. Each run is resampled once, all of them by the same draws.

    Args:
        predictions_of: Where test predictions come from.
    """

    def __init__(self, predictions_of: PredictionsOf) -> None:
        self.predictions_of = predictions_of
        self._drawn: dict[tuple[str, bool], dict[str, NDArray[np.float64]]] = {}

    def half_width(self, metric: str, ours: Sequence[Record], theirs: Sequence[Record], *, scaled: bool) -> float:
        """Half the 95 % interval of the mean difference over pairs of runs; 0 where it is not defined."""
        from calibrant.metrics import percentiles

        pairs = zip(ours, theirs, strict=True)
        differences = [self._values(b, scaled)[metric] - self._values(a, scaled)[metric] for b, a in pairs]
        ends = percentiles(np.mean(differences, axis=0), 0.95)
        return 0.0 if ends is None else (ends[1] - ends[0]) / 2

    def _values(self, record: Record, scaled: bool) -> dict[str, NDArray[np.float64]]:
        from calibrant.metrics import bootstrap

        key = (record.predictions_sha256["test"], scaled)
        if key not in self._drawn:
            predictions = self.predictions_of(record, scaled)
            self._drawn[key] = bootstrap(predictions, 10, (0.95,), n_resamples=N_RESAMPLES)
        return self._drawn[key]
