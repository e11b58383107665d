"""`calibrant route`: choose a rule, apply it, and check whether its promise held."""

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App

from calibrant.cli._shared import Json, Many, Out, OutOr, PolicyFile, Reading, Switch, answer, refuse_with_labels
from calibrant.errors import CalibrantWarning, CheckFailed, InvalidInput, did_you_mean, invalid
from calibrant.files import refuse_overwriting
from calibrant.tables import Table

if TYPE_CHECKING:
    from calibrant.decisions import Policy
    from calibrant.predictions import Predictions

app = App(name="route", help="Choose what to automate and what to send to a person.")


@app.command
def fit(
    source: Path,
    /,
    *,
    target_accuracy: float = 0.99,
    confidence: float = 0.95,
    per_class: Annotated[bool, Switch] = False,
    groups: str | None = None,
    per_group: str | None = None,
    group_confidence: Literal["together", "each"] = "together",
    clusters: str | None = None,
    weights: str | None = None,
    cost_error: float | None = None,
    cost_review: float | None = None,
    cost_matrix: Path | None = None,
    search: Literal["fixed", "split"] = "fixed",
    score: str | None = None,
    reserve: float = 0.0,
    calibrate: Annotated[bool, Switch] = False,
    policy: PolicyFile = None,
    raw: Annotated[bool, Switch] = False,
    share: float | None = None,
    seed: int = 0,
    out: Out = None,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Choose the lowest threshold at which an accuracy can be promised, and write the policy.

    Args:
        source: Labelled raw predictions that were used for nothing else, or a run folder (its validation predictions).
        target_accuracy: Accuracy to promise for what is automated.
        confidence: Probability with which the promise holds.
        per_class: A threshold and a promise for each predicted class.
        groups: A column: promise the accuracy for each of its groups, with one common threshold.
        per_group: A column: a threshold and a promise for each of its groups. Cases of unknown groups, and of groups
            with too few cases, go to a person.
        group_confidence: Whether the confidence of --per-group holds for all groups together or for each by itself.
        clusters: A column that says which cases belong together (images of one patient).
        weights: A column: how much more frequent a case of this kind is in use than here. Cases are drawn by it, so
            that the promise holds for the mix in use; of n cases about n times mean / largest weight remain. The kind
            with the largest weight must be among them.
        cost_error: Cost of an automated error; with --cost-review the cheapest threshold that keeps the promise.
        cost_review: Cost of one review.
        cost_matrix: Instead of --cost-error: a CSV file with a row per true class and a column per decided class, both
            headed by the names of the classes.
        search: How thresholds are found; decide on it before you look. split spends a quarter of the cases to find
            where to start, for models whose confidences are far off.
        score: How cases are ranked: probability (default), margin, entropy, pnorm2, pnorm4, or auto, which keeps the
            default unless another is better beyond chance. It is chosen on cases that carry no promise.
        reserve: Share of the level that is kept for the highest accuracy that can be promised if the target cannot.
            Without it that accuracy is exploratory.
        calibrate: Fit a temperature on a random share of the cases and choose the threshold on the others.
        policy: Take the calibrator of this policy; cases that it was fitted on are left out. Default: that of the run
            or of the policy that is being replaced.
        raw: Use no calibrator.
        share: Of the cases for the temperature of --calibrate. Default: a tenth, or 100 cases if that is more.
        seed: Of that share, of the draw by weights and of the quarter of --search split.
        out: Where to write the policy. Default: policy.json in the run folder, or beside the predictions.
    """
    from calibrant import decisions
    from calibrant.calibration import make_calibrator
    from calibrant.calibration.temperature import temperature_share
    from calibrant.decisions import Policy
    from calibrant.decisions.risk_coverage import coverage_table
    from calibrant.decisions.weights import note_weights
    from calibrant.runs import load_predictions, policy_path, source_path

    path = source_path(source, "val")
    target = out or policy_path(path)
    refuse_overwriting([target], [path, cost_matrix])
    _refuse_several(calibrate, policy is not None, raw)
    given = load_predictions(path, **reading.options())
    stated = given if per_class else given.as_right_or_wrong()
    start = Policy(stated.n_classes, class_names=stated.class_names)
    fitting = reused = None
    if calibrate:
        some, _ = given.split(temperature_share(len(given)) if share is None else share, seed=seed, clusters=clusters)
        # Scores without a scale need an offset, too, and nobody knows which confidences they will reach.
        method = {"score": "platt"}.get(given.kind, "temperature")
        start = start.with_calibrator(make_calibrator(method).fit(some))
        if score is not None or given.kind == "score":
            fitting, search = start.calibrate(some), "split"
    elif not raw:
        used = policy or _earlier_policy(source, target)
        if used is not None and (kept := Policy.load(used)).calibrator is not None:
            start, reused = kept.with_rule(None), used
    calibrated = _calibrated(start, start.unseen(given), reused)
    replaced = _replaced(target)
    start = start.remember(replaced.fits)
    drawn = calibrated
    if weights is not None:
        drawn = decisions.sample_by_weights(calibrated, weights, seed=seed)
    matrix = None
    if cost_matrix is not None:
        matrix = decisions.read_cost_matrix(cost_matrix, drawn)
    rule = decisions.choose_threshold(
        drawn,
        target_accuracy,
        confidence=confidence,
        per_class=per_class,
        groups=groups,
        per_group=per_group,
        group_confidence=group_confidence,
        clusters=clusters,
        cost_error=cost_error,
        cost_review=cost_review,
        cost_matrix=matrix,
        score=score,
        fitting=fitting,
        search=search,
        reserve=reserve,
        seed=seed,
    )
    if weights is not None:
        rule = note_weights(rule, weights, seed, drawn, calibrated)
    if replaced.automates and not rule.automates:
        text = f"{target} automated some cases; the new policy, which replaces it, sends every case to a person."
        warnings.warn(text, CalibrantWarning, stacklevel=2)
    start.with_rule(rule).save(target)
    rows = decisions.risk_coverage(drawn)
    calibrated_by = None
    lines = [coverage_table(rows), rule.describe()]
    if start.calibrator is not None:
        calibrated_by = start.calibrator.describe()
        lines.append(f"Scores are calibrated by {calibrated_by}.")
    content = {
        "rule": {**rule.to_dict(), "automation_rate": rule.automation_rate},
        "risk_coverage": [asdict(row) for row in rows],
        "calibrator": calibrated_by,
        "path": str(target),
    }
    answer("\n".join([*lines, f"Wrote {target}"]), content, as_json=as_json)


def _refuse_several(*ways: bool) -> None:
    if sum(ways) > 1:
        raise InvalidInput("Choose one of --calibrate, --policy and --raw: each says which calibrator is used.")


def _calibrated(start: "Policy", cases: "Predictions", reused: Path | None) -> "Predictions":
    """Calibrate; if the calibrator of a file does not fit the cases, name the file and the flags that leave it out."""
    try:
        return start.calibrate(cases)
    except InvalidInput as error:
        if reused is None:
            raise
        raise InvalidInput(
            f"{reused}, whose calibrator is used: {error} For a new model write another file (--out FILE), or choose "
            "the rule without that calibrator (--raw) or with a new one (--calibrate)."
        ) from error


def _earlier_policy(source: Path, target: Path) -> Path | None:
    """The policy that is being replaced, or that of the run if its new rule is written elsewhere."""
    from calibrant.runs import is_run, policy_path

    if not target.is_file() and is_run(source):
        target = policy_path(source)
    return target if target.is_file() else None


def _replaced(path: Path) -> "Policy":
    """The policy that is about to be replaced; an empty one if there is none that can be read."""
    from calibrant.decisions import Policy

    try:
        return Policy.load(path)
    except InvalidInput:
        return Policy(2)


@app.command
def binary(
    source: Path,
    /,
    *,
    sensitivity: float | None = 0.95,
    specificity: float | None = None,
    confidence: float = 0.95,
    policy: PolicyFile = None,
    out: Annotated[Path, OutOr],
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """For two classes: promise a sensitivity, a specificity or both; what lies in between goes to a person.

    Args:
        source: Labelled predictions of two classes that were used for nothing else, or a run folder (its validation
            predictions).
        sensitivity: Share of the positive cases that is not called negative.
        specificity: Share of the negative cases that is not called positive. Default: none is promised, and every case
            is decided.
        confidence: Probability with which the promises hold.
        policy: Take the calibrator of this policy.
        out: Where to write the policy.
    """
    from calibrant.decisions import Policy, choose_binary_rule
    from calibrant.runs import load_predictions, source_path

    path = source_path(source, "val")
    refuse_overwriting([out], [path, policy])
    loaded = load_predictions(path, **reading.options())
    if loaded.n_classes != 2:
        raise invalid("source", "have two classes", f"{loaded.n_classes} in {path}", "For more, use route fit.")
    start = Policy(2, class_names=loaded.class_names)
    if policy is not None:
        start = Policy.load(policy).with_rule(None)
    start = start.remember(_replaced(out).fits)
    cases = start.calibrate(start.unseen(loaded))
    rule = choose_binary_rule(
        cases,
        sensitivity=sensitivity,
        specificity=specificity,
        confidence=confidence,
        positive=_class_number(reading.positive, cases),
    )
    start.with_rule(rule).save(out)
    answer(f"{rule.note}\nWrote {out}", {"rule": rule.to_dict(), "path": str(out)}, as_json=as_json)


@app.command
def labels(
    source: Path,
    /,
    *,
    names: str,
    sensitivity: float | None = 0.95,
    specificity: float | None = None,
    confidence: float = 0.95,
    out: Annotated[Path, OutOr],
    as_json: Json = False,
) -> None:
    """For several labels per case: a rule for each label, and one confidence for all promises.

    "route apply", "route check", "report" and "monitor" take the file that is written here for a policy.

    Args:
        source: A table that was used for nothing else, with two columns per label: p_LABEL, its probability, and
            y_LABEL, 0 or 1 (or false or true).
        names: Names of the labels, separated by commas.
        sensitivity: Share of the positive cases of each label that is not called negative.
        specificity: Share of the negative cases of each label that is not called positive. Default: none is promised.
        confidence: Probability with which the promises of all labels hold.
        out: Where to write the rules.
    """
    from calibrant.decisions import choose_label_rules, evaluate_labels, read_labels

    refuse_overwriting([out], [source])
    distinct = [name.strip() for name in names.split(",") if name.strip()]
    cases = read_labels(source, distinct)
    rules = choose_label_rules(cases, sensitivity=sensitivity, specificity=specificity, confidence=confidence)
    rules.save(out)
    lines = [evaluate_labels(cases).text(), rules.table().text(), rules.table().caption, f"Wrote {out}"]
    answer("\n".join(lines), {**rules.to_dict(), "path": str(out)}, as_json=as_json)


def _class_number(positive: str | None, predictions: "Predictions") -> int:
    """The number of the positive class, which is 1 by default."""
    from calibrant.predictions import names_or_numbers

    names = names_or_numbers(predictions.class_names, predictions.n_classes)
    if positive is None:
        return 1
    if positive in names:
        return names.index(positive)
    if positive in ("0", "1"):
        return int(positive)
    raise invalid("positive", "be a class", repr(positive), did_you_mean(positive, names))


@app.command(name="apply")
def apply_(
    policy: Path,
    source: Path,
    /,
    *,
    out: Annotated[Path, OutOr],
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    keep: Annotated[list[str] | None, Many] = None,
    as_json: Json = False,
) -> None:
    """Decide for each case of a file: auto or review; for several labels negative, positive or review.

    Args:
        policy: A policy written by "calibrant route fit" or "calibrant route labels".
        source: Raw predictions without or with targets: .csv, .parquet or .npz, of any length; or a run folder (its
            test predictions).
        out: Decisions: .csv or .parquet with columns id, decision, predicted, class, confidence and, if the policy has
            a shortlist, shortlist: the classes to look at first.
        keep: Other columns of the source that are written behind the decisions: groups for "calibrant monitor".
    """
    from calibrant.decisions import MultiLabel, Policy, route_file, route_labels
    from calibrant.runs import source_path

    rules = MultiLabel.of_file(policy)
    if rules is not None:
        refuse_with_labels(keep=keep, **vars(reading))
        refuse_overwriting([out], [policy, source])
        decided = route_labels(rules, source, out)
        rows = [(label, *(f"{count:,}" for count in counts.values())) for label, counts in decided.items()]
        table = Table("Decisions", rows, ("label", "negative", "positive", "for a person"))
        answer(f"{table.text()}\nWrote {out}", {"decided": decided, "path": str(out)}, as_json=as_json)
        return
    path = source_path(source, "test")
    refuse_overwriting([out], [policy, path])
    counts = route_file(Policy.load(policy), path, out, keep=keep or (), **reading.options())
    answer(f"{counts.describe()} Wrote {out}", {**asdict(counts), "path": str(out)}, as_json=as_json)


@app.command
def check(
    policy: Path,
    source: Path,
    /,
    *,
    confidence: float = 0.95,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Say whether the promises of a policy held on labelled cases; exit code 1 if one did not.

    Args:
        policy: A policy written by "calibrant route fit" or "calibrant route labels".
        source: Labelled raw predictions that the policy was not fitted on, or a run folder (its test predictions).
        confidence: Of the intervals. A promise counts as broken if the whole interval lies below it.
    """
    from calibrant.decisions import MultiLabel, Policy, check_policy, read_labels
    from calibrant.runs import load_predictions

    rules = MultiLabel.of_file(policy)
    if rules is not None:
        refuse_with_labels(**vars(reading))
        checked = rules.check(read_labels(source, rules.labels), confidence=confidence)
        answer(rules.table_of_check(checked).text(), checked, as_json=as_json)
        if not all(all(result["held"].values()) for result in checked.values()):
            raise CheckFailed("a promise did not hold")
        return
    loaded = Policy.load(policy)
    cases = load_predictions(source, "test", **reading.options(), known_classes=loaded.class_names)
    verdict = check_policy(loaded, cases, confidence=confidence)
    answer(verdict.describe(), verdict.to_dict(), as_json=as_json)
    if verdict.broken:
        raise CheckFailed("; ".join(verdict.broken))


@app.command(name="shortlist")
def shortlist_(
    policy: Path,
    source: Path,
    /,
    *,
    coverage: float = 0.95,
    confidence: float = 0.95,
    out: Out = None,
    reading: Reading = Reading(),  # noqa: B008 (it cannot be changed)
    as_json: Json = False,
) -> None:
    """Add a shortlist to a policy: for the cases that go to a person, the classes to show first.

    Args:
        policy: A policy written by "calibrant route fit".
        source: Labelled raw predictions that the policy was not fitted on, or a run folder (its test predictions).
        coverage: Share of the reviewed cases whose true class is to be on the list.
        confidence: Probability with which that promise holds.
        out: Where to write the policy. Default: the policy itself is updated.
    """
    from calibrant.decisions import Policy, choose_shortlist
    from calibrant.runs import load_predictions, source_path

    path, target = source_path(source, "test"), out or policy
    refuse_overwriting([target], [path])
    loaded = Policy.load(policy)
    cases = load_predictions(path, **reading.options(), known_classes=loaded.class_names)
    loaded.warn_if_seen(cases)
    chosen = choose_shortlist(loaded.calibrate(cases), coverage, confidence=confidence, rule=loaded.routing)
    replace(loaded, shortlist=chosen).save(target)
    content = {"shortlist": chosen.to_dict(), "path": str(target)}
    answer(f"{chosen.describe()}\nWrote {target}", content, as_json=as_json)
