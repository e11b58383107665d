"""Files of predictions: CSV against the standard library, then `evaluate` and `route apply` of a large folder and file.

    python benchmarks/predictions.py [--rows 1000000] [--large 2000000] [--large-csv 2000000]

results/benchmarks/predictions.txt is made with --rows 0 --large 20000000 --large-csv 20000000.

Prints seconds of wall clock and of processor time (which other work on the machine does not change), their ratio, and
the peak resident memory of each command.
"""

import argparse
import csv as plain_csv
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule

CLASSES, PARTS = 10, 64


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall clock and of processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processor


def compare_csv(folder: Path, rows: int) -> None:
    """Read one CSV with `Predictions.load` and with Python's csv module, which must give the same numbers."""
    rng = np.random.default_rng(0)
    path = folder / "cases.csv"
    scores = (3 * rng.normal(size=(rows, CLASSES))).astype(np.float32)
    Predictions.from_logits(scores, rng.integers(0, CLASSES, rows)).save(path)
    found: list[np.ndarray] = []
    Predictions.load(path)  # to warm the disk's cache
    ours = min(timed(lambda: found.append(Predictions.load(path).scores)) for _ in range(3))
    plain = timed(lambda: found.append(read_plainly(path)))
    assert all((scores == found[0]).all() for scores in found)
    print(f"CSV, {rows:,} rows of {CLASSES} classes, {path.stat().st_size / 1e6:.0f} MB")
    for name, (wall, processor) in (("ours", ours), ("csv module", plain)):
        print(f"  {name:12} {wall:7.2f} s wall {processor:7.2f} s processor")
    print(f"  ratio        {plain[0] / ours[0]:7.1f}        {plain[1] / ours[1]:7.1f}")


def read_plainly(path: Path) -> np.ndarray:
    """The scores of a CSV file, read by the standard library."""
    with path.open(newline="") as handle:
        return np.array([row[1:] for row in list(plain_csv.reader(handle))[1:]], dtype=np.float64)


def write_parts(folder: Path, rows: int) -> None:
    """Float32 logits, a target, and two other columns, in many files."""
    folder.mkdir()
    for part in range(PARTS):
        rng = np.random.default_rng(part)
        count = rows // PARTS
        scores = (3 * rng.normal(size=(count, CLASSES))).astype(np.float32)
        columns = {"target": rng.integers(0, CLASSES, count), "weight": rng.random(count)}
        columns["site"] = np.array([f"site {k}" for k in range(12)])[rng.integers(0, 12, count)]
        columns |= {f"logit_{k}": scores[:, k] for k in range(CLASSES)}
        parquet.write_table(pa.table(columns), folder / f"part-{part:03}.parquet")


def command(*arguments: object) -> tuple[float, float, float]:
    """Wall clock, processor time and peak memory in MB of a command, run by a process of its own."""
    start = time.perf_counter()
    code = (
        f"import resource, subprocess; subprocess.run({[sys.executable, '-m', 'calibrant', *map(str, arguments)]!r}, "
    )
    code += "check=True, stdout=subprocess.DEVNULL); use = resource.getrusage(resource.RUSAGE_CHILDREN); "
    code += "print(use.ru_utime + use.ru_stime, use.ru_maxrss / 1024)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return time.perf_counter() - start, float(found[0]), float(found[1])


def write_csv(folder: Path, path: Path) -> None:
    """The rows of a folder of Parquet files as one CSV."""
    parts = sorted(folder.iterdir())
    with csv.CSVWriter(path, parquet.read_schema(parts[0])) as writer:
        for part in parts:
            writer.write_table(parquet.read_table(part))


def run_commands(folder: Path, rows: int, *, as_csv: bool = False) -> None:
    """Both commands over a folder of Parquet files, or over one CSV of the same rows."""
    source, out = (folder / "rows.csv", "out.csv") if as_csv else (folder / "parts", "out.parquet")
    write_parts(folder / "parts", rows)
    rows = rows // PARTS * PARTS
    told = f"{rows:,} rows of {CLASSES} classes and two other columns"
    if as_csv:
        write_csv(folder / "parts", source)
        print(f"CSV, {told}, {source.stat().st_size / 1e6:.0f} MB")
    else:
        print(f"Parquet, {told} in {PARTS} files")
    Policy(CLASSES, rule=RoutingRule(threshold=0.9, n_classes=CLASSES)).save(folder / "policy.json")
    for name, arguments in (
        ("evaluate", ["evaluate", source]),
        ("route apply", ["route", "apply", folder / "policy.json", source, "-o", folder / out]),
    ):
        wall, processor, peak = command(*arguments)
        print(f"  {name:12} {wall:7.1f} s wall {processor:7.1f} s processor {peak:7.0f} MB {rows / wall:12,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the CSV")
    parser.add_argument("--large", type=int, default=2_000_000, help="rows of the Parquet folder")
    parser.add_argument("--large-csv", type=int, default=2_000_000, help="rows of the large CSV")
    options = parser.parse_args()
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{platform.machine()}, pyarrow {pa.__version__}, {used:.0f} MB before anything is read")
    for rows, job in (
        (options.rows, compare_csv),
        (options.large, run_commands),
        (options.large_csv, partial(run_commands, as_csv=True)),
    ):
        if rows:
            with tempfile.TemporaryDirectory() as name:
                job(Path(name), rows)


if __name__ == "__main__":
    main()
