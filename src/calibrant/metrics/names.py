"""The flat names of all metrics, and the one table that says which of them are better when higher."""

import numpy as np

METRICS = (
    "test_error",
    "nll",
    "brier",
    "ece",
    "ece_equal_mass",
    "mce",
    "classwise_ece",
    "smooth_ece",
    "debiased_ece",
    "ks",
    "auroc",
    "aurc",
)
SET_METRICS = ("share", "accuracy", "ece", "ece_inside")
HIGHER_IS_BETTER = frozenset({"accuracy", "auroc", "share"})
"""All other metrics are better when lower."""


def set_metric(metric: str, threshold: float) -> str:
    """The flat name of a metric of a high-confidence set; two thresholds never share one.

    >>> set_metric("share", 0.95), set_metric("share", 1.0), set_metric("share", 0.9999999)
    ('share@0.95', 'share@1', 'share@0.9999999')
    """
    return f"{metric}@{np.format_float_positional(threshold, trim='-')}"


def higher_is_better(name: str) -> bool:
    """Whether a metric is better when higher.

    >>> higher_is_better("share@0.95"), higher_is_better("ece")
    (True, False)
    """
    return name.partition("@")[0] in HIGHER_IS_BETTER
