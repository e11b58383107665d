"""Whatever the commands do, Python does in a few lines with the same files."""

import shutil

from calibrant.decisions import fit_policy
from calibrant.report import write_report
from calibrant.training import Run, paper_recipe, train


def test_five_lines_of_python_write_the_files_of_the_commands(calibrant, tmp_path):
    made = train(paper_recipe("digits", epochs=2, method__name="nll"), tmp_path / "run")
    # One name for both, because reports and messages name the folder.
    shutil.copytree(made.path, tmp_path / "copy")
    run = Run(made.path)

    policy = fit_policy(run.predictions("val"), target_accuracy=0.7, share=0.2, seed=0)
    policy.calibrate(run.predictions("test")).save(run.path / "predictions" / "test.calibrated.npz")
    policy.save(run.policy_path)
    run.export_to_onnx()
    write_report(run, policy=policy, n_resamples=20)

    assert policy.automates
    by_python = {path: (run.path / path).read_bytes() for path in _made(run)}

    shutil.rmtree(run.path)
    shutil.move(tmp_path / "copy", run.path)
    for command in [
        ("calibrate", run.path, "--share", 0.2, "--seed", 0),
        ("route", "fit", run.path, "--target-accuracy", 0.7),
        ("export", run.path),
        ("report", run.path, "--policy", run.policy_path, "--n-resamples", 20),
    ]:
        code, _, err = calibrant(*command)
        assert (code, err) == (0, ""), command
    by_commands = {path: (run.path / path).read_bytes() for path in _made(run)}
    assert by_commands == by_python
    expected = ["model.onnx", "policy.json", "predictions/test.calibrated.npz", "report.html"]
    assert [str(path) for path in by_python] == expected


def _made(run):
    """What is made from a finished run, by its path in the run."""
    paths = [run.onnx_path, run.policy_path, run.path / "predictions" / "test.calibrated.npz", run.report_path]
    return [path.relative_to(run.path) for path in paths if path.is_file()]
