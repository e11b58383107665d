import pytest

from calibrant.errors import InvalidInput
from calibrant.studies.sweeps import (
    _USUAL,
    Range,
    search_space,
)
from calibrant.training import methods
from calibrant.training.methods.method_table import PRUNING


def test_by_default_the_methods_own_settings_with_a_usual_range():
    assert set(search_space("flsd+h+unbiased")) == {"huber_weight", "share", "drop"}
    assert set(search_space("ls")) == {"label_smoothing"}


def test_usual_ranges_belong_to_settings_that_exist():
    composed = [f"nll+{plan}" for plan in PRUNING]
    known = {key for name in (*methods.names(), *composed) for key in methods.describe(name).settings}
    assert set(_USUAL) <= known


def test_words():
    found = search_space(
        "flsd+h", ["optimiser.batch_size=32:128:log", "optimiser.lr=0.01:1", "schedule.kind=step,cosine"]
    )
    assert found == {
        "optimiser.batch_size": Range(32, 128, log=True),
        "optimiser.lr": Range(0.01, 1.0),
        "schedule.kind": ("step", "cosine"),
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("huber_wieght", "Did you mean 'huber_weight'"),
        ("optimiser.lr", "offer at least two values"),
        ("huber_weight=5:1", "LOW < HIGH"),
        ("huber_weight=0:1:log", "LOW above 0"),
        ("huber_weight=1:2:lin", "LOW:HIGH:log"),
        ("huber_weight=a:b", "LOW < HIGH"),
        ("huber_weight=3", "offer at least two values"),
        ("drop", "name a setting of the method"),
        ("zzz=1:2", "engine.*; a run's recipe.toml shows all."),
    ],
)
def test_bad_words(word, message):
    with pytest.raises(InvalidInput) as caught:
        search_space("flsd+h", [word])
    assert message in str(caught.value)


def test_a_method_without_settings_needs_a_word():
    with pytest.raises(InvalidInput, match="Say what to vary"):
        search_space("nll")
