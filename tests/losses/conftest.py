"""The table of losses as a parameter.

`case` is each in turn, `per_sample_case` each that takes weights, `derived_case` each whose
gradient is the derivative of its value.
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

# A script for child processes, not a module with doctests: its imports only work from its own folder.
collect_ignore = ["worker.py"]

_spec = importlib.util.spec_from_file_location("loss_cases", Path(__file__).with_name("cases.py"))
_cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_cases)


def pytest_generate_tests(metafunc):
    table = [SimpleNamespace(name=n, loss=loss, reference=ref) for n, (loss, ref) in _cases.CASES.items()]
    chosen = {
        "case": table,
        "per_sample_case": [case for case in table if case.name in _cases.PER_SAMPLE],
        "derived_case": [case for case in table if case.name not in _cases.WEIGHTED_GRADIENT],
    }
    for argument, rows in chosen.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, rows, ids=[case.name for case in rows])


@pytest.fixture(scope="session")
def cases():
    """The module with references and batches."""
    return _cases
