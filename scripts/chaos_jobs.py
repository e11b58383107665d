"""For chaos.py: the commands that are disturbed, and what of their files must be equal afterwards."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from chaos_lives import Fault, start
from chaos_serve import labelled_log
from safetensors.numpy import load_file

from calibrant import samples
from calibrant.decisions import fit_policy
from calibrant.studies.sweeps import SAME_SETTINGS

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
    return ["compare", *methods, *SHORT, "--record", str(out / "recorded"), "--out", str(out)]


def sweep(out: Path) -> list[str]:
    # Two trials of two possible settings: whatever Optuna draws, an undisturbed run of the same settings is at hand.
    searched = ("--search", "optimiser.lr=0.05,0.1", "--trials", "2", "--stop-dominated-by", "0")
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
    for part in ("runs", "records", "recorded", "recipes"):
        found |= {f"{part}/{name}": content for name, content in run_content(folder / part).items()}
    return found | {
        name: b"" for name in ("tables.md", "tables.tex", "comparison.json", "runs.csv") if (folder / name).is_file()
    }


def sweep_content(folder: Path) -> dict[str, bytes]:
    """How many trials finished, and the runs of those by what they trained."""
    told = json.loads((folder / "sweep.json").read_text())
    # Of two workers with the same settings one leaves them to the other; a worker alone would have repeated them.
    left = [trial for trial in told["stopped"] if trial["stopped"] == SAME_SETTINGS]
    kept = {trial["run"] for trial in told["finished"]}
    found = {
        f"{name}/{file}": content for name in kept for file, content in run_content(folder / "runs" / name).items()
    }
    return found | {
        "trials": f"{len(told['finished']) + len(left)} finished, {len(told['stopped']) - len(left)} not".encode()
    }


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
