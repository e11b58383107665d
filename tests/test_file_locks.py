import subprocess
import sys

import pytest

from calibrant.errors import InvalidInput
from calibrant.files import locked

_WITHOUT_FCNTL = """
import sys, types
sys.modules["fcntl"] = None
calls = []
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *given: calls.append(given[1:]))
import calibrant.files
from pathlib import Path
with calibrant.files.locked(Path(sys.argv[1]), busy="taken"):
    print(calls)
"""

_TRY = """
import sys
from pathlib import Path
from calibrant.files import locked
with locked(Path(sys.argv[1]), busy="taken"):
    print("got it")
"""


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path):
    with locked(tmp_path / ".lock", busy="taken"):
        other = python(_TRY, str(tmp_path / ".lock"))
        assert other.returncode == 1
        assert other.stderr.endswith("InvalidInput: taken\n")
    assert python(_TRY, str(tmp_path / ".lock")).stdout == "got it\n"


def test_a_lock_that_windows_refuses_is_the_same_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("calibrant.files.fcntl.flock", refuse)
    with pytest.raises(InvalidInput, match="taken"), locked(tmp_path / ".lock", busy="taken"):
        pass


def test_a_lock_that_forks_do_not_inherit_keeps_other_processes_out_too(tmp_path):
    with locked(tmp_path / ".lock", busy="taken", inherited=False):
        assert python(_TRY.replace('"taken"', '"taken", inherited=False'), str(tmp_path / ".lock")).returncode == 1


def test_where_fcntl_is_missing_files_are_locked_in_windows_way(tmp_path):
    found = python(_WITHOUT_FCNTL, str(tmp_path / ".lock"))
    assert found.returncode == 0, found.stderr
    assert found.stdout == "[(2, 1)]\n"


_EVERYTHING = """
import importlib, pkgutil, sys
sys.modules["fcntl"] = None
import calibrant
for module in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("imported")
"""


def test_where_fcntl_is_missing_everything_imports():
    found = python(_EVERYTHING)
    assert found.stdout == "imported\n", found.stderr
