"""A model card for the Hugging Face hub: calibration, what may be automated, and the reliability diagram."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.calibration import Calibrator
from calibrant.decisions import RoutingRule
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
    calibrator: Calibrator | None = None,
    rule: RoutingRule | None = None,
    name: str = "",
    task: str = "image-classification",
    dataset: str = "held-out cases",
    n_bins: int = DEFAULT_N_BINS,
) -> Path:
    """Write `README.md` and `reliability.png` into a model's folder, as the hub shows them.

    Of a card that is there already, only the part between two marks is replaced, and the metrics in its header: what
    you wrote stays.

    Args:
        folder: Where the model was saved (`trainer.save_model(folder)`).
        predictions: Labelled cases that neither the model nor the calibrator nor the rule has seen, as the model says
            them.
        calibrator: Shown beside the raw scores, and in the picture.
        rule: Chosen behind the calibrator; what it promises is quoted.
        name: Of the model; the folder's name by default.
        task: The hub's name of the task: "image-classification", "text-classification", "tabular-classification".
        dataset: What the cases are, in a few words.
        n_bins: Bins of the ECE and of the picture.
    """
    require_predictions(predictions)
    card_class = _model_card_class()
    place = as_path(folder, "folder")
    judged = predictions if calibrator is None else calibrator(predictions)
    found = {"raw": evaluate(predictions, n_bins)}
    if calibrator is not None:
        found["calibrated"] = evaluate(judged, n_bins)
    place.mkdir(parents=True, exist_ok=True)
    with atomic_write(place / "reliability.png") as temporary:
        reliability_diagram(judged, n_bins=n_bins).savefig(temporary, format="png", dpi=120)
    path = place / "README.md"
    card = card_class.load(path) if path.is_file() else card_class("---\n{}\n---\n")
    title = one_line(name or place.resolve().name)
    _describe(card.data, title, found, task=task, dataset=one_line(dataset))
    section = _section(found, calibrator, rule, dataset=one_line(dataset))
    card.text = _with_section(card.text, section) if path.is_file() else f"\n# {title}\n\n{section}\n"
    write_text(path, str(card))
    return path


def _describe(data: "ModelCardData", name: str, found: dict[str, Evaluation], *, task: str, dataset: str) -> None:
    """The header of the card: what the hub lists and filters by."""
    from huggingface_hub import EvalResult

    ours = {"accuracy", "ece", "nll"}
    kept = [each for each in data.eval_results or [] if each.metric_type not in ours or each.dataset_name != dataset]
    best = found.get("calibrated", found["raw"])
    values = {"accuracy": 1 - best.test_error, "ece": best.ece, "nll": best.nll}
    kind = re.sub(r"[^a-z0-9]+", "-", dataset.lower())
    where: dict[str, Any] = {"task_type": task, "dataset_type": kind, "dataset_name": dataset}
    # Rounded: the tenth digit of a metric tells nobody anything.
    new = [EvalResult(**where, metric_type=key, metric_value=round(value, 6)) for key, value in values.items()]
    data.model_name = data.model_name or name
    data.eval_results = kept + new
    data.pipeline_tag = data.pipeline_tag or task
    data.tags = sorted({*(data.tags or []), "calibration", "calibrant"})


def _section(
    found: dict[str, Evaluation], calibrator: Calibrator | None, rule: RoutingRule | None, *, dataset: str
) -> str:
    some = found["raw"]
    lines = [
        _BEGIN,
        "## How far its confidence can be trusted",
        f"Measured on {some.n:,} labelled cases ({dataset}).",
        "",
        "| | " + " | ".join(found) + " |",
        "|---|" + "---:|" * len(found),
        *(
            f"| {label(name)} | " + " | ".join(_shown(getattr(each, name)) for each in found.values()) + " |"
            for name in _SHOWN
        ),
        "| ECE of a perfect model with as many cases | "
        + " | ".join(_shown(each.noise_floor) for each in found.values())
        + " |",
        "",
        "![Reliability diagram: accuracy over confidence](reliability.png)",
    ]
    numbers = {}
    if calibrator is not None:
        numbers = calibrator.fitted_numbers()
    if "temperature" in numbers:
        lines += ["", f"**Temperature {numbers['temperature']:.4f}**: divide the logits by it before the softmax."]
    elif calibrator is not None:
        lines += ["", f"The calibrated scores come from `{type(calibrator).__name__}` of Calibrant."]
    if rule is not None:
        lines += ["", "## What it may decide alone", one_line(rule.note)]
        if rule.automates and rule.evidence is not None:
            lines += [
                f"Automated: {rule.automation_rate:.1%} of {rule.evidence.cases:,} cases; the rest goes to a person."
            ]
        lines += ["The promise is about cases like those that the rule was chosen on."]
    return "\n".join([*lines, _END])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _with_section(text: str, section: str) -> str:
    """The text with our part replaced, or added at its end."""
    pattern = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: section, text, count=1)
    return f"{text.rstrip()}\n\n{section}\n"


def _model_card_class() -> Any:
    with importing("a model card", "huggingface_hub", "transformers"):
        from huggingface_hub import ModelCard
    return ModelCard
