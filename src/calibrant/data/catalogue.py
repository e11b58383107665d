"""The named public sets: where they come from, what is published about them, how they are normalised and augmented."""

from dataclasses import dataclass

from calibrant.data import class_names
from calibrant.data.dataset import Augmentation
from calibrant.data.formats.cifar import BinaryFile, Cifar, binary_files
from calibrant.data.formats.reader import Reader

_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class RemoteFile:
    """A file of the official distribution.

    Args:
        name: Name on disk.
        url: Where it is published.
        size: Bytes, where known.
        digest: `md5:...` or `sha256:...`, as published; empty where nothing is.
    """

    name: str
    url: str
    size: int
    digest: str


@dataclass(frozen=True)
class Entry:
    """One public set."""

    name: str
    title: str
    train: int
    test: int
    class_names: tuple[str, ...] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    reader: Reader
    files: tuple[RemoteFile, ...]
    licence: str
    citation: str
    homepage: str
    system: tuple[str, ...] = ()


_ENTRIES = (
    Entry(
        name="cifar10",
        title="CIFAR-10, 32x32 colour photographs",
        train=50_000,
        test=10_000,
        class_names=class_names.CIFAR10,
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
        augmentation=Augmentation(crop_padding=4, flip=True),
        reader=Cifar(
            archive="cifar-10-binary.tar.gz",
            folder="cifar-10-batches-bin",
            train=binary_files(
                [f"data_batch_{index}.bin" for index in range(1, 6)],
                10_000,
                [
                    "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                    "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                    "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                    "aab85764eb3584312d3c7f65fd2fd016e36a258e",
                    "26e2849e66a845b7f1e4614ae70f4889ae604628",
                ],
            ),
            test=BinaryFile("test_batch.bin", 10_000, "67eb016db431130d61cd03c7ad570b013799c88c"),
            pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
        ),
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                f"{_TORONTO}cifar-10-binary.tar.gz",
                170_052_171,
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        licence="none stated; free for research with citation",
        citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        homepage=f"{_TORONTO}cifar.html",
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100, 32x32 colour photographs, fine classes",
        train=50_000,
        test=10_000,
        class_names=class_names.CIFAR100,
        # The statistics of CIFAR-10, as in the paper's code base; those of CIFAR-100 differ in the second digit.
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
        augmentation=Augmentation(crop_padding=4, flip=True),
        reader=Cifar(
            archive="cifar-100-binary.tar.gz",
            folder="cifar-100-binary",
            train=(BinaryFile("train.bin", 50_000, "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
            test=BinaryFile("test.bin", 10_000, "8fb6623e830365ff53cf14adec797474f5478006"),
            pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
            coarse_of_fine=class_names.CIFAR100_COARSE_OF_FINE,
        ),
        files=(
            RemoteFile(
                "cifar-100-binary.tar.gz",
                f"{_TORONTO}cifar-100-binary.tar.gz",
                168_513_733,
                "md5:03b5dce01913d631647c71ecec9e9cb8",
            ),
        ),
        licence="none stated; free for research with citation",
        citation="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        homepage=f"{_TORONTO}cifar.html",
    ),
)
CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
