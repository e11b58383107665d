"""How soon a captured training step is ready, and how fast it is: network compiled as a whole, or block by block.

    python benchmarks/compilation.py [--models resnet50 resnet32] [--sizes 32 24] [--steps 300]

Needs a GPU. Each line is a process of its own with empty compiler caches; it trains at the sizes one after
the other, as a run with a resolution schedule does. Images are random bytes of CIFAR-10's shape.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from calibrant.training import Recipe
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric
from calibrant.training.step import GraphedSteps, Steps
from engine import random_set

BATCH = 128


def measure(model: str, sizes: list[int], steps: int, way: str) -> list[dict[str, float]]:
    """Seconds until the first replay and images per second, for each size."""
    if way == "whole":
        GraphedSteps.compiled_model = Steps.compiled_model  # type: ignore[method-assign]
    share = 1 / len(sizes)
    resolution = [[size, share] for size in sizes if size != 32]
    changes = {"model.name": model, "epochs": len(sizes), "schedule.resolution": resolution, "engine.mode": "graphed"}
    recipe = Recipe().changed(changes)
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, random_set((steps + 1) * BATCH)))
    setup.network.train()
    found = []
    for epoch, (size, _) in enumerate(setup.sizes, 1):
        setup.enter(epoch)
        setup.steps.source.begin(epoch)
        clock = [time.perf_counter()]

        def mark(step: int, clock: list[float] = clock) -> None:
            if step == 4:  # three ordinary steps, then the captured one
                torch.cuda.synchronize()
                clock.append(time.perf_counter())

        setup.steps.run_epoch(mark)
        torch.cuda.synchronize()
        began, ready = clock
        images = sum(setup.steps.source.tables.totals()[4:])
        found.append({"size": size, "ready": ready - began, "speed": images / (time.perf_counter() - ready)})
    return found


def main() -> None:
    """Print a line for each model, way and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "resnet32"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[24, 32])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ways", nargs="+", default=["blocks", "whole"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.models[0], args.sizes, args.steps, args.one)))
        return
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, batch {BATCH}", flush=True)
    for model in args.models:
        for way in args.ways:
            with tempfile.TemporaryDirectory() as empty:
                caches = {"TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor", "TRITON_CACHE_DIR": f"{empty}/triton"}
                words = [sys.executable, __file__, "--models", model, "--steps", str(args.steps), "--one", way]
                words += ["--sizes", *map(str, args.sizes)]
                done = subprocess.run(words, env=os.environ | caches, check=True, stdout=subprocess.PIPE, text=True)
            for row in json.loads(done.stdout.splitlines()[-1]):
                print(
                    f"{model}  {way:6}  {row['size']}x{row['size']}  ready after {row['ready']:5.1f} s  "
                    f"{row['speed']:8,.0f} images/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
