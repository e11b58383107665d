"""Whatever the commands do, Python does in a few lines with the same files."""

import shutil

from calibrant.calibration import TemperatureScaling
from calibrant.decisions import choose_threshold
from calibrant.deployment import export_onnx
from calibrant.report import write_report
from calibrant.training import Run, paper_recipe, train


def test_five_lines_of_python_write_the_files_of_the_commands(calibrant, tmp_path):
    made = train(paper_recipe("digits", epochs=2, method__name="nll"), tmp_path / "run")
    # One name for both, because reports and messages name the folder.
    shutil.copytree(made.path, tmp_path / "copy")
    run = Run.open(made.path)

    some, rest = run.predictions("val").split(0.2, seed=0)
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(rest), target_accuracy=0.7)
    export_onnx(run, calibrator=calibrator, rule=rule)
    write_report(run, calibrator=calibrator, rule=rule, n_resamples=20)

    assert rule.automates
    test, calibrated = run.predictions_path("test"), run.predictions_path("test", calibrated=True)
    calibrator(run.predictions("test")).save(calibrated)
    calibrator.save(run.calibrator_path, applied_to=test, made=calibrated)
    rule.save(run.rule_path)
    by_python = {path: (run.path / path).read_bytes() for path in _made(run)}

    shutil.rmtree(run.path)
    shutil.move(tmp_path / "copy", run.path)
    for command in [
        ("calibrate", run.path, "--share", 0.2, "--seed", 0),
        ("route", "fit", run.path, "--calibrator", run.calibrator_path, "--target-accuracy", 0.7),
        ("export", run.path),
        ("report", run.path, "--calibrator", run.calibrator_path, "--rule", run.rule_path, "--n-resamples", 20),
    ]:
        code, _, err = calibrant(*command)
        assert (code, err) == (0, ""), command
    by_commands = {path: (run.path / path).read_bytes() for path in _made(run)}
    assert by_commands == by_python
    expected = ["calibrator.json", "model.onnx", "predictions/test.calibrated.npz", "report.html", "rule.json"]
    assert [str(path) for path in by_python] == expected


def _made(run):
    """What is made from a finished run, by its path in the run."""
    paths = [run.calibrator_path, run.onnx_path, run.predictions_path("test", calibrated=True)]
    return [path.relative_to(run.path) for path in (*paths, run.report_path, run.rule_path) if path.is_file()]
