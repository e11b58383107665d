"""Thousands of damaged files for every reader, in child processes: `make fuzz MINUTES=30`.

A process that has imported everything forks a child, which reads one damaged file after the other under a limit of
memory. Where a file ends or blocks the child, that counts against the file, and a new child goes on behind it. What
breaks the rule is kept under `--keep` with a line on how to repeat it; `--table` gets the counts.
"""

import argparse
import gc
import importlib
import json
import os
import pkgutil
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

import psutil

import calibrant
from tests.fuzz import corpus as corpora
from tests.fuzz.attempt import left_behind, listing, set_up
from tests.fuzz.outcome import KEPT, MEGABYTES, SECONDS, Attempt, verdict
from tests.fuzz.targets import TARGETS, Target, prepare

# Beyond what the libraries take already (with CUDA several GB). Far above the bound of the rule, so that what breaks it
# is measured, and below what would harm the machine.
_MORE_ADDRESS_SPACE = 6 * 2**30
# Of fifty attempts one goes to the slow commands.
_SLOW_SHARE = 0.02
_OUR_FAULT = 70
_PER_CHILD = 100
# The limit of time counts seconds of computing, as the machine may be busy; waiting may take so many times as long.
_BUSY = 6


def main() -> int:
    """Run the campaign; 1 where the rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--inputs", type=int, default=10**9, help="stop after so many damaged files")
    parser.add_argument("--seed", type=int, default=0, help="of the first file; the n-th has seed + n")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--keep", type=lambda path: Path(path).absolute(), default=Path("fuzz-findings").absolute())
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {target.name: Counter() for target in TARGETS if options.only in target.name}
    most = dict.fromkeys(counts, 0.0)
    end, done = time.monotonic() + 60 * options.minutes, 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        corpus = Path(name) / "corpus"
        # In a child: the threads that training and tables start must not be there when this process forks.
        _, status = os.waitpid(_fork(lambda: _make(corpus)), 0)
        assert status == 0, "the corpus could not be made"
        _import_everything()
        for target in (each for each in TARGETS if each.name in counts):
            undamaged = shutil.copytree(corpus, Path(name) / "undamaged", dirs_exist_ok=True)
            _, status = os.waitpid(_fork(partial(target.run, undamaged, undamaged / "out")), 0)
            assert status == 0, f"{target.name}: the undamaged file is not read"
        while time.monotonic() < end and done < options.inputs:
            seeds = range(options.seed + done, options.seed + min(done + _PER_CHILD, options.inputs))
            for target, attempt in _outcomes(seeds, options.only, corpus, Path(name) / "attempt", options.keep):
                counts[target][verdict(attempt)] += 1
                most[target] = max(most[target], attempt.megabytes)
                done += 1
            if done // 500 > (done - len(seeds)) // 500:
                _say(f"{done} files, {sum(_broken(counts).values())} break the rule")
                if options.table is not None:  # so that a campaign that is stopped leaves what it has done
                    options.table.write_text(table(counts, most, options.seed))
    text = table(counts, most, options.seed)
    _say(text)
    if options.table is not None:
        options.table.write_text(text)
    return 1 if _broken(counts) else 0


def _make(corpus: Path) -> int:
    corpus.mkdir()
    corpora.build(corpus)
    prepare(corpus)
    return 0


def _import_everything() -> None:
    """Once here and not in every child."""
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401
    import scipy.io  # noqa: F401
    from PIL import Image

    Image.init()
    for module in pkgutil.walk_packages(calibrant.__path__, "calibrant."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()


def _pick(random: Random, only: str) -> Target:
    chosen = [target for target in TARGETS if only in target.name]
    slow = [target for target in chosen if target.slow]
    quick = [target for target in chosen if not target.slow]
    return random.choice(slow if slow and (not quick or random.random() < _SLOW_SHARE) else quick)


def _outcomes(seeds: range, only: str, corpus: Path, folder: Path, keep: Path) -> Iterator[tuple[str, Attempt]]:
    """What became of the files of these seeds, up to the one that ended or blocked the child."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    child = _fork(lambda: _read_all(seeds, only, corpus, folder, keep))
    seen, status, moved, used = -1, None, time.monotonic(), 0.0
    process = psutil.Process(child)
    while status is None and time.monotonic() < moved + _BUSY * SECONDS and _cpu(process) < used + SECONDS:
        time.sleep(0.02)
        finished, ended = os.waitpid(child, os.WNOHANG)
        status = ended if finished else None
        size = (folder / "done").stat().st_size if (folder / "done").exists() else 0
        if size != seen:
            seen, moved, used = size, time.monotonic(), _cpu(process)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    lines = (folder / "done").read_text().splitlines() if seen > 0 else []
    for line in lines:
        found = json.loads(line)
        yield found.pop("target"), Attempt(**found)
    if status != 0:
        seed = seeds[len(lines)]
        attempt = Attempt(None if status is None else os.waitstatus_to_exitcode(status), *_said(folder))
        _keep(keep, folder, attempt, seed, _pick(Random(seed), only))
        yield _pick(Random(seed), only).name, attempt


