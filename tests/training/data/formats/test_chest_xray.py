import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset
from calibrant.training.data.public_sets import CATALOGUE

# Path and grey value of each picture; the pictures have different sizes, one is in colour, two lie in `val`.
PICTURES = {
    "train/NORMAL/IM-1.jpeg": 10, "train/NORMAL/IM-2.jpeg": 20, "train/PNEUMONIA/person1.jpeg": 30,
    "val/PNEUMONIA/person2.jpeg": 40, "test/NORMAL/IM-3.jpeg": 50, "test/PNEUMONIA/person3.jpeg": 60,
}  # fmt: skip


def encode(value, size, mode):
    buffer = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@pytest.fixture
def contents(monkeypatch):
    monkeypatch.setitem(CATALOGUE, "mendeley-v2", replace(CATALOGUE["mendeley-v2"], train=4, test=2))
    return {path: encode(value, (300 + value, 200), "RGB" if value == 20 else "L") for path, value in PICTURES.items()}


def write_folder(root, contents):
    for path, content in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def write_zip(path, contents, prefix="chest_xray/"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/chest_xray/train/NORMAL/._IM-1.jpeg", b"resource fork")
        archive.writestr("chest_xray/train/NORMAL/.DS_Store", b"")
        for name, content in contents.items():
            archive.writestr(f"{prefix}{name}", content)


def check(dataset, side=64):
    assert dataset.image_shape == (1, side, side)
    assert dataset.class_names == ("NORMAL", "PNEUMONIA")
    assert (dataset.mean, dataset.std) == ((0.0,), (1.0,))
    for part in (dataset.train, dataset.test):
        for name, image, label in zip(part.ids, part.images, part.labels.tolist(), strict=True):
            assert label == ("PNEUMONIA" in name)
            np.testing.assert_allclose(image.numpy(), PICTURES[name], atol=1)
    assert set(dataset.train.ids) == {name for name in PICTURES if not name.startswith("test")}


@pytest.mark.parametrize("place", [".", "chest_xray", "mendeley-v2/chest_xray"])
def test_reads_the_unpacked_folder(contents, tmp_path, place):
    write_folder(tmp_path / place, contents)
    check(load_dataset("mendeley-v2", data_dir=tmp_path))


def test_reads_the_archive_at_another_size(contents, tmp_path):
    write_zip(tmp_path / "ChestXRay2017.zip", contents)
    check(load_dataset("mendeley-v2?size=32", data_dir=tmp_path), side=32)


def test_names_that_point_outside_write_nothing_and_are_passed_over(contents, tmp_path):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    evil = {"../../train/NORMAL/evil.jpeg": contents["train/NORMAL/IM-1.jpeg"]}
    write_zip(inside / "ChestXRay2017.zip", contents)
    with zipfile.ZipFile(inside / "ChestXRay2017.zip", "a") as archive:
        for name, content in evil.items():
            archive.writestr(name, content)
            archive.writestr(f"/{name}", content)
    check(load_dataset("mendeley-v2", data_dir=inside))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ChestXRay2017.zip"]


def test_an_npz_is_not_resized_in_silence(contents, tmp_path):
    rows = {"x_train": 4, "x_test": 2}
    images = {key: np.zeros((n, 64, 64), np.uint8) for key, n in rows.items()}
    np.savez(tmp_path / "mendeley-v2.npz", y_train=np.arange(4) % 2, y_test=np.arange(2), **images)
    assert load_dataset("mendeley-v2?size=64", data_dir=tmp_path).image_shape == (1, 64, 64)
    with pytest.raises(InvalidInput, match=r"size for .* must be 64, as stored, got 32"):
        load_dataset("mendeley-v2?size=32", data_dir=tmp_path)


def test_bad_sources(contents, tmp_path):
    path = tmp_path / "ChestXRay2017.zip"
    path.write_bytes(b"no archive")
    with pytest.raises(InvalidInput, match=r"ChestXRay2017.zip cannot be read: .* Get it again"):
        load_dataset("mendeley-v2", data_dir=tmp_path)
    write_zip(path, {})
    with pytest.raises(InvalidInput, match="4 training and 2 test images of mendeley-v2, got 0 and 0"):
        load_dataset("mendeley-v2", data_dir=tmp_path)
    write_zip(path, contents | {"test/NORMAL/IM-3.jpeg": b"broken"})
    with pytest.raises(InvalidInput, match=r"test/NORMAL/IM-3.jpeg in .* cannot be read as an image"):
        load_dataset("mendeley-v2", data_dir=tmp_path)
    write_zip(path, {name: content for name, content in contents.items() if "IM-3" not in name})
    with pytest.raises(InvalidInput, match="4 training and 2 test images of mendeley-v2, got 4 and 1"):
        load_dataset("mendeley-v2", data_dir=tmp_path)
    with pytest.raises(InvalidInput, match="Did you mean 'size'"):
        load_dataset("mendeley-v2?sise=3", data_dir=tmp_path)


@pytest.mark.real_data
def test_the_real_set(real_data_dir):
    dataset = load_dataset("mendeley-v2", data_dir=real_data_dir)
    assert dataset.test.labels.bincount().tolist() == [234, 390]
    assert dataset.train.labels.bincount().tolist() == [1349, 3883]
    assert dataset.image_shape == (1, 64, 64)
