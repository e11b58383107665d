"""How fast the engine trains, against a plain eager PyTorch loop, in one run.

    python benchmarks/engine.py [--models resnet32 resnet50] [--steps 300] [--json FILE]

Prints images per second for a hand-written eager loop and for the engine's modes on the same network, batch, precision
and augmentation, and the ratios; then seconds an epoch before and after half of the samples rest, against the samples.
Images are random bytes of CIFAR-10's shape: their content does not change the speed.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional

from calibrant.training import Recipe
from calibrant.training.data import Augmentation, Dataset, Images, augment, draw_augmentation, normalise
from calibrant.training.models import build_model
from calibrant.training.run_data import TrainingData
from calibrant.training.setup import Setup, make_fabric

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def random_set(n: int) -> Dataset:
    n = n if torch.cuda.is_available() else min(n, 512)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.arange(n) % 10
    part = Images(images, labels)
    names = tuple(str(k) for k in range(10))
    return Dataset("random", part, Images(images[:100], labels[:100]), names, MEAN, STD, Augmentation())


def nothing(step: int) -> None:
    """No learning-rate changes while timing."""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def plain_loop(model_name: str, dataset: Dataset, device: torch.device, batch: int, steps: int) -> float:
    """The loop that a careful user writes: resident data, mixed precision, channels last; no compiler, no graph."""
    model = build_model(model_name, n_classes=10, image_shape=(3, 32, 32)).to(device, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    images, labels = dataset.train.images.to(device), dataset.train.labels.to(device)
    mean, std = torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
    order = torch.randperm(len(labels), device=device)

    def step(number: int) -> None:
        chosen = order[torch.arange(number * batch, (number + 1) * batch, device=device) % len(order)]
        offsets, flips = draw_augmentation(batch, 4, True, device=device)
        x = normalise(augment(images[chosen], offsets, flips, 4), mean, std, memory_format=torch.channels_last)
        # The precision that `auto` chooses for the engine.
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(x)
        loss = functional.cross_entropy(logits.float(), labels[chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    for number in range(20):
        step(number)
    wait(device)
    started = time.perf_counter()
    for number in range(steps):
        step(number)
    wait(device)
    return batch * steps / (time.perf_counter() - started)


def engine_epochs(recipe: Recipe, dataset: Dataset, epochs: int) -> tuple[Setup, list[tuple[int, float]]]:
    """Samples and seconds of each epoch, without evaluation and checkpoints."""
    setup = Setup(recipe, make_fabric(recipe), TrainingData.make(recipe, dataset))
    measured = []
    setup.network.train()
    for epoch in range(1, epochs + 1):
        wait(setup.fabric.device)
        started = time.perf_counter()
        setup.steps.meter.reset()
        setup.steps.source.begin(epoch)
        setup.steps.run_epoch(nothing)
        samples = setup.steps.meter.read()["samples"]
        setup.pruner.step()
        measured.append((samples, time.perf_counter() - started))
    return setup, measured


def images_per_second(measured: list[tuple[int, float]], skip: int) -> float:
    return statistics.median(samples / seconds for samples, seconds in measured[skip:])


def compare_modes(name: str, batch: int, steps: int, modes: list[str]) -> dict[str, float]:
    dataset = random_set(max(10_000, batch * 40))
    base = Recipe().changed({"epochs": 100, "model.name": name, "optimiser.batch_size": batch, "method.name": "flsd+h"})
    device = make_fabric(base).device
    speeds = {"plain eager loop": plain_loop(name, dataset, device, batch, steps)}
    for mode in modes:
        recipe = base.changed({"engine.mode": mode, "data.name": "cifar10"})
        _, measured = engine_epochs(recipe, dataset, epochs=6)
        speeds[mode] = images_per_second(measured, skip=2)
    for label, speed in speeds.items():
        ratio = speed / speeds["plain eager loop"]
        print(f"{name:9s} batch {batch:5d}  {label:18s} {speed:10,.0f} images/s  {ratio:5.2f}x", flush=True)
    return speeds


def time_follows_samples(name: str, batch: int) -> dict[str, float]:
    """Epoch time before and after most samples of the upper half of each class rest."""
    dataset = random_set(50_000)
    recipe = Recipe().changed(
        {
            "epochs": 12,
            "model.name": name,
            "optimiser.batch_size": batch,
            "data.name": "cifar10",
            "method.name": "flsd+h+unbiased",
            "method.options": {"share": 0.8, "drop": 0.5, "start": 6, "anneal": 0},
        }
    )
    _, measured = engine_epochs(recipe, dataset, epochs=12)
    before, after = measured[2:6], measured[7:]
    sample_share = after[0][0] / before[0][0]
    time_share = statistics.median(s for _, s in after) / statistics.median(s for _, s in before)
    print(
        f"{name:9s} an epoch of {before[0][0]} samples takes {statistics.median(s for _, s in before):.3f} s; of "
        f"{after[0][0]} ({sample_share:.1%}) {statistics.median(s for _, s in after):.3f} s ({time_share:.1%}); "
        f"time over samples: {time_share / sample_share:.3f}",
        flush=True,
    )
    return {"sample_share": sample_share, "time_share": time_share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--modes", nargs="+")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {name}, Python {platform.python_version()}")
    # On a CPU the engine and the plain loop do the same work: the ratio should be about 1.
    models = options.models or (["resnet32", "resnet50"] if on_gpu else ["resnet32"])
    modes = options.modes or ["auto"]
    steps = options.steps or (300 if on_gpu else 3)
    result: dict[str, object] = {"torch": torch.__version__, "device": name, "batch": options.batch}
    for model in models:
        result[model] = {"images_per_second": compare_modes(model, options.batch, steps, modes)}
        if on_gpu:
            result[model] |= time_follows_samples(model, options.batch)
        if options.json:
            options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
