"""Small things that hurt users: each command again, and what it prints now.

    python scripts/small_things.py [--out results/benchmarks/small-things.txt]

Inputs are made in a temporary folder; the network is not used. Long answers are cut to their first lines.
"""

import argparse
import contextlib
import io
import json
import os
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import calibrant
from calibrant import samples
from calibrant.cli import run
from calibrant.decisions import fit_policy

SHOWN = 12


@dataclass(frozen=True)
class Thing:
    """One thing that hurt, and the command that shows what happens now."""

    what: str
    command: str
    before: Callable[[], object] = lambda: None


def pictures() -> None:
    """Two classes; one file of the second is text, another was cut off, both with the name of a picture."""
    generator = np.random.default_rng(0)
    for number in range(40):
        folder = Path("scans", "healthy" if number < 30 else "ill")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(256, size=(16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    Path("scans/ill/notes.png").write_text("not a picture")
    whole = Path("scans/ill/30.png").read_bytes()
    Path("scans/ill/cut.png").write_bytes(whole[: len(whole) // 2])


def deep_pictures() -> None:
    for kind in ("a", "b"):
        Path("deep", kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16), 40_000, dtype=np.uint16)).save(Path("deep", kind, "x-ray.png"))


def print_pictures() -> None:
    for number in range(40):
        folder = Path("print", "ab"[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("CMYK", (16, 16), (number, 0, 200, 0)).save(folder / f"{number}.jpg")


def predictions() -> None:
    """Real CIFAR-10 predictions, and noise: nothing can be promised for a model that guesses."""
    name = samples.names()[0]
    val, test = samples.load(name, "val"), samples.load(name)
    val.save("val.npz")
    test.save("test.npz")
    generator = np.random.default_rng(0)
    guesses = calibrant.Predictions.from_logits(generator.normal(size=(500, 3)), generator.integers(3, size=500))
    guesses.save("guesses.npz")
    fit_policy(guesses, target_accuracy=0.99, calibrator=None).save("nothing.json")


def calibrated() -> None:
    answer("route fit val.npz --calibrate --target-accuracy 0.98 -o policy.json")
    answer("calibrate val.npz --apply test.npz -o calibrated.npz")


def newer_policy() -> None:
    content = json.loads(Path("policy.json").read_text())
    Path("newer.json").write_text(json.dumps({**content, "version": 99}))


THINGS = [
    Thing("a folder of pictures without 'folder:'", "train --data ./scans --out run", pictures),
    Thing("a bare .npz file", "train --data images.npz --out run", lambda: np.savez("images.npz", x=np.zeros(3))),
    Thing("classes counted, every unreadable picture named at once", "data check folder:scans"),
    Thing("16 bits per channel: refused, with what to do", "data check folder:deep", deep_pictures),
    Thing("CMYK: read as RGB", "data check folder:print", print_pictures),
    Thing("intervals by default", "evaluate test.npz", predictions),
    Thing("and without", "evaluate test.npz --n-resamples 0"),
    Thing("a policy that automates nothing keeps no promise", "route check nothing.json guesses.npz"),
    Thing("scores that are calibrated already", "route check policy.json calibrated.npz", calibrated),
    Thing("in-sample numbers are named so", "calibrate val.npz --apply val.npz -o in-sample.npz"),
    Thing("and later", "evaluate in-sample.npz --n-resamples 0"),
    Thing("a recipe by its name, misspelt", "train --recipe cifar10-resnet05 --out run2"),
    Thing("a file of a newer version", "route check newer.json test.npz", newer_policy),
    Thing("the flags of old commands", "evaluate test.npz --bootstrap 100"),
    Thing(
        "torchvision that is missing, or its weights",
        "train --data digits --model torchvision:resnet18?weights=DEFAULT",
    ),
]


def answer(command: str) -> list[str]:
    """Exit code and what was said, complaints last."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(shlex.split(command))
    lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    if len(lines) > SHOWN:
        lines = [*lines[:SHOWN], f"... ({len(lines) - SHOWN} more lines)"]
    return [*lines, *err.getvalue().strip().splitlines(), f"exit {code}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    target = None if options.out is None else options.out.resolve()
    os.environ["COLUMNS"] = "110"
    told = [f"calibrant {calibrant.__version__}"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        # Without a network, and without weights that were downloaded before.
        os.environ |= {"TORCH_HOME": folder, "https_proxy": "http://127.0.0.1:9", "CALIBRANT_STATE": folder}
        for thing in THINGS:
            thing.before()
            told += ["", f"# {thing.what}", f"$ calibrant {thing.command}", *answer(thing.command)]
            print("\n".join(told[-SHOWN:]), flush=True)
        text = "\n".join(told).replace(f"{folder}/", "").replace(folder, ".")
    if target is not None:
        target.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
