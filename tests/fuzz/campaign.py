"""Thousands of damaged files, each read in a process of its own: `make fuzz MINUTES=30`.

A process that has imported everything forks once per file, so that an attempt takes a tenth of a second and not
several. The child has a limit of memory and of time. What breaks the rule is kept under `--keep` with a line on how to
repeat it; `--table` gets the counts.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import calibrant
from tests.fuzz import corpus as corpora
from tests.fuzz.attempt import left_behind, listing, set_up
from tests.fuzz.outcome import KEPT, MEGABYTES, SECONDS, Attempt, verdict
from tests.fuzz.targets import TARGETS, Target, prepare

# Far above the bound of the rule, so that what breaks it is measured, and below what would harm the machine.
_ADDRESS_SPACE = 6 * 2**30
# Of fifty attempts one goes to the slow commands.
_SLOW_SHARE = 0.02
_OUR_FAULT = 70


def main() -> int:
    """Run the campaign; 1 where the rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--inputs", type=int, default=10**9, help="stop after so many damaged files")
    parser.add_argument("--seed", type=int, default=0, help="of the first file; the n-th has seed + n")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
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
        for target in TARGETS:
            undamaged = shutil.copytree(corpus, Path(name) / "undamaged", dirs_exist_ok=True)
            assert _wait(_fork(partial(target.run, undamaged, undamaged / "out")))[0] == 0, target.name
        while time.monotonic() < end and done < options.inputs:
            seed = options.seed + done
            target = _pick(Random(seed), options.only)
            word, megabytes = one(target, corpus, Path(name) / "attempt", seed, options.keep)
            counts[target.name][word] += 1
            most[target.name] = max(most[target.name], megabytes)
            done += 1
            if done % 500 == 0:
                _say(f"{done} files, {sum(_broken(counts).values())} break the rule")
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


def one(target: Target, corpus: Path, folder: Path, seed: int, keep: Path) -> tuple[str, float]:
    """One damaged file: how it ended, and the memory that it took."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work" / "tmp").mkdir(parents=True)
    empty = _wait(_fork(lambda: 0))[1]
    code, megabytes = _wait(_fork(lambda: _read(target, corpus, folder, seed)))
    megabytes -= empty
    notes = json.loads((folder / "notes.json").read_text())
    out, err = ((folder / name).read_text(errors="backslashreplace") for name in ("stdout", "stderr"))
    left = left_behind(notes["before"], listing(folder / "work"))
    attempt = Attempt(code, out, err, megabytes, left, notes.get("right"))
    word = verdict(attempt)
    if word not in KEPT:
        _keep(keep / f"{word}-{target.name}-{seed}".replace(" ", "-"), folder, attempt, notes["done"], seed)
    return word, megabytes


def _wait(child: int) -> tuple[int | None, float]:
    """Exit code of a child, None where it takes too long, and the most memory that it had."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        finished, status, usage = os.wait4(child, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, 0.0


def _read(target: Target, corpus: Path, folder: Path, seed: int) -> int:
    """In the child: damage the file and read it. The code is returned; the rest is left in files."""
    work = folder / "work"
    here, done = set_up(target, corpus, work, Random(f"damage {seed}"))
    notes: dict[str, object] = {"before": listing(work), "done": done}
    (folder / "notes.json").write_text(json.dumps(notes))
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tempfile.tempdir = os.environ["TMPDIR"] = str(work / "tmp")
    os.chdir(work)
    code = target.run(here, work / "out")
    sys.stdout.flush()
    if code == 0 and target.right is not None:
        notes["right"] = target.right(here, (folder / "stdout").read_text())
        (folder / "notes.json").write_text(json.dumps(notes))
    return code


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


def _keep(place: Path, folder: Path, attempt: Attempt, done: str, seed: int) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
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
        f"Damaged files, each read in a process of its own ({SECONDS} s, {MEGABYTES} MB above an empty process).",
        f"Python {platform.python_version()}, {platform.system()}, seeds from {seed}.",
        "read: exit 0 and right; refused: exit 2 and one line. Anything else breaks the rule.",
    ]
    return "\n".join([*head, "", *lines]) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
