"""Meters: exact, constant in size, additive, strict."""

import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from calibrant import Predictions
from calibrant import metrics as m
from calibrant.errors import InvalidInput
from calibrant.integrations import meters as i
from calibrant.integrations.meters import Meter, add_bin_by_bin, bad_rows, read_batch
from calibrant.integrations.on_device import device_edges


def batch(rows, classes, kind, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # Drawn in float64, so that float64 scores have digits that no float32 has.
    scores = (torch.randn(rows, classes, generator=generator, dtype=torch.float64) * 3).to(dtype)
    targets = torch.randint(0, classes, (rows,), generator=generator)
    return (scores.double().softmax(1).to(dtype) if kind == "probabilities" else scores), targets


def all_meters(classes, kind):
    return {
        "ece": i.CalibrationError(15, kind=kind),
        "mce": i.CalibrationError(15, kind=kind, norm="maximum"),
        "classwise": i.ClasswiseCalibrationError(classes, 15, kind=kind),
        "nll": i.NegativeLogLikelihood(kind=kind),
        "brier": i.BrierScore(kind=kind),
        "share": i.ConfidentSetMeter(0.9, "share", kind=kind),
        "accuracy": i.ConfidentSetMeter(0.9, "accuracy", kind=kind),
        "set_ece": i.ConfidentSetMeter(0.9, "ece", kind=kind),
    }


def one_shot(p):
    inside = m.confident_set(p, 0.9)
    return {
        "ece": m.expected_calibration_error(p, 15),
        "mce": m.maximum_calibration_error(p, 15),
        "classwise": m.classwise_calibration_error(p, 15),
        "nll": m.negative_log_likelihood(p),
        "brier": m.brier_score(p),
        "share": inside.share,
        "accuracy": inside.accuracy,
        "set_ece": inside.ece,
    }


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 7, 120])
def test_batches_give_the_one_shot_value(kind, dtype, classes):
    scores, targets = batch(400, classes, kind, dtype)
    expected = one_shot(getattr(Predictions, f"from_{kind}")(scores, targets))
    for name, meter in all_meters(classes, kind).items():
        for part in torch.arange(400).split(37):
            meter.update(scores[part], targets[part])
        assert meter.compute().item() == pytest.approx(expected[name], abs=1e-12), name


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(1, 15), st.data())
def test_any_split_into_batches_merges_by_addition(rows, classes, n_bins, data):
    scores, targets = batch(rows, classes, "logits", seed=rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    meters = []
    for part in np.split(np.arange(rows), cuts):
        if len(part):
            meters.append(i.CalibrationError(n_bins, kind="logits"))
            meters[-1].update(scores[part], targets[part])
    total = meters[0]
    for meter in meters[1:]:
        total.merge_state(meter)
    whole = m.expected_calibration_error(Predictions.from_logits(scores, targets), n_bins)
    assert total.compute().item() == pytest.approx(whole, abs=1e-13)


def test_classwise_sums_for_other_devices_are_those_of_the_cpu():
    scores, targets = batch(400, 6, "probabilities", torch.float64)
    edges = device_edges(15, torch.float64, scores.device)
    gaps = scores - torch.nn.functional.one_hot(targets, 6)
    found = add_bin_by_bin(scores, gaps, edges)
    meter = i.ClasswiseCalibrationError(6, 15, kind="probabilities")
    meter.update(scores, targets)
    torch.testing.assert_close(found, meter.gap_sums, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 10, 300])
def test_ties_give_what_rows_read_one_by_one_give(classes, dtype, kind):
    rng = np.random.default_rng(classes)
    grid = torch.from_numpy(rng.multinomial(32, rng.dirichlet(np.full(classes, 0.5), 600)) / 32).to(dtype)
    targets = torch.from_numpy(rng.integers(0, classes, 600))
    meters = [i.CalibrationError(15, kind=kind), i.ConfidentSetMeter(0.5, "ece", kind=kind)]
    for meter in meters:
        for part in torch.arange(600).split(100):
            meter.update(grid[part], targets[part])
    rows = (grid.double() if kind == "probabilities" else grid.double().softmax(dim=1)).tolist()
    edges = (torch.arange(16, dtype=torch.float64) / 15).to(dtype if kind == "probabilities" else torch.float64)
    counts, sums, right = np.zeros((3, 15))
    for row, raw, target in zip(rows, grid.tolist(), targets.tolist(), strict=True):
        bin_ = next(k for k in range(15) if max(row) <= edges[k + 1].item() or k == 14)
        counts[bin_] += 1
        sums[bin_] += max(row)
        right[bin_] += raw.index(max(raw)) == target
    assert meters[0].counts.tolist() == counts.tolist()
    assert meters[0].correct_sums.tolist() == right.tolist()
    np.testing.assert_allclose(meters[0].confidence_sums, sums, rtol=1e-12)
    assert meters[1].counts.sum().item() == sum(max(row) >= 0.5 for row in rows)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_update_on_a_device_never_asks_for_a_value(kind):
    # Tensors on "meta" have shapes but no values: any synchronisation or data-dependent shape is an error there.
    scores, targets = (each.to("meta") for each in batch(16, 6, kind))
    for meter in all_meters(6, kind).values():
        meter.to("meta").update(scores, targets)
    with pytest.raises((RuntimeError, NotImplementedError)):
        scores.sum().item()


