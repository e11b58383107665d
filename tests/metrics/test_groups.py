import json

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.errors import InvalidInput
from calibrant.metrics import evaluate_groups, split_groups
from calibrant.metrics.subgroups import group_rows


@pytest.fixture(scope="module")
def cases():
    """Three sites; in the third a fifth of the labels is random."""
    rng = np.random.default_rng(0)
    z = 4 * rng.normal(size=(1500, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    site = rng.choice(["north", "south", "west"], size=1500)
    y = np.where((site == "west") & (rng.random(1500) < 0.3), rng.integers(3, size=1500), y)
    return Predictions.from_logits(z, y, extras={"site": site, "patient": np.arange(1500) // 3})


def test_each_group_is_evaluated_by_itself_at_the_corrected_level(cases):
    grouped = evaluate_groups(cases, "site", n_resamples=40, level=0.9, thresholds=(0.8,))
    assert list(grouped.groups) == ["north", "south", "west"]
    for name, found in grouped.groups.items():
        own = cases.subset(cases.extras["site"] == name)
        assert found == evaluate(own, n_resamples=40, level=1 - 0.1 / 3, thresholds=(0.8,))
    assert grouped.overall == evaluate(cases, n_resamples=40, level=0.9, thresholds=(0.8,))


def test_the_worst_group_is_named(cases):
    grouped = evaluate_groups(cases, "site", n_resamples=40)
    assert grouped.worst() == grouped.worst("accuracy@0.95") == "west"
    assert grouped.stand_out() == grouped.stand_out("accuracy@0.95") == ["west"]
    assert "Worse than all cases beyond chance: west." in grouped.table()
    content = json.loads(grouped.to_json())
    assert content["worst"] == "west"
    assert content["groups"]["west"]["n"] == len(group_rows(cases, "site")["west"])


def test_without_intervals_nobody_stands_out(cases):
    grouped = evaluate_groups(cases, "site")
    assert grouped.stand_out() == []
    assert "Bonferroni" not in grouped.table()


def test_groups_may_be_values_of_any_kind(cases):
    rows = group_rows(cases, np.arange(1500) % 2)
    assert {name: len(own) for name, own in rows.items()} == {"0": 750, "1": 750}
    assert len(split_groups(cases, list(cases.extras["site"]))["west"]) == len(group_rows(cases, "site")["west"])


def test_bad_groups_are_refused(cases):
    with pytest.raises(InvalidInput, match="groups must"):
        evaluate_groups(cases, "sit")
    with pytest.raises(InvalidInput, match="groups must hold 1500 values"):
        evaluate_groups(cases, [1, 2])
    with pytest.raises(InvalidInput, match=r"at most 1,000 different values, got 1,500"):
        evaluate_groups(cases, np.arange(1500))
    with pytest.raises(InvalidInput, match="There are no other columns"):
        group_rows(Predictions.from_probabilities([[1.0, 0.0]], [0]), "site")
