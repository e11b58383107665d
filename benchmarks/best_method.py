"""What does `best` cost or gain against a plain temperature? Prints mean NLL on new cases by the number of cases.

Run: python benchmarks/best_method.py [--cases 50 100 200 300 1000 5000] [--draws 20 20 10 10 3 1] [--out FILE]

The four shipped samples: cases are drawn from the validation and test predictions of each, a method is chosen and
fitted on them, and judged on all others. "lowest" takes the method with the lowest cross-validated NLL of all, "best"
is `select_calibrator`. Numbers are 1e-4 of NLL above that of `temperature`: below 0 the choice gains. "worst" is the
largest loss of a single draw.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np

from calibrant import Predictions, samples
from calibrant.calibration import METHODS, make_calibrator, select_calibrator
from calibrant.errors import CalibrantWarning


def pooled(name: str) -> Predictions:
    parts = [samples.load(name, split) for split in ("val", "test")]
    logits = np.concatenate([np.asarray(part.as_logits(), dtype=np.float64) for part in parts])
    return Predictions.from_logits(logits, np.concatenate([part.targets for part in parts]))


def one_draw(pool: Predictions, cases: int, seed: int) -> dict[str, float]:
    """NLL on the cases that were not fitted on, by the way to choose."""
    order = np.random.default_rng([seed, cases]).permutation(len(pool))
    fit, rest = pool.subset(order[:cases]), pool.subset(order[cases:])
    every = [name for name in METHODS if make_calibrator(name).numbers_to_learn(pool.n_classes) <= cases]
    compared = select_calibrator(fit, methods=every)
    lowest = compared.candidates[0].name
    best = compared.name
    if cases < 300:
        best = select_calibrator(fit).name
    chosen = {"none": "none", "temperature": "temperature", "lowest": lowest, "best": best}
    nll = {name: float(make_calibrator(name).fit(fit)(rest).nll.mean()) for name in set(chosen.values())}
    return {way: nll[name] for way, name in chosen.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, nargs="+", default=[50, 100, 200, 300, 1000, 5000])
    parser.add_argument("--draws", type=int, nargs="+", default=[20, 20, 10, 10, 3, 1], help="per sample")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pools = [pooled(name) for name in samples.names()]
    heads = ("cases", "draws", "none", "lowest", "worst", "best", "worst")
    lines = ["".join(f"{head:>10}" for head in heads)]
    print(lines[0])
    for cases, draws in zip(options.cases, options.draws, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrantWarning)
            nll = [one_draw(pool, cases, seed) for pool in pools for seed in range(draws)]
        loss = {way: np.array([1e4 * (each[way] - each["temperature"]) for each in nll]) for way in nll[0]}
        cells = [loss["none"].mean()]
        for way in ("lowest", "best"):
            cells += [loss[way].mean(), loss[way].max()]
        lines.append(f"{cases:10,}{len(nll):10}" + "".join(f"{cell:10.1f}" for cell in cells))
        print(lines[-1], flush=True)
        if options.out is not None:
            options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
