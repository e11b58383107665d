"""`calibrant evaluate`: the metrics of saved predictions, as a table or JSON, with gates for a pipeline."""

import json as json_module
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calibrant.cli._flags import KindFlag
from calibrant.errors import CheckFailed, invalid
from calibrant.metrics import DEFAULT_N_BINS, Evaluation, evaluations_table
from calibrant.metrics import evaluate as evaluate_predictions
from calibrant.predictions import Predictions
from calibrant.training import source_path


@Parameter(name="*")
@dataclass(frozen=True)
class Gates:
    """Limits, as fractions (0.02 for 2 %). Where one does not hold the exit code is 1.

    Attributes:
        max_test_error: Largest test error.
        min_accuracy: Smallest accuracy.
        max_nll: Largest NLL.
        max_brier: Largest Brier score.
        max_ece: Largest ECE.
        max_mce: Largest MCE.
        max_classwise_ece: Largest class-wise ECE.
        max_smooth_ece: Largest smooth ECE.
        max_debiased_ece: Largest debiased ECE.
        max_ks: Largest KS error.
        max_aurc: Largest AURC.
        min_auroc: Smallest AUROC.
        min_share: Smallest share of rows at or above the first threshold.
        min_share_accuracy: Smallest accuracy of those rows.
        max_share_ece: Largest ECE of those rows.
    """

    max_test_error: float | None = None
    min_accuracy: float | None = None
    max_nll: float | None = None
    max_brier: float | None = None
    max_ece: float | None = None
    max_mce: float | None = None
    max_classwise_ece: float | None = None
    max_smooth_ece: float | None = None
    max_debiased_ece: float | None = None
    max_ks: float | None = None
    max_aurc: float | None = None
    min_auroc: float | None = None
    min_share: float | None = None
    min_share_accuracy: float | None = None
    max_share_ece: float | None = None

    def set_ones(self) -> dict[str, float]:
        """The gates that were asked for."""
        return {name: limit for name, limit in vars(self).items() if limit is not None}


def evaluate(
    files: Annotated[list[Path], Parameter(negative="")],
    *,
    kind: KindFlag = None,
    n_bins: int = DEFAULT_N_BINS,
    thresholds: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = (0.95, 0.99),
    n_resamples: int = 0,
    level: float = 0.95,
    seed: int = 0,
    json: Annotated[bool, Parameter(negative="")] = False,
    gates: Gates | None = None,
) -> None:
    """Say how accurate and how well calibrated saved predictions are.

    Parameters
    ----------
    files:
        Predictions: .npz, .csv or .parquet; or run folders (their test predictions).
    n_bins:
        Bins of every binned metric.
    thresholds:
        Least confidences of the high-confidence sets.
    n_resamples:
        Resamples for intervals; 0 for none, 1000 for a report.
    level:
        Level of the intervals.
    seed:
        Seed of the resampling and of the noise floor.
    json:
        Print JSON, in fractions, instead of a table.
    """
    asked = (gates or Gates()).set_ones()
    _check_gates(asked, thresholds)
    results: dict[str, Evaluation] = {}
    for source in files:
        path = source_path(source, "test")
        predictions = Predictions.load(path, kind=kind, mmap="auto")
        results[str(path)] = evaluate_predictions(
            predictions, n_bins, thresholds=thresholds, n_resamples=n_resamples, seed=seed, level=level
        )
    sys.stdout.write(_text(results, json=json) + "\n")
    failures = [failure for path, result in results.items() for failure in failed(path, result, asked)]
    if failures:
        raise CheckFailed("; ".join(failures))


def _text(results: dict[str, Evaluation], *, json: bool) -> str:
    if not json:
        return evaluations_table(results)
    if len(results) == 1:
        return next(iter(results.values())).to_json()
    content = {path: result.to_dict() for path, result in results.items()}
    return json_module.dumps(content, indent=2, allow_nan=False)


def _check_gates(asked: dict[str, float], thresholds: tuple[float, ...]) -> None:
    for name, limit in asked.items():
        flag = f"--{name.replace('_', '-')}"
        if "share" in name and not thresholds:
            raise invalid(flag, "be used with --thresholds", "none")
        if name not in ("max_nll", "max_brier") and not 0.0 <= limit <= 1.0:
            raise invalid(flag, "be a fraction in 0..1", limit, "Write 0.02 for 2 %.")


def failed(path: str, result: Evaluation, asked: dict[str, float]) -> list[str]:
    """One short sentence for each gate that does not hold."""
    values = result.values()
    values["accuracy"] = 1.0 - result.test_error
    if result.thresholds:
        first = result.thresholds[0]
        values |= {"share": first.share, "share_accuracy": first.accuracy, "share_ece": first.ece}
    found = []
    for name, limit in asked.items():
        side, metric = name.split("_", maxsplit=1)
        value = values[metric]
        if value is None:
            found.append(f"{path}: {metric} is not defined here, so --{side}-{metric.replace('_', '-')} cannot hold")
        elif (value > limit) if side == "max" else (value < limit):
            relation = "above" if side == "max" else "below"
            found.append(f"{path}: {metric} {value:.6g} is {relation} the limit {limit:g}")
    return found
