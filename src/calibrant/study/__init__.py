"""Many runs: compare methods, vary one setting, and what was measured, as tables."""

from calibrant.study.ablation import (
    ABLATIONS,
    METHOD,
    ablation_figure,
    ablation_spec,
    ablation_table,
    choose_by_validation,
)
from calibrant.study.budgets import at_budgets
from calibrant.study.control import against_controls, find_controls, has_plan
from calibrant.study.curve import budget_figure, curve_line
from calibrant.study.demo import run_demo
from calibrant.study.groups import group_tables, read_groups
from calibrant.study.outcome import Outcome, Recorded, plan_study, record_runs, run_ablation, run_study
from calibrant.study.output import holds_study, report_study, runs_csv
from calibrant.study.record import Record, read_records, record_run, write_record
from calibrant.study.spec import PlannedRun, StudySpec, Variant
from calibrant.study.study import Study
from calibrant.study.summary import AgainstControl, Estimate, Results, estimate, summarise, summarise_row
from calibrant.study.tables import metric_label, paper_tables, percent

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
    "runs_csv",
    "summarise",
    "summarise_row",
    "write_record",
]
