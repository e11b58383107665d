"""Kill a training run -9 at random moments, resume it each time, and compare it with an undisturbed one.

    python scripts/kill_and_resume.py [--kills 20] [--epochs 20] [--seed 0]

Prints every kill and what it hit, and exits with 1 where any number of the two runs differs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from calibrant.training import Run

CLOCKS = {"seconds", "train_seconds", "samples_per_second"}


def command(folder: Path, epochs: int) -> list[str]:
    """How to begin the run, or to go on with it."""
    train = [sys.executable, "-m", "calibrant", "train"]
    if (folder / "recipe.toml").is_file():
        return [*train, "--resume", str(folder)]
    settings = f"--data digits --method flsd+h+p-ema --epochs {epochs} --prune-start 2 --prune-interval 3".split()
    return [*train, *settings, "--accelerator", "cpu", "--out", str(folder)]


def start(folder: Path, epochs: int) -> subprocess.Popen[bytes]:
    # One thread: sums of several may be added in another order.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(folder, epochs), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def finish(folder: Path, epochs: int) -> float:
    """Run to the end; seconds it took."""
    begun = time.monotonic()
    process = start(folder, epochs)
    _, err = process.communicate()
    if process.returncode:
        sys.exit(f"the run ended with code {process.returncode}: {err.decode().strip().splitlines()[-1]}")
    return time.monotonic() - begun


def state(folder: Path) -> str:
    """What a kill left, in words."""
    if not (folder / "recipe.toml").is_file():
        return "nothing written yet"
    drafts = len([path for path in folder.rglob("*") if path.suffix == ".tmp"])
    checkpoints = sorted(path.stem for path in (folder / "checkpoints").glob("epoch-*.json"))
    logged = len(Run.open(folder).epochs())
    return f"{logged} epochs logged, checkpoints {', '.join(checkpoints) or 'none'}, {drafts} drafts"


def kill_at_random(folder: Path, epochs: int, kills: int, draw: random.Random) -> None:
    """Start or resume, wait, kill; as often as asked. Each life must reach the training loop now and then."""
    for number in range(1, kills + 1):
        # Imports take a few seconds in which nothing can be lost: most kills shall come after them.
        done = len(Run.open(folder).epochs()) if (folder / "recipe.toml").is_file() else 0
        wait_for_epoch = done + draw.choice((0, 0, 1, 1, 2)) if done + 3 < epochs else done
        process = start(folder, epochs)
        while process.poll() is None and done < wait_for_epoch:
            done = len(Run.open(folder).epochs()) if (folder / "recipe.toml").is_file() else 0
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.25) if wait_for_epoch else draw.uniform(0.0, 6.0))
        process.send_signal(signal.SIGKILL)
        ended = process.wait()
        hit = "killed" if ended == -signal.SIGKILL else "it had finished before the kill"
        print(f"kill {number:2d}: {hit}; {state(folder)}", flush=True)


def differences(one: Run, other: Run) -> list[str]:
    """Names of everything that differs but clock readings and the environment."""
    found = [
        f"summary {key}"
        for key in one.summary
        if key not in {"timing", "environment"} and one.summary[key] != other.summary.get(key)
    ]
    logs = [[{k: v for k, v in line.items() if k not in CLOCKS} for line in run.epochs()] for run in (one, other)]
    if logs[0] != logs[1]:
        found.append("metrics.jsonl")
    files = [(run.predictions_path("val"), run.predictions_path("test")) for run in (one, other)]
    found += [f"predictions/{a.name}" for a, b in zip(*files, strict=True) if a.read_bytes() != b.read_bytes()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        whole, killed = Path(place) / "whole", Path(place) / "killed"
        print(f"undisturbed: {finish(whole, options.epochs):.1f} s", flush=True)
        kill_at_random(killed, options.epochs, options.kills, random.Random(options.seed))
        print(f"to the end: {finish(killed, options.epochs):.1f} s")
        found = differences(Run.open(whole), Run.open(killed))
        test = Run.open(killed).summary["test"]
        print(json.dumps({key: test[key] for key in ("test_error", "ece", "nll")}))
    if found:
        sys.exit(f"different: {', '.join(found)}")
    print("identical: summary (but timing and environment), log (but clocks), predictions (byte for byte)")


if __name__ == "__main__":
    main()
