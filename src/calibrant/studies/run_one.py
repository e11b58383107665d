"""`python -m calibrant.studies.run_one RECIPE FOLDER [DATA_DIR]`: one run of a study, in a process of its own.

The process ends when the one that started it ends, however that happens: they share a pipe (our standard input), and
the system closes the other end of it. The checkpoint on disk is then the state that the next start continues from.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from calibrant.scale import end_with_parent, exit_code_of


def main(arguments: Sequence[str]) -> int:
    """Train one run of a study and return the exit code."""
    from calibrant.training import PlainLines, Recipe, train_or_resume

    # The study that started this process asked for trust already; the recipe has the digests of what it asked about.
    recipe, folder, *rest = arguments
    data_dir = Path(rest[0]) if rest else None
    return exit_code_of(
        lambda: train_or_resume(
            Recipe.load(recipe), Path(folder), data_dir=data_dir, reporter=PlainLines(), trust_code=True
        )
    )


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
