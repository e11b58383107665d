"""What pruning costs: `observe` against a training step, and `step()` from 100 thousand to 10 million samples.

    python benchmarks/pruning.py [--device cpu] [--runs 15] [--most 10000000]

Targets: `observe` under 2 % of a ResNet-32 training step at batch 128 on two CPU cores; one `step()` for 10 million
samples and 1,000 classes under 5 s and under 400 MB beyond the score table; time linear in the number of samples.
Medians over many runs after a warm-up; steps and observations are timed in turn, so a busy moment hits both.
"""

import argparse
import platform
import statistics
import threading
import time
from collections.abc import Callable
from typing import Self

import numpy as np
import psutil
import torch
from torch.nn.functional import cross_entropy

from calibrant.pruning import (
    ConfidencePruner,
    Every,
    InfoBatch,
    LowestConfidence,
    PruningPolicy,
    RandomSubset,
    Unbiased,
)
from calibrant.training.models import build_model


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, by device events on a GPU."""
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        action()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def observe_against_a_step(device: torch.device, runs: int, batch: int = 128) -> None:
    """A whole eager training step of ResNet-32, and the `observe` that goes with it."""
    model = build_model("resnet32", n_classes=10, image_shape=(3, 32, 32)).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
    labels = (torch.arange(batch) % 10).to(device)
    logits = torch.randn(batch, 10, generator=generator).to(device)

    def training_step() -> None:
        optimiser.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimiser.step()

    pruners = {
        "observe": ConfidencePruner(torch.arange(50_000) % 10).to(device),
        "observe for InfoBatch": ConfidencePruner(torch.arange(50_000) % 10, policy=InfoBatch(0.5)).to(device),
    }
    batches = [torch.randint(0, 50_000, (batch,), generator=generator).to(device) for _ in range(20)]
    for pruner in pruners.values():
        for indices in batches:
            pruner.observe(indices, logits)
    training_step()
    steps, observations = [], {name: [] for name in pruners}
    for run in range(runs):
        steps.append(timed(training_step, device))
        for name, pruner in pruners.items():
            observations[name] += [
                timed(lambda i=i, p=pruner: p.observe(i, logits), device) for i in batches[: run + 3]
            ]
    step = statistics.median(steps)
    print(f"ResNet-32 training step, batch {batch}: {1000 * step:.2f} ms (median of {runs})")
    for name, times in observations.items():
        each = statistics.median(times)
        print(f"  {name}: {1e6 * each:.0f} us = {100 * each / step:.2f} % of the step")


class PeakMemory:
    """Highest resident size while the block runs, beyond what it was at its start, in MB."""

    def __enter__(self) -> Self:
        self._process, self._running = psutil.Process(), True
        self._before = self._highest = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._running:
            self._highest = max(self._highest, self._process.memory_info().rss)
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join()
        self.megabytes = (self._highest - self._before) / 2**20


def one_step(policy: PruningPolicy, n: int, classes: int, device: torch.device) -> tuple[float, float, float]:
    """Seconds and extra megabytes of one `step()`, and the size of the score table."""
    rng = np.random.default_rng(0)
    pruner = ConfidencePruner(rng.integers(0, classes, n), policy=policy, schedule=Every(1), n_classes=classes).to(
        device
    )
    pruner.table.rows[:, 0] = torch.from_numpy(rng.random(n, dtype=np.float32)).to(device)
    pruner.table.rows[:, pruner.table.columns.index("count")] = 1
    with PeakMemory() as memory:
        start = time.perf_counter()
        pruner.step()
        seconds = time.perf_counter() - start
    return seconds, memory.megabytes, pruner.table.rows.nbytes / 2**20


def steps_by_size(device: torch.device, most: int) -> None:
    print(f"{'policy':<18} {'samples':>11} {'seconds':>8} {'us/sample':>10} {'extra MB':>9} {'table MB':>9}")
    for policy in (LowestConfidence(0.1), Unbiased(0.5, 0.5), RandomSubset(0.4)):
        one_step(policy, 1000, 10, device)
        n = 100_000
        while n <= most:
            seconds, extra, table = one_step(policy, n, 1000, device)
            name = type(policy).__name__
            print(f"{name:<18} {n:>11,} {seconds:>8.3f} {1e6 * seconds / n:>10.3f} {extra:>9.0f} {table:>9.0f}")
            n *= 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--most", type=int, default=10_000_000)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, NumPy {np.__version__}, {where}, {torch.get_num_threads()} threads")
    observe_against_a_step(device, arguments.runs)
    steps_by_size(device, arguments.most)


if __name__ == "__main__":
    main()
