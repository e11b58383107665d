"""Time and memory of judging folders of Parquet files, in one process, part by part, and part by part on Ray.

Each step runs in a process of its own. Wall time depends on what else the machine does; the processor time beside it
does not, but it leaves out Ray's workers. Peak memory is that of the process that was started, without Ray's workers.
`benchmarks/scale.py --rows 50000000 --parts 64 --ray` makes the table of results/benchmarks/scale.txt, with `--grid`
before it for the sizes that docs/scale.md extrapolates from. `--cpus 6` gives Ray six cores; `--steps` runs
monitoring instead.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np


def write_part(path: Path, number: int, size: int, classes: int, kind: str) -> None:
    """Write one part; its number is the seed."""
    import pyarrow as pa
    from pyarrow import parquet

    prefix = {"logits": "logit", "probabilities": "probability"}[kind]
    rng = np.random.default_rng(number)
    logits = 2 * rng.standard_normal((size, classes), dtype=np.float32)
    noise = -np.log(rng.standard_exponential((size, classes), dtype=np.float32) + 1e-30)
    targets = (logits / 1.5 + noise).argmax(axis=1)
    if kind == "probabilities":
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        logits /= logits.sum(axis=1, keepdims=True)
    columns = {"target": targets} | {f"{prefix}_{k}": logits[:, k] for k in range(classes)}
    parquet.write_table(pa.table(columns), path, compression="NONE", use_dictionary=["target"])


def write_parts(folder: Path, rows: int, parts: int, classes: int, kind: str) -> float:
    """Write random predictions of a model that is overconfident; returns megabytes on disk."""
    folder.mkdir()
    with ProcessPoolExecutor() as pool:
        for number, size in enumerate(np.diff(np.linspace(0, rows, parts + 1).astype(int)).tolist()):
            pool.submit(write_part, folder / f"part-{number:03}.parquet", number, size, classes, kind)
    assert len(list(folder.iterdir())) == parts, "a part could not be written"
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def step(what: str, folder: Path, cpus: int | None) -> dict[str, object]:
    """Run one step here; Ray gets this many cores."""
    from calibrant import Predictions, evaluate
    from calibrant.decisions import fit_policy
    from calibrant.deployment import read_stream, watch
    from calibrant.metrics import evaluate_parts
    from calibrant.scale import make_executor

    began = time.perf_counter()
    on_ray = what.endswith(" on Ray")
    if on_ray and cpus:
        import ray

        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    place = make_executor("ray") if on_ray else nullcontext(None)
    found: dict[str, object] = {}
    with place as executor:
        started = time.perf_counter()
        first = os.times()
        if what == "evaluate, one process":
            found = evaluate(Predictions.load(folder, mmap="auto")).to_dict()
        elif what.startswith("evaluate_parts"):
            found = evaluate_parts(folder, executor=executor).to_dict()
        else:
            policy = fit_policy(Predictions.load(min(folder.iterdir())), 0.8, calibrator=None)
            started, first = time.perf_counter(), os.times()
            found = watch(read_stream(folder, policy)).to_dict()
        seconds, last = time.perf_counter() - started, os.times()
    return {
        "seconds": seconds,
        "start": started - began if executor is not None else 0.0,
        "processor": (last.user + last.system) - (first.user + first.system),
        "megabytes": peak(),
        "found": found,
    }


def peak() -> float:
    """Largest memory of this process in MB; getrusage would count that of the process which started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(what: str, folder: Path, cpus: int | None) -> dict[str, object]:
    """Run one step in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--step",
        what,
        "--folder",
        str(folder),
        *(["--cpus", str(cpus)] if cpus else []),
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{what}: {made.stderr[-2000:]}")
    return json.loads(made.stdout.splitlines()[-1])


def furthest(one: object, other: object) -> float:
    """Largest relative difference of two results; infinite where anything but a fraction differs."""
    if isinstance(one, dict):
        return max(furthest(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return max((furthest(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if one == other:
        return 0.0
    if not isinstance(one, float) or not isinstance(other, float):
        return float("inf")
    return abs(one - other) / max(abs(one), abs(other))


def say(line: str, table: Path | None) -> None:
    print(line, flush=True)
    if table is not None:
        with table.open("a") as handle:
            handle.write(line + "\n")


def run(steps: list[str], rows: int, parts: int, classes: int, kind: str, given: argparse.Namespace) -> None:
    """Write predictions and run the steps on them; a step is compared with the first of its kind."""
    with tempfile.TemporaryDirectory(dir=given.scratch) as place:
        folder = Path(place) / "parts"
        disk = write_parts(folder, rows, parts, classes, kind)
        references: dict[str, object] = {}
        for what in steps:
            made = measure(what, folder, given.cpus)
            same = f"{furthest(references.setdefault(what[:5], made['found']), made['found']):.0e}"
            line = f"{what:<24} {rows:>11,} {parts:>5} {classes:>7} {disk:>8,.0f} {made['seconds']:>8.1f}"
            line += f" {made['processor']:>9.1f} {made['megabytes']:>8,.0f} {same:>10}"
            say(line + (f"   (and {made['start']:.0f} s to start Ray)" if made["start"] else ""), given.table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--ray", action="store_true", help="also on Ray, on this machine alone")
    parser.add_argument("--cpus", type=int, help="cores for Ray; all without it")
    parser.add_argument("--steps", action="store_true", help="monitoring instead of judging")
    parser.add_argument("--grid", action="store_true", help="also all steps over rows and classes")
    parser.add_argument("--table", type=Path, help="where lines are added")
    parser.add_argument("--scratch", type=Path, help="where the predictions are written for a while")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(step(given.step, given.folder, given.cpus)))
        return
    say(
        f"# {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.processor() or platform.machine()}), "
        f"load {os.getloadavg()[0]:.0f} when it began, Python {platform.python_version()}",
        given.table,
    )
    say(
        f"{'step':<24} {'rows':>11} {'parts':>5} {'classes':>7} {'MB disk':>8} {'seconds':>8} {'processor':>9} "
        f"{'peak MB':>8} {'difference':>10}",
        given.table,
    )
    local = ["evaluate, one process", "evaluate_parts"]
    others = ["watch"]
    if given.grid:
        for rows in (100_000, 1_000_000, 10_000_000):
            run(local, rows, 8, 4, "probabilities", given)
        for classes in (10, 100, 1000):
            run(local[1:], 100_000, 8, classes, "probabilities", given)
        for rows in (100_000, 1_000_000, 10_000_000):
            run(others, rows, 8, 4, "logits", given)
    if given.steps:
        run(others, given.rows, given.parts, given.classes, "logits", given)
        return
    steps = [local[0], *(["evaluate_parts on Ray"] if given.ray else []), local[1]]
    run(steps, given.rows, given.parts, given.classes, "probabilities", given)


if __name__ == "__main__":
    main()
