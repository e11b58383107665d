import numpy as np
import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.training.data import load_dataset


def test_reads_what_was_written(npz):
    path, content = npz()
    dataset = load_dataset(f"arrays:{path}")
    assert (dataset.name, dataset.n_classes, dataset.image_shape) == ("own", 3, (3, 6, 5))
    np.testing.assert_array_equal(dataset.train.images.permute(0, 2, 3, 1).numpy(), content["x_train"])
    np.testing.assert_array_equal(dataset.test.labels.numpy(), content["y_test"])
    assert dataset.train.labels.dtype == torch.int64
    assert dataset.class_names == ("0", "1", "2")
    np.testing.assert_allclose(dataset.mean, (content["x_train"] / 255.0).mean((0, 1, 2)), rtol=1e-12)


def test_grey_images_need_no_channel(npz, generator):
    path, _ = npz(x_train=generator.integers(0, 256, (12, 4, 4), dtype=np.uint8), x_test=np.zeros((6, 4, 4), np.uint8))
    assert load_dataset(f"arrays:{path}").image_shape == (1, 4, 4)


def test_keeps_names_of_classes_and_rows(npz):
    path, _ = npz(class_names=np.array(["a", "b", "c"]), ids_train=np.array([f"row {i}" for i in range(12)]))
    dataset = load_dataset(f"arrays:{path}")
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.train.ids[2] == "row 2"
    assert dataset.test.ids[2] == "test-000002"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "no y_test"),
        ({"x_train": np.zeros((12, 6, 5, 3))}, r"be uint8 \(0 to 255\), got float64. .*\(x \* 255\).round\(\)"),
        ({"x_train": np.zeros((12, 6), np.uint8)}, r"\(N, H, W\) or \(N, H, W, C\)"),
        ({"x_train": np.zeros((12, 3, 6, 5), np.uint8)}, r"x.transpose\(0, 2, 3, 1\)"),
        ({"x_train": np.zeros((12, 6, 6, 5), np.uint8)}, "at most 4 channels"),
        ({"y_train": np.zeros(12)}, r"y_train in .* must"),
        ({"y_train": np.zeros((12, 1), int)}, "y_train in"),
        ({"y_train": np.zeros(11, int)}, "y_train in"),
        ({"y_train": np.arange(12) % 2 * 2}, r"no image of class 1"),
        ({"y_train": np.arange(12) - 1}, "train labels must"),
        ({"y_test": np.full(6, 3)}, r"no image of class 3"),
        ({"x_test": np.zeros((6, 4, 4, 3), np.uint8)}, "shape of the training images"),
        ({"class_names": np.array([1, 2, 3])}, "class_names in .* must be a list of text"),
        ({"class_names": np.array(["a", "b"])}, "train labels must"),
        ({"ids_train": np.array(["a"])}, "ids must name each of the 12 images"),
        ({"x_train": np.array([[1], "a"], object)}, "x_train must be a plain array"),
        ({"x_train": np.zeros((0, 6, 5, 3), np.uint8), "y_train": np.zeros(0, int)}, "nothing empty"),
    ],
)
def test_bad_arrays_are_one_clear_line(npz, changes, message):
    path, _ = npz(**changes)
    with pytest.raises(InvalidInput, match=message) as caught:
        load_dataset(f"arrays:{path}")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_sets(tmp_path, npz):
    with pytest.raises(InvalidInput, match="does not exist"):
        load_dataset(f"arrays:{tmp_path}/none.npz")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_dataset(f"arrays:{tmp_path}")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InvalidInput, match=r"one\.npy must be a whole \.npz file"):
        load_dataset(f"arrays:{tmp_path}/one.npy")
