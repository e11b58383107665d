import base64
import io

import numpy as np
import pytest
from PIL import Image

from calibrant.errors import InvalidInput
from calibrant.report.thumbnails import check_images, data_uri, read_images


def opened(address):
    head, body = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


@pytest.mark.parametrize("shape", [(8, 8), (8, 6, 3), (8, 6, 4)])
def test_small_images_travel_unchanged(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert (opened(data_uri(image)) == image).all()


def test_large_images_are_made_small():
    assert max(opened(data_uri(np.zeros((300, 200, 3), np.uint8))).shape) == 96


def test_grey_images_lose_their_channel():
    assert check_images(np.zeros((5, 4, 4, 1), np.uint8), 5).shape == (5, 4, 4)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((5, 4, 4)), "images must be uint8"),
        (np.zeros((5, 4), np.uint8), "shape"),
        (np.zeros((5, 4, 4, 2), np.uint8), "1, 3 or 4 channels"),
        (np.zeros((4, 4, 4), np.uint8), "one image for each of the 5 predictions, got 4"),
    ],
)
def test_other_arrays_are_refused(images, message):
    with pytest.raises(InvalidInput, match=message):
        check_images(images, 5)


def test_files_without_images_are_one_line(tmp_path):
    with pytest.raises(InvalidInput, match="does not exist"):
        read_images(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", pixels=np.zeros(3))
    with pytest.raises(InvalidInput, match="array named images or x_test, got pixels"):
        read_images(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", images=np.array([object()]))
    with pytest.raises(InvalidInput, match="images must be a plain array"):
        read_images(tmp_path / "objects.npz")
