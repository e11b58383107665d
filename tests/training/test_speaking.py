import json

import pytest

from calibrant.errors import CalibrantError, InvalidInput
from calibrant.training.data import Unreadable
from calibrant.training.speaking import (
    ProcessLost,
    first_process_speaks,
    is_first_process,
    mark_told,
    stopped_message,
)


def test_the_way_out_is_told_only_where_there_is_a_run(tmp_path):
    assert stopped_message(tmp_path) == "stopped before anything was written"
    (tmp_path / "recipe.toml").touch()
    assert stopped_message(tmp_path).endswith(f"--resume {tmp_path}")


@pytest.mark.parametrize(
    ("environment", "first"), [({}, True), ({"LOCAL_RANK": "1"}, False), ({"RANK": "0", "LOCAL_RANK": "1"}, True)]
)
def test_the_first_process_is_told_by_its_environment(monkeypatch, environment, first):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() is first


@pytest.mark.parametrize(("rank", "error", "raised"), [
    ("0", InvalidInput, InvalidInput),
    ("1", InvalidInput, SystemExit),
    ("1", ProcessLost, ProcessLost),
    ("1", Unreadable, Unreadable),
])  # fmt: skip
def test_a_process_beside_the_first_speaks_of_what_it_alone_knows(rank, error, raised, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(raised), first_process_speaks():
        raise error("bad")


@pytest.mark.parametrize("error", [InvalidInput, ProcessLost, Unreadable, OSError])
def test_what_the_first_process_was_told_is_said_by_it_alone(error, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    told = error("bad")
    mark_told(told)
    with pytest.raises(SystemExit), first_process_speaks():
        raise told


def test_a_process_that_we_started_says_which_one_it_is(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("CALIBRANT_LAUNCHER", "1")
    with pytest.raises(CalibrantError, match=r"^process 3: bad$"), first_process_speaks():
        raise InvalidInput("bad")


def test_torchrun_finds_the_cause_and_takes_a_lost_process_for_its_consequence(tmp_path, monkeypatch):
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {}
    for rank, error in ((0, ProcessLost("another process ended")), (1, InvalidInput("seed must\nbe the same"))):
        place = tmp_path / f"{rank}.json"
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(place))
        with pytest.raises((ProcessLost, SystemExit)), first_process_speaks():
            raise error
        assert json.loads(place.read_text())
        failures[rank] = ProcessFailure(local_rank=rank, pid=1, exitcode=2, error_file=str(place))
    *_, last, _ = str(ChildFailedError("calibrant", failures)).splitlines()
    assert last == "  traceback : calibrant: seed must be the same"
