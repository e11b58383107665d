"""How much faster are several trainings at once on one device? Prints images per second, each and in sum.

    nvidia-cuda-mps-control -d      # lets processes share the GPU at the same moment
    python benchmarks/together.py [--jobs 1 4 6 9] [--model resnet32] [--seconds 6]

A small network leaves most of a large GPU idle between its kernels; `calibrant compare --jobs N` fills it with other
runs. Images are random bytes, as in engine.py. Measuring begins when every process has compiled and warmed up.
"""

import argparse
import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch

from calibrant.training import Recipe
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric
from engine import nothing, random_set, wait


def train_for(seconds: float, model: str, ready: Barrier, results: "Queue[float]") -> None:
    """Train until the time is over and report images per second."""
    recipe = Recipe().changed({"epochs": 100, "data.name": "cifar10", "model.name": model, "method.name": "flsd+h"})
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, random_set(11_378)))
    setup.network.train()

    def epoch(number: int) -> int:
        setup.steps.meter.reset()
        setup.steps.source.begin(number)
        setup.steps.run_epoch(nothing)
        samples = int(setup.steps.meter.read()["samples"])
        wait(setup.fabric.device)
        return samples

    epoch(1)
    epoch(2)
    ready.wait()
    started, samples, number = time.perf_counter(), 0, 3
    while time.perf_counter() - started < seconds:
        samples += epoch(number)
        number += 1
    results.put(samples / (time.perf_counter() - started))


def together(jobs: int, options: argparse.Namespace) -> list[float]:
    """Speeds of so many processes, each training its own network."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(jobs), context.Queue()
    arguments = (options.seconds, options.model, ready, results)
    processes = [context.Process(target=train_for, args=arguments) for _ in range(jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise SystemExit(f"{len(failed)} of {jobs} processes failed; their errors are above.")
    return [results.get() for _ in processes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 4, 6, 9] if torch.cuda.is_available() else [1, 2])
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU'}")
    alone = None
    for jobs in options.jobs:
        speeds = together(jobs, options)
        alone = alone or speeds[0]
        each = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(
            f"{jobs:2d} at once  sum {sum(speeds):9,.0f} images/s  {sum(speeds) / alone:5.2f}x  each {each}", flush=True
        )


if __name__ == "__main__":
    main()
