"""Folders that stream: time to the first step, images per second, memory, and what pruning saves.

    python benchmarks/streaming.py [--files 200000] [--classes 1000] [--listed 1281167] [--images 12800] [--processes 8]

Writes JPEG files of 256x256 into a temporary folder (5 GB for 200,000), which is removed at the end: a tenth as many
different pictures, each in ten files that differ by a comment. Speeds of the loops are measured in turns, in one run;
the processor time per image hardly depends on other work on the machine. `--listed` also makes that many empty files in
the same number of folders and lists them: ImageNet's layout.
"""

import argparse
import io
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from calibrant.training import Recipe, Reporter, train
from calibrant.training.data import load_dataset
from calibrant.training.data.folder import list_folder
from calibrant.training.data.spec import parse_spec
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

SIDE, BATCH, COPIES = 256, 128, 10
READS = multiprocessing.Value("q", 0)
_read_bytes = Path.read_bytes


def counted(path: Path) -> bytes:
    """`Path.read_bytes`, counted over all processes."""
    if path.suffix == ".jpg":
        with READS.get_lock():
            READS.value += 1
    return _read_bytes(path)


# The files.


def write_classes(folder: Path, classes: range, counts: list[int], *, empty: bool) -> None:
    """Parts of one large picture, each at a random place of its own."""
    rng = np.random.default_rng(classes.start)
    small = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    large = np.asarray(small.resize((2560, 2560), Image.Resampling.BICUBIC)).astype(np.int16)
    large = (large + rng.integers(-12, 13, large.shape)).clip(0, 255).astype(np.uint8)
    for label in classes:
        place = folder / f"n{label:08d}"
        place.mkdir()
        for index in range(counts[label]):
            path = place / f"n{label:08d}_{index}.jpg"
            if empty:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
                continue
            if index % COPIES == 0:
                row, column = rng.integers(0, 2304, 2)
                content = io.BytesIO()
                Image.fromarray(large[row : row + SIDE, column : column + SIDE]).save(content, "jpeg", quality=85)
                picture = content.getvalue()
            comment = f"{label}/{index}".encode()
            marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
            path.write_bytes(picture[:2] + marker + picture[2:])


def write_files(folder: Path, files: int, classes: int, processes: int, *, empty: bool = False) -> float:
    """Write all files with several processes; returns seconds. Files that are left over go to the first folders."""
    started = time.perf_counter()
    counts = [files // classes + (label < files % classes) for label in range(classes)]
    with ProcessPoolExecutor(processes) as pool:
        parts = [range(start, classes, processes) for start in range(processes)]
        for job in [pool.submit(write_classes, folder, part, counts, empty=empty) for part in parts]:
            job.result()
    return time.perf_counter() - started


# The plain loop.


class Plain(Dataset):
    """What a careful user writes: decode, resize, crop with padding, mirror, normalise; `draft` as Pillow offers it."""

    def __init__(self, paths: list[str], labels: list[int], size: int, *, draft: bool) -> None:
        self.paths, self.labels, self.size, self.draft = paths, labels, size, draft
        self.mean, self.std = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 0.22)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            if self.draft:
                image.draft("RGB", (2 * self.size, 2 * self.size))
            small = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255
        padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
        row, column = torch.randint(0, 9, (2,)).tolist()
        cropped = padded[:, row : row + self.size, column : column + self.size]
        if torch.rand(()) < 0.5:
            cropped = cropped.flip(-1)
        return (cropped - self.mean) / self.std, self.labels[index]


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def speed(batches: Iterator[object]) -> tuple[float, int]:
    """Seconds and batches, from the first batch on."""
    next(batches)
    started, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
    return time.perf_counter() - started, count


def compare_loops(folder: Path, size: int, images: int, workers: int, repeats: int) -> None:
    """Images per second of both loops, in turns, without a network."""
    names = {"calibrant, streamed": f"folder:{folder}?size={size}"}
    sets = {name: load_dataset(data, data_path="stream") for name, data in names.items()}
    whole = sets["calibrant, streamed"].train
    rows = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:images]
    some = whole.take(rows)
    paths, labels = [str(folder / name) for name in some.ids], some.labels.tolist()
    found: dict[str, list[tuple[float, float]]] = {}

    def ours(name: str) -> Iterator[object]:
        recipe = Recipe().changed(
            {
                "data.name": names[name],
                "optimiser.batch_size": BATCH,
                "engine.workers": workers,
                "engine.data_path": "stream",
                "engine.accelerator": "cpu",
            }
        )
        part = sets[name].train.take(rows)
        data = replace(TrainingData.make(recipe, sets[name]), train=part, targets=part.labels)
        source = Setup(recipe, make_fabric(recipe), data).steps.source
        source.begin(1)
        yield from source.batches()

    def plain(*, draft: bool) -> Iterator[object]:
        items = Plain(paths, labels, size, draft=draft)
        yield from DataLoader(items, batch_size=BATCH, shuffle=True, num_workers=workers)

    ways = {
        **{name: partial(ours, name) for name in names},
        "plain loop": lambda: plain(draft=False),
        "plain loop with draft": lambda: plain(draft=True),
    }
    for turn in range(repeats):
        for name in ways if turn % 2 == 0 else reversed(ways):
            before = processor_seconds()
            seconds, batches = speed(ways[name]())
            used = processor_seconds() - before
            found.setdefault(name, []).append((batches * BATCH / seconds, 1000 * used / images))
    for name, pairs in found.items():
        rates, costs = zip(*pairs, strict=True)
        rate, reference = statistics.median(rates), statistics.median(rate for rate, _ in found["plain loop"])
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        print(
            f"| {size} | {name} | {rate:,.0f} | {spread} | {rate / reference:.2f} | {statistics.median(costs):.2f} |",
            flush=True,
        )


