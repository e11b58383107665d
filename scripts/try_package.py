"""Build the sdist and the wheel, and try both as a stranger would: in empty environments, outside the repository.

    python scripts/try_package.py --folder ~/trial [--out results/benchmarks/install.txt] [--constraints FILE]

The wheel is installed with nothing else, and `calibrant demo` has to end with its page; then the sdist; then each extra
alone, with one thing that it is for. Commands that need a missing extra have to name it in one line. The table shows
the megabytes of site-packages and the processor seconds of the installation and of each command.

`uv` makes the environments where it is installed (its files are shared between them), else pip.
"""

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TRAIN = ["calibrant", "train", "--data", "digits", "--epochs", "1", "--out", "run"]
_SKLEARN = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from calibrant.deployment import export_onnx
x, y = load_iris(return_X_y=True)
print(export_onnx(LogisticRegression(max_iter=500).fit(x, y), "iris.onnx", example=x.astype("float32")).path)
"""
_SERVE = """
import json, subprocess, sys, urllib.request
command = [sys.executable, "-m", "calibrant", "serve", "../../export/tried/run/model.onnx", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
address = server.stdout.readline().split()[-1]
body = json.dumps({"inputs": [[[[0.0] * 8] * 8]]}).encode()
request = urllib.request.Request(address + "/decisions", data=body, headers={"content-type": "application/json"})
print(json.load(urllib.request.urlopen(request))["decisions"][0]["decision"])
server.terminate()
server.wait()
"""
_VISION = """
from calibrant.training.models import build_model
build_model("torchvision:resnet18", n_classes=3, image_shape=(3, 32, 32))
print("built")
"""
# One thing that each extra is for; without one, its name is all there is to try.
USES: dict[str, list[list[str]]] = {
    "export": [_TRAIN, ["calibrant", "export", "run"]],
    "serve": [["python", "-c", _SERVE]],  # what `export` wrote
    "study": [["calibrant", "sweep", "--data", "digits", "--epochs", "1", "--trials", "1", "--out", "sweep"]],
    "sklearn-export": [["python", "-c", _SKLEARN]],
    "postgres": [["python", "-c", "from psycopg import pq; print('libpq', pq.version(), pq.__impl__)"]],
    "transformers": [["python", str(ROOT / "examples/huggingface_text/after.py")]],
    "vision": [["python", "-c", _VISION]],
    "ray": [["calibrant", "compare", *_TRAIN[2:6], "--methods", "nll", "--executor", "ray", "--out", "study"]],
}
# What an installation without extras says: one line, exit code 2, before any work.
MISSING = [
    ["calibrant", "export", "run"],
    ["calibrant", "serve", "model.onnx"],
    ["calibrant", "monitor", "decisions.db"],
    ["calibrant", "sweep", "--data", "digits", "--out", "sweep"],
    ["calibrant", "train", "--data", "digits", "--model", "torchvision:resnet18", "--out", "tv"],
]


@dataclass(frozen=True)
class Place:
    """An empty environment, and the empty folder in which its commands run."""

    folder: Path
    options: tuple[str, ...]

    def make(self, what: str) -> float:
        """Install, and return the processor seconds."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "tried").mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.folder / "env")], check=True)
        python, uv = str(self.folder / "env/bin/python"), shutil.which("uv")
        pip = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
        return timed([*pip, "--quiet", *self.options, what], check=True)[1]

    def megabytes(self) -> float:
        """Size of everything that was installed."""
        (packages,) = (self.folder / "env/lib").glob("python*/site-packages")
        return sum(path.lstat().st_size for path in packages.rglob("*") if path.is_file()) / 1e6

    def run(self, command: list[str]) -> tuple[int, str, float]:
        """Exit code, last line that was said, seconds."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CALIBRANT_"))
        }
        environment |= {"WANDB_MODE": "offline"}
        program = self.folder / "env/bin" / command[0]
        settings = {"cwd": self.folder / "tried", "env": environment, "capture_output": True, "text": True}
        done, seconds = timed([str(program), *command[1:]], **settings)
        said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or [""]
        return done.returncode, said[-1].strip(), seconds


def timed(command: list[str], **settings: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command, and return with it the processor seconds: those of the clock tell how busy the machine is."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, **settings)  # noqa: PLW1510 (as the caller says)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="outside the repository")
    parser.add_argument("--constraints", type=Path, help="versions to install, as pip reads them")
    parser.add_argument("--extras", nargs="*", help="only these; default: all but dev, docs and peers")
    parser.add_argument("--out", type=Path, help="write the table here too")
    options = parser.parse_args()
    folder = options.folder.expanduser().resolve()
    if folder.is_relative_to(ROOT):
        parser.error("--folder must lie outside the repository")
    constraints = () if options.constraints is None else ("-c", str(options.constraints.resolve()))
    wheel, sdist = build(folder)
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    tell(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB), {sdist.name} ({sdist.stat().st_size / 1e6:.1f} MB); ")
    tell(f"Python {platform.python_version()}, installed with {'uv' if shutil.which('uv') else 'pip'}\n")
    tell(f"{'installed':<16}{'MB':>7}{'s':>7}  exit, last line and seconds of what was tried")
    failed = try_core(folder, wheel, sdist, constraints, tell)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [name for name in extras if name not in ("dev", "docs", "peers", "all")]
    for extra in names if options.extras is None else options.extras:
        failed |= try_one(Place(folder / extra, constraints), f"{wheel}[{extra}]", extra, USES.get(extra, []), tell)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    sys.exit(int(failed))


def build(folder: Path) -> tuple[Path, Path]:
    """Build both in an environment of their own, from the sources as they lie here."""
    shutil.rmtree(folder / "dist", ignore_errors=True)
    builder = folder / "builder"
    if not builder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(builder)], check=True)
        subprocess.run([str(builder / "bin/pip"), "install", "--quiet", "build", "twine"], check=True)
    subprocess.run(
        [str(builder / "bin/python"), "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)], check=True
    )
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    subprocess.run([str(builder / "bin/twine"), "check", "--strict", str(wheel), str(sdist)], check=True)
    return wheel, sdist


def try_core(folder: Path, wheel: Path, sdist: Path, constraints: tuple[str, ...], tell: Callable[[str], None]) -> bool:
    """The wheel and the sdist without extras: the demo, a recipe by name, and what a missing extra says."""
    uses = [
        ["calibrant", "demo"],
        [*_TRAIN[:2], "--recipe", "digits-tiny", "--epochs", "1", "--out", "run"],
        ["calibrant", "evaluate", "run"],
        ["calibrant", "calibrate", "run", "--share", "0.5"],
        ["calibrant", "route", "fit", "run", "--raw", "--target-accuracy", "0.9"],
        ["calibrant", "report", "run"],
    ]
    core = Place(folder / "core", constraints)
    failed = try_one(core, str(wheel), "wheel", uses, tell)
    page = core.folder / "tried/demo/report.html"
    tell(f"{'':<32}the demo's page: {page.stat().st_size / 1e6:.1f} MB")
    (core.folder / "tried/s.parquet").write_bytes(b"PAR1")
    (core.folder / "tried/model.onnx").write_bytes(b"")
    (core.folder / "tried/decisions.db").write_bytes(b"")
    for command in MISSING:
        code, line, seconds = core.run(command)
        failed |= "calibrant[" not in line
        tell(f"{'':<32}{' '.join(command)[:80]}: exit {code}, {seconds:.1f} s: {line}")
    return failed | try_one(
        Place(folder / "sdist", constraints), str(sdist), "sdist", [["calibrant", "demo", "--epochs", "2"]], tell
    )


def try_one(place: Place, what: str, name: str, uses: list[list[str]], tell: Callable[[str], None]) -> bool:
    """Install something alone and use it; True where a command fails."""
    seconds = place.make(what)
    tell(f"{name:<16}{place.megabytes():>7.0f}{seconds:>7.0f}")
    failed = False
    for command in uses:
        code, line, took = place.run(command)
        failed |= code != 0
        tell(f"{'':<32}{' '.join(' '.join(command).split())[:80]}: exit {code}, {took:.1f} s: {line[-160:]}")
    return failed


if __name__ == "__main__":
    main()
