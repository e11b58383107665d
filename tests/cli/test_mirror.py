"""Whatever the commands do, Python does in a few lines with the same files; the commands only parse, call and print."""

import ast
import shutil
from pathlib import Path

import pytest

import calibrant.cli
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import choose_threshold
from calibrant.deployment import export_onnx
from calibrant.report import write_report
from calibrant.training import Run, paper_recipe, train

_FOLDER = Path(calibrant.cli.__file__).parent
_FILES = sorted(path.name for path in _FOLDER.glob("*.py"))


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


@pytest.mark.parametrize("name", _FILES)
def test_commands_only_parse_call_and_print(name):
    """No array library, no name of another room's inside, no arithmetic, and no comparison but with None."""
    tree = ast.parse((_FOLDER / name).read_text())
    assert _faults(tree) == []


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np",
        "from torch import nn",
        "from calibrant.decisions.rule import RoutingRule",
        "from calibrant.decisions import _percent",
        "def f(a, b): return 100 * a",
        "def f(a, b): return a + b",
        "def f(a): a += 1",
        "def f(a): return -a",
        "def f(a, b): return a if a > b else b",
        "def f(a): return a == 'best'",
        "def f(a): return max(a)",
        "def f(a): return sorted(a)[0]",
    ],
)
def test_what_computes_compares_or_decides_is_found(code):
    assert len(_faults(ast.parse(code))) == 1


# What a command may not do itself.
_ARRAYS = {"numpy", "torch", "scipy", "pandas", "sklearn", "statistics", "math"}
_DECIDING = {"sum", "min", "max", "sorted", "round", "abs", "len", "any", "all", "divmod", "pow"}


def _faults(tree):
    return [fault for node in ast.walk(tree) if (fault := _fault(node)) is not None]


def _fault(node):
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        inside = module.startswith("calibrant.") and module.count(".") > 1 and not module.startswith("calibrant.cli")
        private = any(alias.name.startswith("_") and alias.name != "__version__" for alias in node.names)
        return module if inside or private or module.partition(".")[0] in _ARRAYS else None
    if isinstance(node, ast.BinOp | ast.AugAssign):
        # `|` joins types and mappings, `/` joins paths.
        return None if isinstance(node.op, ast.BitOr | ast.Div) else ast.unparse(node)
    if isinstance(node, ast.UnaryOp):
        return None if isinstance(node.op, ast.Not) else ast.unparse(node)
    if isinstance(node, ast.Compare):
        return None if all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops) else ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _DECIDING:
        return ast.unparse(node)
    return None
