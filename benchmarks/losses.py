"""Time of every loss, forward and backward, as a ratio to torch's own cross-entropy on the same logits.

    python benchmarks/losses.py [--batch 1024] [--classes 1000] [--runs 60] [--device cpu]

Median and best of many runs after a warm-up, losses taken in turn so that a busy moment of the machine hits all alike.
The best times are the ones to compare: on a shared machine the median of a millisecond measures the neighbours.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant import losses

CRITERIA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch cross_entropy": cross_entropy,
    "CrossEntropy": losses.CrossEntropy(),
    "CrossEntropy(0.05)": losses.CrossEntropy(0.05),
    "Brier": losses.Brier(),
    "Focal": losses.Focal(),
    "SampleDependentFocal": losses.SampleDependentFocal(),
    "DualFocal": losses.DualFocal(),
    "AdaFocal": losses.AdaFocal(),
    "BSCEGRA": losses.BSCEGRA(),
    "EntropyPenalty": losses.EntropyPenalty(),
    "LogitMargin": losses.LogitMargin(),
    "HuberCalibration": losses.HuberCalibration(),
    "DCA": losses.DCA(),
    "MDCA": losses.MDCA(),
    "SoftECE": losses.SoftECE(),
    "MMCE": losses.MMCE(),
    "MMCE(weighted=False)": losses.MMCE(weighted=False),
    "FLSD + 10 Huber": losses.SampleDependentFocal() + 10 * losses.HuberCalibration(),
    "Focal + MDCA": losses.Focal() + losses.MDCA(),
}


def one_run(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor) -> float:
    """Milliseconds of one forward and backward pass."""
    logits = logits.detach().requires_grad_()
    if logits.is_cuda:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        criterion(logits, targets).backward()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)
    begin = time.perf_counter()
    criterion(logits, targets).backward()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    logits = torch.randn(options.batch, options.classes, device=options.device) * 3
    targets = torch.randint(0, options.classes, (options.batch,), device=options.device)
    device = torch.cuda.get_device_name() if logits.is_cuda else f"{platform.machine()} CPU"
    print(
        f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, B={options.batch} K={options.classes}"
    )

    for criterion in CRITERIA.values():
        if isinstance(criterion, losses.Loss):
            criterion.to(options.device)
    times: dict[str, list[float]] = {name: [] for name in CRITERIA}
    for run in range(options.runs + 5):
        for name, criterion in CRITERIA.items():
            milliseconds = one_run(criterion, logits, targets)
            if run >= 5:
                times[name].append(milliseconds)

    base, best_base = statistics.median(times["torch cross_entropy"]), min(times["torch cross_entropy"])
    print(f"{'loss':<22}{'median ms':>10}{'quartiles':>16}{'ratio':>7}{'best ms':>9}{'ratio':>7}")
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        spread, best = f"{low:.2f}-{high:.2f}", min(values)
        print(f"{name:<22}{middle:>10.2f}{spread:>16}{middle / base:>7.2f}{best:>9.2f}{best / best_base:>7.2f}")


if __name__ == "__main__":
    main()
