"""Disturb every command that writes in every way we can think of, and compare what it leaves with an undisturbed run.

    python scripts/chaos.py [--kills 1000] [--others 20] [--processes 16] [--out results/benchmarks/chaos.txt]

Each life of a command is a fork of this process, which has imported everything already; so a life takes less than a
second, and a thousand kills some twenty minutes. An audit hook sees every file that the life opens for writing,
renames, removes or flushes below its folder, and every statement that it sends to SQLite. At one of these events it

- kills the process (SIGKILL), or
- lets this and every later event fail as on a full disk or a read-only file system.

Other lives get a limit on the size of files, so that writes stop in the middle; a clock that jumps; or a second process
on the same folder. Processes that a command starts are forks too, without its file descriptors, as after `exec`.

A service is killed in the middle of requests, again and again on one log, which must hold all that was answered.

At last, two processes train one run (`--devices 2`), as real processes, and one of them is killed at a random moment
(`--ranks`, each of which takes some ten seconds): the other one must end by itself. A study on
Ray loses its command or another process of Ray (`--rays`, each of which takes about a minute).

The rule: a life ends with 0, with 2 and one line, or by our kill; after any number of such lives the same command ends
with 0 and leaves the bytes that an undisturbed run leaves, but for clock readings. Anything else is an exception; the
table counts them, they are listed below it, and the exit code is 1.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums of several threads may be added in another order

import lightning.fabric
import numpy as np
import optuna  # noqa: F401  (imported once, for all lives)
import torch
from chaos_processes import Fault, Ranks, kill, lose_one, start, whole
from chaos_serve import kill_services, labelled_log
from safetensors.numpy import load_file

import calibrant
import calibrant.cli
import calibrant.studies
import calibrant.training.engine
from calibrant import samples
from calibrant.decisions import fit_policy
from calibrant.training.reproducibility import git_commit

# Imported late by the commands. Once for all lives, as here, a life takes a third of the time.
COMMANDS = "train compare sweep ablate monitor report route calibrate record export _shared"
LIBRARIES = "sklearn.datasets pandas psutil safetensors.torch alembic.command sqlalchemy.orm onnxscript"
for module in (*(f"calibrant.cli.{command}" for command in COMMANDS.split()), *LIBRARIES.split()):
    import_module(module)
WIDTHS = (8, 8, 9, 11, 12)
KILLS_OF_A_PIECE, RANKS_OF_A_PIECE = 10, 5


# The commands that are disturbed, and what of their files must be equal afterwards.
CLOCKS = {"seconds", "train_seconds", "later_seconds", "samples_per_second", "timing", "environment"}
# Digests of files that hold clock readings, how busy the machine was, and settings of the machine.
FOLLOWS_CLOCKS = {"sha256", "digest", "tensors_sha256", "concurrent_runs"}
# Three batches per epoch: what is disturbed is the writing of files, not the arithmetic between them.
SHORT = ("--epochs", "2", "--set", "optimiser.batch_size=128", "--set", "data.validation=0.75")
SHORT += ("--set", "engine.accelerator=cpu")


@dataclass(frozen=True)
class Job:
    """A command, how to go on with it, and what it leaves."""

    name: str
    begin: Callable[[Path], list[str]]
    go_on: Callable[[Path], list[str]]
    content: Callable[[Path], dict[str, bytes]]
    prepare: Callable[[Path], None] = lambda _: None


def train_begin(method: str, *more: str) -> Callable[[Path], list[str]]:
    return lambda out: ["train", "--data", "digits", "--method", method, *SHORT, *more, "--out", str(out)]


def train_go_on(begin: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
    return lambda out: ["train", "--resume", str(out)] if (out / "recipe.toml").is_file() else begin(out)


def compare(out: Path) -> list[str]:
    methods = ("--methods", "nll", "fl", "--data", "digits", "--no-page", "--jobs", "2")
    return ["compare", *methods, *SHORT, "--out", str(out)]


def sweep(out: Path) -> list[str]:
    # Two trials of two possible settings: whatever Optuna draws, an undisturbed run of the same settings is at hand.
    searched = ("--search", "optimiser.lr=0.05,0.1", "--trials", "2")
    return ["sweep", "--method", "nll", "--data", "digits", *searched, *SHORT, "--out", str(out)]


def ablate(out: Path) -> list[str]:
    return ["ablate", "kappa", "--values", "0.3", "1.0", "--data", "digits", *SHORT, "--out", str(out)]


def monitor(out: Path) -> list[str]:
    return ["monitor", str(out.parent / "decisions.db"), "--out", str(out / "page.html")]


def judged_cases(folder: Path) -> None:
    """What the commands that judge a model read: labelled predictions and a policy."""
    for part in ("val", "test"):
        samples.load("cifar10-resnet32-nll", part).subset(np.arange(1000)).save(folder / f"{part}.npz")
    fit_policy(samples.load("cifar10-resnet32-nll", "val"), 0.97).save(folder / "policy.json")


def finished_run(folder: Path) -> None:
    """What `record` and `export` read."""
    code, said = start(train_begin("nll")(folder / "run"), folder, Fault()).wait()
    assert code == 0, said


def once(name: str, *words: str, output: str = "", prepare: Callable[[Path], None] = judged_cases) -> Job:
    """A command that reads what lies beside its folder (./name) and writes into it; to go on is to begin again."""

    def begin(out: Path) -> list[str]:
        read = (str(out.parent / word[2:]) if word.startswith("./") else word for word in words)
        return [*name.split(), *read, "--out", str(out / output)]

    return Job(name, begin, begin, visible_content, prepare)


def without_clocks(content: Any) -> Any:
    if isinstance(content, dict):
        left_out = CLOCKS | FOLLOWS_CLOCKS
        return {key: without_clocks(value) for key, value in content.items() if key not in left_out}
    return [without_clocks(value) for value in content] if isinstance(content, list) else content


def plain(path: Path) -> bytes:
    """A file's bytes; for JSON, what it says without clock readings."""
    if path.suffix == ".json":
        return json.dumps(without_clocks(json.loads(path.read_text()))).encode()
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        return json.dumps([without_clocks(json.loads(line)) for line in lines]).encode()
    if path.suffix == ".safetensors":
        # One process has nothing to share between ranks: it writes this column as it found it, and a resume ignores it.
        tensors = sorted((name, each) for name, each in load_file(path).items() if name != "pruner.shared_count")
        return b"".join(name.encode() + str(each.dtype).encode() + each.tobytes() for name, each in tensors)
    return path.read_bytes()


