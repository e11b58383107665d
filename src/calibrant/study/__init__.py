"""Many runs: compare methods, vary one setting, and what was measured, as tables."""

from calibrant.study.record import Record, record_run
from calibrant.study.spec import PlannedRun, StudySpec, Variant
from calibrant.study.study import Study
from calibrant.study.summary import Results, summarise

__all__ = ["PlannedRun", "Record", "Results", "Study", "StudySpec", "Variant", "record_run", "summarise"]