def test_other_devices_count_the_rows_that_the_cpu_refuses():
    scores = torch.tensor([[1.0, 0.0], [torch.nan, 0.5], [0.2, 0.3], [1.2, -0.2], [0.5, 0.5], [0.5, 0.5]])
    targets = torch.tensor([0, 0, 0, 0, 2, -1])
    assert bad_rows(scores, targets, "probabilities").tolist() == [False, True, True, True, True, True]
    logits = torch.tensor([[3e38, 3e38], [torch.inf, 0], [0, -torch.inf], [torch.nan, 0]])
    assert bad_rows(logits, torch.zeros(4, dtype=torch.int64), "logits").tolist() == [False, True, True, True]
    for meter in all_meters(2, "probabilities").values():
        meter._add_batch(scores.nan_to_num(), targets, None)  # wrong labels must not index out of bounds


class Elsewhere(torch.Tensor):
    """A CPU tensor that claims to lie on another device."""

    device = torch.device("meta")


def test_update_on_a_device_counts_what_it_cannot_refuse():
    meter = i.NegativeLogLikelihood(kind="logits")
    good, bad = torch.zeros(2, 4), torch.tensor([[torch.nan, 0.0, 0.0, 0.0]]).expand(3, 4)
    for scores in (good, torch.cat([good, bad])):
        meter.update(scores.as_subclass(Elsewhere), torch.zeros(len(scores), dtype=torch.int64))
    assert (meter.refused.item(), meter.rows.item()) == (3, 7)


@pytest.mark.parametrize(
    ("scores", "targets", "match"),
    [
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), "targets must"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool), "targets must"),
        (torch.zeros(2, 3), torch.zeros(2), "targets must"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), "floating-point"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), "at least one row"),
    ],
)
def test_forms_are_refused_on_a_device_too(scores, targets, match):
    with pytest.raises(InvalidInput, match=match):
        i.BrierScore(kind="logits").to("meta").update(scores.to("meta"), targets.to("meta"))


def test_a_sum_slightly_above_one_means_one_on_a_device_too():
    confidence, correct = read_batch(torch.tensor([[1.00005, 0.0], [0.3, 0.7]]), torch.tensor([0, 0]), "probabilities")
    assert confidence.tolist() == [1.0, torch.tensor(0.7).item()]
    assert correct.tolist() == [True, False]


def test_forty_million_rows_in_one_bin_are_counted():
    # float32 counts stop at 2^24, and the answer becomes 0.
    scores = torch.tensor([[0.55, 0.45]]).expand(1_000_000, 2)
    targets = torch.zeros(1_000_000, dtype=torch.int64).index_fill_(0, torch.arange(900_000), 1)
    meter = i.CalibrationError(10, kind="probabilities")
    for _ in range(40):
        meter.update(scores, targets)
    assert meter.counts[5].item() == 40_000_000
    assert meter.correct_sums[5].item() == 4_000_000
    assert meter.compute().item() == pytest.approx(float(np.float32(0.55)) - 0.1, abs=1e-12)


def test_size_is_constant():
    meter = i.CalibrationError(15, kind="logits")
    sizes = set()
    for _ in range(5):
        meter.update(*batch(50, 4, "logits"))
        sizes.add(sum(state.numel() for state in meter.metric_state.values()))
    assert sizes == {3 * 15 + 1}


def test_in_a_collection_forward_and_reset():
    scores, targets = batch(64, 5, "logits")
    collection = MetricCollection(all_meters(5, "logits"))
    step = collection(scores[:32], targets[:32])  # forward gives the value of the batch
    collection.update(scores[32:], targets[32:])
    first = one_shot(Predictions.from_logits(scores[:32], targets[:32]))
    whole = one_shot(Predictions.from_logits(scores, targets))
    for name, value in collection.compute().items():
        assert value.item() == pytest.approx(whole[name], abs=1e-12)
        assert step[name].item() == pytest.approx(first[name], abs=1e-12)
    collection.reset()
    collection.update(scores[:32], targets[:32])
    assert collection.compute()["ece"].item() == pytest.approx(first["ece"], abs=1e-12)


