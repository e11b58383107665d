import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.report.summaries import Automated
from calibrant.report.wording import fixed, headline, interval, per_thousand, percent

NBSP = "\N{NO-BREAK SPACE}"


@given(st.floats(0, 1e4, allow_nan=False), st.integers(0, 4))
def test_fixed_is_within_half_a_digit(value, digits):
    assert abs(float(fixed(value, digits)) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def test_fixed_takes_any_float():
    assert fixed(1.5e300, 1).startswith("15")
    assert len(fixed(1.5e300, 1)) == len("1" + "0" * 300 + ".0")


def test_missing_numbers_are_dashes():
    assert percent(None) == "\N{EN DASH}"
    assert interval(None) == ""


def test_almost_all_is_not_all():
    assert percent(0.9999) == f"99.99{NBSP}%"
    assert percent(0.0001, 2) == f"0.01{NBSP}%"
    assert percent(0.000004, 2) == f"0.0004{NBSP}%"
    assert (percent(1.0), percent(0.0)) == (f"100.0{NBSP}%", f"0.0{NBSP}%")


def test_percent_and_interval():
    assert percent(0.12345, 2) == f"12.35{NBSP}%"
    assert interval((0.9861, 0.9914)) == f"[98.6,{NBSP}99.1]"
    assert per_thousand(2570, 10_000) == "257"
    assert per_thousand(1, 1) == "1,000"


@pytest.mark.parametrize(
    ("automated", "right", "words"),
    [
        (0, 0, "decides no case alone: all of them go to a person."),
        (100, 100, "no case goes to a person."),
        (
            50,
            49,
            "decides 50.0 % of cases alone and is right in 98.0 % of them [89.4, 99.9]; 500 of 1,000 cases go to a",
        ),
    ],
)
def test_headline_is_true_at_the_ends(automated, right, words):
    text = headline("this model", Automated(0.95, 100, automated, right, 0.0)).replace(NBSP, " ")
    assert text.startswith("At confidence 0.95 this model decides")
    assert words in text
