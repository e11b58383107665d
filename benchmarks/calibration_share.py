"""How many of the labelled cases should a temperature have, and how many the threshold behind it?

Draws validation sets of several sizes from the 15,000 real CIFAR-10 predictions of a sample, gives a share of each to
the temperature and chooses the threshold for a promised accuracy of 99 % on the rest, and looks at what happens on the
cases that neither has seen: how much is automated, how often the promise is broken, how good the NLL is, and how often
the ECE of all of them lies above 1 %.

    python benchmarks/calibration_share.py [--draws 400] [--sample cifar10-resnet32-nll] [--sizes 500 5000]
"""

import argparse
import warnings

import numpy as np

from calibrant import Predictions, samples
from calibrant.calibration import TemperatureScaling
from calibrant.decisions import choose_threshold
from calibrant.metrics import expected_calibration_error

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
SIZES = (500, 1000, 2000, 5000)
TARGET = 0.99


def pooled(name: str) -> Predictions:
    """Validation and test cases of a sample together: one population to draw from."""
    parts = [samples.load(name, split) for split in ("val", "test")]
    logits = np.concatenate([part.logits for part in parts]).astype(np.float32)
    return Predictions.from_logits(logits, np.concatenate([part.targets for part in parts]))


def one_draw(population: Predictions, size: int, share: float, seed: int) -> tuple[float, float, float, bool]:
    """NLL and ECE of unseen cases, share of them that is automated, and whether the promise is broken on them."""
    order = np.random.default_rng(seed).permutation(len(population))
    labelled, unseen = population.subset(order[:size]), population.subset(order[size:])
    if share:
        some, labelled = labelled.split(share, seed=seed)
        calibrator = TemperatureScaling().fit(some)
        labelled, unseen = calibrator(labelled), calibrator(unseen)
    figures = float(unseen.nll.mean()), expected_calibration_error(unseen)
    rule = choose_threshold(labelled, target_accuracy=TARGET)
    if rule.threshold is None:
        return *figures, 0.0, False
    automated = unseen.confidence >= rule.threshold
    broken = bool(automated.any() and unseen.correct[automated].mean() < TARGET)
    return *figures, float(automated.mean()), broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--sample", default="cifar10-resnet32-nll")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    asked = parser.parse_args()
    population = pooled(asked.sample)
    print(f"{asked.sample}, {asked.draws} draws, promised {TARGET:.0%} with confidence 0.95")
    heads = ("cases", "share", "NLL", "ECE %", "ECE above 1 %", "automated %", "spread", "nothing %", "broken %")
    print("  ".join(f"{head:>6}" for head in heads))
    warnings.simplefilter("ignore")
    for size in asked.sizes:
        for share in SHARES:
            found = [one_draw(population, size, share, seed) for seed in range(asked.draws)]
            nll, ece, automated, broken = (np.array(column) for column in zip(*found, strict=True))
            percents = (ece.mean(), (ece > 0.01).mean(), automated.mean(), automated.std(), (automated == 0).mean())
            row = [f"{size}", f"{share:.2f}", f"{nll.mean():.4f}", f"{100 * percents[0]:.2f}"]
            row += [f"{100 * percent:.1f}" for percent in (*percents[1:], broken.mean())]
            print("  ".join(f"{text:>{max(len(head), 6)}}" for text, head in zip(row, heads, strict=True)), flush=True)


if __name__ == "__main__":
    main()