def test_a_collection_never_takes_one_meter_for_another():
    # Up to the first batch all these have seen the same: no confident row, no loss at all.
    kind = "probabilities"
    share = MetricCollection({name: i.ConfidentSetMeter(float(f"0.{name}"), kind=kind) for name in ("9", "99")})
    loss = MetricCollection({"nll": i.NegativeLogLikelihood(kind=kind), "brier": i.BrierScore(kind=kind)})
    share.update(torch.tensor([[0.6, 0.4]]), torch.tensor([0]))
    loss.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    for each in (share, loss):
        each.update(torch.tensor([[0.95, 0.05]], dtype=torch.float64), torch.tensor([0]))
    assert {name: value.item() for name, value in share.compute().items()} == {"9": 0.5, "99": 0.0}
    expected = {"nll": -np.log(0.95) / 2, "brier": 0.0025}
    assert {name: value.item() for name, value in loss.compute().items()} == pytest.approx(expected, abs=1e-12)


def test_state_survives_saving_and_half_precision_models():
    meter = i.CalibrationError(10, kind="logits").half()
    meter.persistent(mode=True)
    meter.update(*batch(40, 3, "logits"))
    again = i.CalibrationError(10, kind="logits")
    again.persistent(mode=True)
    again.load_state_dict(meter.state_dict())
    again._update_count = 1
    assert again.compute().item() == meter.compute().item()
    assert again.confidence_sums.dtype == torch.float64


def test_empty_sets_are_nan():
    meter = i.ConfidentSetMeter(0.99, "accuracy", kind="probabilities")
    meter.update(torch.tensor([[0.6, 0.4]]), torch.tensor([0]))
    assert torch.isnan(meter.compute())


def test_one_row_has_a_maximum_error():
    meter = i.CalibrationError(10, kind="probabilities", norm="maximum")
    meter.update(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    assert meter.compute().item() == 0.25


GOOD = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("scores", "targets", "match"),
    [
        (torch.tensor([[0.7, 0.3], [torch.nan, 0.6]]), LABELS, "finite, got nan in row 1, column 0"),
        (torch.tensor([[0.7, 0.3], [0.2, 0.3]]), LABELS, "sum to 1"),
        (torch.tensor([[1.2, -0.2], [0.4, 0.6]]), LABELS, "not be negative, got -0.2 in row 0"),
        (GOOD, torch.tensor([0, 2]), "targets must"),
        (GOOD, torch.tensor([0.0, 1.0]), "targets must"),
        (GOOD, torch.tensor([0]), "targets must"),
        (GOOD[0], LABELS, r"shape \(n, K\)"),
        (GOOD[:0], LABELS[:0], "at least one row"),
        (GOOD[:, :1], LABELS, r"two classes, got shape \(2, 1\)\. Of two classes give both: .*1 - p, p"),
        (GOOD.to(torch.int64), LABELS, "floating-point"),
        (GOOD.numpy(), LABELS, "probabilities must be a torch tensor, got ndarray. Make one with torch.as_tensor"),
        (GOOD.tolist(), LABELS, "probabilities must be a torch tensor, got list"),
        (None, LABELS, "probabilities must be a torch tensor, got None"),
        (GOOD, LABELS.numpy(), "targets must be a torch tensor, got ndarray"),
        (GOOD, LABELS.tolist(), "targets must be a torch tensor, got list"),
    ],
)
def test_bad_batches_are_refused(scores, targets, match):
    for meter in all_meters(2, "probabilities").values():
        with pytest.raises(InvalidInput, match=match):
            meter.update(scores, targets)
        assert all(state.sum() == 0 for state in meter.metric_state.values())


def test_an_array_is_refused_in_a_later_batch_too():
    meter = i.CalibrationError(kind="probabilities")
    meter.update(GOOD, LABELS)
    with pytest.raises(InvalidInput, match="probabilities must be a torch tensor, got ndarray"):
        meter.update(GOOD.numpy(), LABELS.numpy())
    meter.update(GOOD, LABELS)
    assert int(meter.counts.sum()) == 4


def test_infinite_logits_are_refused():
    with pytest.raises(InvalidInput, match="logits must be finite, got -inf in row 0, column 1"):
        i.CalibrationError(kind="logits").update(torch.tensor([[0.0, -torch.inf]]), torch.tensor([0]))


def test_rows_refused_on_a_device_surface_in_compute():
    meter = i.CalibrationError(kind="logits")
    meter.update(*batch(4, 3, "logits"))
    meter.refused += 2  # what an update with two bad rows leaves on a GPU, where it must not wait
    with pytest.raises(InvalidInput, match="got 2 rows that do not"):
        meter.compute()


