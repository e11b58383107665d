"""Which training lets a model decide more alone, at equal cost and after the best ranking score was chosen.

Run: python benchmarks/training_for_ranking.py RUN ... [--seeds 3] [--splits 60] [--out FILE]

Error, NLL and AURC are those of the test cases after a temperature from the validation cases. Shares decided alone:
validation and test cases are put together, each split fits a policy on 5,000 of them, and the others show what it
decides; `default` is the largest probability with its fixed thresholds, `best` is `score="auto"`. The splits of all
runs are the same, and their intervals say nothing about other seeds. So the first runs must be seeds of one method
(`--seeds`), and a line for each other run says by how much it differs from their mean, with the 95 % prediction
interval for one more seed (Student's t; it assumes that all methods vary as much as that one).
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import norm, t

from calibrant.calibration import TemperatureScaling
from calibrant.decisions import fit_policy
from calibrant.metrics import evaluate
from calibrant.runs import RunFolder
from ranking_scores import TARGETS, area, joined, split_of, table

HEADER = ["run", "method", "epochs", "error %", "NLL", "AURC", "AURC pnorm4"]
HEADER += [f"{way} at {100 * target:g} %" for target in TARGETS for way in ("default", "best")]
HEADER += ["pnorm4 chosen %"]


def row_of(path: Path, splits: int) -> tuple[list[str], dict[str, float]]:
    """The cells of a row, and the figures that are compared with those of several seeds."""
    run = RunFolder(path)
    validation, test = run.predictions("val"), run.predictions("test")
    calibrated = TemperatureScaling().fit(validation)(test)
    figures = evaluate(calibrated)
    cells = [path.name, run.method, str(run.summary["epochs"])]
    cells += [f"{100 * figures.test_error:.2f}", f"{figures.nll:.4f}"]
    cells += [f"{1e4 * area(calibrated, score):.1f}" for score in ("probability", "pnorm4")]
    compared = {"NLL": figures.nll or 0.0, "AURC x 10,000": 1e4 * area(calibrated, "probability")}
    everything = joined([validation, test])
    chosen = []
    for target in TARGETS:
        for score in (None, "auto"):
            shares = []
            for split in range(splits):
                cases, new = split_of(everything, 5000, split)
                policy = fit_policy(cases, target, score=score, seed=split)
                shares.append(100 * policy.decide(new).automate.mean())
                if score == "auto":
                    chosen.append(policy.routing.score != "probability")
            error = norm.ppf(0.975) * np.std(shares, ddof=1) / splits**0.5
            cells.append(f"{np.mean(shares):.1f} ± {error:.1f}")
        compared[f"best at {100 * target:g} %"] = float(np.mean(shares))
    return [*cells, f"{100 * np.mean(chosen):.0f}"], compared


def difference(name: str, value: float, of_seeds: list[float]) -> str:
    spread = float(np.std(of_seeds, ddof=1)) * (1 + 1 / len(of_seeds)) ** 0.5
    half = t.ppf(0.975, len(of_seeds) - 1) * spread
    gap = value - float(np.mean(of_seeds))
    verdict = "beyond seeds" if abs(gap) > half else "cannot tell"
    return f"{name} {gap:+.3g} ± {half:.2g} ({verdict})"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--splits", type=int, default=60)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows, compared = [], []
    for path in arguments.runs:
        row, figures = row_of(path, arguments.splits)
        rows.append(row)
        compared.append(figures)
        print(" | ".join(row), flush=True)
    names = " ".join(path.name for path in arguments.runs)
    lines = [f"$ python benchmarks/training_for_ranking.py {names} --splits {arguments.splits}", ""]
    lines += table(HEADER, rows)
    lines += ["", f"Difference from the mean of the first {arguments.seeds} runs:"]
    for row, figures in list(zip(rows, compared, strict=True))[arguments.seeds :]:
        others = {name: [seed[name] for seed in compared[: arguments.seeds]] for name in figures}
        words = [difference(name, value, others[name]) for name, value in figures.items()]
        lines.append(f"{row[0]}: {', '.join(words)}")
        print(lines[-1])
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
