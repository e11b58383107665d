"""What every calibrator must do."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.base import clone

from calibrant.calibration import (
    METHODS,
    BetaCalibration,
    Calibrator,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    make_calibrator,
)
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.files import parse_json, sha256_of
from calibrant.predictions import Predictions, RowsPart


def quick(name):
    """A calibrator by name, without the cross-validation of regularisers."""
    calibrator = make_calibrator(name)
    return type(calibrator)(reg_lambda=0.1) if "reg_lambda" in calibrator.get_params() else calibrator


def slow_nll(logits, targets):
    z = logits - logits.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(z)), targets]))


@pytest.fixture(params=list(METHODS), scope="module")
def name(request):
    return request.param


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(6, 60),
    classes=st.integers(2, 5),
    temperature=st.sampled_from([-1.0, 0.05, 0.5, 1.0, 4.0]),
)
def test_never_worse_than_nothing_on_the_fit_set(draw, name, seed, n, classes, temperature):
    logits, targets = draw(n, classes, temperature=temperature, seed=seed)
    if len(set(targets)) < 2:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        found = quick(name).fit(logits, targets)
    logs = found.transform_logits(logits)
    after = -np.mean(logs[np.arange(n), targets])
    assert after <= slow_nll(logits, targets) + 1e-9
    assert after == pytest.approx(found.summary_.nll_after, abs=1e-9)
    assert found.summary_.nll_before == pytest.approx(slow_nll(logits, targets), abs=1e-9)
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0, rtol=1e-9)


def test_a_map_that_would_harm_is_not_kept(draw):
    class Harmful(TemperatureScaling):
        method = "harmful"

        def _formula(self, operations, logits):
            return super()._formula(operations, logits[:, ::-1])

    logits, targets = draw(200)
    with pytest.warns(CalibrantWarning, match="larger NLL"):
        found = Harmful().fit(logits, targets)
    assert found.identity_
    np.testing.assert_allclose(found.transform(logits), torch.softmax(torch.tensor(logits), 1).numpy(), rtol=1e-12)


@pytest.mark.parametrize(("classes", "missing"), [(2, None), (4, None), (4, 0)])
def test_save_and_load_bit_for_bit(draw, name, tmp_path, classes, missing):
    logits, targets = draw(200, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)  # some say that a class has no case
        found = quick(name).fit(logits, np.where(targets == missing, 1, targets))
    found.save(tmp_path / "calibrator.json")
    for reader in (Calibrator, type(found)):
        again = reader.load(tmp_path / "calibrator.json")
        assert type(again) is type(found)
        assert again.get_params() == found.get_params()
        assert again.summary_ == found.summary_
        np.testing.assert_array_equal(again.transform(logits), found.transform(logits))


def test_an_ordinary_fit_converges(draw, name):
    assert quick(name).fit(*draw(500)).summary_.converged


@pytest.mark.parametrize(
    ("module", "calibrator", "classes"),
    [
        ("affine", VectorScaling(reg_lambda=0.1), 4),
        ("affine", MatrixScaling(reg_lambda=100.0), 39),
        ("curves", BetaCalibration(), 4),
    ],
    ids=["trust region", "L-BFGS", "beta"],
)
def test_a_search_that_is_cut_short_says_so(draw, monkeypatch, module, calibrator, classes):
    def one_step(*arguments, options, **more):
        return minimize(*arguments, options={**options, "maxiter": 1}, **more)

    monkeypatch.setattr(f"calibrant.calibration.{module}.minimize", one_step)
    with pytest.warns(CalibrantWarning, match="optimum was not reached"):
        found = calibrator.fit(*draw(2000, classes, temperature=3.0))
    assert not found.summary_.converged


def test_containers_and_types(draw, name):
    logits, targets = draw(200)
    found = quick(name).fit(logits, targets)
    exact = found.transform(logits)
    assert exact.dtype == np.float64
    assert found.transform(logits.astype(np.float32)).dtype == np.float32
    assert found.transform(logits.astype(np.float16)).dtype == np.float32
    for dtype, wanted in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        tensor = found.transform(torch.tensor(logits, dtype=dtype, requires_grad=True))
        assert tensor.dtype == wanted
        assert not tensor.requires_grad
    np.testing.assert_array_equal(found.transform(torch.tensor(logits)).numpy(), exact)
    # Files of other machines: the same numbers in the other byte order.
    np.testing.assert_allclose(found.transform(logits.astype(">f8")), exact, rtol=1e-6)


def test_blocks_do_not_show(draw, name):
    found = quick(name).fit(*draw(300))
    logits, _ = draw(20_000)  # more than a block of 65,536 numbers
    rows = [0, 1, 9_999, 16_383, 16_384, 19_999]
    alone = np.concatenate([found.transform(logits[row : row + 1]) for row in rows])
    np.testing.assert_allclose(found.transform(logits)[rows], alone, rtol=1e-12)


def test_clone_by_scikit_learn(name):
    calibrator = quick(name)
    twin = clone(calibrator)
    assert twin is not calibrator
    assert twin.get_params() == calibrator.get_params()


def test_use_before_fit(name):
    with pytest.raises(InvalidInput, match="not fitted"):
        make_calibrator(name).transform(np.zeros((2, 2)))
    with pytest.raises(InvalidInput, match="not fitted"):
        make_calibrator(name).save("nowhere.json")


# -- bad input ---------------------------------------------------------------------------------------------------

GOOD = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0], [1.0, 0.0, 2.5], [0.5, 1.0, 0.0]])
LABELS = np.array([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (GOOD, np.zeros(4, dtype=int), "at least two classes, got class 0 in all 4 cases"),
        (np.ones((4, 3)), LABELS, "differ between cases, got the same prediction in every row"),
        (np.tile([1.0, 2.0, 3.0], (4, 1)) + np.arange(4)[:, None], LABELS, "differ between cases"),
        (np.where(np.eye(4, 3) > 0, np.nan, GOOD), LABELS, "logits must be finite, .* in row 0"),
        (np.where(GOOD == 2.5, np.inf, GOOD), LABELS, "logits must be finite, .* in row 2"),
        (np.where(GOOD == 2.5, 1.7e308, GOOD), LABELS, r"at most 1e\+30 in size, got .* in row 2"),
        (Predictions.from_logits(GOOD, LABELS), LABELS, "targets must be left out with predictions"),
        (None, LABELS, "logits must have shape"),
        (GOOD[:, 0], LABELS, r"logits must have shape .* use Predictions.from_binary"),
        (GOOD[:0], LABELS[:0], "logits must have shape"),
        (GOOD[:, :1], LABELS, "2 classes, got .* use Predictions.from_binary"),
        (np.zeros((2, 3, 4)), LABELS, "logits must have shape"),
        (GOOD.astype(str), LABELS, "floating-point"),
        (GOOD, None, "targets must be given with an array of logits"),
        (GOOD, LABELS[:3], "targets must"),
        (GOOD, np.array([0, 1, 3, 0]), "targets must"),
        (GOOD, np.array([0, 1, -1, 0]), "targets must"),
        (GOOD, LABELS.astype(float), "targets must"),
        (GOOD, np.eye(4, 3, dtype=int), "targets must"),
    ],
)
def test_bad_fit_set(logits, targets, message):
    with pytest.raises(InvalidInput, match=message):
        TemperatureScaling().fit(logits, targets)


def test_every_calibrator_checks_its_fit_set(name):
    for logits, targets in (
        (GOOD, np.zeros(4, dtype=int)),
        (np.ones((4, 3)), LABELS),
        (np.where(np.eye(4, 3) > 0, np.nan, GOOD), LABELS),
        (GOOD[:, 0], LABELS),
        (GOOD, LABELS[:3]),
    ):
        with pytest.raises(InvalidInput):
            quick(name).fit(logits, targets)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_logits_give_no_raw_warning(draw, name, dtype):
    logits, targets = draw(60, 3)
    largest = (1e30 * logits / np.abs(logits).max() * (1 - 1e-6)).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", CalibrantWarning)
        found = quick(name).fit(largest, targets)
        assert np.isfinite(found.transform(largest)).all()


@pytest.mark.parametrize("path", [None, 5])
def test_no_path(path):
    with pytest.raises(InvalidInput, match="path must"):
        Calibrator.load(path)


def test_other_number_of_classes(draw, name):
    found = quick(name).fit(*draw(200))
    with pytest.raises(InvalidInput, match=r"logits must have 4 columns, .* got 3 columns"):
        found.transform(GOOD)


def test_probabilities_passed_as_logits_are_noticed(draw):
    logits, targets = draw(100)
    with pytest.warns(CalibrantWarning, match="sums to 1"):
        TemperatureScaling().fit(torch.softmax(torch.tensor(logits), dim=1), targets)
    fitted = TemperatureScaling().fit(logits, targets)
    with pytest.warns(CalibrantWarning, match="sums to 1") as found:
        fitted.transform(torch.softmax(torch.tensor(logits), dim=1))
    assert found[0].filename == __file__


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.update(format="other"),
        lambda content: content.update(version=2),
        lambda content: content.update(method="magic"),
        lambda content: content.update(method=["vector"]),
        lambda content: content.update(parameters=[]),
        lambda content: content.update(classes=10**9),
        lambda content: content.update(identity=0),
        lambda content: content.update(extra=1),
        lambda content: content.update(fitted=[]),
        lambda content: content.update(fitted_on=3),
        lambda content: content["summary"].update(cases="100"),
        lambda content: content.update(classes=3),
        lambda content: content.update(classes="4"),
        lambda content: content.pop("summary"),
        lambda content: content["fitted"].update(weight=[1.0]),
        lambda content: content["fitted"].update(weight=["a"] * 4),
        lambda content: content["parameters"].update(reg_lambda=-1),
        lambda content: content["parameters"].update(unknown=1),
    ],
)
def test_damaged_content(draw, damage):
    content = VectorScaling(reg_lambda=1.0).fit(*draw(100)).to_dict()
    damage(content)
    with pytest.raises(InvalidInput, match="here must"):
        Calibrator.from_dict(content, where="here")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (TemperatureScaling, "temperature", -1.0),
        (VectorScaling, "seen", [0, 1, 2, 4]),
        (VectorScaling, "seen", [0, 1, 1, 2]),
        (VectorScaling, "seen", "0123"),
        (IsotonicCalibration, "curves", [None]),
        (partial(IsotonicCalibration, mode="top-label"), "curves", [None]),
        (IsotonicCalibration, "prior_weight", 0.0),
        (HistogramBinning, "curves", [[[0.5, 0.1], [0.0, 1.0]]] * 4),
        (HistogramBinning, "curves", [[[0.5, 0.6], [0.0, 1.1]]] * 4),
    ],
)
def test_damaged_values(draw, kind, key, value):
    content = kind().fit(*draw(100)).to_dict()
    content["fitted"][key] = value
    with pytest.raises(InvalidInput, match="undamaged"):
        Calibrator.from_dict(content)


def test_a_flipped_bit_is_refused_or_changes_nothing(draw, tmp_path):
    found = TemperatureScaling().fit(*draw(100))
    found.save(tmp_path / "calibrator.json")
    content = (tmp_path / "calibrator.json").read_bytes()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        try:
            again = Calibrator.from_dict(parse_json(bytes(damaged), "here"))
        except InvalidInput:
            continue
        assert again.to_dict() == found.to_dict()


def test_a_file_of_another_method(draw, tmp_path):
    TemperatureScaling().fit(*draw(100)).save(tmp_path / "temperature.json")
    with pytest.raises(InvalidInput, match="one of the methods \\['vector'\\]"):
        VectorScaling.load(tmp_path / "temperature.json")


def test_predictions_are_taken_whole(name, draw, tmp_path):
    logits, targets = draw(300, 3)
    rows = Predictions.from_logits(logits, targets, ids=np.arange(300), class_names=["a", "b", "c"])
    rows.save(tmp_path / "val.npz")
    read = Predictions.load(tmp_path / "val.npz")
    fitted, plain = quick(name).fit(read), quick(name).fit(logits, targets)
    made = fitted(read)
    np.testing.assert_array_equal(made.logits, plain.transform_logits(logits))
    assert (made.ids.tolist(), made.class_names) == (rows.ids.tolist(), rows.class_names)
    assert made.origin.calibrated_by == fitted.digest == plain.digest
    fitted.save(tmp_path / "c.json")
    again = Calibrator.load(tmp_path / "c.json")
    assert again.provenance_ == fitted.provenance_
    assert again.provenance_.fitted_on == sha256_of(tmp_path / "val.npz")
    assert again.digest == fitted.digest


def test_the_part_of_a_file_is_noted(draw, tmp_path):
    Predictions.from_logits(*draw(300, 3)).save(tmp_path / "val.npz")
    some, _ = Predictions.load(tmp_path / "val.npz").split(0.2, seed=3)
    TemperatureScaling().fit(some).save(tmp_path / "c.json")
    known = Calibrator.load(tmp_path / "c.json").provenance_
    assert (known.kind, known.class_names, known.part) == ("logits", (), RowsPart(0.2, 3, 0))


def test_names_decide_over_the_order_of_columns(draw):
    logits, targets = draw(300, 3)
    rows = Predictions.from_logits(logits, targets, class_names=["a", "b", "c"])
    turned = Predictions.from_logits(logits[:, [2, 0, 1]], np.array([1, 2, 0])[targets], class_names=["c", "a", "b"])
    calibrator = VectorScaling().fit(rows)
    np.testing.assert_array_equal(calibrator(turned).logits, calibrator(rows).logits)
    with pytest.raises(InvalidInput, match="predictions must name the classes a, b, c"):
        calibrator(Predictions.from_logits(logits, targets, class_names=["a", "b", "d"]))
    with pytest.raises(InvalidInput, match="logits must have 3 columns, one for each class of the fit set"):
        calibrator(Predictions.from_logits([[1.0, 2.0]], [0]))


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_a_map_of_logits_is_not_applied_to_probabilities(kind, draw):
    logits, targets = draw(300, 3)
    calibrator = kind().fit(Predictions.from_logits(logits, targets))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    with pytest.raises(InvalidInput, match="predictions must be logits"):
        calibrator(Predictions.from_probabilities(p, targets))
