"""The paths of the pictures below a folder: found without opening a file, and kept in one buffer."""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, overload

import torch
from torch import Tensor

from calibrant.errors import invalid

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_EMPTY = torch.empty(0, dtype=torch.uint8)


def is_picture(*parts: str) -> bool:
    """Whether a path of these parts names a picture; hidden files and folders hold none.

    >>> is_picture("cats", "1.JPG"), is_picture(".trash", "1.jpg"), is_picture("cats", "notes.txt")
    (True, False, False)
    """
    return parts[-1].lower().endswith(_ENDINGS) and not any(map(_is_hidden, parts))


def pictures_below(folder: str, prefix: str = "") -> Iterator[str]:
    """The path of every picture below a folder, with forward slashes, sorted part by part.

    A million files are listed in seconds: the system tells with the name of an entry whether it is a file, so that
    none is looked at on its own. Links to files are followed, links to folders are not: they could go round.

    Args:
        folder: Where to look.
        prefix: Put before every path.
    """
    for entry in _entries(folder):
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from pictures_below(entry.path, f"{prefix}{name}/")
        elif is_picture(name) and entry.is_file():
            yield prefix + name


def folders_in(place: str | os.PathLike[str]) -> list[str]:
    """Names of the folders in a folder, sorted; links to folders count here."""
    return [entry.name for entry in _entries(place) if entry.is_dir()]


def _entries(folder: str | os.PathLike[str]) -> "list[os.DirEntry[str]]":
    """What is not hidden in a folder, sorted by name."""
    try:
        with os.scandir(os.fspath(folder)) as found:
            return sorted((entry for entry in found if not _is_hidden(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise invalid("folder", "be readable", str(folder), f"{error.strerror}.") from error


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


class Paths(Sequence[str]):
    """Many paths in one buffer: each takes the bytes of its name and eight more.

    The two tensors are shared with loader processes as they are. A list of a million Python strings would be copied
    into each of them little by little, because reading a Python object writes its reference count.

    >>> paths = Paths.of(["a/1.png", "b/2.png"])
    >>> len(paths), paths[1]
    (2, 'b/2.png')
    """

    def __init__(self, text: Tensor, ends: Tensor) -> None:
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, paths: Iterable[str]) -> Self:
        """Keep these paths; a name that is not UTF-8 is refused: no file of ours could hold it as an id."""
        buffer, ends = bytearray(), array("q")
        for path in paths:
            try:
                buffer += path.encode()
            except UnicodeEncodeError as error:
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                raise invalid("folder", "have names in UTF-8", shown, "Rename the file or the folder.") from error
            ends.append(len(buffer))
        if not ends:
            return cls(_EMPTY, _EMPTY.long())
        return cls(torch.frombuffer(buffer, dtype=torch.uint8), torch.frombuffer(ends, dtype=torch.int64))

    @classmethod
    def join(cls, tables: Sequence["Paths"]) -> Self:
        """All paths of several tables, in order."""
        ends, before = [], 0
        for table in tables:
            ends.append(table.ends + before)
            before += len(table.text)
        return cls(torch.cat([_EMPTY, *(table.text for table in tables)]), torch.cat([_EMPTY.long(), *ends]))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        start = int(self.ends[row - 1]) if row else 0
        return self.text[start : int(self.ends[row])].numpy().tobytes().decode()
