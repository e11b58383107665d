"""Which samples are trained on, and when: the paper's EMA-confidence pruning and its alternatives."""

from calibrant.pruning.audit import Note, PruningReport, Suspect
from calibrant.pruning.ordered import OrderDP, RePB, Selective
from calibrant.pruning.policies import (
    Choice,
    ErrorNorm,
    Forgetting,
    HighestConfidence,
    LowestConfidence,
    PruningPolicy,
    RandomSubset,
    Snapshot,
    Unbiased,
)
from calibrant.pruning.pruner import ConfidencePruner
from calibrant.pruning.resting import EasyHard, InfoBatch
from calibrant.pruning.sampling import Indexed, KeptSampler, steps_in
from calibrant.pruning.schedules import AtEpochs, Every, OnPlateau, Schedule
from calibrant.pruning.scoring import Scorer, Scoring, check_scoring
from calibrant.pruning.selection import Quota
from calibrant.runs import PruningAudit, load_audit

__all__ = [
    "AtEpochs",
    "Choice",
    "ConfidencePruner",
    "EasyHard",
    "ErrorNorm",
    "Every",
    "Forgetting",
    "HighestConfidence",
    "Indexed",
    "InfoBatch",
    "KeptSampler",
    "LowestConfidence",
    "Note",
    "OnPlateau",
    "OrderDP",
    "PruningAudit",
    "PruningPolicy",
    "PruningReport",
    "Quota",
    "RandomSubset",
    "RePB",
    "Schedule",
    "Scorer",
    "Scoring",
    "Selective",
    "Snapshot",
    "Suspect",
    "Unbiased",
    "check_scoring",
    "load_audit",
    "steps_in",
]
