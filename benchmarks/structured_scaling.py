"""Whether structured matrix scaling and quadratic scaling (probmetrics) would be chosen by `best`.

Run: python benchmarks/structured_scaling.py FILE or RUN ... [--cases 3000] [--out results/benchmarks/structured.txt]

They are compared by cross-validated NLL with the method of ours that `best` chooses. Being more complex than that one,
they would have to be better by more than one standard error.
Quadratic scaling is for two classes.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from probmetrics.calibrators import get_calibrator
from probmetrics.distributions import CategoricalLogits

from calibrant import Predictions
from calibrant.calibration.method_choice import make_calibrator, select_calibrator

THEIRS = ("sms", "quadratic-scaling")


def calibrated(method: str, logits: np.ndarray, targets: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Probabilities of other cases."""
    if method not in THEIRS:
        return np.asarray(make_calibrator(method).fit(logits, targets).transform(other))
    fitted = get_calibrator(method, svs_print_init_info=False, sms_print_init_info=False)
    fitted.fit_torch(CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(targets))
    return np.asarray(fitted.predict_proba_torch(CategoricalLogits(torch.from_numpy(other))).get_probs().numpy())


def logits_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.is_dir():
        path = path / "predictions" / "test.npz"
    predictions = Predictions.load(path)
    if predictions.kind == "logits":
        return np.asarray(predictions.scores, dtype=np.float64), predictions.targets
    return np.log(np.maximum(predictions.probabilities, 1e-12)), predictions.targets


def held_out_nll(method: str, logits: np.ndarray, targets: np.ndarray, folds: np.ndarray) -> np.ndarray:
    losses = np.empty(len(targets))
    for fold in np.unique(folds):
        test = folds == fold
        probabilities = calibrated(method, logits[~test], targets[~test], logits[test])
        right = probabilities[np.arange(test.sum()), targets[test]]
        losses[test] = -np.log(np.maximum(right, 1e-300))
    return losses


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lines = [f"$ python benchmarks/structured_scaling.py ... --cases {arguments.cases}"]
    for path in arguments.paths:
        logits, targets = logits_of(path)
        rows = np.random.default_rng(0).permutation(len(targets))[: arguments.cases]
        logits, targets = logits[rows], targets[rows]
        classes = logits.shape[1]
        chosen = select_calibrator(logits, targets).name
        folds = np.arange(len(targets)) % 5
        ours = held_out_nll(chosen, logits, targets, folds)
        method = "sms"
        if classes == 2:
            method = "quadratic-scaling"
        start = time.perf_counter()
        gain = ours - held_out_nll(method, logits, targets, folds)
        seconds = time.perf_counter() - start
        error = gain.std() / len(gain) ** 0.5
        verdict = "would not be chosen"
        if gain.mean() > error:
            verdict = "would be chosen"
        text = f"{path.stem}: {len(targets):,} x {classes}, best of ours {chosen} {ours.mean():.4f}, {method} "
        text += f"{ours.mean() - gain.mean():.4f}, gain {gain.mean():+.4f} (error {error:.4f}): {verdict}"
        lines.append(f"{text}; {seconds:.0f} s")
        print(lines[-1], flush=True)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
