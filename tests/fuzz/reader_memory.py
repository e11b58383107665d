"""How much memory does each reader take for a hostile file that is as large as its limits allow, or a little larger?

    python -m tests.fuzz.reader_memory [--out results/benchmarks/reader-memory.txt]

As in `old_failures`, each command runs in a fork of a process that has imported everything; memory is counted above
what the fork had at its beginning. The bound is that of the rule in `outcome`; the exit code is 1 where it is broken.
"""

import argparse
import gzip
import os
import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import calibrant
from tests.fuzz import old_inputs as made
from tests.fuzz import targets
from tests.fuzz.campaign import _say
from tests.fuzz.old_cases import _ROUTE, Case
from tests.fuzz.old_failures import attempts
from tests.fuzz.old_inputs import text
from tests.fuzz.outcome import MEGABYTES


def _wide(columns: int) -> str:
    """A CSV file of many classes and one row."""
    header = ",".join(f"logit_{k}" for k in range(columns))
    return f"target,{header}\n0" + ",1" * columns + "\n"


def _parquet() -> None:
    """A few bytes that unfold to nearly 64 MB: one value, repeated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 4_000_000
    zeros = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([0.5]))
    target = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([0]))
    table = pa.table({"target": target.cast(pa.int64()), "probability_0": zeros, "probability_1": zeros})
    pq.write_table(table, "rows.parquet", row_group_size=rows)


def _image_arrays() -> None:
    """Pictures that unfold to nearly 10 times the size of the file, with noise beside them."""
    pixels, noise = np.zeros((1_800, 224, 224, 1), np.uint8), np.random.default_rng(0).bytes(10 * 2**20)
    labels = np.arange(1_800) % 2
    arrays = {"x_train": pixels, "y_train": labels, "x_test": pixels[:10], "y_test": labels[:10]}
    np.savez_compressed("images.npz", **arrays, noise=np.frombuffer(noise, np.uint8))


def _audit() -> None:
    """An audit of a run whose arrays unfold to nearly 10 times the size of the file."""
    with np.load("run/pruning.npz") as whole:
        arrays = dict(whole)
    noise = np.frombuffer(np.random.default_rng(0).bytes(10 * 2**20), np.uint8)
    arrays["score"] = np.zeros(11_000_000, np.float64)
    np.savez_compressed("run/pruning.npz", **arrays, noise=noise)


def _decisions() -> None:
    """Decisions of four million cases in a few kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    codes = pa.array(np.zeros(4_000_000, np.int8))
    values = {"id": ["a"], "decision": ["auto"], "predicted": [1], "confidence": [0.99], "site": ["x" * 100_000]}
    columns = {name: pa.DictionaryArray.from_arrays(codes, pa.array(one)) for name, one in values.items()}
    pq.write_table(pa.table(columns), "decisions.parquet")


def _parts() -> None:
    """Two parts of predictions, each of nearly 64 MB in a few kilobytes."""
    _parquet()
    for number in range(2):
        Path("parts", f"{number}.parquet").write_bytes(Path("rows.parquet").read_bytes())


