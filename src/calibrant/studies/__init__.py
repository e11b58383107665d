"""Many runs side by side: compare methods, vary one setting, record results, search for settings."""

from calibrant.studies.ablation import ablation_spec
from calibrant.studies.controls import with_controls
from calibrant.studies.records import Record, read_records, record_run, write_record
from calibrant.studies.referee import Referee
from calibrant.studies.study_folder import Study, plan_study
from calibrant.studies.study_outputs import report_study, run_ablation, run_study
from calibrant.studies.study_results import summarise
from calibrant.studies.study_spec import StudySpec, Variant
from calibrant.studies.sweeps import Sweep, SweepSpec, run_sweep

__all__ = [
    "Record",
    "Referee",
    "Study",
    "StudySpec",
    "Sweep",
    "SweepSpec",
    "Variant",
    "ablation_spec",
    "plan_study",
    "read_records",
    "record_run",
    "report_study",
    "run_ablation",
    "run_study",
    "run_sweep",
    "summarise",
    "with_controls",
    "write_record",
]
