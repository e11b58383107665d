"""Does the time of training follow its updates, whichever plan lets samples rest? Forward passes for scores included.

    python benchmarks/plans.py [--plans random infobatch ...] [--epochs 8] [--interval 2] [--samples 50000]
                               [--model resnet32]

Every plan trains in a process of its own on random images of CIFAR-10's shape, with a budget of 60 % where it takes
one. All processes first compile and train two epochs; then one after another has the machine to itself. Printed for
each: the updates and the seconds of the epochs after these two, both in percent of training on all samples, and their
difference in points.
"""

import argparse
import json
import platform
import subprocess
import sys
import time

import torch

from calibrant.training import Recipe
from calibrant.training.data import Dataset
from calibrant.training.methods import parts, resolve
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric
from calibrant.training.step import scorer
from engine import nothing, random_set, wait

WARM_UP = 2
BUDGET = 0.6
# Where a plan has these settings, it gets these: it begins after the warm-up. Unless told otherwise the paper's cuts
# come in every second epoch, which is more work for scores and tables than anybody asks for.
SETTINGS: dict[str, object] = {"start": WARM_UP, "anneal": 0.0, "fraction": 0.2, "share": 0.8}
SCORED_AGAIN = {"p-ema": {"readmit": True, "scoring": "resting"}}


def recipe_for(plan: str, options: argparse.Namespace) -> Recipe:
    recipe = Recipe().changed(
        {
            "epochs": options.epochs,
            "data.name": "cifar10",
            "data.validation": 0.02,
            "model.name": options.model,
            "method.name": f"nll+{plan}" if plan else "nll",
        }
    )
    if not plan:
        return recipe
    known = resolve(f"nll+{plan}").settings
    wanted = SETTINGS | {"interval": options.interval}
    settings = {key: value for key, value in wanted.items() if key in known} | SCORED_AGAIN.get(plan, {})
    budget = 1.0 if "interval" in known else BUDGET
    return recipe.changed({"method.options": settings, "budget": budget})


def learnable_set(samples: int) -> Dataset:
    """Random images, each class with a brightness of its own: plans that follow the learning have something to see."""
    dataset = random_set(samples)
    images, labels = dataset.train.images, dataset.train.labels
    images.copy_((images.float() * 0.5 + labels.view(-1, 1, 1, 1) * 12).byte())
    return dataset


def train(plan: str, options: argparse.Namespace) -> dict[str, float]:
    """Samples and seconds of the epochs after the first two, which begin when the parent says so."""
    recipe = recipe_for(plan, options)
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, learnable_set(options.samples)))
    setup.network.train()
    updates = scored = 0
    for epoch in range(1, recipe.epochs + 1):
        if epoch == WARM_UP + 1:
            wait(setup.fabric.device)
            print("ready", flush=True)
            sys.stdin.readline()
            updates, scored, started = 0, 0, time.perf_counter()
        setup.steps.meter.reset()
        setup.steps.source.begin(epoch)
        setup.steps.run_epoch(nothing)
        figures = setup.steps.meter.read()
        setup.pruner.step(score=scorer(setup, epoch))
        updates, scored = updates + int(figures["samples"]), scored + setup.pruner.scored
    wait(setup.fabric.device)
    return {"seconds": time.perf_counter() - started, "updates": updates, "scored": scored}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", nargs="+", default=list(parts()["plans"]))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--model", default="resnet32")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # this process trains one plan
    options = parser.parse_args()
    if options.alone is not None:
        print(json.dumps(train(options.alone, options)), flush=True)
        return
    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {name}, Python {platform.python_version()}, {options.model}")
    children = {
        plan: subprocess.Popen(
            [sys.executable, *sys.argv, "--alone", plan],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for plan in ("", *options.plans)
    }
    measured = {}
    waiting = [plan for plan, child in children.items() if child.stdout and "ready\n" in child.stdout]
    for plan in waiting:
        answer, _ = children[plan].communicate("go\n")
        measured[plan] = json.loads(answer.splitlines()[-1])
    if lost := set(children) - set(waiting):
        raise SystemExit(f"ended before they were timed: {', '.join(plan or 'all samples' for plan in lost)}")
    everything = measured.pop("")
    print(f"{'plan':12s} {'updates':>8s} {'scored':>8s} {'time':>8s} {'time - updates':>15s}")
    for plan, one in measured.items():
        shares = [100 * one[key] / everything["updates"] for key in ("updates", "scored")]
        seconds = 100 * one["seconds"] / everything["seconds"]
        columns = f"{shares[0]:7.1f}% {shares[1]:7.1f}% {seconds:7.1f}% {seconds - shares[0]:+11.1f} pts"
        print(f"{plan:12s} {columns}", flush=True)
    print(f"all samples: {everything['seconds']:.2f} s for {everything['updates']:,} updates")


if __name__ == "__main__":
    main()
