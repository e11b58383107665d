"""Readers of public sets in their official formats, and of `.npz` sets. Nothing is unpickled or unpacked to disk."""

import gzip
import io
import math
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.checks import labels
from calibrant.errors import InvalidInput, importing, invalid
from calibrant.predictions import read_npz
from calibrant.training.data.dataset import Dataset, Images, Progress, split_validation
from calibrant.training.data.pictures import (
    Colour,
    Decoder,
    Picture,
    decode_pictures,
    pictures_in_folder,
    pictures_in_zip,
)
from calibrant.training.data.public_sets import OfficialFile, PublicSet, Source, check_digest, check_file, digest_name

Splits = tuple[Images, Images]  # to train on and to test


def read_public(entry: PublicSet, source: Source | None, size: int | None, progress: Progress | None) -> Dataset:
    """Read a public set and check it against what is published. `source` is None for the digits."""
    names, origin = entry.class_names, "scikit-learn" if source is None else str(source.path)
    verified = "number of images"
    if source is None:
        (train, test), verified = _read_digits(), ""
    elif source.form == "npz":
        (train, test), verified = _verified_npz(entry, source.path, size)
    elif entry.contents:
        train = _read_contents(entry, source, entry.contents["train"])
        test = _read_contents(entry, source, entry.contents["test"])
        _check_counts(entry, source.path, len(train), len(test))
        verified = f"{digest_name(entry.contents['test'][0].digest)} of the official files"
    else:
        if source.form == "archive" and entry.files[0].digest:
            check_file(source.path, entry.files[0].digest)
            verified = f"{digest_name(entry.files[0].digest)} of the official archive"
        (train, test), found = _read_pictures(entry, source, size or entry.side, progress)
        names = names or found
    return Dataset(
        entry.name, train, test, names, entry.mean, entry.std, entry.augmentation, origin=origin, verified=verified
    )


def _check_counts(entry: PublicSet, path: Path, train: int, test: int) -> None:
    if (train, test) != (entry.train, entry.test):
        rule = f"hold the {entry.train} training and {entry.test} test images of {entry.name}"
        hint = "Another selection of images can be loaded as arrays:FILE.npz or folder:DIR."
        raise invalid(str(path), rule, f"{train} and {test}", hint)


def _read_digits() -> Splits:
    """The 1,797 digits of scikit-learn (8x8, grey): two thirds to train on and one third to test, class by class.

    The set has no official split; ours is always the same. The values 0 to 16 are stretched to 0 to 255.
    """
    with importing("digits", "scikit-learn", "train"):
        from sklearn.datasets import load_digits
    source = load_digits()
    # The row of scikit-learn's own table stays the name of an image, so that it can be looked up there.
    every = _images(
        np.round(source.images * (255 / 16)).astype(np.uint8)[:, None],
        source.target,
        tuple(f"digit-{row:04d}" for row in range(len(source.target))),
    )
    # A third for the test: 599 images, so that an error rate of a few percent rests on more than a handful of samples.
    train, test = (every.take(rows) for rows in split_validation(every.labels, fraction=1 / 3, seed=0))
    return train, test


def _images(pixels: NDArray[Any], targets: NDArray[Any], ids: tuple[str, ...] = ()) -> Images:
    """Arrays as a split. They are copied, because a buffer that was read is read-only."""
    return Images(torch.from_numpy(np.array(pixels, order="C")), torch.from_numpy(targets.astype(np.int64)), ids)


# Files of bytes: CIFAR (Krizhevsky 2009), MNIST and Fashion-MNIST (LeCun's IDX), SVHN (Netzer et al. 2011) ------------
#
# A format turns the contents of all files of a split, one behind the other, into images and labels, and back.


def _read_contents(entry: PublicSet, source: Source, files: tuple[OfficialFile, ...]) -> Images:
    decode: Callable[[bytes, PublicSet], tuple[NDArray[Any], NDArray[Any]]] = {
        "cifar": _from_cifar,
        "idx": _from_idx,
        "svhn": _from_matlab,
    }[entry.format]
    content = b""
    for file in files:
        where = f"{file.name} in {source.path}"
        # One byte more than expected: enough to notice a longer file, and a compression bomb stays packed.
        found = _read_file(entry, source, file.name, file.size + 1)
        if len(found) != file.size:
            raise invalid(where, f"hold {file.size} bytes", len(found), "Get it again.")
        check_digest(io.BytesIO(found), file.digest, where)
        content += found
    return _images(*decode(content, entry))


def _read_file(entry: PublicSet, source: Source, name: str, most: int) -> bytes:
    """At most so many bytes of an official file, from the archive or the folder of the set."""
    path = source.path
    with _readable(path):
        if source.form == "archive" and path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(f"{entry.folders[0]}/{name}") as handle:
                return handle.read(most)
        if source.form == "archive":
            return _read_tar_member(path, f"{entry.folders[0]}/{name}", most)
        if (path / name).exists():
            with (path / name).open("rb") as handle:
                return handle.read(most)
    path = path / f"{name}.gz"
    with _readable(path), gzip.open(path, "rb") as handle:
        return handle.read(most)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """One line for a damaged file."""
    try:
        yield
    except (OSError, EOFError, KeyError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path} cannot be read: {error}. Get it again.") from error


