"""Whether another decoder than Pillow would make folders stream faster, and how far the pixels would differ.

    python benchmarks/decoding.py [--pictures 400] [--repeats 5]

One process and one thread decode JPEG files from memory to squares: with Pillow as calibrant does it, with Pillow and
torch's resizing, and, if torchvision can be imported, with torchvision's decoder and torch's or Pillow's resizing. The
ways take turns in one run; processor time hardly depends on other work on the machine.
"""

import argparse
import io
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath

import numpy as np
import PIL
import torch
from PIL import Image

from calibrant.training.data.pictures import Decoder, Picture


def torchvision_version() -> str:
    try:
        return version("torchvision")
    except PackageNotFoundError:
        return "not installed"


def make_pictures(count: int, width: int, height: int) -> list[bytes]:
    """JPEG files of smooth pictures with some noise, 85 % quality."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        large = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = (large + rng.integers(-12, 13, large.shape)).clip(0, 255).astype(np.uint8)
        content = io.BytesIO()
        Image.fromarray(noisy).save(content, "jpeg", quality=85)
        found.append(content.getvalue())
    return found


def resized(pixels: torch.Tensor, size: int) -> np.ndarray:
    """`(3, H, W)` to `(size, size, 3)`, averaged over what one pixel of the result covers, like Pillow's."""
    small = torch.nn.functional.interpolate(pixels[None], (size, size), mode="bilinear", antialias=True)
    return small[0].permute(1, 2, 0).contiguous().numpy()


def ways(size: int) -> dict[str, Callable[[bytes], np.ndarray]]:
    """What is compared, by name."""

    def ours(content: bytes, decoder: Decoder) -> np.ndarray:
        picture = Picture(PurePosixPath("a.jpg"), "a.jpg", len(content), lambda: content)
        return decoder(picture).transpose(1, 2, 0).copy()

    def pillow_and_torch(content: bytes, *, draft: bool) -> np.ndarray:
        with Image.open(io.BytesIO(content)) as image:
            if draft:
                image.draft("RGB", (2 * size, 2 * size))
            return resized(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1), size)

    found: dict[str, Callable[[bytes], np.ndarray]] = {
        "Pillow (calibrant)": partial(ours, decoder=Decoder(size, "rgb")),
        "Pillow with draft, torch resizes": lambda content: pillow_and_torch(content, draft=True),
        "Pillow without draft, torch resizes": lambda content: pillow_and_torch(content, draft=False),
    }
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError) as error:
        print(f"(torchvision cannot be imported: {str(error).splitlines()[0]})")
        return found

    def decoded(content: bytes) -> torch.Tensor:
        return decode_jpeg(torch.from_numpy(np.frombuffer(content, np.uint8).copy()), ImageReadMode.RGB)

    def torchvision_and_pillow(content: bytes) -> np.ndarray:
        whole = Image.fromarray(decoded(content).permute(1, 2, 0).numpy())
        return np.array(whole.resize((size, size), Image.Resampling.BILINEAR))

    return found | {
        "torchvision, torch resizes": lambda content: resized(decoded(content), size),
        "torchvision, Pillow resizes": torchvision_and_pillow,
    }


def measure(width: int, height: int, size: int, count: int, repeats: int) -> None:
    files = make_pictures(count, width, height)
    compared = ways(size)
    costs: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(repeats + 1):
        for name in compared if turn % 2 else reversed(compared):
            started = time.process_time()
            for content in files:
                compared[name](content)
            if turn:  # the first turn warms up
                costs[name].append(1000 * (time.process_time() - started) / count)
    reference = [compared["Pillow (calibrant)"](content).astype(np.int16) for content in files[:50]]
    for name, found in costs.items():
        apart = [np.abs(compared[name](content) - one) for content, one in zip(files, reference, strict=False)]
        ratio = statistics.median(costs["Pillow (calibrant)"]) / statistics.median(found)
        cells = [
            f"{width}x{height}",
            str(size),
            name,
            f"{statistics.median(found):.3f}",
            f"{min(found):.3f} to {max(found):.3f}",
        ]
        cells += [f"{ratio:.2f}", f"{np.mean(apart):.2f}", str(np.max(apart))]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"$ python {' '.join(sys.argv)}")
    versions = f"torch {torch.__version__}, Pillow {PIL.__version__}, torchvision {torchvision_version()}"
    print(f"{platform.processor() or platform.machine()}, {versions}\n")
    print(
        "| file | side | way | processor ms, median | from to | speed against calibrant "
        "| mean difference of pixels | largest |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for width, height, sizes in ((256, 256, (64, 128, 224)), (500, 375, (64, 128, 224))):
        for size in sizes:
            measure(width, height, size, given.pictures, given.repeats)


if __name__ == "__main__":
    main()
