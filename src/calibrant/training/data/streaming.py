"""Folders of pictures that are decoded as they are needed, for sets that do not fit into memory."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from calibrant.errors import InvalidInput, invalid
from calibrant.tables import Displayed, Table
from calibrant.training.data.dataset import (
    Augmentation,
    Dataset,
    Progress,
    channel_histogram,
    channel_statistics,
    few_names,
)
from calibrant.training.data.folder import Form, Listing, list_folder, load_folder, naming_the_check
from calibrant.training.data.load import load_dataset
from calibrant.training.data.pictures import (
    Decoder,
    FolderPictures,
    Picture,
    Unreadable,
    as_channels,
    check_pixels,
    decoded,
    different_sizes,
    large_pictures_expected,
    pixel_memory,
)
from calibrant.training.data.spec import parse_spec

# Mean, deviation and colour of a larger set come from this many of its training pictures, spread evenly. On CIFAR-100
# they give the mean of each channel to 0.001.
_SAMPLED = 2048


class StreamedBatch(NamedTuple):
    """Decoded pictures of one set.

    Args:
        images: `(B, C, H, W)`, uint8.
        labels: `(B,)`.
        indices: `(B,)`, positions in the set.
        fault: What is wrong with the first picture that cannot be used; mostly empty.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    fault: str = ""


