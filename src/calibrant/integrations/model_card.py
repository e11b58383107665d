"""A model card for the Hugging Face hub: calibration, what may be automated, and the reliability diagram."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.decisions.policy import Policy, PolicyLike, as_policy
from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import importing, one_line
from calibrant.files import as_path, atomic_write, write_text
from calibrant.metrics import Evaluation, evaluate
from calibrant.metrics.metric import label
from calibrant.predictions import Predictions, require_predictions
from calibrant.report import reliability_diagram

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

_BEGIN, _END = "<!-- calibrant: begin -->", "<!-- calibrant: end -->"
_SHOWN = ("test_error", "nll", "brier", "ece", "auroc")


def write_model_card(
    folder: str | Path,
    predictions: Predictions,
    *,
    policy: PolicyLike | None = None,
    name: str = "",
    task: str = "image-classification",
    dataset: str = "held-out cases",
    n_bins: int = DEFAULT_N_BINS,
) -> Path:
    """Write `README.md` and `reliability.png` into a model's folder, as the hub shows them.

    Of an existing card only the part between two marks and the metrics in its header are replaced: what you wrote
    stays.

    Args:
        folder: Where the model was saved (`trainer.save_model(folder)`).
        predictions: Labelled cases with raw scores that neither the model nor the policy was fitted on.
        policy: A policy or its file. Calibrated scores are shown beside the raw ones and in the picture; the promise of
            its rule is quoted.
        name: Name of the model; the folder's name by default.
        task: The hub's name of the task: "image-classification", "text-classification", "tabular-classification".
        dataset: What the cases are, in a few words.
        n_bins: Bins of the ECE and of the picture.
    """
    require_predictions(predictions)
    with importing("a model card", "huggingface_hub", "transformers"):
        from huggingface_hub import ModelCard
    place = as_path(folder, "folder")
    shown, measured = predictions, {"raw": evaluate(predictions, n_bins=n_bins)}
    if policy is not None:
        policy = as_policy(policy)
        if policy.calibrated:
            shown = policy.calibrate(predictions)
            measured["calibrated"] = evaluate(shown, n_bins=n_bins)
    place.mkdir(parents=True, exist_ok=True)
    with atomic_write(place / "reliability.png") as temporary:
        reliability_diagram(shown, n_bins=n_bins).savefig(temporary, format="png", dpi=120)
    path = place / "README.md"
    title = one_line(name or place.resolve().name)
    section = _section(measured, policy, dataset=one_line(dataset))
    if path.is_file():
        card = ModelCard.load(path)
        ours = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
        if ours.search(card.text):
            card.text = ours.sub(lambda _: section, card.text, count=1)
        else:
            card.text = f"{card.text.rstrip()}\n\n{section}\n"
    else:
        card = ModelCard("---\n{}\n---\n")
        card.text = f"\n# {title}\n\n{section}\n"
    _describe(card.data, title, measured, task=task, dataset=one_line(dataset))
    write_text(path, str(card))
    return path


def _describe(data: "ModelCardData", name: str, measured: dict[str, Evaluation], *, task: str, dataset: str) -> None:
    """The header of the card: what the hub lists and filters by."""
    from huggingface_hub import EvalResult

    ours = {"accuracy", "ece", "nll"}
    kept = [old for old in data.eval_results or [] if old.metric_type not in ours or old.dataset_name != dataset]
    best = measured.get("calibrated", measured["raw"])
    values = {"accuracy": 1 - best.test_error, "ece": best.ece, "nll": best.nll}
    kind = re.sub(r"[^a-z0-9]+", "-", dataset.lower())
    where: dict[str, Any] = {"task_type": task, "dataset_type": kind, "dataset_name": dataset}
    # Rounded: the tenth digit of a metric has no meaning.
    new = [EvalResult(**where, metric_type=key, metric_value=round(value, 6)) for key, value in values.items()]
    data.model_name = data.model_name or name
    data.eval_results = kept + new
    data.pipeline_tag = data.pipeline_tag or task
    data.tags = sorted({*(data.tags or []), "calibration", "calibrant"})


def _section(measured: dict[str, Evaluation], policy: Policy | None, *, dataset: str) -> str:
    columns = list(measured.values())
    lines = [
        _BEGIN,
        "## How far its confidence can be trusted",
        f"Measured on {columns[0].n:,} labelled cases ({dataset}).",
        "",
        "| | " + " | ".join(measured) + " |",
        "|---|" + "---:|" * len(measured),
        *(_row(label(name), [getattr(column, name) for column in columns]) for name in _SHOWN),
        _row("ECE of a perfect model with as many cases", [column.noise_floor for column in columns]),
        "",
        "![Reliability diagram: accuracy over confidence](reliability.png)",
    ]
    if policy is not None and policy.calibrator is not None:
        temperature = policy.calibrator.fitted_numbers().get("temperature")
        if temperature is not None:
            lines += ["", f"**Temperature {temperature:.4f}**: divide the logits by it before the softmax."]
        else:
            lines += ["", f"The calibrated scores come from `{type(policy.calibrator).__name__}` of Calibrant."]
    if policy is not None and policy.rule is not None:
        rule = policy.routing
        lines += ["", "## What it may decide alone", one_line(rule.note)]
        if rule.automates and rule.evidence is not None:
            lines += [
                f"Automated: {rule.automation_rate:.1%} of {rule.evidence.cases:,} cases; the rest goes to a person."
            ]
        lines += ["The promise is about cases like those that the rule was chosen on."]
    return "\n".join([*lines, _END])


def _row(name: str, values: list[float | None]) -> str:
    cells = ["-"] * len(values)
    for column, value in enumerate(values):
        if value is not None:
            cells[column] = f"{value:.4f}"
    return f"| {name} | {' | '.join(cells)} |"
