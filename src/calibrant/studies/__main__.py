"""The worker processes of studies and sweeps; `calibrant compare` and `calibrant sweep --jobs` start them.

    python -m calibrant.studies train RECIPE FOLDER [DATA_DIR]           one run of a study
    python -m calibrant.studies search FOLDER TRIALS [DATA_DIR]  one of several workers of a sweep

A worker ends with the process that started it. The next start continues from the checkpoint on disk. The URL of a
sweep's storage is in CALIBRANT_STORAGE: it may contain a password, and every user of a machine can read arguments.
"""

import os
import sys
from pathlib import Path

from calibrant.scale.work import task_main


def _train(recipe: str, folder: str, data_dir: str = "") -> None:
    from calibrant.training import PlainLines, Recipe, train_or_resume

    # The study that started this process has checked that the user trusts the code; the recipe has its digests.
    images = Path(data_dir) if data_dir else None
    train_or_resume(Recipe.load(recipe), Path(folder), data_dir=images, reporter=PlainLines(), trust_code=True)


def _search(folder: str, trials: str, data_dir: str = "") -> None:
    from calibrant.studies.sweeps import Sweep
    from calibrant.training import PlainLines

    # As above: the process that started this one has opened the same folder.
    sweep = Sweep(folder, storage=os.environ.get("CALIBRANT_STORAGE"), trust_code=True)
    sweep.run(trials=int(trials), data_dir=data_dir or None, reporter=PlainLines())


if __name__ == "__main__":
    if sys.argv[1] == "train":
        task_main(lambda: _train(*sys.argv[2:]))
    else:
        task_main(lambda: _search(*sys.argv[2:]))
