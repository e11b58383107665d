"""The interface of all readers of distribution formats."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calibrant.training.data.dataset import Splits
from calibrant.training.data.spec import Spec

# Called with how much is done and how much there is to do.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Source:
    """Where a set lies on this machine.

    Args:
        form: `npz` for our own format, else that of the official distribution.
        paths: The files, or the one folder, to read.
    """

    form: Literal["npz", "archive", "files", "folder"]
    paths: tuple[Path, ...]

    @property
    def place(self) -> str:
        """The file, or the folder of the files."""
        return str(self.paths[0] if len(self.paths) == 1 else self.paths[0].parent)


class Reader(ABC):
    """Finds and reads one set in its official format, in memory: nothing is ever unpacked to disk."""

    # Options that may follow the name of the set.
    options: tuple[str, ...] = ()
    # Whether decoding takes so long that the result is worth keeping.
    slow: bool = False

    @abstractmethod
    def find(self, folder: Path) -> Source | None:
        """The set in `folder`, or None."""

    @abstractmethod
    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read and check what `find` found."""

    def verify_arrays(self, splits: Splits) -> str:
        """Check arrays from an `.npz` against what is published; returns what was checked, in words."""
        del splits
        return "number of images"


def existing(folder: Path, *names: str) -> Path | None:
    """The first of these names that exists in `folder`."""
    return next((folder / name for name in names if (folder / name).exists()), None)
