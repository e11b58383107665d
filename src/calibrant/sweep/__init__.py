"""A search for settings that are accurate, calibrated and cheap at once."""

from calibrant.sweep.outcome import SweepOutcome, run_sweep, sweep_from
from calibrant.sweep.sweep import Sweep, SweepSpec

__all__ = [
    "Sweep",
    "SweepOutcome",
    "SweepSpec",
    "run_sweep",
    "sweep_from",
]
