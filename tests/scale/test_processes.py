import os
import signal
from functools import partial
from pathlib import Path

import pytest

from calibrant.errors import InvalidInput, invalid
from calibrant.scale import Processes, Task, map_parts, run_tasks
from calibrant.scale.work import task_environment


def test_failures_are_reported_and_do_not_stop_the_others(tmp_path):
    (tmp_path / "good.json").write_text("{}")
    tasks = [
        Task("a", "json.tool", (str(tmp_path / "good.json"),), tmp_path / "logs" / "a.log"),
        Task("b", "json.tool", (str(tmp_path / "missing.json"),), tmp_path / "logs" / "b.log"),
        Task("c", "json.tool", (str(tmp_path / "good.json"),), tmp_path / "logs" / "c.log"),
    ]
    watched = []
    ended = {one.task: one for one in run_tasks(tasks, jobs=2, watch=watched.append)}
    assert {name: bool(one.code) for name, one in ended.items()} == {"a": False, "b": True, "c": False}
    assert "missing.json" in ended["b"].message
    assert watched == list(ended.values())
    assert (tmp_path / "logs" / "a.log").read_text().strip() == "{}"


def test_the_error_of_a_traceback_is_reported(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text("raise RuntimeError('out of luck')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (one,) = run_tasks([Task("x", "failing", (), tmp_path / "x.log")])
    assert one.message == "RuntimeError: out of luck"
    # The next attempt adds to the same log.
    (tmp_path / "failing.py").write_text("import sys; sys.exit('calibrant: data must exist.')")
    (one,) = run_tasks([Task("x", "failing", (), tmp_path / "x.log")])
    assert one.message == "data must exist."


def test_a_killed_task_names_its_signal(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (one,) = run_tasks([Task("x", "dying", (), tmp_path / "x.log")])
    assert (one.code, one.message) == (-15, "killed by SIGTERM")


def test_jobs_must_be_positive():
    with pytest.raises(InvalidInput, match="jobs must be at least 1"):
        run_tasks([], jobs=0)
    with pytest.raises(InvalidInput, match="jobs"):
        Processes(0)


def test_jobs_share_cores_and_take_turns_on_gpus():
    assert task_environment({}, 0, 1, gpus=2).get("CUDA_VISIBLE_DEVICES") is None
    taken = [task_environment({}, slot, 3, gpus=2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert taken == ["0", "1", "0"]
    assert task_environment({"CUDA_VISIBLE_DEVICES": "5,7"}, 1, 2)["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in task_environment({}, 1, 2, gpus=1)
    assert task_environment({"OMP_NUM_THREADS": "3"}, 0, 2, gpus=0)["OMP_NUM_THREADS"] == "3"
    assert int(task_environment({}, 0, 10_000, gpus=0)["OMP_NUM_THREADS"]) == 1


@pytest.mark.parametrize(
    ("work", "code", "message"),
    [
        ("None", 0, ""),
        ("InvalidInput('x must be y.')", 2, "x must be y."),
        ("KeyError('nothing')", 70, "this is a fault of calibrant"),
    ],
)
def test_a_task_exits_as_a_command_does(tmp_path, work, code, message):
    (tmp_path / "own_task.py").write_text(
        "from calibrant.errors import InvalidInput\n"
        "from calibrant.scale.work import task_main\n"
        "def work():\n"
        f"    error = {work}\n"
        "    if error:\n"
        "        raise error\n"
        "task_main(work)\n"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    (one,) = run_tasks([Task("x", "own_task", (), tmp_path / "x.log", environment={"PYTHONPATH": paths})])
    assert one.code == code
    assert one.message.startswith(message)


@pytest.mark.parametrize("executor", [None, Processes(1), Processes(2)], ids=["here", "one job", "two jobs"])
def test_results_come_in_the_order_of_the_parts(executor):
    assert list(map_parts(partial(pow, 2), range(6), executor)) == [1, 2, 4, 8, 16, 32]


def test_two_jobs_are_other_processes_and_an_error_of_a_part_is_raised_here():
    assert os.getpid() not in set(Processes(2).map(_own_process, range(2)))
    with pytest.raises(InvalidInput, match="value must be 1, got 2"):
        list(Processes(2).map(_only_one, [1, 2]))


def test_a_killed_worker_is_one_line_that_names_the_part():
    with pytest.raises(InvalidInput, match="A worker process was killed at part 1 of 1"):
        list(Processes(2).map(_die, [Path()]))


def _own_process(_):
    return os.getpid()


def _only_one(value):
    if value != 1:
        raise invalid("value", "be 1", value)
    return value


def _die(_):
    os.kill(os.getpid(), signal.SIGKILL)
