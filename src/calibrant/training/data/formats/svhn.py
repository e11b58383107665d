"""SVHN (Netzer et al. 2011), cropped digits, as MATLAB files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from calibrant.errors import InvalidInput, invalid
from calibrant.training.data.dataset import Images, Splits
from calibrant.training.data.formats.digests import check_file
from calibrant.training.data.formats.reader import Progress, Reader, Source
from calibrant.training.data.spec import Spec


@dataclass(frozen=True)
class Svhn(Reader):
    """Reads `train_32x32.mat` and `test_32x32.mat`.

    Args:
        digests: Published digests of the two files, `md5:...`.
    """

    digests: tuple[str, str]
    names: tuple[str, str] = ("train_32x32.mat", "test_32x32.mat")

    def find(self, folder: Path) -> Source | None:
        """Both files in `folder`."""
        paths = tuple(folder / name for name in self.names)
        return Source("files", paths) if all(path.is_file() for path in paths) else None

    def read(self, source: Source, *, spec: Spec, progress: Progress | None = None) -> Splits:
        """Read both files; the digit 0 is stored as label 10."""
        del spec
        parts = []
        for index, (path, digest) in enumerate(zip(source.paths, self.digests, strict=True)):
            check_file(path, digest)
            parts.append(_read(path))
            if progress is not None:
                progress(index + 1, len(source.paths))
        return Splits(parts[0], parts[1], verified="MD5 of the official files")


def _read(path: Path) -> Images:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"]
    except KeyError as error:
        raise invalid(str(path), "hold the variables X and y", f"no {error.args[0]}", "Get it again.") from error
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise InvalidInput(f"{path} cannot be read as a MATLAB file: {error}. Get it again.") from error
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, labels.size):
        rule = f"hold X as uint8 of shape (32, 32, 3, {labels.size})"
        raise invalid(str(path), rule, f"{pixels.dtype} of shape {pixels.shape}", "Get it again.")
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Images(images, torch.from_numpy(labels.ravel().astype(np.int64) % 10))
