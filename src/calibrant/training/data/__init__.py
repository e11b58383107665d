"""Where images and labels come from."""

from calibrant.training.data.dataset import Augmentation, Dataset, Images
from calibrant.training.data.decoder import Unreadable
from calibrant.training.data.extent import Extent, extent_of
from calibrant.training.data.fetch import catalogue_entry, fetch_dataset
from calibrant.training.data.folder import refused, warn_of_unreadable
from calibrant.training.data.listing import check_dataset, describe_content, describe_place, list_datasets
from calibrant.training.data.load import find_named, load_dataset
from calibrant.training.data.locate import data_dirs
from calibrant.training.data.spec import anchored, own_data, parse_spec, skipping_unreadable
from calibrant.training.data.split import split_validation
from calibrant.training.data.streaming import Opened, StreamedDataset, StreamedImages, open_dataset, stream_dataset
from calibrant.training.data.transforms import augment, draw_augmentation, normalise

__all__ = [
    "Augmentation",
    "Dataset",
    "Extent",
    "Images",
    "Opened",
    "StreamedDataset",
    "StreamedImages",
    "Unreadable",
    "anchored",
    "augment",
    "catalogue_entry",
    "check_dataset",
    "data_dirs",
    "describe_content",
    "describe_place",
    "draw_augmentation",
    "extent_of",
    "fetch_dataset",
    "find_named",
    "list_datasets",
    "load_dataset",
    "normalise",
    "open_dataset",
    "own_data",
    "parse_spec",
    "refused",
    "skipping_unreadable",
    "split_validation",
    "stream_dataset",
    "warn_of_unreadable",
]
