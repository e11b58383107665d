"""`calibrant evaluate`: the metrics of saved predictions, as a table or JSON, with gates for a pipeline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token, UnknownOptionError

from calibrant.cli._shared import (
    Address,
    ExecutorFlag,
    Json,
    Many,
    NBins,
    Reading,
    Repeated,
    Switch,
    say,
    say_json,
    say_table,
)
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import CheckFailed, printable
from calibrant.scale import make_executor
from calibrant.scale.work import refuse_on_cluster

if TYPE_CHECKING:
    from calibrant.metrics import Evaluation
    from calibrant.metrics.evaluation import Result
    from calibrant.metrics.subgroups import ClassEvaluation
    from calibrant.predictions import Predictions


def _limit(_: type, tokens: Sequence[Token] | Mapping[str, Any]) -> float:
    """Read the value of a limit. Any other option that `evaluate` does not have is misspelt."""
    if isinstance(tokens, Mapping):  # of --max-ece.x
        raise ValueError("no option has a dot in its name")  # noqa: TRY004 (cyclopts names the option)
    token = tokens[0]
    if not str(token.keyword).replace("_", "-").startswith(("--max-", "--min-")):
        from calibrant.cli import app

        raise UnknownOptionError(token=token, argument_collection=app["evaluate"].assemble_argument_collection())
    try:
        return float(token.value)
    except ValueError:
        raise ValueError(f"a limit is a fraction, such as 0.02 for 2 %, got {token.value!r}") from None


def evaluate(
    files: Annotated[list[Path], Repeated],
    *,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    n_bins: NBins = DEFAULT_N_BINS,
    thresholds: Annotated[tuple[float, ...], Many] = (0.95, 0.99),
    n_resamples: int | None = None,
    level: float = 0.95,
    seed: int = 0,
    groups: str | None = None,
    per_class: Annotated[bool, Switch] = False,
    weights: str | None = None,
    clusters: str | None = None,
    raw: Annotated[bool, Switch] = False,
    executor: ExecutorFlag = "local",
    address: Address = None,
    as_json: Json = False,
    **limits: Annotated[float, Parameter(converter=_limit)],
) -> None:
    """Say how accurate and how well calibrated saved predictions are. Exit code 1 if a limit does not hold.

    Args:
        files: Predictions (.npz, .csv, .parquet, a folder or pattern of Parquet files), or run folders.
        thresholds: Least confidences of the high-confidence sets.
        n_resamples: Resamples behind the intervals; 0 for none. Default: 200, and none above 100,000 rows.
        level: Level of the intervals.
        seed: Seed of the resampling and of the noise floor.
        groups: A column: all metrics in each of its groups too. The intervals of all groups hold at once.
        per_class: Also the error and the calibration of each class.
        weights: A column: how much each row counts.
        clusters: A column: which rows belong together (pictures of one patient).
        raw: Do not use a run's policy. Without this, limits are for the calibrated scores of a run.
        executor: Ray reads the files of a folder in many processes; without intervals, groups and weights.
        limits: Limits on metrics, as fractions: --max-ece 0.02, --min-auroc and so on for every metric of the JSON;
            --min-accuracy; at the first threshold --min-share, --min-share-accuracy and --max-share-ece.
    """
    from calibrant import metrics
    from calibrant.metrics.evaluation import default_resamples
    from calibrant.runs import load_judged

    gates = metrics.Gates(**{name.replace("-", "_"): limit for name, limit in limits.items()})
    gates.check(thresholds)
    whole = {"n_resamples": n_resamples, "groups": groups, "weights": weights, "clusters": clusters}
    refuse_on_cluster(executor, **whole, per_class=per_class)
    settings: dict[str, Any] = {"n_bins": n_bins, "thresholds": thresholds, "seed": seed}
    results: dict[str, Result] = {}
    judged: dict[str, Evaluation] = {}
    classes: dict[str, ClassEvaluation] = {}
    with make_executor(executor, address=address) as place:
        if place is not None:
            for file in files:
                parts = metrics.evaluate_parts(file, **settings, **reading.options(), executor=place)
                results[str(file)] = judged[str(file)] = parts
            files = []
    settings |= {"level": level, "weights": weights, "clusters": clusters, "n_resamples": n_resamples}
    for file in files:
        sets = load_judged(file, raw=raw, **reading.options())
        first = next(iter(sets))
        if n_resamples is None:
            settings["n_resamples"] = default_resamples(sets[first])
        for name, predictions in sets.items():
            results[name], overall = _measured(predictions, groups, settings)
            judged.setdefault(first, overall)  # limits are for the calibrated scores of a run, which come first
            if per_class:
                classes[name] = metrics.evaluate_classes(predictions, n_bins, weights=weights)
    if as_json:
        say_json(_as_json(results, classes))
    else:
        _say(results, classes, asked=n_resamples is not None)
    broken = [line for name, result in judged.items() for line in gates.broken(result, name=name)]
    if broken:
        raise CheckFailed("; ".join(broken))


def _measured(predictions: "Predictions", groups: str | None, settings: dict[str, Any]) -> "tuple[Result, Evaluation]":
    """The result, and the metrics of all cases together."""
    from calibrant import metrics

    if groups is None:
        evaluation = metrics.evaluate(predictions, **settings)
        return evaluation, evaluation
    grouped = metrics.evaluate_groups(predictions, groups, **settings)
    return grouped, grouped.overall


def _as_json(results: "Mapping[str, Result]", classes: "Mapping[str, ClassEvaluation]") -> dict[str, Any]:
    content: dict[str, Any] = {name: result.to_dict() for name, result in results.items()}
    if len(content) == 1:
        (content,) = content.values()
    if classes:
        content["per_class"] = {name: result.to_dict() for name, result in classes.items()}
    return content


def _say(results: "Mapping[str, Result]", classes: "Mapping[str, ClassEvaluation]", *, asked: bool) -> None:
    """Print tables, and why there are no intervals if they were not asked for."""
    from calibrant.metrics import Evaluation
    from calibrant.metrics.evaluation import NO_INTERVALS, evaluations_table

    whole = {name: result for name, result in results.items() if isinstance(result, Evaluation)}
    if whole:
        say(evaluations_table(whole))
    for name, result in results.items():
        if not isinstance(result, Evaluation):
            if len(results) > 1:
                say(printable(name))
            say(result.table())
    for name, by_class in classes.items():
        say(f"{name}: {by_class.describe()}")
        say_table(*by_class.rows())
    if not asked and any(result.intervals is None for result in whole.values()):
        say(NO_INTERVALS)
