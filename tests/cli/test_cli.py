import os
import subprocess
from pathlib import Path

import pytest


def test_an_unknown_command_is_one_line_and_code_2(calibrant):
    code, out, err = calibrant("no-such-command")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["methods"], ["methods", "--json"], ["--help"]])
def test_output_that_cannot_be_written_is_one_line_and_code_2(python, arguments):
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [python, "-m", "calibrant", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert result.stderr == "calibrant: cannot write standard output: No space left on device.\n"


@pytest.mark.parametrize("arguments", [["methods", "--json"], ["--help"]])
def test_a_reader_that_has_seen_enough_is_no_failure(python, arguments):
    gone, output = os.pipe()
    os.close(gone)
    command = [python, "-m", "calibrant", *arguments]
    result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    os.close(output)
    assert (result.returncode, result.stderr) == (0, "")


def test_importing_the_package_loads_nothing_heavy(python):
    script = (
        "import sys, calibrant, calibrant.cli; "
        "heavy = {'matplotlib', 'plotly', 'lightning', 'optuna', 'torchvision', 'sklearn', 'transformers', 'torch'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_help_waits_for_torch(python):
    """Of every command and of every command below one; what a signature shows comes from light files."""
    script = """if True:
        import contextlib, io, sys
        from calibrant.cli import _COMMANDS, app, run
        for command in _COMMANDS:
            below = [each for each in app[command] if not each.startswith("-")]
            for words in [[command], *([command, each] for each in below)]:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    assert run([*words, "--help"]) == 0
                heavy = {"torch", "numpy", "scipy"} & set(sys.modules)
                print(*words, "ok" if not heavy and "Usage: calibrant" in out.getvalue() else heavy)
    """
    result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    told = result.stdout.splitlines()
    assert {"route fit ok", "data check ok", "evaluate ok"} <= set(told)
    assert [line for line in told if not line.endswith(" ok")] == []


def test_a_fault_of_ours_is_one_line_that_asks_for_a_report_and_code_70(calibrant, monkeypatch):
    def broken(*_, **__):
        raise KeyError("per_1000")

    monkeypatch.setattr("calibrant.training.methods.names", broken)
    code, out, err = calibrant("methods")
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert "KeyError in cli/methods.py, line" in err
    assert "Please report it" in err
    monkeypatch.setenv("CALIBRANT_DEBUG", "1")
    code, _, err = calibrant("methods")
    assert (code, err.startswith("Traceback"), "Please report it" in err) == (70, True, True)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError(), 2), (RecursionError("deep"), 70)]
)
def test_what_ends_a_command_has_a_code_of_its_own(calibrant, monkeypatch, error, code):
    def ended(*_, **__):
        raise error

    monkeypatch.setattr("calibrant.training.methods.names", ended)
    found, _, err = calibrant("methods")
    assert (found, err.count("\n")) == (code, 1)


def test_a_second_interrupt_while_the_program_ends_adds_no_traceback(python):
    script = (
        "import atexit, os, signal, calibrant.cli\n"
        "calibrant.cli.run = lambda arguments: 130\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "calibrant.cli.main([])\n"
    )
    result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "")
