import os
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.training import default_recipe
from calibrant.training.data import Augmentation, extent_of, load_dataset


@pytest.fixture
def picture(tmp_path, generator):
    """Write a random picture below tmp_path and return its pixels."""

    def write(path, size=(6, 5), mode="RGB", pixels=None):
        shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
        content = generator.integers(0, 256, shape, dtype=np.uint8) if pixels is None else pixels
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(content).save(target)
        return content

    return write


def test_reads_train_and_test_with_relative_paths_as_names(tmp_path, picture):
    pixels = {}
    for path in ("train/cat/1.png", "train/dog/a b.png", "test/dog/x.PNG", "test/cat/y.png", "train/cat/0.png"):
        pixels[path] = picture(path)
    (tmp_path / "train/cat/.DS_Store").write_text("")
    (tmp_path / "train/cat/notes.txt").write_text("not a picture")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.ids == ("train/cat/0.png", "train/cat/1.png", "train/dog/a b.png")
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dict(zip(dataset.test.ids, dataset.test.labels.tolist(), strict=True)) == {
        "test/cat/y.png": 0,
        "test/dog/x.PNG": 1,
    }
    for part in (dataset.train, dataset.test):
        for name, image in zip(part.ids, part.images, strict=True):
            np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), pixels[name])


def test_without_a_split_a_fifth_of_each_class_is_the_test(tmp_path, picture):
    for name, count in (("a", 10), ("b", 5)):
        for index in range(count):
            picture(f"{name}/{index}.png")
    first, again = load_dataset(f"folder:{tmp_path}"), load_dataset(f"folder:{tmp_path}")
    assert sorted(first.test.labels.tolist()) == [0, 0, 1]
    assert first.test.ids == again.test.ids
    assert not set(first.test.ids) & set(first.train.ids)


def test_all_grey_is_one_channel_and_a_mixture_three(tmp_path, picture):
    for path in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        picture(path, mode="L")
    assert load_dataset(f"folder:{tmp_path}").image_shape == (1, 5, 6)
    grey = load_dataset(f"folder:{tmp_path}?colour=rgb")
    assert grey.image_shape == (3, 5, 6)
    assert (grey.train.images[:, 0] == grey.train.images[:, 2]).all()
    picture("b/3.png", mode="RGB")
    assert load_dataset(f"folder:{tmp_path}").image_shape == (3, 5, 6)
    assert load_dataset(f"folder:{tmp_path}?colour=grey").image_shape == (1, 5, 6)


def test_different_sizes_need_a_size(tmp_path, picture):
    for path, size in (("a/1.png", (6, 5)), ("a/2.jpg", (40, 30)), ("b/1.png", (6, 5)), ("b/2.png", (6, 5))):
        picture(path, size=size)
    with pytest.raises(InvalidInput, match=r"one size, 6x5 as .*a/1.png, got 40x30 in .*a/2.jpg. Add \?size=64"):
        load_dataset(f"folder:{tmp_path}")
    assert load_dataset(f"folder:{tmp_path}?size=8").image_shape == (3, 8, 8)


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_making_smaller_averages_instead_of_picking_pixels(tmp_path, picture, ending):
    board = ((np.indices((64, 64)).sum(0) % 2) * 255).astype(np.uint8)
    for path in ("a/1", "a/2", "b/1", "b/2"):
        picture(f"{path}.{ending}", pixels=board)
    small = load_dataset(f"folder:{tmp_path}?size=4").train.images.double()
    np.testing.assert_allclose(small, 127.5, atol=4)


