import os
import signal
import subprocess
import textwrap
import time

import psutil


def test_children_and_grandchildren_end_when_the_parent_is_killed(tmp_path, python):
    (tmp_path / "lasting.py").write_text(
        textwrap.dedent(
            """
            import pathlib, subprocess, sys, time, os
            from calibrant.scale.processes import end_with_parent
            end_with_parent()
            grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            draft = pathlib.Path(sys.argv[1] + ".draft")
            draft.write_text(f"{os.getpid()} {grandchild.pid}")
            draft.rename(sys.argv[1])
            time.sleep(600)
            """
        )
    )
    script = textwrap.dedent(
        f"""
        import pathlib
        from calibrant.scale.processes import Task, run_tasks
        folder = pathlib.Path({str(tmp_path)!r})
        run_tasks([Task(n, "lasting", (str(folder / n),), folder / (n + ".log")) for n in "ab"], jobs=2)
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    parent = subprocess.Popen([python, "-c", script], env=environment)
    try:
        wait_for(lambda: all((tmp_path / name).exists() for name in "ab"))
        pids = [int(pid) for name in "ab" for pid in (tmp_path / name).read_text().split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        parent.send_signal(signal.SIGKILL)
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
