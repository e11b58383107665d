import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.metrics import Gates


@pytest.fixture
def result():
    """Nine of ten are right, all with a confidence of 0.8: above no threshold."""
    return evaluate(Predictions.from_probabilities([[0.8, 0.2]] * 10, [0] * 9 + [1]), thresholds=(0.95,))


def test_limits_that_hold_say_nothing(result):
    assert Gates().broken(result) == []
    assert Gates(max_test_error=result.test_error, min_accuracy=0.9, max_ece=result.ece).broken(result) == []


def test_each_broken_limit_is_one_sentence(result):
    broken = Gates(max_ece=0.05, min_accuracy=0.95).broken(result, name="test.npz")
    assert broken == [
        f"test.npz: ece {result.ece:.6g} is above the limit 0.05",
        "test.npz: accuracy 0.9 is below the limit 0.95",
    ]
    assert Gates(max_nll=0.01).broken(result)[0].startswith("nll ")


def test_what_is_not_defined_cannot_hold(result):
    (sentence,) = Gates(max_share_ece=0.5).broken(result)
    assert "share_ece is not defined here" in sentence


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(InvalidInput, match="max_ec"):
        Gates(max_ec=0.1)
    with pytest.raises(InvalidInput, match="max_ece"):
        Gates(max_ece=2.0).check((0.95,))
    with pytest.raises(InvalidInput, match="min_share"):
        Gates(min_share=0.5).check(())
    Gates(max_nll=7.0).check(())
