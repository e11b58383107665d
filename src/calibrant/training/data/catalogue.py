"""The named public sets: where they come from, what is published about them, how they are normalised and augmented."""

from dataclasses import dataclass

from calibrant.training.data import class_names
from calibrant.training.data.dataset import Augmentation
from calibrant.training.data.formats.chest_xray import ChestXray
from calibrant.training.data.formats.cifar import BinaryFile, Cifar, binary_files
from calibrant.training.data.formats.idx import Idx, IdxFile
from calibrant.training.data.formats.reader import Reader
from calibrant.training.data.formats.svhn import Svhn
from calibrant.training.data.formats.tiny_imagenet import TinyImageNet

_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers/"
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))


@dataclass(frozen=True)
class RemoteFile:
    """A file of the official distribution.

    Args:
        name: Name on disk.
        url: Where it is published.
        size: Bytes, where known.
        digest: `md5:...` or `sha256:...`, as published; empty where none is published.
    """

    name: str
    url: str
    size: int
    digest: str


@dataclass(frozen=True)
class CatalogueEntry:
    """One public set.

    Args:
        name: Its name on the command line.
        title: A short description.
        train: Number of images to train on.
        test: Number of images to test on.
        n_classes: Number of classes.
        side: Pixels on each side of an image, unless the option `size` says otherwise.
        class_names: Their names; None where the files of the set contain them.
        mean: Per channel, on the scale from 0 to 1.
        std: Per channel, on the scale from 0 to 1.
        augmentation: Random changes to training images.
        reader: Finds and reads the files of the set.
        files: The files that the publisher distributes.
        licence: Under which terms it may be used.
        citation: What to cite.
        homepage: Where its publisher describes it.
        system: Folders in which a distribution of the operating system installs it.
    """

    name: str
    title: str
    train: int
    test: int
    n_classes: int
    side: int
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


def _idx(folders: tuple[str, ...], digests: tuple[str, str, str, str]) -> Idx:
    files = [IdxFile(*row) for row in zip(_IDX_NAMES, _IDX_SHAPES, digests, strict=True)]
    return Idx(folders, train=(files[0], files[1]), test=(files[2], files[3]))


def _idx_files(base: str, rows: tuple[tuple[int, str], ...]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{name}.gz", f"{base}{name}.gz", size, f"md5:{digest}")
        for name, (size, digest) in zip(_IDX_NAMES, rows, strict=True)
    )


_ENTRIES = (
    CatalogueEntry(
        name="cifar10",
        title="CIFAR-10, 32x32 colour photographs",
        train=50_000,
        test=10_000,
        n_classes=len(class_names.CIFAR10),
        side=32,
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
    CatalogueEntry(
        name="cifar100",
        title="CIFAR-100, 32x32 colour photographs, fine classes",
        train=50_000,
        test=10_000,
        n_classes=len(class_names.CIFAR100),
        side=32,
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
    CatalogueEntry(
        name="svhn",
        title="Street View House Numbers, 32x32 colour, cropped digits",
        train=73_257,
        test=26_032,
        n_classes=len(class_names.DIGITS),
        side=32,
        class_names=class_names.DIGITS,
        # As in the paper's code base: the statistics of CIFAR-10 and no augmentation.
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
        augmentation=Augmentation(crop_padding=0, flip=False),
        reader=Svhn(digests=("md5:e26dedcc434d2e4c54c9b2d4a06d8373", "md5:eb5a983be6a315427106f1b164d9cef3")),
        files=(
            RemoteFile(
                "train_32x32.mat",
                f"{_HOUSE_NUMBERS}train_32x32.mat",
                182_040_794,
                "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            ),
            RemoteFile(
                "test_32x32.mat", f"{_HOUSE_NUMBERS}test_32x32.mat", 64_275_384, "md5:eb5a983be6a315427106f1b164d9cef3"
            ),
        ),
        licence="non-commercial use only",
        citation="Y. Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011",
        homepage=_HOUSE_NUMBERS,
    ),
    CatalogueEntry(
        name="tiny-imagenet",
        title="Tiny-ImageNet, 64x64 colour photographs; tested on the official validation images",
        train=100_000,
        test=10_000,
        n_classes=200,
        side=64,
        class_names=None,
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        augmentation=Augmentation(crop_padding=4, flip=True),
        reader=TinyImageNet(digest="md5:90528d7ca1a48142e341f4ef8d21d0de"),
        files=(
            RemoteFile(
                "tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                248_100_043,
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        licence="none stated; ImageNet's terms: non-commercial research and education",
        citation="Y. Le and X. Yang, Tiny ImageNet Visual Recognition Challenge, 2015",
        homepage="http://cs231n.stanford.edu/",
    ),
    CatalogueEntry(
        name="mendeley-v2",
        title="Chest X-rays of children, normal or pneumonia, resized to 64x64 grey",
        train=5_232,
        test=624,
        n_classes=len(class_names.CHEST_XRAY),
        side=64,
        class_names=class_names.CHEST_XRAY,
        # As in the DCA work: values from 0 to 1 and no further normalisation. Its quarter turns are left out: nobody
        # takes such a picture upside down.
        mean=(0.0,),
        std=(1.0,),
        augmentation=Augmentation(crop_padding=0, flip=True),
        reader=ChestXray(),
        files=(
            RemoteFile(
                "ChestXRay2017.zip",
                "https://data.mendeley.com/public-files/datasets/rscbjbr9sj/files/"
                "f12eaf6d-6023-432f-acc9-80c9d7393433/file_downloaded",
                1_235_512_464,
                "",
            ),
        ),
        licence="CC BY 4.0",
        citation="D. Kermany, K. Zhang and M. Goldbaum, Labeled Optical Coherence Tomography (OCT) and Chest X-Ray "
        "Images for Classification, Mendeley Data, V2, 2018, doi:10.17632/rscbjbr9sj.2",
        homepage="https://data.mendeley.com/datasets/rscbjbr9sj/2",
    ),
    CatalogueEntry(
        name="fashion-mnist",
        title="Fashion-MNIST, 28x28 grey articles of clothing",
        train=60_000,
        test=10_000,
        n_classes=len(class_names.FASHION),
        side=28,
        class_names=class_names.FASHION,
        mean=(0.2860,),
        std=(0.3530,),
        augmentation=Augmentation(crop_padding=4, flip=True),
        reader=_idx(
            ("fashion-mnist", "FashionMNIST/raw"),
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        files=_idx_files(
            _ZALANDO,
            (
                (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
                (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
                (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
            ),
        ),
        licence="MIT",
        citation="H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        system=("/usr/share/datasets/fashion-mnist",),
    ),
    CatalogueEntry(
        name="mnist",
        title="MNIST, 28x28 grey handwritten digits",
        train=60_000,
        test=10_000,
        n_classes=len(class_names.DIGITS),
        side=28,
        class_names=class_names.DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        augmentation=Augmentation(crop_padding=2, flip=False),
        reader=_idx(
            ("mnist", "MNIST/raw"),
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        files=_idx_files(
            _MNIST,
            (
                (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
                (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
                (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ),
        licence="CC BY-SA 3.0",
        citation="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document "
        "recognition, 1998",
        homepage="http://yann.lecun.com/exdb/mnist/",
    ),
)
CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