def _body(middle: str) -> Callable[[], None]:
    """A body of as many bytes as the service takes."""

    def make() -> None:
        Path("body.json").write_text('{"inputs": [' + middle * ((2**24 - 100) // len(middle)) + middle[:-1] + "]}")

    return make


def _served() -> object:
    return targets._served(Path())


def _streamed() -> object:
    from calibrant.training.data import load_dataset

    found = load_dataset("folder:pictures?size=64", data_path="stream")
    return [found.train[row] for row in range(len(found.train))]


def _gzip_bomb() -> None:
    """Images of MNIST's form that unfold to four gigabytes."""
    with gzip.open("sets/train-images.gz", "wb") as handle:
        for _ in range(400):
            handle.write(bytes(10 * 2**20))


def _tensors() -> None:
    """A checkpoint whose header is a hundred megabytes of JSON."""
    for path in Path("run/checkpoints").glob("*.safetensors"):
        head = b'{"a":[' + b"0," * 50_000_000 + b"0]}"
        path.write_bytes(struct.pack("<Q", len(head)) + head)


def _long_line(lines: list[str]) -> list[str]:
    return [lines[0], '"' + "x" * 300_000_000]


def _twenty(sides: int) -> Callable[[], None]:
    def make() -> None:
        made.pictures(sides)
        for label in "ab":
            (first, *_) = Path("pictures", label).iterdir()
            for number in range(10):
                (first.parent / f"more-{number}.png").write_bytes(first.read_bytes())

    return make


CASES = (
    Case(0, "npz, 63 MB in 0.1 MB", "evaluate x.npz", made.zeros("x.npz", 56)),
    Case(0, "npz, 94 MB in 9.6 MB", "evaluate x.npz", made.zeros("x.npz", 75, filler=19 * 2**19)),
    Case(0, "npz, 4,000 MB in 4 MB", "evaluate x.npz", made.zeros("x.npz", 4000)),
    Case(0, "CSV of 65,000 columns", "evaluate wide.csv", text("wide.csv", _wide(65_000))),
    Case(0, "CSV of a million columns", "evaluate wide.csv", text("wide.csv", _wide(1_000_000))),
    Case(0, "CSV with a line of 300 MB", "evaluate test.csv", made.rewrite_csv("test.csv", _long_line)),
    Case(0, "Parquet, 4 million equal rows in one group", "evaluate rows.parquet", _parquet),
    Case(0, "policy of 100 MB", _ROUTE, text("policy.json", "[" + "1" * 30 + (",1" + "1" * 28) * 3_300_000 + "]")),
    Case(0, "policy of 3.4 million numbers", _ROUTE, text("policy.json", "[0" + ",0" * 3_400_000 + "]")),
    Case(0, "policy of 480,000 objects", _ROUTE, text("policy.json", "[" + ",".join(["{}"] * 480_000) + "]")),
    Case(0, "recipe of 1 MB", "train --recipe x.toml --out new", text("x.toml", "a = [" + "1," * 500_000 + "]")),
    Case(0, "log of a run, 60 MB", "train --resume paused", text("paused/metrics.jsonl", b"[" * 60_000_000 + b"\n")),
    Case(0, "checkpoint with 100 MB of header", "export run --out x.onnx", _tensors),
    Case(0, "audit of a run, 98 MB in 10.1 MB", "report run", _audit),
    Case(0, "images.npz, 97 MB in 10.1 MB", "data check arrays:images.npz", _image_arrays),
    Case(0, "24 pictures of 4,096 x 4,096", "data check folder:pictures", _twenty(4096)),
    Case(0, "24 pictures of 8,192 x 8,192, resized", "data check folder:pictures?size=64", _twenty(8192)),
    Case(0, "four pictures of 13,000 x 13,000", "data check folder:pictures", lambda: made.pictures(13_000)),
    Case(0, "24 pictures of 8,192 x 8,192, streamed", "pictures, streamed", _twenty(8192), _streamed),
    Case(
        0,
        "24 pictures of 4,096 x 4,096, streamed whole",
        "train --data folder:pictures --model tiny --epochs 1 --set engine.data_path=stream --out new",
        _twenty(4096),
    ),
    Case(0, "decisions of 4 million equal cases", "monitor decisions.parquet --policy policy.json", _decisions),
    Case(0, "two parts of 4 million equal rows", "evaluate parts", _parts),
    Case(0, "body of 16 MB, numbers", "body", _body("[1,2,3],"), _served),
    Case(0, "body of 16 MB, empty lists", "body", _body("[],"), _served),
    Case(0, "body of 16 MB, objects", "body", _body('{"a":1},'), _served),
    Case(0, "MNIST's form, 4,000 MB in 4 MB", "images", _gzip_bomb, lambda: targets._read_idx(Path())),
)


def main() -> int:
    """Try them all; 1 where one takes more than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        f"calibrant {calibrant.__version__}, Python {platform.python_version()}; at most {MEGABYTES} MB are allowed.",
        f"{'file':46}{'exit code':>10}{'MB above':>10}  what was said",
    ]
    most = 0.0
    for case, took in attempts(CASES):
        most = max(most, took.megabytes)
        lines.append(f"{case.before:46}{took.code!s:>10}{took.megabytes:10.0f}  {took.said[:160]}")
        _say(lines[-1])
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return 1 if most > MEGABYTES else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
