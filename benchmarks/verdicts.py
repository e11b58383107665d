"""How often `calibrant compare` gives a wrong verdict, and how often it finds a difference that is there.

    python benchmarks/verdicts.py [--draws 4000] [--studies 60]

First, numbers alone: studies of several methods, in worlds that differ in the number of methods and seeds and in how
much the deviations over seeds differ between methods. Each is judged by six tests: Student's t of differences that are
paired by seed (once the test of `compare`), Welch's t, Student's t with one pooled variance, Smyth's moderated t,
one variance for both methods that is moderated by two degrees of freedom (later the test of `compare`), and ours.
Error: verdicts on two equal methods. Power: verdicts if they differ by three standard errors.
Seeds and draws are fixed; nothing is chosen afterwards.

Second, whole studies of drawn predictions: two equally good methods, with the noise of the test images.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from scipy import special

from calibrant import Predictions, evaluate
from calibrant.studies.referee import METRICS, Referee, SeedPool, decide, spread_of

CLASSES = 5
Values = list[np.ndarray]


def paired(values: Values) -> float:
    differences = values[0] - values[1]
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return float(2 * special.stdtr(len(differences) - 1, -abs(differences.mean()) / error))


def welch(values: Values) -> float:
    variances = [group.var(ddof=1) for group in values[:2]]
    parts = [variance / len(group) for variance, group in zip(variances, values[:2], strict=True)]
    squares = sum(part**2 / (len(group) - 1) for part, group in zip(parts, values[:2], strict=True))
    return _t(values, (variances[0], variances[1]), sum(parts) ** 2 / squares)


def _t(values: Values, variances: tuple[float, float], degrees: float) -> float:
    error = np.sqrt(variances[0] / len(values[0]) + variances[1] / len(values[1]))
    return float(2 * special.stdtr(degrees, -abs(values[0].mean() - values[1].mean()) / error))


def pooled(values: Values) -> float:
    degrees = sum(len(group) - 1 for group in values)
    variance = sum(group.var() * len(group) for group in values) / degrees
    return _t(values, (variance, variance), degrees)


def smyth(values: Values) -> float:
    """Prior variance and prior degrees of freedom are estimated from the methods (Smyth 2004, section 6.2)."""
    degrees = np.array([len(group) - 1 for group in values])
    variances = np.array([group.var(ddof=1) for group in values])
    e = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    excess = np.mean((e - e.mean()) ** 2 * len(e) / (len(e) - 1) - special.polygamma(1, degrees / 2))
    if excess <= 0:
        return pooled(values)
    half = 0.5 + 1 / excess
    for _ in range(50):  # Newton's method for the inverse of the trigamma function
        trigamma = special.polygamma(1, half)
        half += trigamma * (1 - trigamma / excess) / special.polygamma(2, half)
    prior_degrees = 2 * half
    prior = np.exp(e.mean() + special.digamma(half) - np.log(half))
    moderated = (prior_degrees * prior + degrees * variances) / (prior_degrees + degrees)
    return _t(values, (moderated[0], moderated[1]), min(prior_degrees + degrees[0], degrees.sum()))


def moderated(values: Values) -> float:
    degrees = sum(len(group) - 1 for group in values)
    prior = sum(group.var() * len(group) for group in values) / degrees
    own = len(values[0]) + len(values[1]) - 2
    variance = (sum(group.var() * len(group) for group in values[:2]) + 2 * prior) / (own + 2)
    return _t(values, (variance, variance), min(own + 2, degrees))


def ours(values: Values) -> float:
    groups = [list(group) for group in values]
    spread = spread_of(SeedPool(groups), groups[0], groups[1], 0.0)
    assert spread is not None
    return spread.p(float(values[0].mean() - values[1].mean()))


TESTS: dict[str, Callable[[Values], float]] = {
    "paired": paired,
    "Welch": welch,
    "pooled": pooled,
    "Smyth": smyth,
    "moderated": moderated,
    "ours": ours,
}
Deviations = Callable[[np.random.Generator, int], np.ndarray]


def _random(degrees: int) -> Deviations:
    return lambda generator, methods: np.sqrt(degrees / generator.chisquare(degrees, size=methods))


def _first(*factors: float) -> Deviations:
    return lambda _, methods: np.array([*factors, *[1.0] * (methods - len(factors))])


DEVIATIONS: dict[str, Deviations] = {
    "equal": _first(),
    "random, 10 degrees": _random(10),
    "random, 4 degrees": _random(4),
    "the two compared x 2": _first(2.0, 2.0),
    "the two compared x 3": _first(3.0, 3.0),
    "one of them x 3": _first(3.0),
    "one of them / 3": _first(1 / 3),
    "the two compared / 3": _first(1 / 3, 1 / 3),
}
SIZES = (((2, 3), (2, 3)), ((5, 3), (3, 3)), ((10, 3), (3, 3)), ((5, 2), (2, 2)), ((5, 5), (5, 5)), ((5, 3), (2, 4)))


def rates(draws: int) -> None:
    print(f"{draws} studies per cell: verdicts in percent. Error is nominally 5; power is at three standard errors.")
    print(f"{'methods, seeds':18}{'deviations':24}" + "".join(f"{name:>16}" for name in TESTS) + "   (error / power)")
    for number, ((methods, others), pair) in enumerate(SIZES):
        for world, deviations in DEVIATIONS.items():
            generator = np.random.default_rng([number, len(world)])
            cells = []
            counts = {name: [0, 0] for name in TESTS}
            for _ in range(draws):
                spread = deviations(generator, methods)
                sizes = [*pair, *[others] * (methods - 2)]
                values = [generator.normal(0, d, n) for d, n in zip(spread, sizes, strict=True)]
                error = np.sqrt(spread[0] ** 2 / pair[0] + spread[1] ** 2 / pair[1])
                shifted = [values[0] + 3 * error, *values[1:]]
                for name, test in TESTS.items():
                    if name == "paired" and pair[0] != pair[1]:
                        continue
                    counts[name][0] += test(values) < 0.05
                    counts[name][1] += test(shifted) < 0.05
            for name, (wrong, right) in counts.items():
                if name == "paired" and pair[0] != pair[1]:
                    cells.append(f"{'-':>16}")
                else:
                    cells.append(f"{100 * wrong / draws:9.1f} /{100 * right / draws:5.1f}")
            print(f"{methods:3} x {pair[0]}, {pair[1]:<9}{world:24}" + "".join(cells), flush=True)


def run(generator: np.random.Generator, targets: np.ndarray, difficulty: np.ndarray) -> SimpleNamespace:
    """The predictions of one training, in the shape of what a study records of it."""
    quality, temperature = np.exp(generator.normal(size=2) * (0.015, 0.09))
    noise = generator.normal(size=difficulty.shape)
    logits = (quality * (2.2 * np.eye(CLASSES)[targets] + difficulty) + noise) * temperature
    predictions = Predictions.from_logits(logits, targets)
    evaluation = evaluate(predictions, n_bins=10, thresholds=(0.95,))
    values = evaluation.values()
    return SimpleNamespace(
        predictions=predictions,
        value=values.__getitem__,
        evaluation=lambda **_: evaluation,
        predictions_sha256={"test": str(generator.random())},
    )


def whole_studies(studies: int, methods: int = 4, seeds: int = 3, rows: int = 600) -> None:
    """False verdicts on equal methods, in each metric and, after Holm's correction, in the one that decides."""
    generator = np.random.default_rng(0)
    single: Counter[str] = Counter()
    any_of_them: Counter[str] = Counter()
    for _ in range(studies):
        targets, difficulty = generator.integers(0, CLASSES, rows), generator.normal(size=(rows, CLASSES))
        groups = {str(k): [run(generator, targets, difficulty) for _ in range(seeds)] for k in range(methods)}
        referee = Referee(groups, lambda record, _: record.predictions)
        for metric in METRICS:
            differences = [
                referee.compare(label, metric, group, groups["0"]) for label, group in groups.items() if label != "0"
            ]
            single[metric] += sum(item.verdict != "cannot tell" for item in differences)
            any_of_them[metric] += any(item.verdict != "cannot tell" for item in decide(differences))
    print(
        f"\n{studies} studies of {methods} equal methods, {seeds} seeds, {rows} test cases: false verdicts in percent"
    )
    print(f"{'metric':12}{'one comparison':>16}{'any, with Holm':>16}")
    for metric in METRICS:
        one = 100 * single[metric] / studies / (methods - 1)
        print(f"{metric:12}{one:16.1f}{100 * any_of_them[metric] / studies:16.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--studies", type=int, default=60)
    arguments = parser.parse_args()
    rates(arguments.draws)
    whole_studies(arguments.studies)
