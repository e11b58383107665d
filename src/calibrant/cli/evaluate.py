"""`calibrant evaluate`: the metrics of saved predictions, as a table or JSON, with gates for a pipeline."""

from pathlib import Path
from typing import Annotated, Any

from calibrant.cli._flags import Address, Columns, ExecutorFlag, Json, KindFlag, Many, NBins, Repeated, Switch
from calibrant.cli._say import say, say_json, say_table
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import CheckFailed
from calibrant.scale import make_executor, refuse_on_cluster


def evaluate(
    files: Annotated[list[Path], Repeated],
    *,
    kind: KindFlag = None,
    columns: Columns = None,
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
    **limits: float,
) -> None:
    """Say how accurate and how well calibrated saved predictions are. Where a limit does not hold, exit code 1.

    Args:
        files: Predictions: .npz, .csv or .parquet, a folder or pattern of Parquet files, or run folders (their test
            predictions).
        thresholds: Least confidences of the high-confidence sets.
        n_resamples: Resamples behind the intervals; 0 for none, 1000 for a report. Default: 200, and none above 100,000
            rows.
        level: Level of the intervals.
        seed: Seed of the resampling and of the noise floor.
        groups: A column of the files: all metrics in each of its groups too. The intervals of all groups hold at once.
        per_class: Also the error and the calibration of each class.
        weights: A column of the files: how much each row counts.
        clusters: A column of the files: which rows belong together (pictures of one patient); intervals go by clusters.
        raw: Do not use a run's policy. Without this, a run folder is shown calibrated and raw, and limits are
            for what is calibrated.
        executor: Ray reads the parts of a folder of Parquet files in many processes; without intervals, groups and
            weights.
        limits: Limits on metrics, as fractions: --max-ece 0.02, --max-nll, --min-auroc and so on for every metric of
            the JSON; --min-accuracy; for the rows at or above the first threshold --min-share, --min-share-accuracy and
            --max-share-ece.
    """
    from calibrant.metrics import Evaluation, Gates, evaluate_classes, evaluate_groups, evaluate_parts
    from calibrant.metrics import evaluate as evaluate_predictions
    from calibrant.metrics.evaluation import NO_INTERVALS, default_resamples
    from calibrant.metrics.metric_tables import evaluations_dict, evaluations_table, grouped_table
    from calibrant.metrics.subgroups import ClassEvaluation, GroupedEvaluation
    from calibrant.runs import load_judged

    gates = Gates(**{name.replace("-", "_"): limit for name, limit in limits.items()})
    gates.check(thresholds)
    settings: dict[str, Any] = {"thresholds": thresholds, "seed": seed, "level": level}
    settings |= {"weights": weights, "clusters": clusters}
    results: dict[str, Evaluation] = {}
    classes: dict[str, ClassEvaluation] = {}
    judged: dict[str, Evaluation] = {}
    grouped: dict[str, GroupedEvaluation] = {}
    whole = {"n_resamples": n_resamples, "groups": groups, "weights": weights, "clusters": clusters}
    refuse_on_cluster(executor, **whole, per_class=per_class)
    with make_executor(executor, address=address) as place:
        if place is not None:
            own_settings: dict[str, Any] = {"thresholds": thresholds, "seed": seed, "kind": kind, "columns": columns}
            results = {str(file): evaluate_parts(file, n_bins, **own_settings, executor=place) for file in files}
            judged = results
    for file in files if place is None else ():
        found = load_judged(file, raw=raw, kind=kind, columns=columns)
        shown = next(iter(found.values()))
        settings["n_resamples"] = default_resamples(shown) if n_resamples is None else n_resamples
        if groups is None:
            made = {name: evaluate_predictions(predictions, n_bins, **settings) for name, predictions in found.items()}
        else:
            own = {name: evaluate_groups(each, groups, n_bins=n_bins, **settings) for name, each in found.items()}
            grouped |= own
            made = {name: each.overall for name, each in own.items()}
        results |= made
        if per_class:
            classes |= {name: evaluate_classes(each, n_bins, weights=weights) for name, each in found.items()}
        judged |= [*made.items()][:1]
    if as_json:
        content = evaluations_dict(results if groups is None else grouped)
        say_json(
            {**content, "per_class": {name: each.to_dict() for name, each in classes.items()}} if classes else content
        )
    else:
        say(evaluations_table(results) if groups is None else grouped_table(grouped))
        for name, each in classes.items():
            say(f"{name}: {each.describe()}")
            say_table(*each.rows())
        if n_resamples is None and any(each.intervals is None for each in results.values()):
            say(NO_INTERVALS)
    broken = [line for name, result in judged.items() for line in gates.broken(result, name=name)]
    if broken:
        raise CheckFailed("; ".join(broken))
