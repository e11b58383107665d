import pickle
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.training.data import folder as module
from calibrant.training.data import load_dataset


@pytest.fixture
def photographs(tmp_path, generator):
    """Photographs of different sizes in two classes, ten each."""
    for name in ("cat", "dog"):
        for index in range(10):
            path = tmp_path / "photographs" / name / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            size = (30 + 3 * index, 50 - 2 * index, 3)
            Image.fromarray(generator.integers(0, 256, size, dtype=np.uint8)).save(path, quality=95)
    return tmp_path / "photographs"


@pytest.mark.parametrize("options", ["?size=16", "?size=16&fit=crop", "?size=16&fit=pad", "?size=8&colour=grey"])
def test_streams_what_loading_gives(photographs, options):
    name = f"folder:{photographs}{options}"
    loaded, streamed = load_dataset(name), load_dataset(name, data_path="stream")
    assert (streamed.mean, streamed.std) == (loaded.mean, loaded.std)
    assert (streamed.image_shape, streamed.class_names) == (loaded.image_shape, loaded.class_names)
    for split in ("train", "test"):
        part, whole = getattr(streamed, split), getattr(loaded, split)
        assert torch.equal(torch.stack([image for image, _ in map(part.__getitem__, range(len(part)))]), whole.images)
        assert [int(label) for _, label in map(part.__getitem__, range(len(part)))] == whole.labels.tolist()
        assert part.ids == whole.ids
        assert torch.equal(part[3][0], whole.images[3])
    some = streamed.train.take(torch.tensor([5, 2]))
    assert torch.equal(some[1][0], loaded.train.images[2])


def test_crop_and_pad_keep_the_aspect(tmp_path):
    # A white square in the middle of a wide black picture stays a square.
    wide = np.zeros((40, 80), np.uint8)
    wide[10:30, 30:50] = 255
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(2):
            Image.fromarray(wide).save(tmp_path / name / f"{index}.png")
    expected = {"crop": (20, 20), "pad": (10, 10), "stretch": (20, 10)}
    for fit, size in expected.items():
        image = load_dataset(f"folder:{tmp_path}?size=40&fit={fit}").train.images[0, 0]
        rows, columns = (image > 127).nonzero(as_tuple=True)
        assert (len(rows.unique()), len(columns.unique())) == size
        assert rows.float().mean() == columns.float().mean() == 19.5
    for options, message in (("?fit=crop", "come with a size"), ("?size=9&fit=no", "fit .* one of stretch, crop, pad")):
        with pytest.raises(InvalidInput, match=message):
            load_dataset(f"folder:{tmp_path}{options}")


def test_auto_streams_what_takes_more_than_half_of_the_memory(photographs, monkeypatch):
    name, needed = f"folder:{photographs}?size=16", 20 * 3 * 16 * 16
    for memory, streams in ((2 * needed, False), (2 * needed - 1, True), (0, False)):
        monkeypatch.setattr("calibrant.training.data.load.pixel_memory", lambda memory=memory: memory)
        opened = load_dataset(name, data_path="auto")
        assert isinstance(opened, module.StreamedDataset) == streams
        assert opened.reason.startswith("stream," if streams else "in memory,")
        assert "GB of pixels" in opened.reason
    monkeypatch.setattr("calibrant.training.data.load.pixel_memory", lambda: 1)
    assert load_dataset(name, data_path="loader").train.images.shape == (16, 3, 16, 16)
    assert load_dataset("digits", data_path="auto").reason == ""
    with pytest.raises(InvalidInput, match="be folder:DIR to be streamed, got 'digits'"):
        load_dataset("digits", data_path="stream")


def test_statistics_of_a_large_set_come_from_a_sample(photographs, monkeypatch):
    monkeypatch.setattr(module, "_SAMPLED", 4)
    read = []
    real = module.Decoder.__call__
    monkeypatch.setattr(
        module.Decoder, "__call__", lambda self, picture: read.append(picture.path) or real(self, picture)
    )
    streamed = load_dataset(f"folder:{photographs}?size=16", data_path="stream")
    # The first picture, for the shape, and every fourth of the sixteen to train on, in the order that threads take.
    assert sorted(map(str, read[1:])) == sorted(streamed.train.ids[::4])


def test_grey_and_colour(tmp_path, generator, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(5):
            Image.fromarray(generator.integers(0, 256, (6, 6), dtype=np.uint8)).save(tmp_path / name / f"{index}.png")
    name = f"folder:{tmp_path}"
    assert load_dataset(name, data_path="stream").image_shape == (1, 6, 6)
    assert load_dataset(f"{name}?colour=rgb", data_path="stream").image_shape == (3, 6, 6)
    grey = load_dataset(name, data_path="stream")
    position = next(row for row, path in enumerate(grey.train.ids) if path == "b/4.png" or row == 7)
    path = tmp_path / grey.train.ids[position]
    Image.fromarray(generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(path)
    assert load_dataset(name, data_path="stream").image_shape == (3, 6, 6)
    # Only a sample is looked at: a colour picture beside it is refused by name when it is met.
    with pytest.raises(InvalidInput, match=rf"{path.name} must be grey .*\?colour=rgb"):
        grey.train[position]


def test_pictures_of_another_size_are_a_fault(tmp_path, generator):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(2):
            Image.fromarray(generator.integers(0, 256, (6, 5), dtype=np.uint8)).save(tmp_path / name / f"{index}.png")
    streamed = load_dataset(f"folder:{tmp_path}", data_path="stream")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / streamed.train.ids[1])
    with pytest.raises(InvalidInput, match="have one size, 5x6"):
        streamed.train[1]


def test_unreadable_pictures_are_refused(photographs):
    for path in (photographs / "cat/3.jpg", photographs / "dog/7.jpg"):
        path.write_bytes(path.read_bytes()[:200])
    for make in (load_dataset, partial(load_dataset, data_path="stream")):
        with pytest.raises(
            InvalidInput, match=r"/\d.jpg cannot be read as an image .* 'calibrant data check' names all"
        ):
            make(f"folder:{photographs}?size=16")


def test_a_folder_without_one_readable_picture_is_refused(photographs):
    for path in photographs.rglob("*.jpg"):
        path.write_bytes(b"")
    for make in (load_dataset, partial(load_dataset, data_path="stream")):
        with pytest.raises(InvalidInput):
            make(f"folder:{photographs}?size=16")


def test_a_part_goes_to_another_process(photographs):
    part = load_dataset(f"folder:{photographs}?size=16", data_path="stream").train
    copy = pickle.loads(pickle.dumps(part))
    assert torch.equal(copy[2][0], part[2][0])
    (photographs / part.ids[2]).unlink()
    with pytest.raises(InvalidInput, match="no such file"):
        part[2]


def test_small_files_with_far_more_pixels_are_refused_unless_they_are_resized(tmp_path):
    for name in ("cat/0", "cat/1", "cat/2", "cat/3", "dog/0", "dog/1", "dog/2", "dog/3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (2000, 2000)).save(tmp_path / f"{name}.png")
    with pytest.raises(InvalidInput, match=r"Add \?size=64"):
        load_dataset(f"folder:{tmp_path}", data_path="stream")
    assert load_dataset(f"folder:{tmp_path}?size=8", data_path="stream").image_shape == (1, 8, 8)