class StreamedImages(TorchDataset[Any]):
    """Some pictures of a folder as a map-style dataset. A `DataLoader` asks it for whole batches at once.

    Args:
        pictures: Those of the folder.
        rows: Which of them.
        labels: One per row.
        form: How they are decoded.
        shape: Channels, height and width.
    """

    def __init__(
        self, pictures: FolderPictures, rows: Tensor, labels: Tensor, form: Form, shape: tuple[int, int, int]
    ) -> None:
        self.pictures, self.rows, self.labels, self.form, self.shape = pictures, rows, labels, form, shape
        self._decoder: Decoder | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        batch = self.__getitems__([index])
        if batch.fault:
            raise InvalidInput(batch.fault)
        return batch.images[0], batch.labels[0]

    def __getitems__(self, indices: Sequence[int]) -> StreamedBatch:
        """Decode a batch. A picture that cannot be used becomes a message: an error in a worker loses its shape."""
        images = torch.zeros(len(indices), *self.shape, dtype=torch.uint8)
        pixels, fault = images.numpy(), ""
        with large_pictures_expected():
            for position, index in enumerate(indices):
                try:
                    with naming_the_check():
                        self._decode(int(self.rows[index]), pixels[position])
                except InvalidInput as error:
                    fault = str(error)
                    break
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return StreamedBatch(images, self.labels[chosen], chosen, fault)

    def take(self, rows: Tensor) -> "StreamedImages":
        """The part with these rows."""
        return StreamedImages(self.pictures, self.rows[rows], self.labels[rows], self.form, self.shape)

    def at_side(self, side: int) -> "StreamedImages":
        """The same pictures decoded to squares of another side, which is faster for a smaller one.

        Only for pictures that are made square (`?size=`) anyway.
        """
        form, shape = self.form._replace(size=side), (self.shape[0], side, side)
        return StreamedImages(self.pictures, self.rows, self.labels, form, shape)

    def ids(self, rows: Sequence[int] | Tensor | None = None) -> list[str]:
        """Paths within the folder, of these rows or of all."""
        if rows is None:
            rows = range(len(self))
        return [self.pictures.path(int(self.rows[int(row)])) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoder": None}  # it holds a lock; every process makes its own

    def _decode(self, row: int, into: np.ndarray[Any, Any]) -> None:
        self._decoder = self._decoder or self.form.decoder()
        picture = self.pictures[row]
        pixels = self._decoder(picture)
        if pixels.shape[:2] != self.shape[1:]:
            raise different_sizes(self.pictures[0], self.shape[1:], picture, pixels.shape)
        # Grey sets are decoded in the colours of each picture, so that a colour picture among them is noticed.
        if pixels.ndim == 3 and self.shape[0] == 1:
            way_out = "Say ?colour=rgb or ?colour=grey in the name of the data."
            raise invalid(picture.place, "be grey as the first pictures of the set", "colours", way_out)
        into[:] = as_channels(pixels)


@dataclass(frozen=True, eq=False, repr=False)
class StreamedDataset(Displayed):
    """A set like `Dataset` whose pictures stay on disk. Mean and std of a large set are those of a sample."""

    name: str
    train: StreamedImages
    test: StreamedImages
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    origin: str = ""

    def _overview(self) -> Table:
        channels, height, width = self.image_shape
        rows = [
            ("training pictures", f"{len(self.train):,}"),
            ("test pictures", f"{len(self.test):,}"),
            ("classes", few_names(self.class_names)),
            ("decoded as", f"{width} x {height}, {channels} channels"),
            ("origin", self.origin or "-"),
        ]
        return Table(f"{self.name}, {self.n_classes} classes, read from disk as needed", rows)

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.train.shape


def stream_dataset(spec: str) -> StreamedDataset:
    """Open `folder:DIR` to decode its pictures as they are needed.

    A sample of the training pictures, or all of a small set, is decoded here, for the statistics of the channels.
    """
    parsed = parse_spec(spec)
    if parsed.kind != "folder" or not parsed.path:
        raise invalid("data", "be folder:DIR to be streamed", repr(spec))
    return _opened(list_folder(parsed), Form.of(parsed))


class Opened(NamedTuple):
    """A set to train on, and why it was loaded or is streamed; empty if there was no choice."""

    data: Dataset | StreamedDataset
    reason: str = ""


def open_dataset(
    spec: str, *, data_dir: str | Path | None = None, data_path: str = "auto", progress: Progress | None = None
) -> Opened:
    """Load a set into memory, or stream it: `auto` streams a folder whose pixels take more than half of the memory.

    Args:
        spec: As for `load_dataset`.
        data_dir: As for `load_dataset`.
        data_path: `stream` or `auto`; anything else loads.
        progress: As for `load_dataset`; not called for a set that is streamed.
    """
    parsed = parse_spec(spec)
    if data_path == "stream":
        return Opened(stream_dataset(spec))
    if data_path != "auto" or parsed.kind != "folder" or not parsed.path:
        return Opened(load_dataset(spec, data_dir=data_dir, progress=progress))
    form, found, memory = Form.of(parsed), list_folder(parsed), pixel_memory()
    height, width = found.decode_first(form).shape[2:]
    channels = {"grey": 1}.get(form.colour, 3)
    needed = len(found.pictures) * channels * height * width
    sizes = f"{needed / 1e9:,.1f} GB of pixels, {memory / 1e9:,.1f} GB of memory"
    # Half, because the images of a part are copied out of those of all.
    if memory and needed > memory / 2:
        return Opened(_opened(found, form), f"stream, pictures are decoded as they are needed: {sizes}")
    return Opened(load_folder(found, form, progress=progress), f"in memory, pictures were decoded once: {sizes}")


def _opened(found: Listing, form: Form) -> StreamedDataset:
    height, width = found.decode_first(form).shape[2:]
    if form.size is None:
        # A batch of small files may be too large for any memory.
        some = _sampled(found, found.train)
        check_pixels(3 * height * width * len(some), sum(picture.stored for picture in some))
    histogram, any_colour = _survey(found, found.train, form)
    if form.colour == "auto" and not any_colour:
        _, any_colour = _survey(found, found.test, form)
    channels = 1
    if form.colour == "rgb" or any_colour:
        channels = 3
    mean, std = channel_statistics(histogram[:channels])
    shape = (channels, height, width)
    train, test = (
        StreamedImages(found.pictures, rows, found.labels[rows], form, shape) for rows in (found.train, found.test)
    )
    origin = str(found.folder)
    return StreamedDataset(found.name, train, test, found.class_names, mean, std, found.augmentation, origin=origin)


def _sampled(found: Listing, rows: Tensor) -> list[Picture]:
    return [found.pictures[row] for row in rows[:: max(1, len(rows) // _SAMPLED)].tolist()]


def _survey(found: Listing, rows: Tensor, form: Form) -> tuple[Tensor, bool]:
    """Histogram of each of three channels over a sample of these pictures, and whether any has colours."""
    some = _sampled(found, rows)
    histogram, any_colour = torch.zeros(3, 256, dtype=torch.int64), False
    with large_pictures_expected(), closing(decoded(some, form.decoder())) as results:
        for _, result in results:
            if isinstance(result, Unreadable):
                with naming_the_check():
                    raise result
            any_colour |= result.ndim == 3
            pixels = torch.tensor(np.atleast_3d(result)).permute(2, 0, 1)[None]
            histogram += channel_histogram(pixels)
    return histogram, any_colour
