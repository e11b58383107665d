"""Readers of the formats in which the public sets are distributed. Nothing is unpickled or unpacked to disk."""

import gzip
import hashlib
import math
import struct
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InvalidInput, invalid
from calibrant.training.data.dataset import Images, Progress, Splits
from calibrant.training.data.pictures import (
    Decoder,
    Picture,
    decode_pictures,
    open_zip,
    pictures_in_folder,
    pictures_in_zip,
    read_zip_member,
)
from calibrant.training.data.spec import Spec

_DIGEST_NAMES = {"md5": "MD5", "sha1": "SHA-1", "sha256": "SHA-256"}
_AGAIN = "Get it again."


@dataclass(frozen=True)
class Source:
    """Where a set lies on this machine: the files, or the one folder, to read. `npz` is our own form."""

    form: Literal["npz", "archive", "files", "folder"]
    paths: tuple[Path, ...]

    @property
    def place(self) -> str:
        """The file, or the folder of the files."""
        if len(self.paths) == 1:
            return str(self.paths[0])
        return str(self.paths[0].parent)


class Reader(ABC):
    """Finds and reads one set in its official format."""

    # Options that may follow the name of the set.
    options: ClassVar[tuple[str, ...]] = ()

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


def _existing(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


def _archive(folder: Path, name: str) -> Source | None:
    path = folder / name
    if not path.exists():
        return None
    return Source("archive", (path,))


# digests --------------------------------------------------------------------------------------------------------------


def check_file(path: Path, digest: str, *, name: str = "") -> None:
    """Refuse a file whose digest is not `digest`, written as `md5:...`; `name` is shown instead of the path.

    It finds damage; MD5 stops no attacker.
    """
    kind, expected = digest.split(":")
    with path.open("rb") as handle:
        found = hashlib.file_digest(handle, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    _compare(found, expected, kind, name or str(path))


def _check_content(content: Any, digest: str, what: str) -> None:
    kind, expected = digest.split(":")
    _compare(hashlib.new(kind, content, usedforsecurity=False).hexdigest(), expected, kind, what)


def _compare(found: str, expected: str, kind: str, what: str) -> None:
    if found != expected:
        raise InvalidInput(
            f"{what}: {_DIGEST_NAMES[kind]} must be {expected}, got {found}. It is damaged or another version: delete "
            "it and get it again with 'calibrant data fetch', or load your own copy as arrays:FILE.npz, which is not "
            "compared."
        )


# CIFAR-10 and CIFAR-100 (Krizhevsky 2009), binary version: a record is its label bytes and 3 x 32 x 32 pixels ---------

_CIFAR_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BinaryFile:
    """One of the official files: its name, the number of records and the SHA-1 of the content."""

    name: str
    records: int
    sha1: str


@dataclass(frozen=True)
class Cifar(Reader):
    """Reads the binary archive or its unpacked folder."""

    archive: str
    folder: str  # inside the archive
    train: tuple[BinaryFile, ...]
    test: BinaryFile
    pickled: tuple[str, ...]  # names of the Python version, which is refused
    coarse_of_fine: tuple[int, ...] = ()  # of CIFAR-100, whose records start with the coarse label

    def find(self, folder: Path) -> Source | None:
        """The archive, the folder, or its files in `folder` itself; the Python version alone is an error."""
        names = [file.name for file in (*self.train, self.test)]
        for place in (folder / self.folder, folder):
            if all((place / name).is_file() for name in names):
                return Source("files", tuple(place / name for name in names))
        pickled = _existing(folder, *self.pickled)
        archive = _archive(folder, self.archive)
        if archive is None and pickled is not None:
            raise InvalidInput(
                f"{pickled} is the Python version, made of pickles that can run any code when they are loaded; "
                f"it is not read. Get the binary version instead, {self.archive}."
            )
        return archive

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read the records; the content of every file is checked against its published SHA-1."""
        del spec, progress
        record = _CIFAR_PIXELS + 1 + bool(self.coarse_of_fine)
        images, labels = [], []
        for index, file in enumerate((*self.train, self.test)):
            where = f"{file.name} in {source.paths[0]}"
            expected = file.records * record
            if source.form == "files":
                content = source.paths[index].read_bytes()
            else:
                content = _read_tar_member(source.paths[0], f"{self.folder}/{file.name}", limit=expected)
            if len(content) != expected:
                raise invalid(where, f"hold {expected} bytes", len(content), _AGAIN)
            _check_content(content, f"sha1:{file.sha1}", where)
            records = np.frombuffer(content, np.uint8).reshape(-1, record)
            # Copied, because the buffer is read-only.
            images.append(torch.from_numpy(records[:, -_CIFAR_PIXELS:].copy()).view(-1, 3, 32, 32))
            labels.append(torch.from_numpy(records[:, -_CIFAR_PIXELS - 1].astype(np.int64)))
        train = Images(torch.cat(images[:-1]), torch.cat(labels[:-1]))
        return Splits(train, Images(images[-1], labels[-1]), verified="SHA-1 of the official binary files")

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
        _check_content(records.numpy().data, f"sha1:{file.sha1}", f"the arrays of {file.name}")


def _read_tar_member(archive: Path, name: str, *, limit: int) -> bytes:
    """Content of a plain file in a tar archive; at most one byte more than `limit`."""
    try:
        with tarfile.open(archive) as tar:
            # Names are compared, never used as paths: a member called ../x can do no harm.
            for member in tar:
                if member.name.removeprefix("./") == name and member.isreg():
                    handle = tar.extractfile(member)
                    assert handle is not None
                    return handle.read(limit + 1)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InvalidInput(f"{archive} cannot be read as an archive: {error}. {_AGAIN}") from error
    raise invalid(str(archive), f"hold {name}", "an archive without it", _AGAIN)


# IDX files (LeCun), plain or gzipped: MNIST and Fashion-MNIST ---------------------------------------------------------


@dataclass(frozen=True)
class IdxFile:
    """One of the four files: its name without `.gz`, its shape and the SHA-256 of its unpacked content.

    The content and not the archive is checked, because the same content is also distributed in other archives.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str

    def read(self, path: Path) -> np.ndarray[Any, Any]:
        """The array in the file."""
        start = idx_header(self.shape)
        expected = len(start) + math.prod(self.shape)
        opener = {".gz": gzip.open}.get(path.suffix, open)
        try:
            with opener(path, "rb") as handle:
                # One byte more than expected: enough to notice a longer file, and a compression bomb stays packed.
                content = handle.read(expected + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidInput(f"{path} cannot be read: {error}. {_AGAIN}") from error
        if len(content) != expected or not content.startswith(start):
            rule = f"be an IDX file of bytes of shape {self.shape}"
            raise invalid(str(path), rule, f"{len(content)} bytes that start with {content[:4].hex()}", _AGAIN)
        _check_content(content, f"sha256:{self.sha256}", str(path))
        return np.frombuffer(content, np.uint8, offset=len(start)).reshape(self.shape)

    def verify(self, values: Tensor) -> None:
        """Rebuild the content from the array and check its digest."""
        content = idx_header(tuple(values.shape)) + values.contiguous().numpy().tobytes()
        _check_content(content, f"sha256:{self.sha256}", f"the array of {self.name}")


def idx_header(shape: tuple[int, ...]) -> bytes:
    """The first bytes of an IDX file of unsigned bytes."""
    unsigned_byte = 8
    return struct.pack(f">HBB{len(shape)}I", 0, unsigned_byte, len(shape), *shape)


@dataclass(frozen=True)
class Idx(Reader):
    """Reads images and labels of both splits."""

    folders: tuple[str, ...]  # in which the set may lie
    train: tuple[IdxFile, IdxFile]
    test: tuple[IdxFile, IdxFile]

    def find(self, folder: Path) -> Source | None:
        """All four files, with or without `.gz`.

        Several sets use the same four names. In a folder with the name of this set damage is an error; in any other
        folder, files count only if the labels show that they belong to this set.
        """
        for place in (*(folder / name for name in self.folders), folder):
            paths = [_existing(place, file.name, f"{file.name}.gz") for file in (*self.train, *self.test)]
            found = tuple(path for path in paths if path is not None)
            if len(found) == len(paths) and (place.name in self.folders or self._is_ours(found[-1])):
                return Source("files", found)
        return None

    def _is_ours(self, labels: Path) -> bool:
        try:
            self.test[1].read(labels)
        except InvalidInput:
            return False
        return True

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read the four files and check the digest of each."""
        del spec, progress
        arrays = [file.read(path) for path, file in zip(source.paths, (*self.train, *self.test), strict=True)]
        parts = []
        for pixels, labels in (arrays[:2], arrays[2:]):
            images = torch.from_numpy(pixels.copy()).unsqueeze(1)
            parts.append(Images(images, torch.from_numpy(labels.astype(np.int64))))
        return Splits(parts[0], parts[1], verified="SHA-256 of the content of the official files")

    def verify_arrays(self, splits: Splits) -> str:
        """Rebuild the content of the official files from the arrays and check the digests."""
        for split, (images, labels) in ((splits.train, self.train), (splits.test, self.test)):
            images.verify(split.images.squeeze(1))
            labels.verify(split.labels.to(torch.uint8))
        return "SHA-256 of the content of the official files, rebuilt from the arrays"


# SVHN (Netzer et al. 2011), cropped digits, as MATLAB files -----------------------------------------------------------


@dataclass(frozen=True)
class Svhn(Reader):
    """Reads `train_32x32.mat` and `test_32x32.mat`, given the published digests of the two files."""

    digests: tuple[str, str]
    names: ClassVar[tuple[str, str]] = ("train_32x32.mat", "test_32x32.mat")

    def find(self, folder: Path) -> Source | None:
        """Both files in `folder`."""
        paths = tuple(folder / name for name in self.names)
        if not all(path.is_file() for path in paths):
            return None
        return Source("files", paths)

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read both files; the digit 0 is stored as label 10."""
        del spec, progress
        parts = []
        for path, digest in zip(source.paths, self.digests, strict=True):
            check_file(path, digest)
            parts.append(_read_matlab(path))
        return Splits(parts[0], parts[1], verified="MD5 of the official files")


def _read_matlab(path: Path) -> Images:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"]
    except KeyError as error:
        raise invalid(str(path), "hold the variables X and y", f"no {error.args[0]}", _AGAIN) from error
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise InvalidInput(f"{path} cannot be read as a MATLAB file: {error}. {_AGAIN}") from error
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, labels.size):
        rule = f"hold X as uint8 of shape (32, 32, 3, {labels.size})"
        raise invalid(str(path), rule, f"{pixels.dtype} of shape {pixels.shape}", _AGAIN)
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Images(images, torch.from_numpy(labels.ravel().astype(np.int64) % 10))


# Folders and archives of pictures -------------------------------------------------------------------------------------

_Row = tuple[Picture, str, int]  # a picture, its split and its label


def _decode_splits(rows: list[_Row], folder: str, decoder: Decoder, progress: Progress | None) -> tuple[Images, Images]:
    """Decode pictures and part them into training and test images, named by their paths within `folder`."""
    pixels = torch.from_numpy(decode_pictures([picture for picture, _, _ in rows], decoder, progress=progress))
    parts = []
    for split in ("train", "test"):
        chosen = [row for row, (_, part, _) in enumerate(rows) if part == split]
        ids = tuple(rows[row][0].path.as_posix().removeprefix(f"{folder}/") for row in chosen)
        labels = torch.tensor([rows[row][2] for row in chosen], dtype=torch.int64)
        parts.append(Images(pixels[chosen].contiguous(), labels, ids))
    return parts[0], parts[1]


def _parts_within(picture: Picture, folder: str) -> tuple[str, ...]:
    """The parts of a path, which may start with the folder of the archive."""
    parts = picture.path.parts
    if parts[0] == folder:
        return parts[1:]
    return parts


@dataclass(frozen=True)
class ChestXray(Reader):
    """Chest X-rays of children (Kermany et al. 2018, Mendeley Data V2): JPEG files in folders by split and class.

    Pictures become grey squares, 64 pixels per side by default.
    """

    classes: tuple[str, ...]
    options = ("size",)
    archive: ClassVar[str] = "ChestXRay2017.zip"
    folder: ClassVar[str] = "chest_xray"
    # A popular copy moved 16 training images to a folder of their own; they belong to the training images.
    split_of: ClassVar[dict[str, str]] = {"train": "train", "val": "train", "test": "test"}

    def find(self, folder: Path) -> Source | None:
        """The archive, or the folder that holds `train` and `test`."""
        for place in (folder / self.folder, folder):
            if all((place / split / name).is_dir() for split in ("train", "test") for name in self.classes):
                return Source("folder", (place,))
        return _archive(folder, self.archive)

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Decode and resize every picture. No digest is published: the number of images is checked."""
        with ExitStack() as stack:
            if source.form == "archive":
                pictures = pictures_in_zip(stack.enter_context(open_zip(source.paths[0])))
            else:
                pictures = pictures_in_folder(source.paths[0])
            rows: list[_Row] = []
            for picture in pictures:
                parts = _parts_within(picture, self.folder)
                if len(parts) == 3 and parts[0] in self.split_of and parts[1] in self.classes:
                    rows.append((picture, self.split_of[parts[0]], self.classes.index(parts[1])))
            if not rows:
                raise invalid(str(source.paths[0]), "hold train and test with NORMAL and PNEUMONIA", "none of them")
            splits = _decode_splits(rows, self.folder, Decoder(spec.size(64), "grey"), progress)
        return Splits(*splits, verified="number of images (no digest is published)")


@dataclass(frozen=True)
class TinyImageNet(Reader):
    """Tiny-ImageNet: 200 classes of 64x64 JPEG files, given the published digest of the archive.

    The official validation images are the test set: the labels of the official test images were never published.
    """

    digest: str
    folder: ClassVar[str] = "tiny-imagenet-200"

    def find(self, folder: Path) -> Source | None:
        """The archive, or the folder that holds `wnids.txt`."""
        for place in (folder / self.folder, folder):
            if (place / "wnids.txt").is_file() and (place / "val" / "val_annotations.txt").is_file():
                return Source("folder", (place,))
        return _archive(folder, f"{self.folder}.zip")

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Decode every picture; classes are numbered in the order of their WordNet ids."""
        del spec
        place = source.paths[0]
        verified = "number of images (the digest is that of the archive)"
        with ExitStack() as stack:
            if source.form == "archive":
                check_file(place, self.digest)
                verified = "MD5 of the official archive"
                archive = stack.enter_context(open_zip(place))
                pictures = pictures_in_zip(archive)
                ids, names, labels = _tables(lambda name: read_zip_member(archive, f"{self.folder}/{name}"))
            else:
                pictures = pictures_in_folder(place)
                ids, names, labels = _tables(lambda name: _read_bytes(place / name))
            splits = _decode_splits(self._rows(pictures, ids, labels), self.folder, Decoder(64, "rgb"), progress)
        return Splits(*splits, class_names=names, verified=verified)

    def _rows(self, pictures: list[Picture], ids: list[str], labels: dict[str, str]) -> list[_Row]:
        """Training and test pictures with their labels; the official test pictures are left out."""
        number = {wordnet_id: label for label, wordnet_id in enumerate(ids)}
        train: list[_Row] = []
        test: list[_Row] = []
        for picture in pictures:
            parts = _parts_within(picture, self.folder)
            if len(parts) == 4 and parts[0] == "train" and parts[1] in number:
                train.append((picture, "train", number[parts[1]]))
            elif len(parts) == 3 and parts[0] == "val":
                if labels.get(parts[2]) not in number:
                    raise invalid(picture.place, "have a known class in val_annotations.txt", labels.get(parts[2]))
                test.append((picture, "test", number[labels[parts[2]]]))
        if not train or not test:
            raise InvalidInput(
                f"Tiny-ImageNet: found {len(train)} training and {len(test)} validation pictures. {_AGAIN}"
            )
        return train + test


def _tables(read: Callable[[str], bytes]) -> tuple[list[str], tuple[str, ...], dict[str, str]]:
    """WordNet ids in order, their names, and the WordNet id of each validation file."""

    def lines(name: str) -> list[str]:
        try:
            return read(name).decode().splitlines()
        except UnicodeDecodeError as error:
            raise invalid(name, "be text in UTF-8", f"byte {error.start} of another kind", _AGAIN) from error

    ids = sorted(word for line in lines("wnids.txt") for word in line.split())
    words = dict(line.split("\t", 1) for line in lines("words.txt") if "\t" in line)
    names = [words.get(wordnet_id, wordnet_id).split(",")[0].strip() for wordnet_id in ids]
    # If two classes share their first word, both names get the id too.
    count = Counter(names)
    for label, wordnet_id in enumerate(ids):
        if count[names[label]] > 1:
            names[label] = f"{names[label]} ({wordnet_id})"
    rows = [line.split("\t") for line in lines("val/val_annotations.txt") if line]
    return ids, tuple(names), {row[0]: row[1] for row in rows if len(row) > 1}


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}. {_AGAIN}") from error
