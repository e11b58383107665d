"""`python -m calibrant.studies.search_process FOLDER TRIALS TIMEOUT [DATA_DIR]`: one of several workers on a sweep.

The storage URL comes in CALIBRANT_STORAGE: arguments can be read by every user of the machine, and it may hold a
password. The process ends with the one that started it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.scale import end_with_parent, exit_code_of


def main(arguments: Sequence[str]) -> int:
    """Work on the sweep until it is done and return the exit code."""
    from calibrant.studies.sweep import Sweep
    from calibrant.training import PlainLines

    folder, trials, timeout, *rest = arguments
    # The process that started this one has opened the same folder, and asked for trust where it was needed.
    return exit_code_of(
        lambda: Sweep(folder, storage=os.environ.get("CALIBRANT_STORAGE"), trust_code=True).run(
            trials=int(trials),
            timeout=None if timeout == "-" else float(timeout),
            data_dir=Path(rest[0]) if rest else None,
            reporter=PlainLines(),
        )
    )


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
