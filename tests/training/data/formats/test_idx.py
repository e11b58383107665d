import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset
from calibrant.training.data.public_sets import CATALOGUE, OfficialFile

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.fixture
def small(generator, monkeypatch):
    """Small files for both sets of the format: contents by set and file name, and arrays by set."""
    contents, arrays = {}, {}
    for name in ("mnist", "fashion-mnist"):
        made = [
            generator.integers(0, 256, (20, 28, 28), dtype=np.uint8), generator.permutation(np.arange(20) % 10),
            generator.integers(0, 256, (10, 28, 28), dtype=np.uint8), generator.permutation(10),
        ]  # fmt: skip
        files = []
        for file, array in zip(NAMES, made, strict=True):
            magic = 2051 if array.ndim == 3 else 2049
            content = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
            contents[name, file] = content
            files.append(OfficialFile(file, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}"))
        entry, parts = CATALOGUE[name], {"train": tuple(files[:2]), "test": tuple(files[2:])}
        monkeypatch.setitem(CATALOGUE, name, replace(entry, contents=parts, train=20, test=10, system=()))
        arrays[name] = made
    return contents, arrays


def write(folder, contents, name, *, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for (owner, file), content in contents.items():
        if owner == name:
            path = folder / (f"{file}.gz" if packed else file)
            path.write_bytes(gzip.compress(content) if packed else content)


def check(dataset, arrays):
    np.testing.assert_array_equal(dataset.train.images[:, 0].numpy(), arrays[0])
    np.testing.assert_array_equal(dataset.train.labels.numpy(), arrays[1])
    np.testing.assert_array_equal(dataset.test.images[:, 0].numpy(), arrays[2])
    np.testing.assert_array_equal(dataset.test.labels.numpy(), arrays[3])
    assert dataset.image_shape == (1, 28, 28)
    assert "SHA-256" in dataset.verified


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["fashion-mnist", "FashionMNIST/raw"])
def test_reads_packed_and_plain_files(small, tmp_path, packed, place):
    contents, arrays = small
    write(tmp_path / place, contents, "fashion-mnist", packed=packed)
    check(load_dataset("fashion-mnist", data_dir=tmp_path), arrays["fashion-mnist"])


def test_two_sets_with_the_same_file_names_are_told_apart(small, tmp_path):
    contents, arrays = small
    write(tmp_path, contents, "mnist", packed=True)
    with pytest.raises(InvalidInput, match="mnist is not on this machine"):
        load_dataset("mnist", data_dir=tmp_path)
    write(tmp_path / "MNIST" / "raw", contents, "mnist", packed=True)
    write(tmp_path / "fashion-mnist", contents, "fashion-mnist", packed=True)
    check(load_dataset("mnist", data_dir=tmp_path), arrays["mnist"])
    check(load_dataset("fashion-mnist", data_dir=tmp_path), arrays["fashion-mnist"])


def test_a_folder_of_the_distribution_is_looked_at_last(small, tmp_path, monkeypatch):
    contents, arrays = small
    place = tmp_path / "system" / "fashion-mnist"
    write(place, contents, "fashion-mnist", packed=True)
    entry = CATALOGUE["fashion-mnist"]
    monkeypatch.setitem(CATALOGUE, "fashion-mnist", replace(entry, system=(str(place),)))
    check(load_dataset("fashion-mnist"), arrays["fashion-mnist"])


def test_reads_npz_and_checks_it(small, tmp_path):
    _, arrays = small
    keys = ("x_train", "y_train", "x_test", "y_test")
    np.savez(tmp_path / "mnist.npz", **dict(zip(keys, arrays["mnist"], strict=True)))
    check(load_dataset("mnist", data_dir=tmp_path), arrays["mnist"])
    np.savez(tmp_path / "mnist.npz", **dict(zip(keys, arrays["fashion-mnist"], strict=True)))
    with pytest.raises(InvalidInput, match="the arrays of train-images-idx3-ubyte: SHA-256 must be"):
        load_dataset("mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "SHA-256 must be .*, got "),
        (lambda content: content[:-1], "must hold 7856 bytes, got 7855"),
        (lambda content: content + b"\0", "must hold 7856 bytes, got 7857"),
    ],
)
def test_damage_is_found(small, tmp_path, damage, message):
    contents, _ = small
    contents["mnist", NAMES[2]] = damage(contents["mnist", NAMES[2]])
    write(tmp_path / "mnist", contents, "mnist", packed=True)
    with pytest.raises(InvalidInput, match=f"{NAMES[2]} in .*{message}"):
        load_dataset("mnist", data_dir=tmp_path)


def test_a_broken_archive_is_named(small, tmp_path):
    contents, _ = small
    write(tmp_path / "mnist", contents, "mnist", packed=True)
    path = tmp_path / "mnist" / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match=f"{NAMES[0]}.gz cannot be read"):
        load_dataset("mnist", data_dir=tmp_path)


def test_three_of_four_files_are_no_set(small, tmp_path):
    contents, _ = small
    write(tmp_path / "mnist", contents, "mnist", packed=True)
    (tmp_path / "mnist" / f"{NAMES[3]}.gz").unlink()
    with pytest.raises(InvalidInput, match="mnist is not on this machine"):
        load_dataset("mnist", data_dir=tmp_path)
