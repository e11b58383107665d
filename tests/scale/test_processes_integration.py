import os
import signal
import subprocess
import textwrap
import time

import psutil
import pytest


def test_children_and_grandchildren_end_when_the_parent_is_killed(tmp_path, python):
    (tmp_path / "lasting.py").write_text(
        textwrap.dedent(
            """
            import pathlib, subprocess, sys, time, os
            from calibrant.scale.work import task_main

            def work():
                grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                draft = pathlib.Path(sys.argv[1] + ".draft")
                draft.write_text(f"{os.getpid()} {grandchild.pid}")
                draft.rename(sys.argv[1])
                time.sleep(600)

            task_main(work)
            """
        )
    )
    script = textwrap.dedent(
        f"""
        import pathlib
        from calibrant.scale import Task, run_tasks
        folder = pathlib.Path({str(tmp_path)!r})
        run_tasks([Task(n, "lasting", (str(folder / n),), folder / (n + ".log")) for n in "ab"], jobs=2)
        """
    )
    end_of_workers(tmp_path, python, script, signal.SIGKILL)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_the_workers_of_a_map_end_with_their_parent(tmp_path, python, kind):
    (tmp_path / "lasting.py").write_text(
        textwrap.dedent(
            """
            import os, pathlib, time

            def work(name):
                draft = pathlib.Path(name + ".draft")
                draft.write_text(str(os.getpid()))
                draft.rename(name)
                time.sleep(600)
            """
        )
    )
    script = textwrap.dedent(
        f"""
        from lasting import work
        from calibrant.scale import Processes
        list(Processes(2).map(work, [{str(tmp_path)!r} + "/" + name for name in "ab"]))
        """
    )
    end_of_workers(tmp_path, python, script, kind)


def end_of_workers(tmp_path, python, script, kind):
    """Start a script whose workers write their process numbers into files a and b, and end the script by a signal."""
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    parent = subprocess.Popen([python, "-c", script], env=environment, start_new_session=True)
    try:
        wait_for(lambda: all((tmp_path / name).exists() for name in "ab"))
        pids = [int(pid) for name in "ab" for pid in (tmp_path / name).read_text().split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        if kind == signal.SIGINT:  # a terminal sends it to every process of the group
            os.killpg(parent.pid, kind)
        else:
            parent.send_signal(kind)
        parent.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids))


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, seconds=120):
    """Generous: a busy machine is no reason to fail, a process that never ends is."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.05)