# A run.


class Enough(Exception):
    """The run has shown what it should."""


class Watch(Reporter):
    """Prints when the first step is done, the memory of all processes, and the files read in each epoch."""

    def __init__(self, limit: int = 0) -> None:
        self.started, self.steps, self.limit = time.perf_counter(), 0, limit
        self.reads: list[int] = []

    def begin_epoch(self, epoch: int, steps: int) -> None:
        """Tell what the last epoch read, and end the run after two."""
        self.every = max(1, min(steps, self.limit or steps) // 10)
        self.reads.append(READS.value)
        if epoch == 1:
            print(f"before the first epoch: {READS.value:,} files read", flush=True)
        else:
            read, first = self.reads[-1] - self.reads[-2], self.reads[1] - self.reads[0]
            print(f"epoch {epoch - 1}: {read:,} files read ({read / first:.1%})", flush=True)
        if epoch == 3:
            raise Enough

    def step(self) -> None:
        """Tell of the first step, and of the memory ten times per epoch."""
        self.steps += 1
        if self.steps == 2:  # a step is told before it begins
            seconds = time.perf_counter() - self.started
            print(f"first step done {seconds:.1f} s after `train` was called", flush=True)
        if self.steps > self.limit > 0:
            raise Enough
        if self.steps % self.every == 0:
            print(f"after {self.steps * BATCH:,} images: {memory_of_all():,.0f} MB", flush=True)


def memory_of_all() -> float:
    """MB of this process and its children, each shared page counted once."""
    total = 0
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1000


def pooled(*, n_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """A network that takes hardly any time: what remains is reading."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(image_shape[0] * 64, n_classes))


def watch_a_run(folder: Path, out: Path, size: int, workers: int, limit: int = 0) -> None:
    """Two epochs, the second of them on 60 %; or the first `limit` steps."""
    recipe = Recipe().changed(
        {
            "data.name": f"folder:{folder}?size={size}",
            "epochs": 4,
            "model.name": "streaming:pooled",
            "method.name": "nll+random",
            "method.options": {"rest": 0.4, "start": 1, "anneal": 0},
            "optimiser.batch_size": BATCH,
            "engine.data_path": "stream",
            "engine.workers": workers,
            "engine.evaluate_every": 4,
            "engine.accelerator": "cpu",
        }
    )
    print("\nA run; memory is that of all processes, each shared page counted once:")
    with suppress(Enough):
        train(recipe, out, reporter=Watch(limit), trust_code=True)


def measure_files(given: argparse.Namespace) -> None:
    """The loops, then the watched run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "files"
        folder.mkdir()
        seconds = write_files(folder, given.files, given.classes, given.processes)
        stored = sum(path.stat().st_size for path in next(folder.iterdir()).iterdir()) * given.classes / 1e9
        print(f"{given.files:,} JPEG files of {SIDE}x{SIDE}, {stored:.1f} GB, written in {seconds:.0f} s")
        started = time.perf_counter()
        list_folder(parse_spec(f"folder:{folder}?size=64"))
        print(f"listed and split in {time.perf_counter() - started:.1f} s", flush=True)

        if given.images:
            print("\n| side | loop | images/s, median | from to | ratio | processor ms per image |")
            print("| --- | --- | --- | --- | --- | --- |")
            for size in (64, 128, 224):
                compare_loops(folder, size, given.images, given.workers, given.repeats)

        Path.read_bytes = counted  # type: ignore[method-assign]
        watch_a_run(folder, Path(place) / "run", given.size, given.workers, given.limit)


def measure_listing(given: argparse.Namespace) -> None:
    """As many empty files as ImageNet has."""
    with tempfile.TemporaryDirectory() as place:
        write_files(Path(place), given.listed, given.classes, given.processes, empty=True)
        started = time.perf_counter()
        found = list_folder(parse_spec(f"folder:{place}?size=64"))
        kept = found.pictures.paths.nbytes
        print(
            f"\n{len(found.pictures):,} files in {given.classes:,} folders: listed and split in "
            f"{time.perf_counter() - started:.1f} s; their paths take {kept / 1e6:.0f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200_000, help="0 for nothing but --listed")
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--listed", type=int, default=0)
    parser.add_argument("--images", type=int, default=12_800, help="read by each loop each time; 0 for no loops")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2, help="write the files")
    parser.add_argument("--limit", type=int, default=0, help="steps of the watched run; 0 for two epochs")
    parser.add_argument("--size", type=int, default=64, help="side of the pictures in the watched run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"$ python {' '.join(sys.argv)}")
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {os.cpu_count()} cores, torch {torch.__version__}, Pillow {PIL.__version__}")
    if given.files:
        measure_files(given)
    if given.listed:
        measure_listing(given)


if __name__ == "__main__":
    main()
