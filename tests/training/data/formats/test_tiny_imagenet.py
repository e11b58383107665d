import hashlib
import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset
from calibrant.training.data.public_sets import CATALOGUE

IDS = ["n02", "n01", "n03"]
WORDS = "n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane, derrick\nn99\tunused\n"
# The class of a picture shows in its colour: red, green, blue in the order of the sorted ids.
COLOUR = {"n01": (250, 0, 0), "n02": (0, 250, 0), "n03": (0, 0, 250)}


def encode(colour, mode="RGB"):
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), colour).convert(mode).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


@pytest.fixture
def contents():
    files = {"wnids.txt": "\n".join(IDS).encode() + b"\n", "words.txt": WORDS.encode()}
    for wordnet_id in IDS:
        for index in range(3):
            files[f"train/{wordnet_id}/images/{wordnet_id}_{index}.JPEG"] = encode(COLOUR[wordnet_id])
        files[f"train/{wordnet_id}/{wordnet_id}_boxes.txt"] = b"0\t0\t62\t62\n"
    order = ["n03", "n01", "n02", "n01"]
    files["val/val_annotations.txt"] = b"".join(
        f"val_{index}.JPEG\t{wordnet_id}\t0\t0\t62\t62\n".encode() for index, wordnet_id in enumerate(order)
    )
    for index, wordnet_id in enumerate(order):
        files[f"val/images/val_{index}.JPEG"] = encode(COLOUR[wordnet_id])
    files["test/images/test_0.JPEG"] = encode((9, 9, 9))
    return files


def put_zip(folder, contents, monkeypatch):
    path = folder / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    use(monkeypatch, f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}")
    return path


def use(monkeypatch, digest="md5:none"):
    entry = CATALOGUE["tiny-imagenet"]
    entry = replace(entry, files=(replace(entry.files[0], digest=digest),), train=9, test=4, n_classes=3)
    monkeypatch.setitem(CATALOGUE, "tiny-imagenet", entry)


def check(dataset):
    assert dataset.class_names == ("goldfish", "crane (n02)", "crane (n03)")
    assert dataset.image_shape == (3, 64, 64)
    assert dataset.test.labels.tolist() == [2, 0, 1, 0]
    assert dataset.test.ids[0] == "val/images/val_0.JPEG"
    for part in (dataset.train, dataset.test):
        # The brightest channel of each picture is its class.
        np.testing.assert_array_equal(part.images.double().mean((2, 3)).argmax(1), part.labels)
    assert dataset.train.labels.bincount().tolist() == [3, 3, 3]


def test_reads_the_archive(contents, tmp_path, monkeypatch):
    put_zip(tmp_path, contents, monkeypatch)
    dataset = load_dataset("tiny-imagenet", data_dir=tmp_path)
    check(dataset)
    assert dataset.verified == "MD5 of the official archive"
    check(load_dataset("tiny-imagenet", data_dir=tmp_path))


def test_reads_the_unpacked_folder(contents, tmp_path, monkeypatch):
    use(monkeypatch)
    for name, content in contents.items():
        path = tmp_path / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    check(load_dataset("tiny-imagenet", data_dir=tmp_path))


def test_grey_pictures_among_the_coloured_ones_become_three_channels(contents, tmp_path, monkeypatch):
    contents["train/n01/images/n01_0.JPEG"] = encode((250, 0, 0), "L")
    put_zip(tmp_path, contents, monkeypatch)
    dataset = load_dataset("tiny-imagenet", data_dir=tmp_path)
    image = dataset.train.images[dataset.train.ids.index("train/n01/images/n01_0.JPEG")]
    assert (image[0] == image[1]).all()


def test_reports_progress(contents, tmp_path, monkeypatch):
    put_zip(tmp_path, contents, monkeypatch)
    seen = []
    load_dataset("tiny-imagenet", data_dir=tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (13, 13)


def test_damage_is_found(contents, tmp_path, monkeypatch):
    path = put_zip(tmp_path, contents, monkeypatch)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(InvalidInput, match=r"tiny-imagenet-200.zip: MD5 must be"):
        load_dataset("tiny-imagenet", data_dir=tmp_path)
    put_zip(tmp_path, {name: value for name, value in contents.items() if name != "words.txt"}, monkeypatch)
    with pytest.raises(InvalidInput, match=r"cannot be read: .*tiny-imagenet-200/words.txt"):
        load_dataset("tiny-imagenet", data_dir=tmp_path)
    put_zip(tmp_path, contents | {"val/images/val_7.JPEG": encode((1, 1, 1))}, monkeypatch)
    with pytest.raises(InvalidInput, match=r"val_7.JPEG in .* known class in val_annotations.txt, got None"):
        load_dataset("tiny-imagenet", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["wnids.txt", "words.txt", "val/val_annotations.txt"])
def test_a_list_that_is_not_utf8_is_one_line(tmp_path, contents, monkeypatch, name):
    put_zip(tmp_path, contents | {name: contents[name] + b"\xff"}, monkeypatch)
    with pytest.raises(InvalidInput, match=f"{name} must be text in UTF-8, got byte"):
        load_dataset("tiny-imagenet", data_dir=tmp_path)
