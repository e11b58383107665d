"""Many runs: compare methods, vary one setting, search for the best; and what was really measured, as tables."""

from calibrant.study.record import Record, record_run
from calibrant.study.spec import Cell, StudySpec, Variant
from calibrant.study.study import Study
from calibrant.study.summary import Comparison, summarise

__all__ = ["Cell", "Comparison", "Record", "Study", "StudySpec", "Variant", "record_run", "summarise"]
