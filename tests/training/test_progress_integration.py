"""The bar on a real (pseudo) terminal."""

import os
import pty
import re
import threading

from calibrant.training import Run
from calibrant.training.progress import describe


def test_a_terminal_shows_a_live_bar_with_all_figures(children, tmp_path):
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read():
        # Linux ends a pseudo terminal's stream with an error, when its other side is closed.
        try:
            while part := os.read(ours, 4096):
                shown.extend(part)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    child = children.start(
        *("train", "--data", "digits", "--epochs", "3", "--method", "flsd+h+p-ema", "--set", "method.options.start=1"),
        *("--set", "engine.accelerator=cpu", "--out", tmp_path / "run"),
        terminal=os.ttyname(theirs),
    )
    assert child.wait() == 0
    os.close(theirs)
    reader.join()
    os.close(ours)
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", shown.decode()).split())
    assert re.search(r"flsd\+h\+p-ema \S* ?\S* ?3/3 epochs, 0:00:00 left", text)
    last = Run(tmp_path / "run").epochs()[-1]
    figures = describe(last)
    for word in ("sample_dependent_focal", "huber_calibration", "accuracy", "ECE", "validation", "kept 8", "samples/s"):
        assert word in figures
    assert figures in text
