"""How often the monitor is wrong, and how many labels it takes, beside a test that is simply repeated and MAPIE's.

    python benchmarks/monitoring.py [--streams 2000] [--whole-streams 2000] [--peer-streams 20] [--seed 0] \
        [--processes 1]

Everything is simulated, so the truth is known. Prints tables in Markdown, the same for any number of processes. Most
of the time goes into `watch` over whole streams, and into MAPIE, whose bound is computed anew for every case.
"""

import argparse
import platform
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool
from multiprocessing.pool import Pool as Workers

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from calibrant import Predictions
from calibrant.decisions import fit_policy
from calibrant.deployment import Stream, promise_capital, watch

PROMISED, LEVEL = 0.99, 0.05
# At once: what a batch needs fits into memory.
BATCH = 50
Alarms = Callable[[NDArray[np.bool_]], NDArray[np.int64]]


def by_betting(errors: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Labels until the alarm of `watch`, stream by stream; -1 without one."""
    return first(promise_capital(errors, 1 - PROMISED) >= -np.log(LEVEL))


def by_repeating(errors: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The exact binomial test at the same level after every case, from the thirtieth on."""
    cases = np.arange(1, errors.shape[-1] + 1)
    p_values = bdtrc(np.cumsum(errors, axis=-1) - 1, cases, 1 - PROMISED)
    return first((p_values <= LEVEL) & (cases >= 30))


def by_mapie(errors: NDArray[np.bool_]) -> NDArray[np.int64]:
    """MAPIE's RiskMonitoring of the error rate with the promised one as its threshold."""
    from mapie.exchangeability_testing import RiskMonitoring

    found = []
    for own in errors:
        monitor = RiskMonitoring(risk="accuracy", test_level=LEVEL, threshold=1 - PROMISED, warn=False)
        monitor.update(np.zeros(len(own), dtype=int), own.astype(int))
        found.append(monitor.online_risk_lower_bound_sequence_history > 1 - PROMISED)
    return first(np.array(found))


def first(alarm: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.where(alarm.any(axis=-1), alarm.argmax(axis=-1) + 1, -1)


def alarms_of(test: Alarms, rates: NDArray[np.float64], seed: int, batch: tuple[int, int]) -> NDArray[np.int64]:
    """Labels until the alarm in one batch of streams: its number and its size."""
    number, size = batch
    return test(np.random.default_rng([seed, number]).random((size, len(rates))) < rates)


def alarms(pool: Workers, test: Alarms, rates: NDArray[np.float64], streams: int, seed: int) -> NDArray[np.int64]:
    """Labels until the alarm in each of some streams whose error rates are given case by case."""
    step = 1 if test is by_mapie else BATCH
    batches = [(number, min(step, streams - done)) for number, done in enumerate(range(0, streams, step))]
    return np.concatenate(pool.map(partial(alarms_of, test, rates, seed), batches, chunksize=1))


def false_alarms(pool: Workers, arguments: argparse.Namespace, tests: dict[str, tuple[Alarms, int]]) -> None:
    print(f"\n## False alarms in streams of {arguments.cases:,} labelled cases, as accurate ({PROMISED}) as promised\n")
    print("| test | streams | false alarms, % | allowed, % |\n| --- | --- | --- | --- |")
    for name, (test, streams) in tests.items():
        found = alarms(pool, test, np.full(arguments.cases, 1 - PROMISED), streams, arguments.seed)
        print(f"| {name} | {streams:,} | {100 * (found > 0).mean():.1f} | {100 * LEVEL:g} |", flush=True)


def delays(pool: Workers, arguments: argparse.Namespace, tests: dict[str, tuple[Alarms, int]]) -> None:
    print(
        f"\n## Labels until a drop below the promised {PROMISED} is noticed: median (90th percentile), of 8,000 at most"
    )
    print(
        "\nBefore case 2,000 the accuracy is 0.995. Streams that alarmed before the drop are left out; "
        "`-` stands for no alarm.\n"
    )
    print("| drop, points | begins at | " + " | ".join(tests) + " |\n| --- | --- |" + " --- |" * len(tests))
    for begins in (0, 2000):
        for drop in (0.01, 0.02, 0.05):
            after = 1 - PROMISED + drop
            rates = np.concatenate([np.full(begins, 0.005), np.full(8000, after)])
            cells = []
            for test, streams in tests.values():
                found = alarms(pool, test, rates, min(streams, 500), arguments.seed + 1)
                kept = found[(found < 0) | (found > begins)]
                late = np.where(kept < 0, np.inf, kept - begins)
                ends = np.quantile(late, [0.5, 0.9], method="higher")
                early = f", {100 * (1 - len(kept) / len(found)):.0f} % before" if len(kept) < len(found) else ""
                texts = [f"{end:,.0f}" if np.isfinite(end) else "-" for end in ends]
                cells.append(f"{texts[0]} ({texts[1]}){early}")
            print(f"| {100 * drop:g} | {begins:,} | " + " | ".join(cells) + " |", flush=True)


def draw(n: int, rng: np.random.Generator) -> Predictions:
    """A calibrated model of four classes."""
    z = 6 * rng.normal(size=(n, 4))
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1))


def whole_alarms(cases: int, seed: int, stream: int) -> dict[str, tuple[bool, float]]:
    """Which tests of `watch` gave an alarm in one stream, and their levels; the rule is chosen on cases of its own."""
    rng = np.random.default_rng([seed, stream])
    reference = draw(2000, rng)
    policy = fit_policy(reference, 0.95, calibrator=None)
    result = watch(Stream.of_predictions(policy, draw(cases, rng)), reference=reference, level=LEVEL)
    found = {signal.about: (signal.alarm is not None, signal.level) for signal in result.signals}
    return {**found, "any": (bool(result.alarms), LEVEL)}


def whole_monitor(pool: Workers, arguments: argparse.Namespace) -> None:
    """Every test of `watch` together."""
    print(f"\n## The whole monitor: rules chosen on 2,000 cases, then {arguments.cases:,} cases of the same stream\n")
    streams = arguments.whole_streams
    found = pool.map(partial(whole_alarms, arguments.cases, arguments.seed), range(streams), chunksize=10)
    print("| test | streams | false alarms, % | allowed, % |\n| --- | --- | --- | --- |")
    for name, (_, level) in found[0].items():
        share = 100 * sum(each[name][0] for each in found) / streams
        print(f"| {name} | {streams:,} | {share:.2f} | {100 * level:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--whole-streams", type=int, default=2000)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--peer-streams", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    import mapie

    print(f"Python {platform.python_version()}, NumPy {np.__version__}, MAPIE {mapie.__version__}")
    tests: dict[str, tuple[Alarms, int]] = {
        "calibrant": (by_betting, arguments.streams),
        "binomial test after every case": (by_repeating, arguments.streams),
        "MAPIE RiskMonitoring": (by_mapie, arguments.peer_streams),
    }
    with Pool(arguments.processes) as pool:
        false_alarms(pool, arguments, tests)
        delays(pool, arguments, tests)
        whole_monitor(pool, arguments)


if __name__ == "__main__":
    main()
