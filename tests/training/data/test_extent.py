import numpy as np
import pytest
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.training.data import extent_of, load_dataset


def _same_as_loaded(spec):
    found, loaded = extent_of(spec), extent_of(load_dataset(spec))
    assert found == loaded
    return found


@pytest.fixture
def folder(tmp_path):
    for name, count in (("cat", 7), ("dog", 12)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for index in range(count):
            Image.new("L", (20, 24), index).save(tmp_path / "pets" / name / f"{index}.png")
    return tmp_path / "pets"


def test_what_is_listed_is_what_is_loaded(folder, tmp_path):
    assert _same_as_loaded("digits").train == 1198
    assert _same_as_loaded(f"folder:{folder}").side == 20
    assert _same_as_loaded(f"folder:{folder}?size=16").side == 16
    pixels = np.zeros((6, 10, 12, 3), np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=pixels, y_train=[0, 1, 2, 0, 1, 2], x_test=pixels[:1], y_test=[1])
    assert _same_as_loaded(f"arrays:{tmp_path / 'mine.npz'}").n_classes == 3


def test_public_sets_are_known_without_their_files(monkeypatch, tmp_path):
    monkeypatch.setenv("CALIBRANT_DATA", str(tmp_path))
    assert (extent_of("tiny-imagenet").train, extent_of("tiny-imagenet").side) == (100_000, 64)
    assert extent_of("mendeley-v2?size=96").side == 96


def test_no_picture_but_one_is_decoded(folder, monkeypatch):
    decoded = []
    from calibrant.training.data import folder as module

    real = module.decode_pictures
    monkeypatch.setattr(
        module, "decode_pictures", lambda pictures, *args: decoded.append(len(pictures)) or real(pictures, *args)
    )
    assert extent_of(f"folder:{folder}").train == 16
    assert decoded == [1]


def test_bad_sets_are_refused_as_when_they_are_loaded(tmp_path):
    np.savez(tmp_path / "half.npz", x_train=np.zeros((2, 8, 8), np.uint8))
    for spec in ("cifer10", "folder:/nowhere", f"arrays:{tmp_path / 'half.npz'}", "arrays:nothing.npz"):
        with pytest.raises(InvalidInput) as listed:
            extent_of(spec)
        with pytest.raises(InvalidInput) as loaded:
            load_dataset(spec)
        assert str(listed.value) == str(loaded.value)
