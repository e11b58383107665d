"""Many runs side by side: compare methods, vary one setting, record results, search for settings."""

from calibrant.studies.ablation import ABLATIONS, METHOD, ablation_spec, ablation_table
from calibrant.studies.by_group import group_tables
from calibrant.studies.controls import at_budgets, curve_line, find_controls, has_plan
from calibrant.studies.measuring import record_run, record_runs
from calibrant.studies.outputs import report_study, run_ablation, run_study
from calibrant.studies.records import Record, read_records, write_record
from calibrant.studies.result_tables import metric_label, paper_tables, percent
from calibrant.studies.study_folder import Study, plan_study
from calibrant.studies.study_spec import StudySpec, Variant
from calibrant.studies.summaries import Estimate, Results, estimate, summarise, summarise_row
from calibrant.studies.sweep_outputs import plan_sweep, run_sweep
from calibrant.studies.sweeps import Sweep, SweepSpec

__all__ = [
    "ABLATIONS",
    "METHOD",
    "Estimate",
    "Record",
    "Results",
    "Study",
    "StudySpec",
    "Sweep",
    "SweepSpec",
    "Variant",
    "ablation_spec",
    "ablation_table",
    "at_budgets",
    "curve_line",
    "estimate",
    "find_controls",
    "group_tables",
    "has_plan",
    "metric_label",
    "paper_tables",
    "percent",
    "plan_study",
    "plan_sweep",
    "read_records",
    "record_run",
    "record_runs",
    "report_study",
    "run_ablation",
    "run_study",
    "run_sweep",
    "summarise",
    "summarise_row",
    "write_record",
]