def run_content(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder but the lock."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): plain(path) for path in files}


def study_content(folder: Path) -> dict[str, bytes]:
    """Runs and records; tables show training times, so only that they are there."""
    found = {}
    for part in ("runs", "records", "recipes"):
        found |= {f"{part}/{name}": content for name, content in run_content(folder / part).items()}
    return found | {
        name: b"" for name in ("tables.md", "tables.tex", "comparison.json", "runs.csv") if (folder / name).is_file()
    }


def sweep_content(folder: Path) -> dict[str, bytes]:
    """How many trials finished, and the runs of those by what they trained."""
    sweep = json.loads((folder / "sweep.json").read_text())
    kept = {trial["run"] for trial in sweep["finished"]}
    found = {
        f"{name}/{file}": content for name in kept for file, content in run_content(folder / "runs" / name).items()
    }
    return found | {"trials": f"{len(sweep['finished'])} finished, {len(sweep['stopped'])} not".encode()}


def visible_content(folder: Path) -> dict[str, bytes]:
    """Every file. A hidden draft may stay beside it where a process was killed before it could rename it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def jobs() -> list[Job]:
    pruned = train_begin("flsd+h+p-ema", "--set", "method.options.start=1", "--set", "method.options.interval=1")
    averaged = train_begin(
        "fl+unbiased",
        "--set",
        "schedule.kind=cosine",
        "--set",
        "schedule.average=0.5",
        "--set",
        "method.options.anneal=0",
    )
    return [
        Job("train, pruned", pruned, train_go_on(pruned), run_content),
        Job("train, averaged", averaged, train_go_on(averaged), run_content),
        Job("compare, 2 jobs", compare, compare, study_content),
        Job("sweep", sweep, sweep, sweep_content),
        Job("ablate", ablate, ablate, study_content),
        Job("monitor", monitor, monitor, visible_content, labelled_log),
        once("report", "./test.npz", "--policy", "./policy.json", "--n-resamples", "20", output="page.html"),
        once("route fit", "./val.npz", "--target-accuracy", "0.97", output="policy.json"),
        once("route apply", "./policy.json", "./test.npz", output="decisions.csv"),
        once("calibrate", "./val.npz", "--apply", "./test.npz", output="calibrated.npz"),
        once("record", "./run", prepare=finished_run),
        once("export", "./run", output="model.onnx", prepare=finished_run),
    ]


@dataclass
class Tally:
    """Outcomes of one kind of disturbance of one job."""

    lives: int = 0
    kills: int = 0
    refused: int = 0
    identical: int = 0
    exceptions: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Count what another piece found."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def line(self, name: str, events: int) -> str:
        """A line of the table."""
        counts = self.lives, self.kills, self.refused, self.identical, len(self.exceptions)
        return f"{name:34}{events or '-':>8}" + "".join(f"{n:{w}}" for n, w in zip(counts, WIDTHS, strict=True))


class Campaign:
    """Disturbs a job again and again and counts."""

    def __init__(self, job: Job, place: Path, draw: random.Random) -> None:
        self.job, self.place, self.draw = job, place, draw
        self.expected: dict[str, bytes] = {}
        job.prepare(self._fresh("whole-0").parent)
        self.events = self._undisturbed()

    def _undisturbed(self) -> int:
        """What the job leaves when nothing happens (for a sweep, with both settings), and how many events it takes."""
        events, wanted = 0, 2 if self.job.name == "sweep" else 0
        for attempt in range(8):
            out, counter = self._fresh(f"whole-{attempt}"), self.place / "counter"
            code, said = start(self.job.begin(out), out, Fault(), counter).wait()
            if code:
                sys.exit(f"the undisturbed {self.job.name} ended with {code}: {said}")
            self.expected |= self.job.content(out)
            events = int(counter.read_text())
            if len({name.partition("/")[0] for name in self.expected if name.startswith("trial-")}) >= wanted:
                break
        return events

    def _fresh(self, name: str) -> Path:
        out = self.place / self.job.name.replace(", ", "-").replace(" ", "-") / name
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        return out

    def _check(self, tally: Tally, code: int | None, said: str, what: str, *, killed: bool = False) -> None:
        """The rule for one life."""
        tally.lives += 1
        own = (line for line in said.splitlines() if line.startswith("calibrant: "))
        lines = [line for line in own if not line.startswith("calibrant: warning: ")]
        if code == -signal.SIGKILL and killed:
            tally.kills += 1
        elif code == 2 and len(lines) == 1 and "Traceback" not in said:
            tally.refused += 1
        elif code == 1 and "runs failed" in said and "Traceback" not in said:
            tally.refused += 1  # a study tells of the runs that failed
        elif code != 0:
            last = said.strip().splitlines()[-1][:300] if said.strip() else "it said nothing"
            tally.exceptions.append(f"{what}: {'it hangs' if code is None else f'exit code {code}'}: {last}")

    def disturb(self, tally: Tally, faults: list[Fault]) -> None:
        """Lives with these faults one after the other, then one without, which must end as an undisturbed job does."""
        out, what = self._fresh("disturbed"), " then ".join(f"{fault.kind} at {fault.at}" for fault in faults)
        command = self.job.begin(out)
        for fault in faults:
            code, said = start(command, out, fault).wait()
            self._check(tally, code, said, what, killed=fault.kind == "kill")
            command = self.job.go_on(out)
            if fault.kind == "clock":
                self._move_clocks(out)
        self._finish(tally, out, what)

    def two_at_once(self, tally: Tally, seed: int) -> None:
        """Two processes on one folder: one may be refused, and nothing is lost."""
        out, what = self._fresh("disturbed"), f"two at once, {seed}"
        lives = []
        for _ in range(2):
            lives.append(start(self.job.go_on(out), out, Fault()))
            time.sleep(self.draw.choice((0.0, 0.01, 0.1, 0.3)))
        for life in lives:
            self._check(tally, *life.wait(), what)
        self._finish(tally, out, what)

    def _move_clocks(self, out: Path) -> None:
        for path in out.rglob("*"):
            moment = time.time() + self.draw.uniform(-1e8, 1e8)
            with contextlib.suppress(OSError):
                os.utime(path, (moment, moment))

    def _finish(self, tally: Tally, out: Path, what: str) -> None:
        code, said = start(self.job.go_on(out), out, Fault()).wait()
        self._check(tally, code, said, f"{what}, then to the end")
        if code != 0:
            if code == 2:
                tally.exceptions.append(f"{what}: it cannot go on: {said.strip().splitlines()[-1][:300]}")
            return
        try:
            found = self.job.content(out)
        except (OSError, ValueError, KeyError) as error:
            tally.exceptions.append(f"{what}: the result cannot be read: {error!r}")
            return
        wrong = [name for name, content in found.items() if self.expected.get(name) != content]
        missing = [] if self.job.name == "sweep" else sorted(self.expected.keys() - found.keys())
        if wrong or missing:
            tally.exceptions.append(f"{what}: different: {wrong[:3]}, missing: {missing[:3]}")
        else:
            tally.identical += 1


@dataclass(frozen=True)
class Piece:
    """A part of the campaign that one process can do: so many disturbances of one kind, from number `first` on."""

    job: str
    kind: str
    times: int
    first: int = 0


def pieces(options: argparse.Namespace) -> Iterator[Piece]:
    """The whole campaign. It does not depend on the number of processes."""
    # A life of train takes half a second, one of compare and sweep several: most of the kills go where they are cheap.
    # What writes a file or two has a handful of events, which 25 kills meet several times.
    shares = {"train, pruned": 0.4, "train, averaged": 0.4, "compare, 2 jobs": 0.1, "sweep": 0.1, "ablate": 0.05}
    shares |= {"monitor": 0.1, "report": 0.05, "route fit": 0.025, "route apply": 0.025, "calibrate": 0.05}
    shares |= {"record": 0.025, "export": 0.025}
    for name, share in shares.items():
        kills = round(options.kills * share)
        # Some 5 runs take 10 kills: so every piece begins at another event.
        for number, done in enumerate(range(0, kills, KILLS_OF_A_PIECE)):
            yield Piece(name, "kill", min(KILLS_OF_A_PIECE, kills - done), 5 * number)
        for kind in ("disk full", "read-only", "file size", "clock", "two processes") if options.others else ():
            yield Piece(name, kind, options.others)
    for done in range(0, options.services, KILLS_OF_A_PIECE):
        yield Piece("serve", "kill", min(KILLS_OF_A_PIECE, options.services - done), done)
    for done in range(0, options.ranks, RANKS_OF_A_PIECE):
        yield Piece("train, 2 ranks", "lost rank", min(RANKS_OF_A_PIECE, options.ranks - done), done)
    for how in ("command", "process") if options.rays else ():
        yield Piece("compare, Ray", how, options.rays)


def disturbed(piece: Piece, place: Path, seed: int) -> tuple[Piece, int, Tally]:
    """Do a piece: how many events an undisturbed life has, and what was found."""
    place = Path(tempfile.mkdtemp(dir=place))
    os.environ["CALIBRANT_STATE"] = str(place / "state")
    draw = random.Random(f"{seed} {piece}")
    try:
        if piece.kind == "lost rank":
            return piece, 0, lost(piece.times, place, draw)
        if piece.job == "serve":
            kills, wrong = kill_services(piece.times, place, draw)
            return piece, 0, Tally(piece.times, kills, 0, piece.times - len(wrong), wrong)
        if piece.job == "compare, Ray":
            identical, wrong = lose_on_ray(piece.times, piece.kind, place, draw)
            return piece, 0, Tally(2 * piece.times, piece.times, 0, identical, wrong)
        (job,) = (job for job in jobs() if job.name == piece.job)
        campaign, tally, number = Campaign(job, place, draw), Tally(), piece.first
        while (tally.kills if piece.kind == "kill" else number) < piece.times:
            if piece.kind == "kill":
                # The first kill is at every event in turn, further ones hit the run while it goes on.
                faults = [Fault("kill", number % campaign.events + 1)]
                faults += [Fault("kill", draw.randint(1, campaign.events)) for _ in range(number % 4)]
                campaign.disturb(tally, faults)
            elif piece.kind == "two processes":
                campaign.two_at_once(tally, number)
            else:
                limits = (0, 100, 1000, 4096, 20_000)
                at = draw.choice(limits) if piece.kind == "file size" else draw.randint(1, campaign.events)
                campaign.disturb(tally, [Fault(piece.kind, at)])
            number += 1
        return piece, campaign.events, tally
    finally:
        shutil.rmtree(place, ignore_errors=True)


def lost(times: int, place: Path, draw: random.Random) -> Tally:
    """Lose a process of a run again and again; then the run must go on to the undisturbed end."""
    begin = train_begin("nll", "--devices", "2")
    go_on, out, log, tally = train_go_on(begin), place / "ranks", place / "ranks.txt", Tally()
    code, seconds, said = whole(begin(out), log)
    if code:
        sys.exit(f"the undisturbed run in two processes ended with {code}: {said}")
    expected = run_content(out)
    for _ in range(times):
        shutil.rmtree(out, ignore_errors=True)
        delay = draw.uniform(0.0, seconds)
        wrong = lose_one(begin(out), log, delay, draw.choice)
        tally.lives, tally.kills = tally.lives + 2, tally.kills + 1
        code, _, said = whole(go_on(out), log)
        if code:
            wrong.append(f"it cannot go on: {said.strip()[-300:]}")
        elif run_content(out) != expected:
            wrong.append("different bytes")
        tally.identical += not wrong
        tally.exceptions += [f"a process lost after {delay:.1f} of {seconds:.1f} s: {each}" for each in wrong]
    return tally


# A study on Ray that loses its command, or any other process of the cluster on this machine. Whatever is lost, nothing
# is left behind; if the command lives it ends with 0, or with one line; and the same command then goes on to the files
# of an undisturbed study. If Ray's own head (GCS) or the node's raylet is lost, Ray ends the command from C++, with
# exit code 1 and a message of its own, which nothing in Python can catch.
# A study that lost a process may begin a run again. Ray itself takes some seconds to notice a lost command.
LONGEST_STUDY, LONGEST_END_OF_RAY = 300.0, 60.0


def on_ray(out: Path) -> list[str]:
    words = compare(out)
    jobs = words.index("--jobs")
    return [*words[:jobs], *words[jobs + 2 :], "--executor", "ray"]


def lose_on_ray(times: int, how: str, place: Path, draw: random.Random) -> tuple[int, list[str]]:
    """Kill the command ("command") or another process of it ("process") again and again, and finish each study.

    How many of them ended as an undisturbed one, and what was wrong.
    """
    out, log = place / "study", place / "ray.txt"
    code, seconds, said = whole(on_ray(out), log)
    if code:
        raise SystemExit(f"the undisturbed study on Ray ended with {code}: {said}")
    expected, identical, wrong = study_content(out), 0, []
    for _ in range(times):
        shutil.rmtree(out)
        delay = draw.uniform(0.0, seconds)
        found = _lose_one(Ranks(on_ray(out), log), how, delay, draw)
        code, _, said = whole(on_ray(out), log)
        if code:
            found.append(f"it cannot go on: {said.strip()[-300:]}")
        elif study_content(out) != expected:
            found.append("different bytes")
        identical += not found
        wrong += [f"{how} lost after {delay:.1f} of {seconds:.1f} s: {each}" for each in found]
    return identical, wrong


def _lose_one(ranks: Ranks, how: str, delay: float, draw: random.Random) -> list[str]:
    time.sleep(delay)
    first, others = ranks.first.pid, sorted(set(ranks.alive()) - {ranks.first.pid})
    victim = draw.choice(others) if how == "process" and others else first  # Ray may not have begun
    kill(victim)
    if not ranks.end(LONGEST_END_OF_RAY if victim == first else LONGEST_STUDY):
        return ["a process still lives"]
    if victim == first:
        return []
    code, said = ranks.first.returncode, ranks.said()
    lines = [line for line in said.splitlines() if line.startswith("calibrant: ") and "warning: " not in line]
    by_ray = code == 1 and any(word in said for word in ("GCS may have been killed", "to Raylet"))
    fine = code == 0 or (code in (1, 2) and lines) or by_ray
    return [] if fine and "Traceback" not in said else [f"exit code {code}: {said.strip()[-300:]}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="about so many at events of files")
    parser.add_argument("--others", type=int, default=20, help="lives for each other disturbance of each command")
    parser.add_argument("--services", type=int, default=100, help="how often a service is killed among requests")
    parser.add_argument("--ranks", type=int, default=10, help="how often one of two processes is killed")
    parser.add_argument("--rays", type=int, default=0, help="how often a study on Ray loses its command, or a process")
    parser.add_argument("--only", nargs="+", default=[""], help="the commands whose name begins so")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.monotonic()
    head = f"calibrant {calibrant.__version__} at {git_commit() or 'an unknown commit'}, "
    head += f"Python {platform.python_version()}, torch {torch.__version__}, lightning {lightning.fabric.__version__}\n"
    words = (word for word in sys.argv[1:] if word not in ("--out", str(options.out)))  # a place says nothing
    head += f"{shlex.join(['python', 'scripts/chaos.py', *words])}\n"
    head += "command           disturbance       events   lives   kills  refused  identical  exceptions"
    planned = [piece for piece in pieces(options) if piece.job.startswith(tuple(options.only))]
    found = {(piece.job, piece.kind): (0, Tally()) for piece in planned}
    # Forks share what this process has imported.
    with (
        tempfile.TemporaryDirectory() as place,
        ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as pool,
    ):
        # The slow ones first, so that no single one is left over at the end.
        work = [pool.submit(disturbed, piece, Path(place), options.seed) for piece in reversed(planned)]
        for done in as_completed(work):
            piece, events, tally = done.result()
            found[piece.job, piece.kind][1].add(tally)
            found[piece.job, piece.kind] = events, found[piece.job, piece.kind][1]
            print(f"{time.monotonic() - begun:5.0f} s {piece}", *tally.exceptions, sep="\n", flush=True)
            text = table(head, found)
            if options.out is not None:  # so that a campaign that is stopped leaves what it has done
                options.out.write_text(text)
    print(text)
    return 1 if any(tally.exceptions for _, tally in found.values()) else 0


def table(head: str, found: dict[tuple[str, str], tuple[int, Tally]]) -> str:
    """What has been found so far."""
    total = Tally()
    for _, tally in found.values():
        total.add(tally)
    lines = [tally.line(f"{name:18}{kind}", events) for (name, kind), (events, tally) in found.items()]
    exceptions = [f"{name}: {each}" for (name, _), (_, tally) in found.items() for each in tally.exceptions]
    last = "identical: runs that ended, after all of that, with the bytes of an undisturbed one (but clock readings)."
    return "\n".join([head, *lines, total.line("in all", 0), "", last, *exceptions]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
