import sys

import pytest

from calibrant.errors import InvalidInput
from calibrant.scale import make_executor


def test_local_is_this_machine():
    with make_executor() as executor:
        assert executor is None


@pytest.mark.parametrize(
    ("name", "address", "fault"),
    [
        ("slurm", None, "executor must be local or ray, got 'slurm'"),
        ("local", "auto", "address must be left out for the local executor"),
        ("ray", "nowhere", "address must be HOST:PORT or auto, got 'nowhere'"),
        ("ray", "127.0.0.1:1", "address must be that of a running Ray cluster, got no answer from 127.0.0.1:1"),
        ("ray", "ray://127.0.0.1:1", "address must be HOST:PORT or auto"),
        ("ray", "127.0.0.1:99999", "got no answer"),
    ],
)
def test_a_wrong_place_is_one_line(name, address, fault):
    if name == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(InvalidInput, match=fault.replace("(", r"\(")), make_executor(name, address=address):
        pass


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"pip install 'calibrant\[ray\]'"), make_executor("ray"):
        pass
