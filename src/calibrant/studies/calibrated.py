"""The runs of a study as their own calibrators make them, beside the raw figures of the other tables."""

from calibrant.metrics import Evaluation, evaluate
from calibrant.report import Grid
from calibrant.studies.study import Study
from calibrant.studies.summary import estimate
from calibrant.studies.tables import percent
from calibrant.training import Run

_COLUMNS = (("TE", "test_error"), ("ECE", "ece"), ("AUROC", "auroc"), ("ECE(S95)", "ece@0.95"), ("|S95|", "share@0.95"))
_CAPTION = (
    "In percent, test set, 10 bins: the test predictions behind the calibrator that lies in each run, which was fitted "
    "on a part of its validation cases; the other tables show raw figures (--raw leaves this one out). "
    "± is the standard deviation over seeds."
)


def calibrated_tables(study: Study) -> list[Grid]:
    """One table for each data set and network; none where no run has a calibrator."""
    groups: dict[tuple[str, str], dict[str, list[Evaluation]]] = {}
    without: dict[tuple[str, str], list[str]] = {}
    unchanged: dict[tuple[str, str], list[str]] = {}
    for planned in study.finished():
        run = Run.open(study.folder(planned))
        policy = run.policy()
        if policy is None or policy.calibrator is None:
            without.setdefault(planned.place, []).append(planned.name)
            continue
        if policy.calibrator.identity_:
            unchanged.setdefault(planned.place, []).append(planned.name)
        calibrated = policy.calibrate(run.predictions("test"))
        groups.setdefault(planned.place, {}).setdefault(planned.label, []).append(evaluate(calibrated, 10))
    return [_grid(place, rows, without.get(place, []), unchanged.get(place, [])) for place, rows in groups.items()]


def _grid(place: tuple[str, str], rows: dict[str, list[Evaluation]], without: list[str], unchanged: list[str]) -> Grid:
    left_out = f" Without a calibrator, so not here: {', '.join(without)}." if without else ""
    if unchanged:
        left_out += f" Raw here, too, because nothing could be fitted: {', '.join(unchanged)}."
    cells = tuple(
        (label, *(percent(estimate([each.values()[metric] for each in found])) for _, metric in _COLUMNS))
        for label, found in rows.items()
    )
    title = f"{place[0]}, {place[1]}: with each run's own calibrator"
    return Grid(title, _CAPTION + left_out, ("method", *(heading for heading, _ in _COLUMNS)), cells)
