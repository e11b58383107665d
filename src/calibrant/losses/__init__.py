"""What is minimised: objectives on logits that can be added and scaled, as in `Focal() + 10 * HuberCalibration()`."""

from calibrant.losses.base import Loss
from calibrant.losses.batch_statistic import DCA, MDCA, MMCE, HuberCalibration, SoftECE
from calibrant.losses.per_sample import (
    BSCEGRA,
    AdaFocal,
    Brier,
    CrossEntropy,
    DualFocal,
    EntropyPenalty,
    Focal,
    LogitMargin,
    PerSampleLoss,
    SampleDependentFocal,
)

__all__ = [
    "BSCEGRA",
    "DCA",
    "MDCA",
    "MMCE",
    "AdaFocal",
    "Brier",
    "CrossEntropy",
    "DualFocal",
    "EntropyPenalty",
    "Focal",
    "HuberCalibration",
    "LogitMargin",
    "Loss",
    "PerSampleLoss",
    "SampleDependentFocal",
    "SoftECE",
]
