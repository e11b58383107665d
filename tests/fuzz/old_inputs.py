"""The inputs that a hostile campaign broke 0.1.0 with, each made in a copy of the corpus (see `old_cases`)."""

import io
import json
import re
import shutil
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule
from calibrant.files import content_digest

EVIL = "from pathlib import Path\nPath('it_ran').touch()\ndef f(*_, **__):\n    Path('it_ran').touch()\n"
Make = Callable[[], None]


# Files are made in the working directory, which is a copy of the corpus.


def edit(path: str, *, part: str | None = None, **members: object) -> Make:
    """Change members of a JSON object, or of one of its parts; a digest is computed anew, so that it does not tell."""

    def make() -> None:
        content = json.loads(Path(path).read_text())
        signed = content.pop("sha256", None) is not None
        changed = content if part is None else content[part]
        changed.update(members)
        if signed:
            content["sha256"] = content_digest(content)
        Path(path).write_text(json.dumps(content))

    return make


def text(path: str, content: str | bytes) -> Make:
    """A file with this content."""

    def make() -> None:
        Path(path).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    return make


def swap(path: str, old: str, new: str) -> Make:
    """Other text in a file."""

    def make() -> None:
        before = Path(path).read_text()
        assert old in before, (path, old)
        Path(path).write_text(before.replace(old, new, 1))

    return make


def both(*makes: Make) -> Make:
    """One after the other."""
    return lambda: [make() for make in makes] and None


def evil_run(part: str, folder: str = "run", *, finished: bool = True) -> Make:
    """A run whose recipe names code of somebody else, with a digest that is not that of the file."""

    def make() -> None:
        Path("evil_net.py").write_text(EVIL)
        path = Path(folder, "recipe.toml")
        usual = tomllib.loads(path.read_text())[part]["name"]
        changed = path.read_text().replace(f'name = "{usual}"', 'name = "evil_net:f"')
        path.write_text(f'{changed}\n[own_code]\nevil_net = "{"0" * 64}"\n')
        if not finished:
            Path(folder, "summary.json").unlink(missing_ok=True)

    return make


def evil_record() -> None:
    """A record that says "nll" and whose recipe names a function."""
    Path("evil_net.py").write_text(EVIL)
    (path,) = Path("records").glob("*.json")
    content = json.loads(path.read_text())
    content["method"] = "nll"
    content["recipe"]["method"]["name"] = "evil_net:f"
    path.write_text(json.dumps(content))


def npy(shape: str, descr: str = "<f8", body: bytes = b"") -> bytes:
    """An array whose header says what it likes."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def archive(path: str, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Make:
    """A whole `.npz` file of these members."""

    def make() -> None:
        with zipfile.ZipFile(path, "w", kind) as made:
            for name, content in members.items():
                made.writestr(f"{name}.npy", content)

    return make


def logits(path: str, rows: int, classes: int, *, seed: int = 0, form: str = "logits") -> Make:
    """Calibrated predictions."""

    def make() -> None:
        rng = np.random.default_rng(seed)
        scores = rng.normal(size=(rows, classes)) * 2.5
        targets = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        Predictions.from_logits(scores.astype(np.float32) if form == "short" else scores, targets).save(path)

    return make


def near_the_target(path: str, cases: int, errors: int) -> Make:
    """Sure predictions of which a few are wrong."""

    def make() -> None:
        confidence = 0.999 - 1e-6 * np.arange(cases)
        targets = np.zeros(cases, dtype=int)
        targets[:errors] = 1
        Predictions.from_probabilities(np.stack([confidence, 1 - confidence], axis=1), targets).save(path)

    return make


def array_of(content: np.ndarray) -> bytes:
    """An array as `.npy`."""
    buffer = io.BytesIO()
    np.save(buffer, content)
    return buffer.getvalue()


def zeros(path: str, megabytes: int, *, filler: int = 0) -> Make:
    """An `.npz` whose logits unfold to this size, with bytes that cannot be compressed beside them."""

    def make() -> None:
        rows = megabytes * 2**20 // 16
        arrays = {"logits": np.zeros((rows, 2)), "targets": np.zeros(rows, dtype=np.int8)}
        if filler:
            arrays["extra"] = np.frombuffer(np.random.default_rng(0).bytes(filler), np.uint8)
        np.savez_compressed(path, **arrays)

    return make


def pictures(sides: int) -> None:
    """Four PNGs of few bytes and this many pixels on each side."""
    row = zlib.compress(bytes((sides + 1) * sides), 9)

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", sides, sides, 8, 0, 0, 0, 0))
    shutil.rmtree("pictures")
    for number in range(4):
        path = Path("pictures", "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", row) + chunk(b"IEND", b""))


def class_folder(name: bytes) -> None:
    """Pictures of two classes, one of them with this name."""
    rng = np.random.default_rng(0)
    shutil.rmtree("pictures")
    for label, folder in enumerate((name, b"dog")):
        for number in range(12):
            path = Path("pictures", folder.decode("utf-8", "surrogateescape"), f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((rng.integers(0, 100, (8, 8, 3)) + 100 * label).astype(np.uint8)).save(path)


def many_names(path: str, classes: int = 60_000) -> None:
    """A policy of many class names, and predictions that have them in another order."""
    names = [f"class {number}" for number in range(classes)]
    Policy(classes, rule=RoutingRule(0.9, classes), class_names=tuple(names)).save("many.json")
    scores = np.zeros((1, classes), dtype=np.float32)
    Predictions.from_logits(scores, [0], class_names=names[::-1]).save(path)


def rewrite_csv(path: str, change: Callable[[list[str]], list[str]]) -> Make:
    """Other lines in a CSV file."""

    def make() -> None:
        Path(path).write_text("\n".join(change(Path(path).read_text().splitlines())) + "\n")

    return make


def mixed_targets(lines: list[str]) -> list[str]:
    """Targets that mix names and numbers."""
    place = lines[0].split(",").index("target")
    rows = [line.split(",") for line in lines]
    for number, row in enumerate(rows[1:]):
        row[place] = "cat" if number % 2 else "1"
    return [",".join(row) for row in rows]


def formulas(lines: list[str]) -> list[str]:
    """Ids that a spreadsheet would run."""
    place = lines[0].split(",").index("id")
    rows = [line.split(",") for line in lines]
    rows[1][place] = '=HYPERLINK("http://x")'.replace('"', "'")
    rows[2][place] = "=cmd|' /C calc'!A0"
    return [",".join(row) for row in rows]


def flipped(path: str, pattern: str) -> Make:
    """One bit of the first place that matches, as a fault of the disk would flip it."""

    def make() -> None:
        data = bytearray(Path(path).read_bytes())
        match = re.search(pattern.encode(), bytes(data))
        assert match is not None, (path, pattern)
        data[match.end() - 1] ^= 1
        Path(path).write_bytes(bytes(data))

    return make
