"""Calibration metrics: ours, peers and a NumPy reference, in one process. Prints times, peak memory and ratios.

Run: python benchmarks/metrics.py [--quick]. Peers come with the extra `peers`; those missing are left out.
"Extra MB" is the peak of the process's resident memory during a call minus what was resident before it.
"""

import argparse
import gc
import platform
import threading
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Self

import numpy as np
import psutil
import torch

from calibrant import Predictions, compare, evaluate
from calibrant.integrations import BrierScore, CalibrationError, ClasswiseCalibrationError, NegativeLogLikelihood
from calibrant.metrics import (
    aurc,
    auroc,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)

BINS = 15


class Peak:
    """Largest resident memory inside a `with` block, sampled every half millisecond."""

    def __enter__(self) -> Self:
        self.process = psutil.Process()
        self.before = self.most = self.process.memory_info().rss
        self.running = True
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while self.running:
            self.most = max(self.most, self.process.memory_info().rss)
            time.sleep(0.0005)

    def __exit__(self, *_: object) -> None:
        self.most = max(self.most, self.process.memory_info().rss)
        self.running = False
        self.thread.join()

    @property
    def megabytes(self) -> float:
        """Growth over what was resident before."""
        return (self.most - self.before) / 1e6


def measure(call: Callable[[], object], repeats: int) -> tuple[float, float, float, float]:
    """Best and mean time over repeats after a warm-up, extra memory, and the value."""
    value = float(call())
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    gc.collect()
    with Peak() as peak:
        call()
    return min(times), float(np.mean(times)), peak.megabytes, value


def numpy_reference(scores: np.ndarray, targets: np.ndarray) -> float:
    """What most people write by hand: no checks, edges by linspace."""
    confidence = scores.max(axis=1)
    correct = scores.argmax(axis=1) == targets
    total = 0.0
    edges = np.linspace(0, 1, BINS + 1)
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return total


def one_shot(scores: np.ndarray, targets: np.ndarray) -> dict[str, Callable[[], object]]:
    classes = scores.shape[1]
    tensor, labels = torch.from_numpy(scores), torch.from_numpy(targets)
    calls: dict[str, Callable[[], object]] = {
        "calibrant": lambda: expected_calibration_error(Predictions.from_probabilities(scores, targets), BINS),
        "numpy reference": lambda: numpy_reference(scores, targets),
    }
    from torchmetrics.functional.classification import multiclass_calibration_error

    calls["torchmetrics"] = lambda: multiclass_calibration_error(tensor, labels, classes, n_bins=BINS)
    try:
        from netcal.metrics import ECE

        calls["netcal"] = lambda: ECE(BINS).measure(scores, targets)
    except ImportError:
        pass
    try:
        import relplot

        def relplot_binned() -> float:
            confidence, correct = relplot.multiclass_logits_to_confidences(scores, targets, probs=True)
            return relplot.metrics.binnedECE(confidence, correct, BINS)

        calls["relplot (binned)"] = relplot_binned
    except ImportError:
        pass
    return calls


def streaming(scores: np.ndarray, targets: np.ndarray) -> dict[str, Callable[[], object]]:
    from torchmetrics.classification import MulticlassCalibrationError

    tensor, labels = torch.from_numpy(scores), torch.from_numpy(targets)

    def feed(meter: object) -> float:
        for start in range(0, len(tensor), 1024):
            meter.update(tensor[start : start + 1024], labels[start : start + 1024])
        return float(meter.compute())

    classes = scores.shape[1]
    return {
        "calibrant": lambda: feed(CalibrationError(BINS, kind="probabilities")),
        "torchmetrics": lambda: feed(MulticlassCalibrationError(classes, n_bins=BINS)),
    }


def from_logits(logits: np.ndarray, targets: np.ndarray) -> dict[str, Callable[[], object]]:
    from scipy.special import softmax
    from torchmetrics.functional.classification import multiclass_calibration_error

    tensor, labels = torch.from_numpy(logits), torch.from_numpy(targets)
    return {
        "calibrant": lambda: expected_calibration_error(Predictions.from_logits(logits, targets), BINS),
        "scipy softmax + reference": lambda: numpy_reference(softmax(logits, axis=1), targets),
        "torchmetrics": lambda: multiclass_calibration_error(tensor, labels, logits.shape[1], n_bins=BINS),
    }


def classwise(scores: np.ndarray, targets: np.ndarray) -> dict[str, Callable[[], object]]:
    tensor, labels = torch.from_numpy(scores), torch.from_numpy(targets)

    def meter() -> float:
        found = ClasswiseCalibrationError(scores.shape[1], BINS, kind="probabilities")
        for start in range(0, len(tensor), 1024):
            found.update(tensor[start : start + 1024], labels[start : start + 1024])
        return float(found.compute())

    calls: dict[str, Callable[[], object]] = {
        "calibrant": lambda: classwise_calibration_error(Predictions.from_probabilities(scores, targets), BINS),
        "calibrant meter, batches of 1024": meter,
    }
    try:
        import calibration

        calls["uncertainty-calibration"] = lambda: calibration.get_ece(scores, targets, num_bins=BINS, mode="marginal")
    except ImportError:
        pass
    return calls


