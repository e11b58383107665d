"""Many runs side by side: compare methods, vary one setting, record results, search for settings."""

from calibrant.studies.ablation import (
    ABLATIONS,
    METHOD,
    ablation_figure,
    ablation_spec,
    ablation_table,
    choose_by_validation,
)
from calibrant.studies.budgets import at_budgets
from calibrant.studies.control import against_controls, find_controls, has_plan
from calibrant.studies.curve import budget_figure, curve_line
from calibrant.studies.demo import run_demo
from calibrant.studies.groups import group_tables, read_groups
from calibrant.studies.outcome import Outcome, Recorded, plan_study, record_runs, run_ablation, run_study
from calibrant.studies.output import holds_study, report_study, runs_csv
from calibrant.studies.record import Record, read_records, record_run, write_record
from calibrant.studies.spec import PlannedRun, StudySpec, Variant
from calibrant.studies.study import Study
from calibrant.studies.summary import AgainstControl, Estimate, Results, estimate, summarise, summarise_row
from calibrant.studies.sweep import Sweep, SweepSpec
from calibrant.studies.sweep_outcome import SweepOutcome, run_sweep, sweep_from
from calibrant.studies.tables import metric_label, paper_tables, percent

__all__ = [
    "ABLATIONS",
    "METHOD",
    "AgainstControl",
    "Estimate",
    "Outcome",
    "PlannedRun",
    "Record",
    "Recorded",
    "Results",
    "Study",
    "StudySpec",
    "Sweep",
    "SweepOutcome",
    "SweepSpec",
    "Variant",
    "ablation_figure",
    "ablation_spec",
    "ablation_table",
    "against_controls",
    "at_budgets",
    "budget_figure",
    "choose_by_validation",
    "curve_line",
    "estimate",
    "find_controls",
    "group_tables",
    "has_plan",
    "holds_study",
    "metric_label",
    "paper_tables",
    "percent",
    "plan_study",
    "read_groups",
    "read_records",
    "record_run",
    "record_runs",
    "report_study",
    "run_ablation",
    "run_demo",
    "run_study",
    "run_sweep",
    "runs_csv",
    "summarise",
    "summarise_row",
    "sweep_from",
    "write_record",
]
