"""A name such as `flsd+h+p-ema` becomes a loss and a pruning plan: the paper's table columns, and your own methods.

>>> plan = resolve("flsd+h+p-ema", data="cifar10", model="resnet50")
>>> plan.settings["huber_weight"], plan.pruning.policy, plan.pruning.schedule
(10.0, LowestConfidence(fraction=0.2, readmit=False, within='dataset'), Every(interval=5, start=80, until=None))
"""

from calibrant.training.methods.composing import without_plan
from calibrant.training.methods.plan import Method, Plan, PruningPlan, Setting
from calibrant.training.methods.resolving import describe, resolve
from calibrant.training.methods.table import BEST_AT_A_BUDGET, names, parts

__all__ = [
    "BEST_AT_A_BUDGET",
    "Method",
    "Plan",
    "PruningPlan",
    "Setting",
    "describe",
    "names",
    "parts",
    "resolve",
    "without_plan",
]
