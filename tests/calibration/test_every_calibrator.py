import numpy as np
import pytest
import torch
from sklearn.base import clone

from calibrant.calibration import (
    METHODS,
    BetaCalibration,
    Calibrator,
    DirichletScaling,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    Progress,
    TemperatureScaling,
    VectorScaling,
    make_calibrator,
    select_calibrator,
)
from calibrant.decisions import Policy
from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.integrations.on_device import CalibrationModule


def cases(classes, seed=0):
    """Overconfident logits with a bias for class 0, and labels drawn from the truth behind them."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(600, classes))
    targets = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return 2.0 * truth + np.eye(classes)[0], targets


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("method", METHODS)
def test_a_module_maps_like_its_calibrator(method, classes):
    logits, targets = cases(classes)
    fitted = make_calibrator(method).fit(logits, targets)
    far = np.vstack([30.0 * logits[:50], 1000.0 * np.eye(classes), -1000.0 * np.eye(classes), np.zeros((1, classes))])
    # The curve of isotonic regression rises by a hundredth within 3e-7 here: the last digit of a probability, which
    # NumPy and torch may round apart, becomes 1e-10.
    close = 1e-9 if method.startswith("isotonic") else 1e-12
    for matrix in (logits, far):
        mapped = CalibrationModule(fitted)(torch.from_numpy(matrix))
        np.testing.assert_allclose(mapped.numpy(), fitted.transform_logits(matrix), rtol=close, atol=close)
        assert torch.isfinite(mapped).all()
    assert fitted.identity_ == (method == "none")


@pytest.mark.parametrize("method", [name for name in METHODS if not name.startswith(("isotonic", "histogram"))])
def test_a_module_has_the_gradient_of_its_map(method):
    logits, targets = cases(4)
    module = CalibrationModule(make_calibrator(method).fit(logits, targets))
    torch.autograd.gradcheck(module, torch.from_numpy(logits[:5]).requires_grad_())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
def test_a_module_compiles_and_exports(method):
    torch._dynamo.reset()  # it counts what was compiled before, over all tests, and gives up at eight
    logits, targets = cases(4)
    module = CalibrationModule(make_calibrator(method).fit(logits, targets))
    rows = torch.from_numpy(logits[:20])
    batch = {"logits": {0: torch.export.Dim("batch")}}
    for other in (
        torch.jit.trace(module, rows[:3]),
        torch.export.export(module, (rows[:3],), dynamic_shapes=batch).module(),
        torch.compile(module, fullgraph=True, backend="aot_eager"),
    ):
        torch.testing.assert_close(other(rows), module(rows), rtol=1e-12, atol=1e-12)


def test_precision_and_state():
    logits, targets = cases(3)
    module = CalibrationModule(make_calibrator("vector").fit(logits, targets))
    rows = torch.from_numpy(logits[:10])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        mapped = module(rows.to(dtype))
        assert mapped.dtype == torch.float32
        torch.testing.assert_close(mapped, module(rows.to(dtype).double()).float(), rtol=0, atol=0)
    assert not list(module.parameters())


@pytest.mark.parametrize("method", ["temperature", "vector", "matrix", "dirichlet", "beta"])
def test_a_network_that_is_cast_keeps_its_map(method):
    logits, targets = cases(4)
    fitted = make_calibrator(method).fit(logits, targets)
    network = torch.nn.Sequential(torch.nn.Identity(), CalibrationModule(fitted))
    rows = torch.from_numpy(logits[:20])
    expected = fitted.transform_logits(rows)
    for cast in (network.float(), network.half(), network.to(torch.bfloat16), network.double()):
        torch.testing.assert_close(cast(rows), expected, rtol=1e-12, atol=1e-12)


def test_a_map_that_is_not_kept_is_a_plain_softmax():
    truth = np.random.default_rng(0).normal(size=(400, 3))
    fitted = TemperatureScaling().fit(truth, (truth + np.random.default_rng(1).gumbel(size=truth.shape)).argmax(axis=1))
    fitted.identity_ = True
    rows = torch.from_numpy(truth)
    torch.testing.assert_close(CalibrationModule(fitted)(rows), torch.log_softmax(rows, dim=1), rtol=0, atol=1e-15)


def test_a_case_of_the_fit_set_stays_on_its_side_of_a_step():
    """Edges are probabilities of cases, and another softmax differs from ours in the last digit."""
    logits, targets = cases(3)
    for method in ("histogram", "histogram-top"):
        fitted = make_calibrator(method).fit(logits, targets)
        expected, module = fitted.transform_logits(logits), CalibrationModule(fitted)
        for shift in (0.0, 1e-15, -1e-15, 7.0):
            mapped = module(torch.from_numpy(logits * (1 + shift) if abs(shift) < 1 else logits + shift)).numpy()
            np.testing.assert_allclose(mapped, expected, rtol=1e-9, atol=1e-9)


def test_a_class_without_a_case_keeps_its_probability():
    logits, targets = cases(4)
    kept = targets != 2
    for method in ("isotonic", "histogram"):
        with pytest.warns(CalibrantWarning, match="without a case"):
            fitted = make_calibrator(method).fit(logits[kept], targets[kept])
        mapped = CalibrationModule(fitted)(torch.from_numpy(logits)).numpy()
        np.testing.assert_allclose(mapped, fitted.transform_logits(logits), rtol=1e-9, atol=1e-9)


class Halved(Calibrator):
    """A calibrator of a user: known outside the package alone."""

    method = "halved"

    def _fit(self, logits, targets, weights):
        return Progress()

    def _formula(self, operations, logits):
        return operations.log_softmax(0.5 * logits)

    def _state(self):
        return {}

    def _set_state(self, state):
        assert state == {}


def test_a_calibrator_of_your_own_works_like_the_others(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "halved", Halved)
    logits, targets = cases(3)
    selection = select_calibrator(logits, targets, methods=("none", "halved"))
    assert selection.name == "halved"
    fitted = selection.calibrator
    Policy(3, fitted).save(tmp_path / "policy.json")
    again = Policy.load(tmp_path / "policy.json").calibrator
    assert type(again) is Halved
    rows = torch.from_numpy(logits)
    expected = torch.log_softmax(rows / 2, dim=1)
    for mapped in (again.transform_logits(rows), CalibrationModule(again)(rows)):
        torch.testing.assert_close(mapped, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_only_maps_of_the_level_change_with_it(method):
    """Adding a number to a row changes no probability; a map may depend on it only if it says so."""
    logits, targets = cases(4)
    fitted = make_calibrator(method).fit(logits, targets)
    shifted = fitted.transform(logits[:50] + np.arange(50)[:, None] / 8)
    assert np.allclose(shifted, fitted.transform(logits[:50]), rtol=1e-9, atol=1e-12) != fitted.depends_on_level


def test_an_unfitted_calibrator_is_refused():
    with pytest.raises(InvalidInput, match="is not fitted yet"):
        CalibrationModule(TemperatureScaling())


def numbers(fitted):
    """Fitted values of any shape, or a list of curves, as one array."""
    if isinstance(fitted, list):
        return np.hstack(fitted)
    return np.ravel(fitted)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(
    ("calibrator", "fitted"),
    [
        (TemperatureScaling(prior_scale=None), ("temperature_",)),
        (PlattScaling(), ("slope_", "shift_")),
        (BetaCalibration(), ("maps_",)),
        (IsotonicCalibration(), ("curves_",)),
        (IsotonicCalibration(mode="top-label"), ("curves_",)),
        (HistogramBinning(), ("curves_",)),
        (VectorScaling(reg_lambda=0.01), ("weight_", "bias_")),
        (MatrixScaling(reg_lambda=0.01), ("weight_", "bias_")),
        (DirichletScaling(reg_lambda=0.01), ("weight_", "bias_")),
    ],
)
def test_a_weight_of_two_is_a_case_that_occurs_twice(calibrator, fitted, classes):
    if calibrator.method == "platt" and classes > 2:
        return  # it is for two classes
    logits, targets = cases(classes)
    copies = np.random.default_rng(1).integers(0, 4, len(targets))
    repeated = clone(calibrator).fit(np.repeat(logits, copies, axis=0), np.repeat(targets, copies))
    weighted = clone(calibrator).fit(logits, targets, weights=0.3 * copies)
    plain = clone(calibrator).fit(logits, targets)
    for name in fitted:
        expected, found, unweighted = (numbers(getattr(each, name)) for each in (repeated, weighted, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert found.shape != unweighted.shape or not np.allclose(found, unweighted, rtol=1e-3)
    assert weighted.summary_.nll_before == pytest.approx(repeated.summary_.nll_before, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_equal_weights_are_no_weights(method):
    logits, targets = cases(3)
    plain = make_calibrator(method).fit(logits, targets)
    weighted = make_calibrator(method).fit(logits, targets, weights=np.full(len(targets), 4.0))
    assert weighted.transform(logits).tolist() == plain.transform(logits).tolist()