def test_a_turned_photograph_is_shown_upright(tmp_path, picture):
    pixels = np.zeros((4, 2), np.uint8)
    pixels[0] = 255
    for path in ("a/1.png", "b/1.png", "b/2.png"):
        picture(path, pixels=pixels)
    turned = Image.fromarray(np.rot90(pixels).copy())
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right to see it upright
    turned.save(tmp_path / "a/2.png", exif=exif)
    dataset = load_dataset(f"folder:{tmp_path}")
    assert (dataset.train.images == dataset.train.images[0]).all()
    assert (dataset.test.images == dataset.train.images[0]).all()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"not an image", "not a picture of a known format"),
        (b"\x89PNG\r\n\x1a\n broken", ""),
    ],
)
def test_an_unreadable_picture_is_named_with_the_reason(tmp_path, picture, content, reason):
    for path in ("a/1.png", "a/2.png", "b/1.png"):
        picture(path)
    (tmp_path / "b/bad.png").write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"b/bad.png cannot be read as an image \({reason}.*\. Replace") as caught:
        load_dataset(f"folder:{tmp_path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "classes",
    [("0", "1", "10"), ("a", "b", "7"), ("Ж", "ß", "x"), ("digit_1", "letter-q", "Char 5")],
)
def test_classes_named_like_characters_are_not_mirrored(tmp_path, picture, classes):
    for name in classes:
        for index in range(2):
            picture(f"mine/{name}/{index}.png")
    data = f"folder:{tmp_path / 'mine'}"
    for found in (load_dataset(data), load_dataset(data, data_path="stream"), extent_of(data)):
        assert found.augmentation == Augmentation(flip=False)
    recipe = default_recipe(data)
    assert recipe.data.mirror is None  # the set's own
    assert recipe.reasons["data.mirror"] == "no, the classes are named like digits or letters"
    for index in range(2):
        picture(f"mine/cat/{index}.png")
    for found in (load_dataset(data), load_dataset(data, data_path="stream"), extent_of(data)):
        assert found.augmentation == Augmentation()


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for Ghostscript is a shell script")
def test_postscript_is_never_handed_to_ghostscript(tmp_path, picture, monkeypatch):
    for path in ("a/1.png", "a/2.png", "b/1.png"):
        picture(f"set/{path}")
    bad = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "set/b/bad.png").write_bytes(bad)
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/it_ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    EpsImagePlugin = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it remembers where Ghostscript was
    for ending in ("", "?size=8"):
        with pytest.raises(InvalidInput, match=r"b/bad.png cannot be read .* \(not a picture of a known"):
            load_dataset(f"folder:{tmp_path / 'set'}{ending}")
    assert not (tmp_path / "it_ran").exists()


@pytest.mark.parametrize("ending", ["bmp", "gif", "jpg", "png", "ppm", "pgm", "tif", "webp"])
def test_every_documented_format_is_read(tmp_path, picture, ending):
    mode = "L" if ending == "pgm" else "RGB"
    for path in ("a/1", "a/2", "b/1", "b/2"):
        picture(f"{path}.{ending}", size=(8, 8), mode=mode)
    assert len(load_dataset(f"folder:{tmp_path}?size=8").train.images)


def test_whatever_a_decoder_raises_is_an_unreadable_picture(tmp_path, picture, monkeypatch):
    for path in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        picture(path)

    def broken(*_, **__):
        raise subprocess.CalledProcessError(3, "decoder")

    monkeypatch.setattr(Image.Image, "convert", broken)
    with pytest.raises(InvalidInput, match=r"png cannot be read as an image \(Command 'decoder' returned"):
        load_dataset(f"folder:{tmp_path}?size=8&colour=grey")


