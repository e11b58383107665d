"""A name such as `flsd+h+p-ema` becomes a loss and a pruning plan: the paper's table columns, and your own methods.

>>> plan = resolve("flsd+h+p-ema", data="cifar10", model="resnet50")
>>> plan.settings["huber_weight"], plan.pruning["policy"], plan.pruning["schedule"]
(10.0, LowestConfidence(fraction=0.2, readmit=False, within='dataset'), Every(interval=5, start=80))
"""

from calibrant.training.methods.method_table import Plan, names, parts
from calibrant.training.methods.resolving import describe, resolve, without_plan

__all__ = ["Plan", "describe", "names", "parts", "resolve", "without_plan"]
