"""`python -m calibrant.study.worker RECIPE FOLDER [DATA_DIR]`: one run of a study, in a process of its own.

The process ends when the one that started it ends, however that happens: they share a pipe (our standard input), and
the system closes the other end of it. The checkpoint on disk is then the state that the next start continues from.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Run one cell and return the exit code."""
    from calibrant.errors import CalibrantError
    from calibrant.study.execute import execute
    from calibrant.training import PlainLines, Recipe

    recipe, folder, *rest = arguments
    try:
        execute(Recipe.load(recipe), Path(folder), data_dir=Path(rest[0]) if rest else None, reporter=PlainLines())
    except CalibrantError as error:
        sys.stderr.write(f"calibrant: {' '.join(str(error).split())}\n")
        return 2
    return 0


def end_with_parent() -> None:
    """Kill this process and all that it started as soon as standard input is closed."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        # The parent made us the leader of a group, so this reaches loader and DDP processes and nobody else.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