def test_a_picture_that_ends_early_is_named(tmp_path, picture):
    for path in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        picture(path, size=(50, 50))
    whole = (tmp_path / "b/2.png").read_bytes()
    (tmp_path / "b/2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=r"b/2.png cannot be read .* \(truncated: the file ends too early\)"):
        load_dataset(f"folder:{tmp_path}")


def test_sixteen_bits_are_refused_because_they_would_be_cut_off(tmp_path, picture):
    picture("a/1.png", pixels=np.full((5, 6), 60_000, np.uint16))
    picture("b/1.png", mode="L")
    with pytest.raises(InvalidInput, match=r"a/1.png must have 8 bits per channel, got mode I(;16)?\. Choose the"):
        load_dataset(f"folder:{tmp_path}")


def test_cmyk_becomes_rgb(tmp_path, picture):
    picture("a/1.png")
    picture("b/1.png")
    Image.new("CMYK", (6, 5), (0, 255, 255, 0)).save(tmp_path / "b/2.tif")
    dataset = load_dataset(f"folder:{tmp_path}")
    images = dict(zip(dataset.train.ids, dataset.train.images, strict=True))
    images |= dict(zip(dataset.test.ids, dataset.test.images, strict=True))
    assert images["b/2.tif"][:, 0, 0].tolist() == [255, 0, 0]


def test_structures_that_are_no_sets(tmp_path, picture):
    with pytest.raises(InvalidInput, match="existing folder"):
        load_dataset(f"folder:{tmp_path}/none")
    with pytest.raises(InvalidInput, match="hold pictures in CLASS folders, got none"):
        load_dataset(f"folder:{tmp_path}")
    picture("only/1.png")
    with pytest.raises(InvalidInput, match=r"at least two classes, got 1 \(only\)"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="empty must be a class with at least one picture"):
        load_dataset(f"folder:{tmp_path}")
    picture("train/a/1.png")
    with pytest.raises(InvalidInput, match="only one of train and test"):
        load_dataset(f"folder:{tmp_path}")
    picture("train/b/1.png")
    picture("test/c/1.png")
    with pytest.raises(InvalidInput, match="test/c must be a class with at least one picture to train on"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(InvalidInput, match="colour in the name of the data must be one of auto, grey, rgb"):
        load_dataset(f"folder:{tmp_path}?colour=blue")


def test_a_validation_folder_is_not_lost_in_silence(tmp_path, picture):
    for path in ("train/a/1.png", "train/b/1.png", "test/a/1.png", "val/a/1.png"):
        picture(path)
    with pytest.warns(CalibrantWarning, match="val is not read"):
        dataset = load_dataset(f"folder:{tmp_path}")
    assert len(dataset.train) == 2


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_decoded(tmp_path, picture):
    picture("a/1.png")
    picture("b/1.png")
    (tmp_path / "b").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(InvalidInput, match=r"folder must have names in UTF-8, got .*caf\\xe9.*Rename") as got:
        load_dataset(f"folder:{tmp_path}")
    assert str(got.value).isascii()


def test_brackets_and_control_characters_in_class_names_are_data(tmp_path, picture):
    for name in ("[bold red]", "a\x1b[31m", "x\ny"):
        for index in range(2):
            picture(f"{name}/{index}.png")
    assert load_dataset(f"folder:{tmp_path}").class_names == ("[bold red]", "a\x1b[31m", "x\ny")


def black_png(width, height):
    """A grey PNG of one colour without its pixels in memory; a thousandth of their size."""
    packed = zlib.compressobj(9)
    body = b"".join([*(packed.compress(bytes(width + 1)) for _ in range(height)), packed.flush()])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", body), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("side", "options", "message"),
    [
        (13_000, "", "pixels, or 67108864 if pictures are resized, got 13000 x 13000. Make it smaller, or add"),
        (13_000, "?size=64", "pixels, or 67108864 if pictures are resized, got 13000 x 13000"),
        (2_000, "", "the pictures must unfold to at most 100 times its size"),
    ],
)
def test_small_files_that_unfold_to_much_are_refused_by_their_headers(tmp_path, monkeypatch, side, options, message):
    monkeypatch.setattr("calibrant.predictions.columns._HARMLESS", 2**25)
    content = black_png(side, 200 if side > 10_000 else side)
    if side > 10_000:  # a lie about the height, so that the file is made quickly
        header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        content = content[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + content[33:]
    for path in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        load_dataset(f"folder:{tmp_path}{options}")


def test_a_large_photograph_can_be_resized(tmp_path):
    content = black_png(4_200, 4_200)
    for path in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert load_dataset(f"folder:{tmp_path}?size=8").image_shape == (1, 8, 8)


def test_more_than_all_memory_is_refused(tmp_path, picture, monkeypatch):
    for path in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        picture(path)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    with pytest.raises(InvalidInput, match="the pictures must fit into memory"):
        load_dataset(f"folder:{tmp_path}?size=64")
