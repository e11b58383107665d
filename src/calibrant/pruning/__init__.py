"""Which samples are trained on, and when: the paper's EMA-confidence pruning and its alternatives."""

from calibrant.pruning.policies import (
    Choice,
    EasyHard,
    HighestConfidence,
    InfoBatch,
    LowestConfidence,
    OrderDP,
    PruningPolicy,
    RandomSubset,
    Selective,
    Unbiased,
)
from calibrant.pruning.pruner import ConfidencePruner
from calibrant.pruning.sampling import Indexed
from calibrant.pruning.timetable import Every
from calibrant.runs import load_audit

__all__ = [
    "Choice",
    "ConfidencePruner",
    "EasyHard",
    "Every",
    "HighestConfidence",
    "Indexed",
    "InfoBatch",
    "LowestConfidence",
    "OrderDP",
    "PruningPolicy",
    "RandomSubset",
    "Selective",
    "Unbiased",
    "load_audit",
]
