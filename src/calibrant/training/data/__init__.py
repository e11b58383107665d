"""Image sets: the public ones, your own arrays and folders of pictures, in memory or decoded as they are needed."""

from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Images,
    augment,
    draw_augmentation,
    normalise,
    split_validation,
)
from calibrant.training.data.folder import StreamedDataset, StreamedImages
from calibrant.training.data.load import check_dataset, extent_of, load_dataset
from calibrant.training.data.public_sets import data_dirs, fetch_dataset, list_datasets

__all__ = [
    "Augmentation",
    "Dataset",
    "Images",
    "StreamedDataset",
    "StreamedImages",
    "augment",
    "check_dataset",
    "data_dirs",
    "draw_augmentation",
    "extent_of",
    "fetch_dataset",
    "list_datasets",
    "load_dataset",
    "normalise",
    "split_validation",
]
