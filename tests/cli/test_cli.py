import subprocess


def test_an_unknown_command_is_one_line_and_code_2(calibrant):
    code, out, err = calibrant("no-such-command")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1


def test_importing_the_package_loads_nothing_heavy(python):
    script = (
        "import sys, calibrant, calibrant.cli; "
        "heavy = {'matplotlib', 'plotly', 'lightning', 'optuna', 'torchvision', 'sklearn', 'transformers', 'torch'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
