"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), binary version: a record is its label bytes and 3 x 32 x 32 pixels."""

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InvalidInput, invalid
from calibrant.training.data.dataset import Images, Splits
from calibrant.training.data.formats.digests import check_content
from calibrant.training.data.formats.reader import Progress, Reader, Source, existing
from calibrant.training.data.spec import Spec

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BinaryFile:
    """One of the official files: its name, the number of records and the SHA-1 of the content."""

    name: str
    records: int
    sha1: str


@dataclass(frozen=True)
class Cifar(Reader):
    """Reads the binary archive or its unpacked folder.

    Args:
        archive: Name of the archive.
        folder: Name of the folder inside it.
        train: The training files, in order.
        test: The test file.
        pickled: Names of the Python version, which is refused.
        coarse_of_fine: For CIFAR-100, whose records start with the coarse label: the coarse class of each fine class.
    """

    archive: str
    folder: str
    train: tuple[BinaryFile, ...]
    test: BinaryFile
    pickled: tuple[str, ...]
    coarse_of_fine: tuple[int, ...] = ()

    def find(self, folder: Path) -> Source | None:
        """The archive, the folder, or its files in `folder` itself; only the Python version there is an error."""
        names = [file.name for file in (*self.train, self.test)]
        for place in (folder / self.folder, folder):
            if all((place / name).is_file() for name in names):
                return Source("files", tuple(place / name for name in names))
        archive = existing(folder, self.archive)
        if archive is not None:
            return Source("archive", (archive,))
        pickled = existing(folder, *self.pickled)
        if pickled is not None:
            raise InvalidInput(
                f"{pickled} is the Python version, made of pickles that can run any code when they are loaded; "
                f"it is not read. Get the binary version instead, {self.archive}."
            )
        return None

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read the records; the content of every file is checked against its published SHA-1."""
        del spec
        files = (*self.train, self.test)
        parts = []
        for index, file in enumerate(files):
            content = self._content(source, file, index)
            check_content(content, f"sha1:{file.sha1}", f"{file.name} in {source.paths[0]}")
            parts.append(self._parse(content))
            if progress is not None:
                progress(index + 1, len(files))
        train = Images(torch.cat([images for images, _ in parts[:-1]]), torch.cat([labels for _, labels in parts[:-1]]))
        return Splits(train, Images(*parts[-1]), verified="SHA-1 of the official binary files")

    def verify_arrays(self, splits: Splits) -> str:
        """Rebuild the official binary files from the arrays and check their published SHA-1."""
        start = 0
        for file in self.train:
            rows = slice(start, start + file.records)
            self._verify(splits.train.images[rows], splits.train.labels[rows], file)
            start += file.records
        self._verify(splits.test.images, splits.test.labels, self.test)
        return "SHA-1 of the official binary files, rebuilt from the arrays"

    def _verify(self, images: Tensor, labels: Tensor, file: BinaryFile) -> None:
        columns = [labels.to(torch.uint8)]
        if self.coarse_of_fine:
            columns.insert(0, torch.tensor(self.coarse_of_fine, dtype=torch.uint8)[labels])
        records = torch.cat([torch.stack(columns, 1), images.flatten(1)], 1)
        check_content(records.numpy().data, f"sha1:{file.sha1}", f"the arrays that stand for {file.name}")

    def _content(self, source: Source, file: BinaryFile, index: int) -> bytes:
        expected = file.records * self._record_size
        if source.form == "files":
            content = source.paths[index].read_bytes()
        else:
            content = read_tar_member(source.paths[0], f"{self.folder}/{file.name}", limit=expected)
        if len(content) != expected:
            raise invalid(f"{file.name} in {source.paths[0]}", f"hold {expected} bytes", len(content), "Get it again.")
        return content

    @property
    def _record_size(self) -> int:
        return _PIXELS + (2 if self.coarse_of_fine else 1)

    def _parse(self, content: bytes) -> tuple[Tensor, Tensor]:
        records = np.frombuffer(content, np.uint8).reshape(-1, self._record_size)
        # Copied, because the buffer is read-only.
        images = torch.from_numpy(records[:, -_PIXELS:].copy()).view(-1, *_SHAPE)
        return images, torch.from_numpy(records[:, -_PIXELS - 1].astype(np.int64))


def read_tar_member(archive: Path, name: str, *, limit: int) -> bytes:
    """Content of a plain file in a tar archive, read in memory; at most one byte more than `limit`."""
    try:
        with tarfile.open(archive) as tar:
            # Names are compared, never used as paths: a member called ../x can do no harm.
            member = next((m for m in tar if m.name.removeprefix("./") == name), None)
            handle = tar.extractfile(member) if member is not None and member.isreg() else None
            if handle is None:
                raise invalid(str(archive), f"hold {name}", "an archive without it", "Get it again.")
            return handle.read(limit + 1)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InvalidInput(f"{archive} cannot be read as an archive: {error}. Get it again.") from error


def binary_files(names: Sequence[str], records: int, digests: Sequence[str]) -> tuple[BinaryFile, ...]:
    """Official files with equal numbers of records."""
    return tuple(BinaryFile(name, records, digest) for name, digest in zip(names, digests, strict=True))
