"""Hugging Face's `Trainer` with our losses and metrics, and what it predicts as `Predictions`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from calibrant.defaults import DEFAULT_N_BINS
from calibrant.errors import invalid
from calibrant.losses import Loss
from calibrant.metrics import evaluate
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    from transformers import EvalPrediction


def trainer_loss(criterion: Loss) -> Callable[..., Tensor]:
    """A `compute_loss_func` for the `Trainer`, which minimises one of our losses.

    The model must return a dictionary with `logits`, as the classifiers of transformers do. With gradient accumulation
    each batch counts by its size, and a loss of the whole batch, such as `HuberCalibration`, is computed on each.

    Args:
        criterion: A loss of `calibrant.losses`, or a sum of them.
    """
    if not isinstance(criterion, Loss):
        raise invalid("criterion", "be a loss of calibrant.losses", type(criterion).__name__)

    def compute(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if not isinstance(outputs, Mapping) or "logits" not in outputs:
            raise invalid("the model", "return a dictionary with 'logits'", type(outputs).__name__)
        loss: Tensor = criterion.to(labels.device)(outputs["logits"], labels)
        if num_items_in_batch is not None:
            # Trainer adds up the losses of the batches that share a step.
            loss = loss * len(labels) / num_items_in_batch
        return loss

    return compute


def calibration_metrics(
    n_bins: int = DEFAULT_N_BINS, *, thresholds: Sequence[float] = (0.95, 0.99)
) -> "Callable[[EvalPrediction], dict[str, float]]":
    """A `compute_metrics` for the `Trainer`: every metric of `calibrant.evaluate` as a plain number.

    The names are those of `Evaluation.values()`, for example `test_error`, `ece`, `share@0.95`, `ece@0.95`, and
    `noise_floor`; the `Trainer` adds `eval_`. What is not defined (an AUROC without errors) is left out. `thresholds`
    are the least confidences of the high-confidence sets.
    """

    def compute(prediction: "EvalPrediction") -> dict[str, float]:
        result = evaluate(predictions_of(prediction), n_bins=n_bins, thresholds=thresholds)
        values = {**result.values(), "noise_floor": result.noise_floor}
        return {name: float(value) for name, value in values.items() if value is not None}

    return compute


def predictions_of(output: Any, *, class_names: Sequence[str] | None = None) -> Predictions:
    """What `Trainer.predict(dataset)` returned, as `Predictions`.

    Args:
        output: With `predictions` (logits, or a tuple that begins with them) and `label_ids`.
        class_names: One for each class, for example `model.config.id2label.values()`.
    """
    logits = output.predictions
    if isinstance(logits, tuple | list):
        logits = logits[0]
    if output.label_ids is None:
        raise invalid("output", "have labels", "none", "Give the dataset a column 'labels'.")
    if class_names is not None:
        class_names = list(class_names)
    return Predictions.from_logits(logits, output.label_ids, class_names=class_names)
