"""What a hostile campaign broke in version 0.1.0: the same commands on the same inputs, and what they print now.

    python -m tests.fuzz.old_failures [--only 9] [--out results/benchmarks/old-failures.txt]

Every command runs in a process of its own, a fork of this one, which has imported everything. For each the table shows
the exit code, the memory above that of the fork at its beginning, and the first line that was said on standard error,
or on standard output where nothing was complained about.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import calibrant
from calibrant.cli import run
from calibrant.cli._shared import complain
from calibrant.errors import CalibrantError
from tests.fuzz.campaign import _fork, _import_everything, _make, _memory, _say
from tests.fuzz.old_cases import CASES, Case

_LONGEST = 600.0


def _live(case: Case, corpus: Path, folder: Path) -> int:
    """In the child: make the input, run the command, and write down what it took."""
    shutil.copytree(corpus, folder / "work", symlinks=True)
    os.chdir(folder / "work")
    sys.path.insert(0, "")
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}.making", os.O_RDWR | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
    case.make()
    sys.stdout.flush()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_RDWR | os.O_CREAT), number)
    Path("/proc/self/clear_refs").write_text("5")
    began, clock = _memory("VmRSS"), time.process_time()
    code = _call(case.call) if case.call is not None else run(shlex.split(case.command))
    sys.stdout.flush()
    sys.stderr.flush()
    seconds = time.process_time() - clock
    took = {"code": code, "megabytes": max(0.0, _memory("VmHWM") - began), "seconds": seconds, "more": ""}
    if case.after is not None:
        took["more"] = case.after((folder / "out").read_text())
    (folder / "took.json").write_text(json.dumps(took))
    return 0


def _call(call: Callable[[], object]) -> int:
    try:
        call()
    except CalibrantError as error:
        complain(error)
        return 2
    return 0


@dataclass(frozen=True)
class Took:
    """How a case ended: exit code (None: it was stopped), memory above the beginning, computing time, and its line."""

    code: int | None
    megabytes: float
    seconds: float
    said: str


def attempt(case: Case, corpus: Path) -> Took:
    """Run a case in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="old-") as name:
        folder = Path(name)
        child = _fork(lambda: _live(case, corpus, folder))
        end, status = time.monotonic() + _LONGEST, None
        while status is None and time.monotonic() < end:
            time.sleep(0.02)
            finished, ended = os.waitpid(child, os.WNOHANG)
            status = ended if finished else None
        if status is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        said = [path.read_text(errors="backslashreplace") for path in (folder / "err", folder / "out") if path.exists()]
        lines = [line for line in "\n".join(said).splitlines() if line.strip()]
        line = next((line for line in lines if not line.startswith("calibrant: warning: ")), "")
        if not (folder / "took.json").exists():
            return Took(None if status is None else os.waitstatus_to_exitcode(status), 0.0, 0.0, line)
        told = json.loads((folder / "took.json").read_text())
        line = line.replace(f"{folder / 'work'}/", "").replace(f"{corpus}/", "")
        return Took(told["code"], told["megabytes"], told["seconds"], f"{line} {told['more']}".strip())


def attempts(cases: Sequence[Case], only: int | None = None) -> Iterator[tuple[Case, Took]]:
    """What became of each case, one after the other."""
    with tempfile.TemporaryDirectory(prefix="old-corpus-") as name:
        corpus = Path(name) / "corpus"
        os.environ["CALIBRANT_STATE"] = str(Path(name) / "state")
        _, status = os.waitpid(_fork(lambda: _make(corpus)), 0)
        assert status == 0, "the corpus could not be made"
        _import_everything()
        for case in cases:
            if only in (None, case.point):
                yield case, attempt(case, corpus)


def main() -> int:
    """Try them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, help="one point of the list")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    head = f"calibrant {calibrant.__version__}, Python {platform.python_version()}. Memory is above that of the process"
    lines = [f"{head} before; seconds are of computing.", ""]
    for case, took in attempts(CASES, options.only):
        command = case.command if case.call is not None else f"calibrant {case.command}"
        command = (command if len(command) < 120 else f"{command[:100]}...").encode("unicode_escape").decode()
        now = f"exit {took.code}, {took.megabytes:.0f} MB, {took.seconds:.1f} s: {took.said[:420]}"
        lines += [f"{case.point}. {command}", f"   then: {case.before}", f"   now: {now}"]
        _say("\n".join(lines[-3:]))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