def _cpu(process: psutil.Process) -> float:
    """Seconds of computing; 0 where the process has ended."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _read_all(seeds: range, only: str, corpus: Path, folder: Path, keep: Path) -> int:
    """In the child: damage and read one file after the other, and write down what happened."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
    most = psutil.Process().memory_info().vms + _MORE_ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    work = folder / "work"
    tempfile.tempdir = os.environ["TMPDIR"] = str(work / "tmp")
    for seed in seeds:
        target = _pick(Random(seed), only)
        attempt = _read(target, corpus, folder, seed)
        if verdict(attempt) not in KEPT:
            _keep(keep, folder, attempt, seed, target)
        with (folder / "done").open("a") as handle:
            handle.write(json.dumps({"target": target.name, **asdict(attempt)}) + "\n")
    return 0


def _read(target: Target, corpus: Path, folder: Path, seed: int) -> Attempt:
    work = folder / "work"
    os.chdir(folder)
    shutil.rmtree(work, ignore_errors=True)
    (work / "tmp").mkdir(parents=True)
    here, done = set_up(target, corpus, work, Random(f"damage {seed}"))
    (folder / "damage.txt").write_text(done)
    before = listing(work)
    os.chdir(work)
    os.truncate(folder / "stdout", 0)
    os.truncate(folder / "stderr", 0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest memory so far
    began = _memory("VmRSS")
    try:
        code = target.run(here, work / "out")
    except BaseException:  # noqa: BLE001 (the rule is broken, whatever it is)
        traceback.print_exc()
        code = _OUR_FAULT
    attempt = Attempt(code, *_said(folder), _memory("VmHWM") - began, left_behind(before, listing(work)))
    if code == 0 and target.right is not None:
        attempt.right = target.right(here, attempt.out)
    return attempt


def _said(folder: Path) -> tuple[str, str]:
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = ((folder / name).read_text(errors="backslashreplace") for name in ("stdout", "stderr"))
    return out, err


def _memory(kind: str) -> float:
    """Memory of this process in megabytes: now (VmRSS) or at its highest (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


def _fork(work: Callable[[], int]) -> int:
    """The id of a child that does the work, ends with the number it returns, and runs nothing else of this process."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = _OUR_FAULT
    try:
        os.setpgid(0, 0)
        code = work()
    except BaseException:  # noqa: BLE001 (whatever it is, it must not go on in the parent's code)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _keep(keep: Path, folder: Path, attempt: Attempt, seed: int, target: Target) -> None:
    place = keep / f"{verdict(attempt)}-{target.name}-{seed}".replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "work", place)
    done = (folder / "damage.txt").read_text()
    lines = [done, f"exit {attempt.code}, {attempt.megabytes:.0f} MB above the beginning, left: {attempt.left}"]
    lines += [f"To repeat: python -m tests.fuzz.campaign --inputs 1 --seed {seed}", attempt.err[-4000:]]
    (place / "finding.txt").write_text("\n".join(lines) + "\n", errors="backslashreplace")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _broken(counts: dict[str, Counter[str]]) -> Counter[str]:
    total = sum(counts.values(), Counter())
    return Counter({word: number for word, number in total.items() if word not in KEPT})


def table(counts: dict[str, Counter[str]], most: dict[str, float], seed: int) -> str:
    """Outcomes by target."""
    total = sum(counts.values(), Counter())
    words = [*KEPT, *sorted(set(total) - set(KEPT))]
    rows = [("target", "files", *words, "most MB")]
    rows += [
        (name, str(found.total()), *(str(found[word]) for word in words), f"{most[name]:.0f}")
        for name, found in counts.items()
    ]
    rows.append(("all", str(total.total()), *(str(total[word]) for word in words), f"{max(most.values()):.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head = [
        f"Damaged files, read in child processes ({SECONDS} s, {MEGABYTES} MB above the process before).",
        f"Python {platform.python_version()}, {platform.system()}, seeds from {seed}.",
        "read: exit 0 and right; refused: exit 2 and one line. Anything else breaks the rule.",
    ]
    return "\n".join([*head, "", *lines]) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
