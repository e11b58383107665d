"""`decoder=torchvision`, with torchvision itself where it can be imported and with a stand-in everywhere."""

import io
import sys
from enum import Enum
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset, stream_dataset


class ReadMode(Enum):
    GRAY = "L"
    RGB = "RGB"


def decode_jpeg(stored, mode):
    """What torchvision's function of this name gives, by Pillow."""
    try:
        with Image.open(io.BytesIO(stored.numpy().tobytes())) as image:
            image.draft(mode.value, image.size)
            pixels = np.atleast_3d(np.asarray(image.convert(mode.value)))
    except OSError as error:
        raise RuntimeError(str(error)) from error
    DECODED.append(mode.value)
    return torch.tensor(pixels).permute(2, 0, 1)


DECODED = []


@pytest.fixture(params=["stand-in", "torchvision"])
def library(request, monkeypatch):
    """Say what decodes; the stand-in notes in `DECODED` that it did."""
    DECODED.clear()
    if request.param == "torchvision":
        try:
            import torchvision  # noqa: F401
        except Exception as error:  # noqa: BLE001 (a build for another torch breaks in many ways)
            pytest.skip(f"torchvision cannot be imported: {error}")
    else:
        package, module = ModuleType("torchvision"), ModuleType("torchvision.io")
        module.decode_jpeg, module.ImageReadMode, package.io = decode_jpeg, ReadMode, module
        monkeypatch.setitem(sys.modules, "torchvision", package)
        monkeypatch.setitem(sys.modules, "torchvision.io", module)
    return request.param


def smooth(generator, width, height):
    small = Image.fromarray(generator.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path, generator):
    """JPEG files of different sizes, and one each that is grey, lies on its side, is CMYK, and is a PNG."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index, size in enumerate([(60, 40), (41, 61), (48, 48), (98, 50), (33, 91)]):
            smooth(generator, *size).save(tmp_path / name / f"{index}.jpg", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    smooth(generator, 60, 40).save(tmp_path / "a/turned.jpg", exif=exif)
    smooth(generator, 60, 40).convert("L").save(tmp_path / "a/grey.jpg")
    smooth(generator, 60, 40).convert("CMYK").save(tmp_path / "b/cmyk.jpg")
    smooth(generator, 60, 40).save(tmp_path / "b/drawing.png")
    return tmp_path


@pytest.mark.parametrize("options", ["stretch", "crop", "pad", "stretch&colour=grey", "stretch&colour=rgb"])
def test_pixels_are_those_of_pillow_but_for_rounding(library, folder, options):
    name = f"folder:{folder}?size=32&fit={options}"
    ours, theirs = load_dataset(name), load_dataset(f"{name}&decoder=torchvision")
    assert theirs.ids("train") == ours.ids("train")
    for split in ("train", "test"):
        expected, found = (getattr(each, split).images.int() for each in (ours, theirs))
        assert (found - expected).abs().max() <= 3
        for path, one, other in zip(ours.ids(split), expected, found, strict=True):
            assert torch.equal(one, other) or path not in ("a/turned.jpg", "b/cmyk.jpg", "b/drawing.png")
    streamed = stream_dataset(f"{name}&decoder=torchvision").train
    assert torch.equal(streamed.__getitems__(range(len(streamed))).images, theirs.train.images)
    if library == "stand-in":
        assert set(DECODED) == ({"L"} if "grey" in options else {"RGB"} if "rgb" in options else {"L", "RGB"})


def test_pictures_without_a_size_are_the_same_pixels(library, tmp_path, generator):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(4):
            smooth(generator, 50, 41).save(tmp_path / name / f"{index}.jpg", progressive=index == 2)
    ours, theirs = (load_dataset(f"folder:{tmp_path}{each}") for each in ("", "?decoder=torchvision"))
    assert torch.equal(theirs.train.images, ours.train.images)
    assert library != "stand-in" or len(DECODED) == 8


def test_a_damaged_file_is_the_line_that_pillow_gives(library, folder):
    path = folder / "b/3.jpg"
    path.write_bytes(path.read_bytes()[:400])
    for options in ("", "&decoder=torchvision"):
        with pytest.raises(InvalidInput, match=r"b/3\.jpg cannot be read as an image \(.*runcated.*\)\. Replace the"):
            load_dataset(f"folder:{folder}?size=16{options}")


def test_a_missing_torchvision_and_another_decoder_are_one_line_before_anything_is_read(
    folder, monkeypatch, calibrant, tmp_path
):
    for name in ("torchvision", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)
    (folder / "a/0.jpg").write_bytes(b"")  # would be the first to be read
    settings = ["--epochs", "1", "--set", "engine.accelerator=cpu", "--out", tmp_path / "run"]
    code, _, err = calibrant("train", "--data", f"folder:{folder}?size=16&decoder=torchvision", *settings)
    assert code == 2
    assert err == (
        "calibrant: decoder=torchvision needs torchvision. Install it with: pip install 'calibrant[vision]'\n"
    )
    assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidInput, match="decoder in the name of the data must be one of pillow, torchvision, got"):
        stream_dataset(f"folder:{folder}?size=16&decoder=simd")
