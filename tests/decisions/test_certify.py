import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from calibrant.decisions.certify import certify, default_starts, default_thresholds
from calibrant.errors import InvalidInput


def slow_fallback(confidence, correct, target, level, thresholds, parts):
    """The procedure in its printed order, one threshold at a time."""
    kept, budget, waiting = [], 0.0, sorted(parts.items(), reverse=True)
    for position, t in enumerate(sorted(thresholds, reverse=True)):
        while waiting and (waiting[0][0] >= t or position == len(thresholds) - 1):
            budget += level * waiting.pop(0)[1]
        chosen = [ok for c, ok in zip(confidence, correct, strict=True) if c >= t]
        p_value = binom.cdf(len(chosen) - sum(chosen), len(chosen), 1 - target)
        passed = budget > 0 and p_value <= budget
        kept.append(bool(passed))
        if not passed:
            budget = 0.0
    return kept


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), n=st.integers(0, 150), target=st.sampled_from([0.6, 0.8, 0.9]))
def test_equals_the_printed_procedure(seed, n, target):
    rng = np.random.default_rng(seed)
    confidence = rng.choice([0.5, 0.7, 0.9, 0.95, 0.99, 1.0], size=n)
    correct = rng.random(n) < rng.uniform(0.7, 1.0)
    thresholds = [1.0, 0.99, 0.97, 0.95, 0.9, 0.7, 0.2]
    parts = {0.99: 0.3, 0.96: 0.3, 0.9: 0.2, 0.1: 0.2}
    table = certify(confidence, correct, target_accuracy=target, level=0.2, thresholds=thresholds, starts=parts)
    assert table.kept.tolist() == slow_fallback(confidence, correct, target, 0.2, thresholds, parts)


def test_one_start_is_fixed_sequence_testing():
    confidence = np.repeat([0.9, 0.8, 0.7], 50)
    correct = np.ones(150, dtype=bool)
    correct[50:60] = False
    table = certify(confidence, correct, target_accuracy=0.9, level=0.1, thresholds=[0.9, 0.8, 0.7], starts=[0.9])
    # 0.8 fails with 10 errors of 100 and ends the walk, although 0.7 alone would pass.
    assert table.kept.tolist() == [True, False, False]
    assert table.errors.tolist() == [0, 10, 10]
    assert table.levels.tolist() == [0.1, 0.1, 0.0]


def test_a_later_start_may_pass_after_a_failure():
    confidence = np.repeat([0.9, 0.5], [20, 200])
    correct = np.ones(220, dtype=bool)
    correct[:5] = False
    table = certify(confidence, correct, target_accuracy=0.9, level=0.1, thresholds=[0.9, 0.5], starts=[0.9, 0.5])
    assert table.kept.tolist() == [False, True]


def test_levels_add_up_while_everything_passes():
    confidence = np.full(500, 0.999_999_99)
    table = certify(confidence, np.ones(500, dtype=bool), target_accuracy=0.9, level=0.1)
    assert table.kept[-1]
    assert table.levels.max() == pytest.approx(0.1)


@pytest.mark.parametrize("target", [0.3, 0.5, 0.9, 0.99, 0.9999])
def test_default_parts_make_one(target):
    starts = default_starts(target)
    assert sum(starts.values()) == pytest.approx(1.0)
    assert all(0 <= t <= 1 for t in starts)
    assert starts[target] == pytest.approx(0.5)


def test_default_starts_lie_on_both_sides_of_the_target():
    allowed_errors = [(1 - start) / (1 - 0.99) for start in sorted(default_starts(0.99), reverse=True)]
    assert allowed_errors == pytest.approx([0.001, 0.01, 0.1, 1 / 3, 1, 3, 10, 50])


def test_default_starts_of_a_modest_target_do_not_fall_below_zero():
    # a = 0.4: three times and ten times the errors would mean thresholds below 0.
    starts = default_starts(0.6)
    assert sorted(starts) == pytest.approx([0.0, 0.5, 0.6, 1 - 0.4 / 3, 0.96, 0.996, 0.9996])
    assert starts[0.6] == 0.5
    assert {part for start, part in starts.items() if start != 0.6} == {0.5 / 6}


def test_the_default_thresholds_are_the_documented_ones():
    # They are fixed in advance: another grid is another procedure.
    grid = default_thresholds()
    ratios = (1 - grid[1:240]) / (1 - grid[:239])
    assert 1 - grid[0] == pytest.approx(1e-7, rel=1e-6)
    assert ratios == pytest.approx((0.5 / 1e-7) ** (1 / 239), rel=1e-6)
    assert grid[239:] == pytest.approx([percent / 100 for percent in range(50, -1, -1)], abs=1e-15)


def test_nothing_is_kept_before_the_first_start_however_clear():
    # 0.5 ** 2000 is 0 in floating point: "p is at most what may be spent" holds even where nothing may be.
    table = certify(
        np.ones(2000), np.ones(2000, bool), target_accuracy=0.5, level=0.05, thresholds=[0.9, 0.6], starts=[0.6]
    )
    assert table.kept.tolist() == [False, True]


def test_default_thresholds_fall_from_strict_to_everything():
    grid = default_thresholds()
    assert (np.diff(grid) < 0).all()
    assert grid[-1] == 0.0
    assert 1 - grid[0] == pytest.approx(1e-7)


@pytest.mark.parametrize(
    "arguments",
    [
        {"thresholds": []},
        {"thresholds": [0.5, 1.5]},
        {"starts": []},
        {"starts": 0.99},
        {"starts": "x"},
        {"starts": {0.9: "x"}},
        {"thresholds": 0.9},
        {"thresholds": ["x"]},
        {"starts": {0.9: 0.7, 0.5: 0.7}},
        {"starts": {0.9: -0.1}},
    ],
)
def test_bad_arguments(arguments):
    with pytest.raises(InvalidInput, match=f"{next(iter(arguments))} must"):
        certify(np.array([0.9]), np.array([True]), target_accuracy=0.9, level=0.1, **arguments)
