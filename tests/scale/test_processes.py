import pytest

from calibrant.errors import InvalidInput
from calibrant.scale.processes import Task, environment, exit_code_of, run_tasks


def test_failures_are_reported_and_do_not_stop_the_others(tmp_path):
    (tmp_path / "good.json").write_text("{}")
    tasks = [
        Task("a", "json.tool", (str(tmp_path / "good.json"),), tmp_path / "logs" / "a.log"),
        Task("b", "json.tool", (str(tmp_path / "missing.json"),), tmp_path / "logs" / "b.log"),
        Task("c", "json.tool", (str(tmp_path / "good.json"),), tmp_path / "logs" / "c.log"),
    ]
    watched = []
    ended = {one.task: one for one in run_tasks(tasks, jobs=2, watch=lambda done: watched.append(len(done)))}
    assert {name: bool(one.code) for name, one in ended.items()} == {"a": False, "b": True, "c": False}
    assert "missing.json" in ended["b"].message
    assert ended["a"].together == 2
    assert watched[-1] == 3
    assert (tmp_path / "logs" / "a.log").read_text().strip() == "{}"


def test_the_error_of_a_traceback_is_told_and_not_the_advice_after_it(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text("raise RuntimeError('CUDA error: out of luck\\nTry another flag.\\n')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (one,) = run_tasks([Task("x", "failing", (), tmp_path / "x.log")])
    assert one.message == "RuntimeError: CUDA error: out of luck"
    # The next attempt adds to the same log.
    (tmp_path / "failing.py").write_text("import sys; sys.exit('calibrant: data must exist.')")
    (one,) = run_tasks([Task("x", "failing", (), tmp_path / "x.log")])
    assert one.message == "data must exist."


def test_who_ran_together_is_told_before_the_tasks_end(tmp_path):
    (tmp_path / "good.json").write_text("{}")
    tasks = [Task(name, "json.tool", (str(tmp_path / "good.json"),), tmp_path / f"{name}.log") for name in "ab"]
    told = []
    run_tasks(tasks, jobs=2, on_concurrency=told.append)
    assert told[0] == {"a": 2, "b": 2}


def test_a_killed_task_names_its_signal(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (one,) = run_tasks([Task("x", "dying", (), tmp_path / "x.log")])
    assert (one.code, one.message) == (-15, "killed by SIGTERM")


def test_jobs_must_be_positive():
    with pytest.raises(InvalidInput, match="jobs must be at least 1"):
        run_tasks([], jobs=0)


def test_slots_share_cores_and_take_turns_on_gpus():
    assert environment({}, 0, 1, gpus=2).get("CUDA_VISIBLE_DEVICES") is None
    taken = [environment({}, slot, 3, gpus=2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert taken == ["0", "1", "0"]
    assert environment({"CUDA_VISIBLE_DEVICES": "5,7"}, 1, 2)["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in environment({}, 1, 2, gpus=1)
    assert environment({"OMP_NUM_THREADS": "3"}, 0, 2, gpus=0)["OMP_NUM_THREADS"] == "3"
    assert int(environment({}, 0, 10_000, gpus=0)["OMP_NUM_THREADS"]) == 1


def test_a_task_ends_as_a_command_does(capsys):
    assert exit_code_of(lambda: None) == 0
    assert exit_code_of(lambda: invalid_input("x must be y.")) == 2
    assert capsys.readouterr().err == "calibrant: x must be y.\n"
    assert exit_code_of(lambda: {}["nothing"]) == 70
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("calibrant: this is a fault of calibrant")
    assert "KeyError" in last


def invalid_input(text):
    raise InvalidInput(text)
