"""The interface of Hugging Face's `evaluate`, with the numbers of `calibrant.evaluate`."""

import numpy as np
import pytest
import torch

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.integrations.any_loop import CalibrationMetric

LOGITS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 40)


def test_batches_and_one_call_give_what_evaluate_finds():
    result = evaluate(Predictions.from_logits(LOGITS, LABELS), n_bins=10, thresholds=(0.5,))
    expected = {name: value for name, value in result.values().items() if value is not None}
    metric = CalibrationMetric("logits", n_bins=10, thresholds=(0.5,))
    whole = metric.compute(predictions=LOGITS.tolist(), references=LABELS.tolist())
    assert whole == pytest.approx({**expected, "noise_floor": result.noise_floor}, rel=1e-6)
    for part in np.array_split(np.arange(39), 4):
        metric.add_batch(predictions=torch.tensor(LOGITS[part]), references=torch.tensor(LABELS[part]))
    metric.add(prediction=LOGITS[39], reference=LABELS[39])
    assert metric.compute() == pytest.approx(whole, rel=1e-6)
    with pytest.raises(InvalidInput, match=r"^predictions must be given"):
        metric.compute()  # the cases are forgotten


def test_probabilities_and_some_names_alone():
    chances = np.array([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [0.25, 0.75]])
    metric = CalibrationMetric("probabilities", only=["ece", "test_error", "auroc"])
    # All are right: AUROC is not defined. The ECE is 1 - 0.75.
    assert metric.compute(predictions=chances, references=[0, 0, 0, 1]) == {"ece": 0.25, "test_error": 0.0}
    metric.add_batch(predictions=torch.tensor(chances, dtype=torch.bfloat16), references=[0, 0, 1, 1])
    assert metric.compute() == {"ece": 0.0, "test_error": 0.25, "auroc": 0.5}


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda m: m.compute(predictions=LOGITS), "predictions and references must be given together"),
        (lambda m: m.compute(predictions=LABELS, references=LABELS), r"predictions and references must be \(n, K\)"),
        (lambda m: m.add_batch(predictions=LOGITS, references=LABELS[:3]), "predictions and references must be"),
        (lambda m: CalibrationMetric("scores"), "kind must be 'logits' or 'probabilities'"),
    ],
)
def test_bad_input_is_one_line(call, line):
    with pytest.raises(InvalidInput, match=f"^{line}"):
        call(CalibrationMetric("logits"))
