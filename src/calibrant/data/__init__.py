"""Where images and labels come from."""

from calibrant.data.dataset import Augmentation, Dataset, Images
from calibrant.data.load import load_dataset
from calibrant.data.split import split_validation
from calibrant.data.transforms import augment, draw_augmentation, normalise

__all__ = [
    "Augmentation",
    "Dataset",
    "Images",
    "augment",
    "draw_augmentation",
    "load_dataset",
    "normalise",
    "split_validation",
]
