import os
import signal
import subprocess
import time

import psutil

from calibrant.studies import Study
from calibrant.training import train_or_resume

EPOCHS = 15


def test_a_killed_two_job_comparison_goes_on_and_ends_with_the_same_numbers(tmp_path, python, calibrant):
    out = tmp_path / "study"
    flags = [
        "--methods",
        "nll",
        "flsd+h+unbiased",
        "--epochs",
        EPOCHS,
        "--jobs",
        2,
        "--no-page",
        "--no-control",
        "--out",
        out,
    ]
    command = [python, "-m", "calibrant", "compare", *map(str, flags)]
    with (tmp_path / "said").open("wb") as said:
        parent = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ)
    logs = {name: out / "runs" / f"digits-tiny-{name}-seed0" / "metrics.jsonl" for name in ("nll", "flsd+h+unbiased")}
    wait_for(lambda: max(map(epochs_in, logs.values())) >= 2, parent)
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    assert len(children) >= 2
    done = {name: epochs_in(log) for name, log in logs.items()}
    assert 2 <= max(done.values()) < EPOCHS, "the kill came too late to prove anything"

    study = Study(out)
    assert [planned.label for planned in study.pending()] == ["nll", "flsd+h+unbiased"]
    code, text, said = calibrant("compare", "--out", out, "--jobs", 2, "--no-page")
    assert code == 0, said
    assert "2 runs, 0 of them finished before, 2 to run" in said
    further = max(done, key=done.get)
    assert "going on after epoch" in (out / "logs" / f"digits-tiny-{further}-seed0.log").read_text()
    assert "flsd+h+unbiased" in text
    for planned in study.runs:
        undisturbed = train_or_resume(planned.recipe, tmp_path / "undisturbed" / planned.name)
        again = train_or_resume(planned.recipe, study.folder(planned))
        assert again.summary["test"] == undisturbed.summary["test"]
        assert (again.predictions("test").logits == undisturbed.predictions("test").logits).all()


def epochs_in(log):
    return log.read_bytes().count(b"\n") if log.is_file() else 0


def wait_for(condition, process=None, seconds=180):
    ends = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, "the parent ended on its own"
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)