def _read_tar_member(archive: Path, name: str, most: int) -> bytes:
    with tarfile.open(archive) as tar:
        # Names are compared, never used as paths: a member called ../x can do no harm.
        for member in tar:
            if member.name.removeprefix("./") == name and member.isreg():
                handle = tar.extractfile(member)
                assert handle is not None
                return handle.read(most)
    raise invalid(str(archive), f"hold {name}", "an archive without it", "Get it again.")


_CIFAR_SHAPE = (3, 32, 32)


def _from_cifar(content: bytes, entry: PublicSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """A record is its label, behind the coarse label in CIFAR-100, and the pixels."""
    pixels = math.prod(_CIFAR_SHAPE)
    records = np.frombuffer(content, np.uint8).reshape(-1, bool(entry.coarse_of_fine) + 1 + pixels)
    return records[:, -pixels:].reshape(-1, *_CIFAR_SHAPE), records[:, -pixels - 1]


def _to_cifar(part: Images, entry: PublicSet) -> bytes:
    columns = [part.labels.to(torch.uint8)[:, None], part.images.flatten(1)]
    if entry.coarse_of_fine:
        columns.insert(0, torch.tensor(entry.coarse_of_fine, dtype=torch.uint8)[part.labels][:, None])
    return torch.cat(columns, 1).numpy().tobytes()


def _from_idx(content: bytes, _: PublicSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels, each an array of bytes behind its header."""
    arrays, start = [], 0
    while start < len(content):
        dimensions = content[start + 3]
        shape = struct.unpack_from(f">{dimensions}I", content, start + 4)
        start += 4 + 4 * dimensions
        arrays.append(np.frombuffer(content, np.uint8, math.prod(shape), start).reshape(shape))
        start += math.prod(shape)
    images, targets = arrays
    return images[:, None], targets


def _to_idx(part: Images, _: PublicSet) -> bytes:
    content = b""
    for array in (part.images.squeeze(1), part.labels.to(torch.uint8)):
        content += idx_header(tuple(array.shape)) + array.numpy().tobytes()
    return content


def idx_header(shape: tuple[int, ...]) -> bytes:
    """The first bytes of an IDX file of unsigned bytes."""
    unsigned_byte = 8
    return struct.pack(f">HBB{len(shape)}I", 0, unsigned_byte, len(shape), *shape)


def _from_matlab(content: bytes, _: PublicSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """The digit 0 is stored as label 10."""
    from scipy.io import loadmat

    found = loadmat(io.BytesIO(content), variable_names=["X", "y"])
    return found["X"].transpose(3, 2, 0, 1), found["y"].ravel() % 10


# Sets of our own form: one `.npz` file --------------------------------------------------------------------------------

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("class_names", "ids_train", "ids_test")
_MOST_CHANNELS = 4


def read_arrays(path: str | Path) -> tuple[Splits, tuple[str, ...]]:
    """Read an `.npz` set and its class names, if it has any; docs/data.md describes the arrays."""
    content = read_npz(path, (*_REQUIRED, *_OPTIONAL))
    for key in _REQUIRED:
        if key not in content:
            found = f"no {key} (found: {', '.join(sorted(content))})"
            raise invalid(str(path), f"hold {', '.join(_REQUIRED)}", found)
    splits = _split(content, "train", path), _split(content, "test", path)
    return splits, _texts(content, "class_names", path)


def _split(content: Mapping[str, Any], split: str, path: str | Path) -> Images:
    images = _pixels(content[f"x_{split}"], f"x_{split} in {path}")
    classes = labels(f"y_{split} in {path}", content[f"y_{split}"], rows=len(images))
    return _images(images, classes, _texts(content, f"ids_{split}", path))


def _pixels(array: NDArray[Any], argument: str) -> NDArray[Any]:
    """Check uint8 images `(N, H, W)` or `(N, H, W, C)` and return them as `(N, C, H, W)`."""
    if array.dtype != np.uint8:
        hint = "Convert first: from 0..1 with (x * 255).round().astype('uint8'), from 0..255 with x.astype('uint8')."
        raise invalid(argument, "be uint8 (0 to 255)", array.dtype, hint)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or 0 in array.shape:
        raise invalid(argument, "have the shape (N, H, W) or (N, H, W, C), nothing empty", array.shape)
    if array.shape[-1] > _MOST_CHANNELS:
        hint = "If they come first, use x.transpose(0, 2, 3, 1)."
        raise invalid(argument, f"have at most {_MOST_CHANNELS} channels, in the last place", array.shape, hint)
    return array.transpose(0, 3, 1, 2)


def _texts(content: Mapping[str, Any], key: str, path: str | Path) -> tuple[str, ...]:
    array = content.get(key, np.array([], dtype=str))
    if array.ndim != 1 or array.dtype.kind != "U":
        raise invalid(f"{key} in {path}", "be a list of text", f"{array.dtype} of shape {array.shape}")
    return tuple(str(text) for text in array)


def _verified_npz(entry: PublicSet, path: Path, size: int | None) -> tuple[Splits, str]:
    """Read a public set from an `.npz`. If it can be done, the official files are rebuilt and their digests checked."""
    (train, test), _ = read_arrays(path)
    _check_counts(entry, path, len(train), len(test))
    stored = train.shape[-1]
    if size not in (None, stored):
        hint = f"An .npz is not resized: leave the option out, or read {entry.files[0].name} instead of it."
        raise invalid(f"size for {path}", f"be {stored}, as stored", size, hint)
    encode: Callable[[Images, PublicSet], bytes] | None = {"cifar": _to_cifar, "idx": _to_idx}.get(entry.format)
    if encode is None:
        return (train, test), "number of images"
    files = entry.contents
    for part, expected in ((train, files["train"]), (test, files["test"])):
        content, start = encode(part, entry), 0
        for file in expected:
            rebuilt = io.BytesIO(content[start : start + file.size])
            check_digest(rebuilt, file.digest, f"the arrays of {file.name}")
            start += file.size
    return (train, test), f"{digest_name(files['test'][0].digest)} of the official files, rebuilt from the arrays"


# Folders and archives of pictures -------------------------------------------------------------------------------------

_Row = tuple[Picture, str, int]  # a picture, its split and its label
_LONGEST_LIST = 2**26  # bytes


def _read_pictures(
    entry: PublicSet, source: Source, side: int, progress: Progress | None
) -> tuple[Splits, tuple[str, ...]]:
    """Decode the pictures of a set; and the names of its classes, if the files contain them."""
    if source.form == "archive":
        with _readable(source.path):
            pictures = pictures_in_zip(source.path, entry.folders[0])
    else:
        pictures = pictures_in_folder(source.path)
    names: tuple[str, ...] = ()
    if entry.format == "classes":
        rows = _rows_by_class(pictures, entry)
    else:
        rows, names = _rows_of_tiny_imagenet(pictures, entry, source)
    counts = Counter(split for _, split, _ in rows)
    _check_counts(entry, source.path, counts["train"], counts["test"])
    colour: Colour = "grey" if len(entry.mean) == 1 else "rgb"
    found = [picture for picture, _, _ in rows]
    every = _images(
        decode_pictures(found, Decoder(side, colour), progress=progress),
        np.array([label for _, _, label in rows]),
        tuple(picture.path.as_posix() for picture in found),
    )
    in_test = torch.tensor([split == "test" for _, split, _ in rows])
    return (every.take(torch.nonzero(~in_test).flatten()), every.take(torch.nonzero(in_test).flatten())), names


def _rows_by_class(pictures: list[Picture], entry: PublicSet) -> list[_Row]:
    """Pictures in folders by split and class, as in Chest X-rays of children (Kermany et al. 2018)."""
    # A popular copy moved 16 training images to a folder of their own; they belong to the training images.
    split_of = {"train": "train", "val": "train", "test": "test"}
    rows = []
    for picture in pictures:
        parts = picture.path.parts
        if len(parts) == 3 and parts[0] in split_of and parts[1] in entry.class_names:
            rows.append((picture, split_of[parts[0]], entry.class_names.index(parts[1])))
    return rows


def _rows_of_tiny_imagenet(
    pictures: list[Picture], entry: PublicSet, source: Source
) -> tuple[list[_Row], tuple[str, ...]]:
    """Pictures of Tiny-ImageNet and the names of its classes, which are numbered in the order of their WordNet ids.

    The official validation pictures are the test set: the labels of the official test pictures were never published.
    """

    def lines(name: str) -> list[str]:
        try:
            return _read_file(entry, source, name, _LONGEST_LIST).decode().splitlines()
        except UnicodeDecodeError as error:
            raise invalid(name, "be text in UTF-8", f"byte {error.start} of another kind") from error

    ids = sorted(word for line in lines("wnids.txt") for word in line.split())
    words = dict(line.split("\t", 1) for line in lines("words.txt") if "\t" in line)
    names = [words.get(wordnet_id, wordnet_id).split(",")[0].strip() for wordnet_id in ids]
    # If two classes share their first word, both names get the id too.
    count = Counter(names)
    for label, wordnet_id in enumerate(ids):
        if count[names[label]] > 1:
            names[label] = f"{names[label]} ({wordnet_id})"
    annotations = [line.split("\t") for line in lines("val/val_annotations.txt") if "\t" in line]
    id_of = {row[0]: row[1] for row in annotations}
    number = {wordnet_id: label for label, wordnet_id in enumerate(ids)}
    rows = []
    for picture in pictures:
        parts = picture.path.parts
        if len(parts) == 4 and parts[0] == "train" and parts[1] in number:
            rows.append((picture, "train", number[parts[1]]))
        elif len(parts) == 3 and parts[0] == "val":
            if id_of.get(parts[2]) not in number:
                raise invalid(picture.place, "have a known class in val_annotations.txt", id_of.get(parts[2]))
            rows.append((picture, "test", number[id_of[parts[2]]]))
    return rows, tuple(names)
