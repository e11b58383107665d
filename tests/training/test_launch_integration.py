"""Two processes that train one run, and end together."""

import os
import signal
import time

_SETTINGS = [
    *("--data", "digits", "--method", "nll", "--epochs", "300", "--accelerator", "cpu", "--devices", "2"),
    *("--set", "data.validation=0.8"),  # short epochs
]


def in_its_epochs(first):
    """Wait until the run goes, in two processes; the second of them."""
    for _ in range(12_000):
        if "\nepoch" in first.err:
            break
        assert first.running, first.err
        time.sleep(0.01)
    (second,) = set(first.alive()) - {first.pid}
    return second


def end(first):
    """Wait for the end of both; the exit code of the first, and what was said beside the epochs."""
    code = first.wait_at_most(60)
    return code, [line for line in first.err.splitlines() if not line.startswith("epoch")]


def test_an_interrupt_and_a_lost_process_end_both_with_one_line_and_the_run_goes_on(children, tmp_path):
    folder = tmp_path / "run"
    way_out = f"ontinue with: calibrant train --resume {folder}"

    first = children.start("train", *_SETTINGS, "--out", folder)
    in_its_epochs(first)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    code, (begun, stopped) = end(first)
    assert code == 130
    assert begun == "nll on digits with tiny, seed 0"
    assert stopped == f"calibrant: stopped; c{way_out}"

    lost = f"calibrant: another process of this run ended before the run did. C{way_out}"
    first = children.start("train", "--resume", folder)
    os.kill(in_its_epochs(first), signal.SIGKILL)
    code, (begun, said) = end(first)
    assert code == 2
    assert "going on after epoch" in begun
    assert said == lost

    first = children.start("train", "--resume", folder)
    in_its_epochs(first)
    first.signal(signal.SIGKILL)
    code, (begun, said) = end(first)
    assert code == -signal.SIGKILL
    assert "going on after epoch" in begun
    # It finds out by the broken connection, or by the parent that is gone.
    assert said in {lost, lost.replace("another process", "the first process")}
