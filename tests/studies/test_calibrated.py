import statistics

import pytest

from calibrant import Predictions
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import Policy
from calibrant.errors import CalibrantWarning
from calibrant.metrics import evaluate
from calibrant.studies import run_study
from calibrant.studies.result_tables import calibrated_tables
from calibrant.training import Run


def test_each_row_is_the_mean_over_its_runs_behind_their_calibrators(finished_study):
    (grid,) = calibrated_tables(finished_study)
    assert grid.columns == ("method", "TE", "ECE", "AUROC", "ECE(S95)", "|S95|")
    assert [row[0] for row in grid.rows] == ["nll", "flsd+h+p-ema"]
    found = []
    for planned in finished_study.runs:
        if planned.label == "nll":
            run = Run(finished_study.folder(planned))
            found.append(evaluate(run.policy().calibrate(run.predictions("test")), n_bins=10).ece)
    assert grid.rows[0][2] == f"{100 * statistics.fmean(found):.2f} ± {100 * statistics.stdev(found):.2f}"


def test_a_run_without_a_calibrator_is_named_and_raw_leaves_the_table_out(finished_study):
    with_table = run_study(finished_study).describe()
    assert "with each run's own calibrator" in with_table
    assert "with each run's own calibrator" in (finished_study.path / "tables.md").read_text()
    assert "with each run's own calibrator" not in run_study(finished_study, raw=True).describe()
    path = finished_study.folder(finished_study.runs[0]) / "policy.json"
    kept = path.read_bytes()
    try:
        path.unlink()
        (grid,) = calibrated_tables(finished_study)
    finally:
        path.write_bytes(kept)
    assert grid.caption.endswith(f"Without a calibrator, so not here: {finished_study.runs[0].name}.")
    assert "±" not in grid.rows[0][1]


def test_a_run_whose_temperature_could_not_be_fitted_is_named(finished_study):
    """Its raw figures stand in the same mean as the calibrated ones of other seeds."""
    planned = finished_study.runs[0]
    path = finished_study.folder(planned) / "policy.json"
    kept = path.read_bytes()
    targets = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    all_right = Predictions.from_logits([[3.0 * (k == y) for k in range(10)] for y in targets], targets)
    with pytest.warns(CalibrantWarning, match="every case is classified correctly"):
        nothing = TemperatureScaling().fit(all_right)
    try:
        Policy(10, nothing).save(path)
        (grid,) = calibrated_tables(finished_study)
    finally:
        path.write_bytes(kept)
    assert f"because nothing could be fitted: {planned.name}" in grid.caption
