"""The worker processes of studies and sweeps; `calibrant compare` and `calibrant sweep --jobs` start them.

    python -m calibrant.studies train RECIPE FOLDER [DATA_DIR]           one run of a study
    python -m calibrant.studies search FOLDER TRIALS TIMEOUT [DATA_DIR]  one of several workers of a sweep

A worker ends with the process that started it. The next start continues from the checkpoint on disk. The URL of a
sweep's storage is in CALIBRANT_STORAGE: it may contain a password, and every user of a machine can read arguments.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.scale import task_main


def _train(recipe: str, folder: str, data_dir: Path | None) -> None:
    from calibrant.training import PlainLines, Recipe, train_or_resume

    # The study that started this process has checked that the user trusts the code; the recipe has its digests.
    train_or_resume(Recipe.load(recipe), Path(folder), data_dir=data_dir, reporter=PlainLines(), trust_code=True)


def _search(folder: str, trials: str, timeout: str, data_dir: Path | None) -> None:
    from calibrant.studies.sweeps import Sweep
    from calibrant.training import PlainLines

    # As above: the process that started this one has opened the same folder.
    sweep = Sweep(folder, storage=os.environ.get("CALIBRANT_STORAGE"), trust_code=True)
    seconds = None if timeout == "-" else float(timeout)
    sweep.run(trials=int(trials), timeout=seconds, data_dir=data_dir, reporter=PlainLines())


def _main(arguments: Sequence[str]) -> None:
    if arguments[0] == "train":
        recipe, folder, *rest = arguments[1:]
        _train(recipe, folder, Path(rest[0]) if rest else None)
    else:
        folder, trials, timeout, *rest = arguments[1:]
        _search(folder, trials, timeout, Path(rest[0]) if rest else None)


if __name__ == "__main__":
    task_main(lambda: _main(sys.argv[1:]))
