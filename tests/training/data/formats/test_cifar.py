import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset
from calibrant.training.data.public_sets import CATALOGUE, OfficialFile


def record_file(generator, records, classes, coarse=None):
    """Content of an official file, built byte by byte, with its images and labels."""
    images = generator.integers(0, 256, (records, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(records) % classes
    content = b""
    for image, label in zip(images, labels, strict=True):
        content += (bytes([coarse[label]]) if coarse else b"") + bytes([label]) + image.tobytes()
    return content, images, labels


@pytest.fixture(params=["cifar10", "cifar100"])
def small(request, generator, monkeypatch):
    """The catalogue's entry, with files of a few records: name, contents by file name, images and labels."""
    entry = CATALOGUE[request.param]
    coarse = entry.coarse_of_fine or None
    contents, arrays, files = {}, [], []
    for file in (*entry.contents["train"], *entry.contents["test"]):
        content, images, labels = record_file(generator, entry.n_classes, entry.n_classes, coarse)
        contents[file.name] = content
        arrays.append((images, labels))
        files.append(OfficialFile(file.name, len(content), f"sha1:{hashlib.sha1(content).hexdigest()}"))
    parts = {"train": tuple(files[:-1]), "test": tuple(files[-1:])}
    counts = {"train": entry.n_classes * len(files[:-1]), "test": entry.n_classes}
    monkeypatch.setitem(CATALOGUE, entry.name, replace(entry, contents=parts, **counts))
    return entry.name, contents, arrays


def write_archive(path, folder, contents, *, extra=()):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (*extra, *((f"{folder}/{name}", content) for name, content in contents.items())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def check(dataset, arrays):
    train = np.concatenate([images for images, _ in arrays[:-1]])
    np.testing.assert_array_equal(dataset.train.images.numpy(), train)
    np.testing.assert_array_equal(dataset.train.labels.numpy(), np.concatenate([labels for _, labels in arrays[:-1]]))
    np.testing.assert_array_equal(dataset.test.images.numpy(), arrays[-1][0])
    np.testing.assert_array_equal(dataset.test.labels.numpy(), arrays[-1][1])
    assert "SHA-1" in dataset.verified


@pytest.mark.parametrize("place", ["archive", "unpacked", "flat", "subfolder"])
def test_reads_archive_and_files(small, tmp_path, place):
    name, contents, arrays = small
    entry = CATALOGUE[name]
    folder = {"unpacked": tmp_path / entry.folders[0], "subfolder": tmp_path / name}.get(place, tmp_path)
    folder.mkdir(exist_ok=True)
    if place == "archive":
        write_archive(tmp_path / entry.archive, entry.folders[0], contents)
    else:
        for file, content in contents.items():
            (folder / file).write_bytes(content)
    check(load_dataset(name, data_dir=tmp_path), arrays)


def test_reads_npz_and_rebuilds_the_official_files_to_check_it(small, tmp_path):
    name, _, arrays = small
    layout = {
        "x_train": np.concatenate([images for images, _ in arrays[:-1]]).transpose(0, 2, 3, 1),
        "y_train": np.concatenate([labels for _, labels in arrays[:-1]]),
        "x_test": arrays[-1][0].transpose(0, 2, 3, 1),
        "y_test": arrays[-1][1],
    }
    np.savez(tmp_path / f"{name}.npz", **layout)
    check(load_dataset(name, data_dir=tmp_path), arrays)
    layout["x_test"] = layout["x_test"].copy()
    layout["x_test"][0, 0, 0, 0] ^= 1
    np.savez(tmp_path / f"{name}.npz", **layout)
    with pytest.raises(InvalidInput, match=r"the arrays of test.*: SHA-1 must be .*, got "):
        load_dataset(name, data_dir=tmp_path)


def test_one_wrong_bit_is_found(small, tmp_path):
    name, contents, _ = small
    entry = CATALOGUE[name]
    (test,) = entry.contents["test"]
    damaged = bytearray(contents[test.name])
    damaged[-1] ^= 1
    write_archive(tmp_path / entry.archive, entry.folders[0], contents | {test.name: bytes(damaged)})
    got = hashlib.sha1(damaged).hexdigest()
    message = f"{test.name} in .*: SHA-1 must be {test.digest[5:]}, got {got}. .*calibrant data fetch"
    with pytest.raises(InvalidInput, match=message):
        load_dataset(name, data_dir=tmp_path)


def test_a_short_file_a_missing_member_and_a_broken_archive(small, tmp_path):
    name, contents, _ = small
    entry = CATALOGUE[name]
    path = tmp_path / entry.archive
    (test,) = entry.contents["test"]
    write_archive(path, entry.folders[0], contents | {test.name: b"short"})
    with pytest.raises(InvalidInput, match=f"{test.name} in .* must hold .* bytes, got 5"):
        load_dataset(name, data_dir=tmp_path)
    write_archive(path, entry.folders[0], {key: value for key, value in contents.items() if key != test.name})
    with pytest.raises(InvalidInput, match=f"must hold {entry.folders[0]}/{test.name}"):
        load_dataset(name, data_dir=tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InvalidInput, match=f"{entry.archive} cannot be read: .* Get it again"):
        load_dataset(name, data_dir=tmp_path)


def test_members_that_point_outside_write_nothing(small, tmp_path):
    name, contents, arrays = small
    entry = CATALOGUE[name]
    inside = tmp_path / "inside"
    inside.mkdir()
    evil = [("../evil.bin", b"x"), (str(tmp_path / "evil.bin"), b"x")]
    write_archive(inside / entry.archive, entry.folders[0], contents, extra=evil)
    check(load_dataset(name, data_dir=inside), arrays)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["inside", entry.archive])


def test_a_link_in_place_of_a_file_is_not_followed(small, tmp_path):
    name, contents, _ = small
    entry = CATALOGUE[name]
    with tarfile.open(tmp_path / entry.archive, "w:gz") as archive:
        for file in contents:
            member = tarfile.TarInfo(f"{entry.folders[0]}/{file}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    with pytest.raises(InvalidInput, match="an archive without it"):
        load_dataset(name, data_dir=tmp_path)


@pytest.mark.parametrize("pickled", ["cifar-10-python.tar.gz", "cifar-10-batches-py"])
def test_the_python_version_is_not_read_because_it_is_pickled(tmp_path, pickled):
    (tmp_path / pickled).write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"cifar10 is not on this machine .* put cifar-10-binary.tar.gz"):
        load_dataset("cifar10", data_dir=tmp_path)


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_real_set_equals_the_official_files(real_data_dir, name):
    if not (real_data_dir / f"{name}.npz").exists():
        pytest.skip(f"{name}.npz is not in CALIBRANT_DATA")
    dataset = load_dataset(name, data_dir=real_data_dir)
    assert (len(dataset.train), len(dataset.test)) == (50_000, 10_000)
    assert set(dataset.train.labels.bincount().tolist()) == {50_000 // dataset.n_classes}
    assert "SHA-1 of the official files" in dataset.verified
