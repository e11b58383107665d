import json
import math

import pytest
import torch

from calibrant.training.step import TrainingMeter


def reference(batches):
    """Accuracy, confidence and ECE sample by sample; loss terms weighted by the size of their batch."""
    bins = [[0, 0.0, 0] for _ in range(10)]
    terms, samples = {}, 0
    for logits, targets, values in batches:
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
            top = max(row)
            confidence = 1 / sum(math.exp(value - top) for value in row)
            place = bins[max(math.ceil(confidence * 10) - 1, 0)]
            place[0] += 1
            place[1] += confidence
            place[2] += row.index(top) == target
        for name, value in values.items():
            terms[name] = terms.get(name, 0.0) + value * len(targets)
        samples += len(targets)
    return {
        "samples": samples,
        "accuracy": sum(place[2] for place in bins) / samples,
        "confidence": sum(place[1] for place in bins) / samples,
        "ece": sum(abs(place[1] - place[2]) for place in bins) / samples,
        "terms": {name: total / samples for name, total in terms.items()},
    }


def feed(meter, batches):
    for logits, targets, values in batches:
        terms = {name: torch.tensor(value) for name, value in values.items()}
        meter.update(logits, targets, terms, sum(terms.values()))
        meter.count_step()


def make_batches(seed):
    generator = torch.Generator().manual_seed(seed)
    for size in (8, 8, 3):
        logits = torch.randn(size, 4, generator=generator) * 2
        yield logits, torch.randint(0, 4, (size,), generator=generator), {"focal": 0.5 + size, "huber": 0.25}


def test_totals_are_those_of_a_plain_loop_and_start_anew_each_epoch():
    meter = TrainingMeter(torch.device("cpu"))
    for seed in (0, 1):
        meter.reset()
        batches = list(make_batches(seed))
        feed(meter, batches)
        found, expected = meter.read(), reference(batches)
        assert found.pop("loss") == pytest.approx(sum(expected["terms"].values()))
        assert found.pop("terms") == pytest.approx(expected.pop("terms"))
        assert found == pytest.approx(expected, rel=1e-6)
        assert meter.first_bad_step() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_read_in_float32(dtype):
    meter = TrainingMeter(torch.device("cpu"))
    batches = [(logits.to(dtype), targets, terms) for logits, targets, terms in make_batches(2)]
    feed(meter, batches)
    found, expected = meter.read(), reference(batches)
    assert found["confidence"] == pytest.approx(expected["confidence"], rel=1e-6)
    assert json.loads(json.dumps(found)) == found  # it goes into the log


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_remembered(bad):
    meter = TrainingMeter(torch.device("cpu"))
    logits, targets = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    for first in (0, 1, 2):
        meter.reset()
        assert meter.first_bad_step() is None
        for value in (*[1.0] * first, bad, 3.0, bad):
            meter.update(logits, targets, {"loss": torch.tensor(value)}, torch.tensor(value))
            meter.count_step()
        assert meter.first_bad_step() == first


def test_no_digit_of_a_loss_is_lost():
    meter = TrainingMeter(torch.device("cpu"))
    large = 2.0**24 - 1  # three times this is no float32, nor is one more than the sum
    for value, size in ((large, 3), (1.0, 1)):
        meter.update(
            torch.zeros(size, 2), torch.zeros(size, dtype=torch.int64), {"a": torch.tensor(value)}, torch.tensor(value)
        )
    assert meter.read()["terms"] == {"a": (3 * large + 1) / 4}
    assert meter.confidence.dtype == torch.float64
    assert {meter.counts.dtype, meter.correct.dtype, meter.steps.dtype} == {torch.int64}
