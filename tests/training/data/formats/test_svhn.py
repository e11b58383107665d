import hashlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset
from calibrant.training.data.public_sets import CATALOGUE, OfficialFile


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Write both files from dictionaries of variables and tell the catalogue their digests."""

    def write(train, test):
        parts = {}
        for split, content in (("train", train), ("test", test)):
            path = tmp_path / f"{split}_32x32.mat"
            savemat(path, content, do_compression=True)
            digest = f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
            parts[split] = (OfficialFile(path.name, path.stat().st_size, digest),)
        entry = replace(CATALOGUE["svhn"], contents=parts, train=20, test=10)
        monkeypatch.setitem(CATALOGUE, "svhn", entry)
        return tmp_path

    return write


def part(generator, n):
    return {
        "X": generator.integers(0, 256, (32, 32, 3, n), dtype=np.uint8),
        "y": (np.arange(n) % 10 + 1).astype(np.uint8)[:, None],
    }


def test_reads_both_files_and_ten_is_zero(put, generator):
    train, test = part(generator, 20), part(generator, 10)
    dataset = load_dataset("svhn", data_dir=put(train, test))
    assert dataset.test.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    for row in (0, 7, 19):
        for channel in range(3):
            np.testing.assert_array_equal(dataset.train.images[row, channel].numpy(), train["X"][:, :, channel, row])
    assert (dataset.augmentation.crop_padding, dataset.augmentation.flip) == (0, False)
    assert "MD5" in dataset.verified


def test_a_wrong_digest_is_found(put, generator):
    folder = put(part(generator, 20), part(generator, 10))
    path = folder / "test_32x32.mat"
    expected = hashlib.md5(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    got = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(InvalidInput, match=f"test_32x32.mat in .*: MD5 must be {expected}, got {got}"):
        load_dataset("svhn", data_dir=folder)


def test_another_number_of_images_is_refused(put, generator):
    with pytest.raises(InvalidInput, match="hold the 20 training and 10 test images of svhn, got 20 and 11"):
        load_dataset("svhn", data_dir=put(part(generator, 20), part(generator, 11)))


def test_a_damaged_file_never_reaches_scipy(put, generator, monkeypatch):
    """Its reader in C can end the process, so the digest is compared first."""
    folder = put(part(generator, 20), part(generator, 10))
    path = folder / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("was read"))
    with pytest.raises(InvalidInput, match="MD5 must be"):
        load_dataset("svhn", data_dir=folder)
