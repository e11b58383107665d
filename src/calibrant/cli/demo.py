"""`calibrant demo`: the main job on a problem that a CPU finishes in a minute."""

from pathlib import Path
from typing import Annotated

from calibrant.cli._shared import OutOr, say


def demo(*, out: Annotated[Path, OutOr] = Path("demo"), epochs: int = 30, n_resamples: int = 1000) -> None:
    """Train on handwritten digits; then evaluate, calibrate, route and report real CIFAR-10 predictions.

    Without the extra train, only the second part runs.

    Args:
        out: Folder of the runs and the report; what is finished there is not run again.
        epochs: Epochs of each run.
        n_resamples: Resamples behind the intervals.
    """
    from calibrant.demonstration import run_demo

    run_demo(out, epochs=epochs, n_resamples=n_resamples, say=say)
