"""Newton's method against finite differences and against L-BFGS, which it replaces for few classes."""

import numpy as np
import pytest

from calibrant.calibration import MatrixScaling, VectorScaling, affine
from calibrant.calibration.affine import _Objective


@pytest.mark.parametrize("diagonal", [True, False])
def test_hessian_is_the_derivative_of_the_gradient(diagonal):
    generator = np.random.default_rng(0)
    objective = _Objective(generator.normal(size=(37, 4)), generator.integers(0, 4, 37), 0.7, 0.3, diagonal)
    at = objective.identity() + 0.3 * generator.normal(size=len(objective.identity()))
    steps = 1e-6 * np.eye(len(at))
    slow = np.stack([(objective(at + step)[1] - objective(at - step)[1]) / 2e-6 for step in steps])
    np.testing.assert_allclose(objective.hessian(at), slow, atol=1e-8)


def test_hessian_does_not_depend_on_blocks(monkeypatch):
    generator = np.random.default_rng(1)
    objective = _Objective(generator.normal(size=(100, 3)), generator.integers(0, 3, 100), 0.1, 0.1, False)
    whole = objective.hessian(objective.identity())
    monkeypatch.setattr(affine, "BLOCK", 16 * 9)
    np.testing.assert_allclose(objective.hessian(objective.identity()), whole, rtol=1e-12)


@pytest.mark.parametrize("make", [VectorScaling, MatrixScaling])
def test_newton_and_lbfgs_find_the_same_map(draw, monkeypatch, make):
    logits, targets = draw(400, 5, temperature=2.0)
    fast = make(reg_lambda=0.1).fit(logits, targets)
    monkeypatch.setattr(affine, "_NEWTON", 0)
    slow = make(reg_lambda=0.1).fit(logits, targets)
    assert fast.summary_.iterations < slow.summary_.iterations
    assert fast.summary_.nll_after == pytest.approx(slow.summary_.nll_after, abs=1e-7)
    np.testing.assert_allclose(fast.transform(logits), slow.transform(logits), atol=1e-4)
