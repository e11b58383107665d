"""Calibrators against other libraries, in one run: seconds, and how many times as long as ours they take.

    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python benchmarks/posthoc.py [--rounds 5]

1. Temperature scaling of 50,000 x 100 float32 logits with true T = 2. Every library sees the same array, in turn, in
   one process; the first round is thrown away. netcal runs once more with float64.
2. Vector, matrix and Dirichlet scaling, whose strength we cross-validate, against the structured vector and matrix
   scaling of probmetrics, which has fixed strengths: 10,000 x 10 logits whose classes need different weights and
   biases, and the NLL of 10,000 other cases. Dirichlet scaling is compared with its matrix scaling, because `dircal`
   of probmetrics needs a package that cannot be installed beside current libraries.

One thread per library, because on a busy machine waiting threads would be counted.
"""

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch


def draw(n: int = 50_000, classes: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2.0 * rng.normal(size=(n, classes))
    targets = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return (2.0 * z).astype(np.float32), targets


def ours(logits: np.ndarray, targets: np.ndarray) -> float:
    from calibrant.calibration import TemperatureScaling

    return TemperatureScaling(prior_scale=None).fit(logits, targets).temperature_


def plain_torch(logits: np.ndarray, targets: np.ndarray) -> float:
    """The loop everybody writes: LBFGS on a log-temperature."""
    z, y = torch.from_numpy(logits), torch.from_numpy(targets)
    log_t = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS([log_t], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(z / log_t.exp(), y)
        loss.backward()
        return loss

    optimiser.step(closure)
    return float(log_t.exp())


def scikit_learn(logits: np.ndarray, targets: np.ndarray) -> float:
    from sklearn.calibration import _TemperatureScaling

    return 1.0 / float(_TemperatureScaling().fit(logits, targets).beta_)


def probmetrics(logits: np.ndarray, targets: np.ndarray) -> float:
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    calibrator = get_calibrator("temp-scaling")
    z = torch.from_numpy(logits)
    calibrator.fit_torch(CategoricalLogits(z), torch.from_numpy(targets))
    # The temperature is read off what it does to a row.
    row = z[:1]
    after = calibrator.predict_proba_torch(CategoricalLogits(row)).get_logits()
    return float((row[0, 0] - row[0, 1]) / (after[0, 0] - after[0, 1]))


def netcal(logits: np.ndarray, targets: np.ndarray) -> float:
    from netcal.scaling import TemperatureScaling

    z = torch.from_numpy(logits)
    scaling = TemperatureScaling(prior_scale=None)
    scaling.fit(torch.softmax(z, dim=1).numpy(), targets)
    # What it calls temperature is a factor.
    return float(1.0 / np.ravel(scaling.temperature)[0])


def netcal_double(logits: np.ndarray, targets: np.ndarray) -> float:
    """Steps of SciPy's finite differences are lost in float32, so that netcal stays where it began."""
    return netcal(logits.astype(np.float64), targets)


PEERS = {
    "calibrant": ours,
    "plain torch LBFGS": plain_torch,
    "scikit-learn": scikit_learn,
    "probmetrics": probmetrics,
    "netcal": netcal,
    "netcal, float64": netcal_double,
}


def draw_affine(n: int, classes: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2.0 * rng.normal(size=(n, classes))
    targets = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return 2.0 * z * np.linspace(0.8, 1.2, classes) + np.linspace(-0.5, 0.5, classes), targets


def ours_by_name(method: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    def fit(logits: np.ndarray, targets: np.ndarray, other: np.ndarray) -> np.ndarray:
        from calibrant.calibration import make_calibrator

        return make_calibrator(method).fit(logits, targets).transform(other)

    return fit


def probmetrics_by_name(method: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    def fit(logits: np.ndarray, targets: np.ndarray, other: np.ndarray) -> np.ndarray:
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        calibrator = get_calibrator(method, svs_print_init_info=False, sms_print_init_info=False)
        calibrator.fit_torch(CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(targets))
        return calibrator.predict_proba_torch(CategoricalLogits(torch.from_numpy(other))).get_probs().numpy()

    return fit


# Ours, and the method of probmetrics that it is compared with.
AFFINE = {"vector": "svs", "matrix": "sms", "dirichlet": "sms"}


def compare_affine(rounds: int) -> None:
    logits, targets = draw_affine(10_000)
    other, truth = draw_affine(10_000, seed=1)
    fits = {f"calibrant {name}": ours_by_name(name) for name in AFFINE}
    fits |= {f"probmetrics {name}": probmetrics_by_name(name) for name in AFFINE.values()}
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    nll: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, fit in fits.items():
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                probabilities = fit(logits, targets, other)
            if turn:
                seconds[name].append(time.process_time() - start)
            nll[name] = float(-np.log(probabilities[np.arange(len(truth)), truth]).mean())
    print(f"\n{'':24}{'median CPU s':>13}{'held-out NLL':>14}")
    for name, times in seconds.items():
        print(f"{name:24}{statistics.median(times):13.3f}{nll[name]:14.5f}")
    for name, peer in AFFINE.items():
        ratio = statistics.median(seconds[f"calibrant {name}"]) / statistics.median(seconds[f"probmetrics {peer}"])
        print(f"{name} takes {ratio:.2f} times as long as {peer} of probmetrics")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", type=int, default=50_000)
    rounds, cases = parser.parse_args().rounds, parser.parse_args().cases
    logits, targets = draw(cases)
    versions = f"torch {torch.__version__}, NumPy {np.__version__}"
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, {versions}")
    print(f"{cases} x 100 float32, true T = 2, {rounds} rounds after one to warm up")
    seconds: dict[str, list[float]] = {name: [] for name in PEERS}
    found: dict[str, float | str] = {}
    for turn in range(rounds + 1):
        for name, fit in PEERS.items():
            if isinstance(found.get(name), str):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.perf_counter()
                try:
                    found[name] = fit(logits, targets)
                except Exception as error:  # noqa: BLE001 (a peer that fails is a result)
                    found[name] = f"failed: {type(error).__name__}: {error}"
                    continue
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["calibrant"])
    print(f"{'':20}{'T':>9}{'median s':>11}{'spread':>19}{'times ours':>12}")
    for name, times in seconds.items():
        if not times:
            print(f"{name:20}  {found[name]}")
            continue
        middle = statistics.median(times)
        spread = f"{min(times):.3f} to {max(times):.3f}"
        print(f"{name:20}{found[name]:9.4f}{middle:11.3f}{spread:>19}{middle / base:12.1f}")
    compare_affine(rounds)


if __name__ == "__main__":
    main()