def proper(scores: np.ndarray, targets: np.ndarray) -> dict[str, dict[str, Callable[[], object]]]:
    """Other metrics from probabilities, checks included, with the peer that most people would use."""
    from sklearn.metrics import log_loss, roc_auc_score

    classes = np.arange(scores.shape[1])

    def numpy_brier() -> float:
        return float(np.mean(np.sum((scores - (targets[:, None] == classes)) ** 2, axis=1)))

    def numpy_aurc() -> float:
        correct = scores.argmax(axis=1) == targets
        order = np.argsort(-scores.max(axis=1), kind="stable")
        return float(np.mean(np.cumsum(~correct[order]) / np.arange(1, len(order) + 1)))

    def sklearn_auroc() -> float:
        return float(roc_auc_score(scores.argmax(axis=1) == targets, scores.max(axis=1)))

    def ours(metric: Callable[[Predictions], object]) -> Callable[[], object]:
        return lambda: metric(Predictions.from_probabilities(scores, targets))

    return {
        "NLL": {
            "calibrant": ours(negative_log_likelihood),
            "scikit-learn": lambda: log_loss(targets, scores, labels=classes),
        },
        "Brier score": {"calibrant": ours(brier_score), "numpy, no checks": numpy_brier},
        "AUROC": {"calibrant": ours(auroc), "scikit-learn": sklearn_auroc},
        "AURC": {"calibrant": ours(aurc), "numpy, no checks, ties as they come": numpy_aurc},
    }


def updates(scores: np.ndarray, targets: np.ndarray, rows: int) -> dict[str, Callable[[], object]]:
    """Up to 400 updates of meters, each by a batch of other rows."""
    from torchmetrics.classification import MulticlassCalibrationError

    starts = range(0, len(scores) - rows + 1, rows)[:400]
    batches = [
        (torch.from_numpy(scores[start : start + rows]), torch.from_numpy(targets[start : start + rows]))
        for start in starts
    ]

    def feed(meter: object) -> float:
        for batch, labels in batches:
            meter.update(batch, labels)
        return float(meter.compute())

    return {
        "calibrant ECE": lambda: feed(CalibrationError(BINS, kind="probabilities")),
        "torchmetrics ECE": lambda: feed(MulticlassCalibrationError(scores.shape[1], n_bins=BINS)),
        "calibrant NLL": lambda: feed(NegativeLogLikelihood(kind="probabilities")),
        "calibrant Brier score": lambda: feed(BrierScore(kind="probabilities")),
    }


def show(title: str, calls: dict[str, Callable[[], object]], repeats: int) -> None:
    print(f"\n{title}")
    print(f"  {'':34}{'best s':>9}{'mean s':>9}{'extra MB':>10}{'value':>11}{'time / ours':>13}")
    base = None
    for name, call in calls.items():
        best, mean, memory, value = measure(call, repeats)
        base = base or best
        print(f"  {name:34}{best:9.4f}{mean:9.4f}{memory:10.1f}{value:11.6f}{best / base:12.2f}x")


def make(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator).mul_(3)
    top = logits.argmax(dim=1)
    wrong = torch.rand(rows, generator=generator) < 0.4
    targets = torch.where(wrong, torch.randint(0, classes, (rows,), generator=generator), top)
    return logits.numpy(), logits.softmax(dim=1).numpy(), targets.numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, two repeats")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    repeats = 2 if quick else 7
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    )
    for all_rows, classes in ((1_000_000, 10), (200_000, 1000)):
        rows = all_rows // 10 if quick else all_rows
        logits, scores, targets = make(rows, classes)
        show(f"ECE, {BINS} bins, {rows} x {classes} float32 probabilities", one_shot(scores, targets), repeats)
        show("the same, streamed in batches of 1024", streaming(scores, targets), 2)
        show("the same from logits", from_logits(logits, targets), 2)
        del logits
        for title, calls in proper(scores, targets).items():
            show(f"{title}, {rows} x {classes}", calls, 2)
        for batch in (128, 512, 1024, 2048, 8192):
            show(f"updates of {batch} x {classes}", updates(scores, targets, batch), 7)
        if classes == 10:
            show(f"class-wise ECE, {rows} x {classes}", classwise(scores, targets), 1)
        del scores
        gc.collect()
    logits, _, targets = make(10_000, 10)
    predictions = Predictions.from_logits(logits, targets)
    other = Predictions.from_logits(logits * 0.7, targets)
    resamples = 100 if quick else 1000
    calls: dict[str, Callable[[], object]] = {
        "evaluate, every metric": lambda: evaluate(predictions, n_resamples=resamples).ece,
        "compare two models": lambda: compare(predictions, other, n_resamples=resamples)["ece"].difference or 0.0,
    }
    show(f"{resamples} resamples of 10000 x 10", calls, 2)


if __name__ == "__main__":
    main()