def test_the_kind_is_never_guessed():
    with pytest.raises(TypeError, match="kind"):
        i.CalibrationError(15)
    for options, match in (({"kind": "odds"}, "kind"), ({"kind": "logits", "norm": "l2"}, "norm")):
        with pytest.raises(InvalidInput, match=f"{match} must be"):
            i.CalibrationError(15, **options)
    with pytest.raises(InvalidInput, match="what must be"):
        i.ConfidentSetMeter(0.9, "size", kind="logits")
    for bad in (0, True, 2.0):
        with pytest.raises(InvalidInput, match="n_classes must be"):
            i.ClasswiseCalibrationError(bad, kind="logits")
    with pytest.raises(InvalidInput, match="have 3 columns"):
        i.ClasswiseCalibrationError(3, kind="probabilities").update(GOOD, LABELS)
    # Logits that happen to lie in [0, 1] are still logits.
    meter = i.CalibrationError(1, kind="logits")
    meter.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    assert meter.compute().item() == pytest.approx(
        1 - 1 / (1 + np.exp(-float(np.float32(0.9) - np.float32(0.1)))), abs=1e-7
    )


def test_metrics_do_not_import_torchmetrics_until_a_meter_is_used(python):
    code = (
        "import sys, calibrant.integrations as m; assert 'torchmetrics' not in sys.modules; m.BrierScore; print('ok')"
    )
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "ok\n"


def test_bins_and_threshold_unless_told():
    meters = i.CalibrationError(kind="logits"), i.ClasswiseCalibrationError(3, kind="logits")
    assert [meter.n_bins for meter in meters] == [15, 15]
    confident = i.ConfidentSetMeter(kind="logits")
    assert (confident.n_bins, confident.threshold, confident.what) == (15, 0.95, "share")


def test_every_meter_is_one():
    assert all(isinstance(meter, Meter) for meter in all_meters(3, "logits").values())


@pytest.mark.parametrize(
    ("kind", "shape", "hint", "rows"),
    [
        ("probabilities", (6,), "torch.stack([1 - p, p], dim=1)", lambda p: torch.stack([1 - p, p], dim=1)),
        (
            "logits",
            (6,),
            "torch.stack([torch.zeros_like(z), z], dim=1)",
            lambda z: torch.stack([torch.zeros_like(z), z], dim=1),
        ),
        ("logits", (2, 3, 4, 5), "logits.movedim(1, -1).flatten(0, -2)", lambda z: z.movedim(1, -1).flatten(0, -2)),
        ("logits", (2, 4, 3), "logits.flatten(0, -2) and targets.flatten()", lambda z: z.flatten(0, -2)),
    ],
)
def test_the_way_out_of_a_wrong_shape_leads_out(kind, shape, hint, rows):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(shape, generator=generator)
    places = shape[:1] + shape[2:] if len(shape) == 4 else shape[:2]
    targets = torch.randint(0, 2, places, generator=generator)
    meter = i.CalibrationError(kind=kind)
    with pytest.raises(InvalidInput, match=r"must have shape \(n, K\)") as caught:
        meter.update(scores, targets)
    assert hint in str(caught.value)
    meter.update(rows(scores), targets.flatten())
    assert int(meter.counts.sum()) == targets.numel()


def test_one_hot_targets_are_told_from_labels():
    with pytest.raises(InvalidInput, match="targets must"):
        i.CalibrationError(kind="logits").update(torch.zeros(3, 2), torch.eye(3, 2).long())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_cast_network_leaves_its_meters_exact(dtype):
    """`half()` never touched them; `to(dtype)`, as Lightning's bf16-true calls it, would sum in that type."""
    for name, meter in all_meters(2, "probabilities").items():
        meter.update(GOOD.double(), LABELS)
        expected, states = meter.compute(), {key: value.clone() for key, value in meter.metric_state.items()}
        torch.nn.ModuleList([torch.nn.Linear(2, 2), meter]).to(dtype)
        torch.testing.assert_close(meter.compute(), expected, rtol=0, atol=0, equal_nan=True, msg=name)
        assert all(torch.equal(value, states[key]) for key, value in meter.metric_state.items()), name
        meter.reset()
        meter.update(GOOD.double(), LABELS)
        torch.testing.assert_close(meter.compute(), expected, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("n_bins", [1, 2, 3, 10, 15, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_confidences_on_and_beside_an_edge_fall_into_the_lower_bin_and_the_next(n_bins, dtype):
    edges = (torch.arange(n_bins + 1, dtype=torch.float64) / n_bins).to(dtype)
    one, zero = torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
    top = torch.cat([edges, edges.nextafter(one), edges.nextafter(zero)])
    top = top[top >= 0.5]
    meter = i.CalibrationError(n_bins, kind="probabilities")
    meter.update(torch.stack([top, 1 - top], dim=1), torch.zeros(len(top), dtype=torch.int64))
    inner = edges[1:-1].double()
    expected = torch.bucketize(top.double(), inner).bincount(minlength=n_bins)
    assert torch.equal(meter.counts, expected)
