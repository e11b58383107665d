"""Limits for a pipeline: an evaluation passes, or it is said which limit it breaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from calibrant.errors import invalid

# Everything else is a share.
_UNBOUNDED = ("max_nll", "max_brier")


class _Evaluation(Protocol):
    """What of `calibrant.metrics.Evaluation` is looked at: that room loads torch, for which `--help` must not wait."""

    @property
    def test_error(self) -> float: ...

    @property
    def thresholds(self) -> Sequence[Any]: ...

    def values(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Gates:
    """Limits, as fractions (0.02 for 2 %); None for no limit.

    Attributes:
        max_test_error: Largest test error.
        min_accuracy: Smallest accuracy.
        max_nll: Largest NLL.
        max_brier: Largest Brier score.
        max_ece: Largest ECE.
        max_mce: Largest MCE.
        max_classwise_ece: Largest class-wise ECE.
        max_smooth_ece: Largest smooth ECE.
        max_debiased_ece: Largest debiased ECE.
        max_ks: Largest KS error.
        max_aurc: Largest AURC.
        min_auroc: Smallest AUROC.
        min_share: Smallest share of rows at or above the first threshold.
        min_share_accuracy: Smallest accuracy of those rows.
        max_share_ece: Largest ECE of those rows.
    """

    max_test_error: float | None = None
    min_accuracy: float | None = None
    max_nll: float | None = None
    max_brier: float | None = None
    max_ece: float | None = None
    max_mce: float | None = None
    max_classwise_ece: float | None = None
    max_smooth_ece: float | None = None
    max_debiased_ece: float | None = None
    max_ks: float | None = None
    max_aurc: float | None = None
    min_auroc: float | None = None
    min_share: float | None = None
    min_share_accuracy: float | None = None
    max_share_ece: float | None = None

    def asked(self) -> dict[str, float]:
        """The limits that are set."""
        return {name: limit for name, limit in vars(self).items() if limit is not None}

    def check(self, thresholds: Sequence[float]) -> None:
        """Refuse limits that cannot hold: of a share outside of 0..1, or about the first of no thresholds."""
        for name, limit in self.asked().items():
            if "share" in name and not thresholds:
                raise invalid(name, "be used with thresholds", "none")
            if name not in _UNBOUNDED and not 0.0 <= limit <= 1.0:
                raise invalid(name, "be a fraction in 0..1", limit, "Write 0.02 for 2 %.")

    def broken(self, result: _Evaluation, *, name: str = "") -> list[str]:
        """One short sentence for each limit that does not hold; `name` says in it what was evaluated."""
        values = result.values()
        values["accuracy"] = 1.0 - result.test_error
        if result.thresholds:
            first = result.thresholds[0]
            values |= {"share": first.share, "share_accuracy": first.accuracy, "share_ece": first.ece}
        where, found = f"{name}: " if name else "", []
        for limit_name, limit in self.asked().items():
            side, metric = limit_name.split("_", maxsplit=1)
            value = values[metric]
            if value is None:
                found.append(f"{where}{metric} is not defined here, so {limit_name} cannot hold")
            elif (value > limit) if side == "max" else (value < limit):
                relation = "above" if side == "max" else "below"
                found.append(f"{where}{metric} {value:.6g} is {relation} the limit {limit:g}")
        return found
