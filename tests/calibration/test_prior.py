import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibration import PriorCorrection
from calibrant.errors import InvalidInput

OLD, NEW = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6])


def world(n, shares, seed):
    """Cases of three Gaussian classes, and their exact probabilities under the old shares."""
    rng = np.random.default_rng(seed)
    targets = rng.choice(3, n, p=shares)
    places = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    points = places[targets] + rng.normal(size=(n, 2))
    density = np.exp(-0.5 * ((points[:, None] - places) ** 2).sum(axis=2))
    old = density * OLD
    exact = density * shares
    return targets, old / old.sum(axis=1, keepdims=True), exact / exact.sum(axis=1, keepdims=True)


def em_by_hand(probabilities, old):
    """The update of Saerens et al. (2002), equations 2.9, one case after the other."""
    shares = list(old)
    for _ in range(3000):
        sums = [0.0] * len(old)
        for row in probabilities:
            parts = [shares[k] / old[k] * row[k] for k in range(len(old))]
            for k, part in enumerate(parts):
                sums[k] += part / sum(parts)
        new = [each / len(probabilities) for each in sums]
        done = max(abs(a - b) for a, b in zip(new, shares, strict=True)) < 1e-10
        shares = new
        if done:
            break
    return shares


def test_known_shares_give_bayes_rule_with_the_new_prior():
    _, given, exact = world(500, NEW, seed=0)
    np.testing.assert_allclose(PriorCorrection(OLD, NEW).probabilities(given), exact, atol=1e-12)
    # Counts are shares, and the old shares change nothing.
    np.testing.assert_allclose(PriorCorrection(60 * OLD, 7 * NEW).probabilities(given), exact, atol=1e-12)
    np.testing.assert_allclose(PriorCorrection(OLD, OLD).probabilities(given), given, atol=1e-12)


def test_em_is_the_slow_loop_and_finds_the_shares():
    _, few, _ = world(200, NEW, seed=1)
    np.testing.assert_allclose(PriorCorrection.estimate(few, OLD).shares, em_by_hand(few, OLD), atol=1e-7)
    _, many, _ = world(40_000, NEW, seed=2)
    np.testing.assert_allclose(PriorCorrection.estimate(many, OLD).shares, NEW, atol=0.01)


def test_corrected_predictions_keep_their_rows_and_are_better():
    targets, given, exact = world(3000, NEW, seed=5)
    before = Predictions.from_probabilities(given, targets, ids=np.arange(3000), class_names=["a", "b", "c"])
    after = PriorCorrection(OLD, NEW)(before)
    assert after.ids.tolist() == before.ids.tolist()
    assert after.class_names == before.class_names
    np.testing.assert_allclose(after.probabilities, exact, atol=1e-12)
    assert after.nll.mean() < before.nll.mean()
    assert after.correct.mean() > before.correct.mean()


def test_labels_at_deployment_are_not_looked_at():
    targets, given, _ = world(500, NEW, seed=6)
    right, wrong = (Predictions.from_probabilities(given, labels) for labels in (targets, (targets + 1) % 3))
    assert PriorCorrection.estimate(right, OLD).shares.tolist() == PriorCorrection.estimate(wrong, OLD).shares.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: PriorCorrection([0.5, 0.5], [0.2, 0.3, 0.5]), "shares must have one number for each of the 2"),
        (lambda p: PriorCorrection([0.5, 0.0], [0.5, 0.5]), "trained must be above 0 for every class"),
        (lambda p: PriorCorrection([0.5, 0.5], [1.0, -0.5]), "shares must be one number per class, not negative"),
        (lambda p: PriorCorrection("ab", [0.5, 0.5]), "trained must be one number per class"),
        (lambda p: PriorCorrection([0.5, 0.5], [0.5, 0.5]).probabilities(p), "probabilities must have 2 columns"),
        (lambda p: PriorCorrection.estimate(p, [0.5, 0.5]), "probabilities must have 2 columns"),
        (lambda p: PriorCorrection.estimate([0.5, 0.5], OLD), "probabilities must"),
    ],
)
def test_bad_input_is_one_line(call, message):
    _, given, _ = world(50, NEW, seed=7)
    with pytest.raises(InvalidInput, match=message) as told:
        call(given)
    assert "\n" not in str(told.value)


def test_a_certain_class_that_does_not_occur_is_refused():
    with pytest.raises(InvalidInput, match="none in row 1"):
        PriorCorrection([0.5, 0.5], [0.0, 1.0]).probabilities([[0.5, 0.5], [1.0, 0.0]])
