"""A search for settings that are accurate, calibrated and cheap at once."""

from calibrant.sweep.outcome import SweepOutcome, run_sweep, sweep_from
from calibrant.sweep.output import failures, front_table, sweep_json, write_sweep
from calibrant.sweep.sweep import Sweep, SweepSpec

__all__ = [
    "Sweep",
    "SweepOutcome",
    "SweepSpec",
    "failures",
    "front_table",
    "run_sweep",
    "sweep_from",
    "sweep_json",
    "write_sweep",
]
