"""Policies with a shortlist: `calibrant route shortlist`, `apply` and `check`."""

import csv
import json

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.decisions import Policy, RoutingRule, Shortlist
from calibrant.files import sha256_of


def draw(n, *, seed):
    rng = np.random.default_rng(seed)
    z = 8.0 * rng.normal(size=(n, 3))
    return Predictions.from_logits(z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), class_names=["a", "b", "c"])


@pytest.fixture
def val(tmp_path):
    draw(3000, seed=0).save(tmp_path / "val.npz")
    return tmp_path / "val.npz"


def fit(calibrant, val):
    code, _, err = calibrant("route", "fit", val, "--target-accuracy", 0.97)
    assert (code, err) == (0, "")
    return Policy.load(val.with_name("policy.json")).rule


def test_shortlists_are_chosen_applied_and_checked(calibrant, val, tmp_path):
    fit(calibrant, val)
    draw(2000, seed=1).save(tmp_path / "more.npz")
    draw(2000, seed=2).save(tmp_path / "new.npz")
    rule, new = tmp_path / "policy.json", tmp_path / "new.npz"
    code, out, err = calibrant("route", "shortlist", rule, tmp_path / "more.npz", "--coverage", 0.9)
    assert (code, err) == (0, "")
    chosen = Policy.load(rule).shortlist
    assert chosen.note in out
    assert chosen.fitted_on == sha256_of(tmp_path / "more.npz")
    assert calibrant("route", "apply", rule, new, "-o", tmp_path / "out.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    lists = [json.loads(row["shortlist"]) for row in rows if row["decision"] == "review"]
    assert {row["shortlist"] for row in rows if row["decision"] == "auto"} == {""}
    code, out, err = calibrant("route", "check", rule, new, "--json")
    result = json.loads(out)
    assert (code, err, result["passed"]) == (0, "", True)
    assert result["shortlist"]["cases"] == len(lists)
    assert result["shortlist"]["mean_length"] == pytest.approx(sum(map(len, lists)) / len(lists))
    assert "hold the true one in" in calibrant("route", "check", rule, new)[1]


def test_a_shortlist_that_misses_too_often_fails_the_check(calibrant, val, tmp_path):
    rule = fit(calibrant, val)
    draw(2000, seed=2).save(tmp_path / "new.npz")
    shortlist = Shortlist(0.999, 3, 0.999, 0.95, rule.class_names, threshold=rule.threshold)
    Policy(3, rule=rule, shortlist=shortlist).save(tmp_path / "policy.json")
    arguments = ("route", "check", tmp_path / "policy.json", tmp_path / "new.npz")
    code, _, err = calibrant(*arguments)
    assert code == 1
    assert "the promised share of 99.9 % on the shortlist was not kept" in err
    assert json.loads(calibrant(*arguments, "--json")[1])["passed"] is False


def test_what_the_check_of_a_shortlist_says(calibrant, tmp_path):
    """Of 100 cases 94 have their class listed where 95 % are promised; of none nothing is known."""
    rule = RoutingRule(0.9, 3, target_accuracy=0.9, confidence=0.95)
    shortlist = Shortlist(0.3, 3, 0.95, 0.95, threshold=0.9)
    Policy(3, rule=rule, shortlist=shortlist).save(tmp_path / "policy.json")
    p, targets = np.tile([0.6, 0.3, 0.1], (100, 1)), np.where(np.arange(100) < 6, 2, 0)
    Predictions.from_probabilities(p, targets).save(tmp_path / "some.npz")
    Predictions.from_probabilities(np.eye(3), np.arange(3)).save(tmp_path / "none.npz")
    said = {}
    for name in ("some", "none"):
        source = tmp_path / f"{name}.npz"
        code, out, _ = calibrant("route", "check", tmp_path / "policy.json", source)
        assert code == 0
        said[name] = out.splitlines()[-1]
    assert "in 94.00 % of 100 cases" in said["some"]
    assert said["some"].endswith("the promised share of 95 % is missed, but by no more than chance.")
    assert said["none"] == "No case goes to a person: nothing is said of the shortlist."


def test_every_broken_promise_is_named(calibrant, tmp_path):
    """Ten wrong cases of ten; of 60 reviewed cases none is on the list."""
    rule = RoutingRule(0.9, 2, target_accuracy=0.9, confidence=0.95)
    shortlist = Shortlist(0.5, 2, 0.95, 0.95, threshold=0.9)
    Policy(2, rule=rule, shortlist=shortlist).save(tmp_path / "policy.json")
    p = np.array([*[[1.0, 0.0]] * 10, *[[0.6, 0.4]] * 60])
    Predictions.from_probabilities(p, np.ones(70, dtype=int)).save(tmp_path / "new.npz")
    arguments = ("route", "check", tmp_path / "policy.json", tmp_path / "new.npz")
    share = "the promised share of 95 % on the shortlist was not kept: 0.00 % [0.00, 5.96]"
    code, out, err = calibrant(*arguments, "--json")
    accuracy = "the promised accuracy of 90 % was not kept: all 0.00 % [0.00, 30.85]"
    assert (code, err) == (1, f"calibrant: {accuracy}; {share}\n")
    result = json.loads(out)
    assert (result["held"], result["passed"], result["shortlist"]["coverage"]) == (False, False, 0.95)


def test_the_shortlist_of_a_rule_without_a_promise_is_checked_alone(calibrant, tmp_path):
    Policy(3, rule=RoutingRule(0.9, 3, class_names=("a", "b", "c"))).save(tmp_path / "policy.json")
    for seed, name in ((1, "more"), (2, "new")):
        draw(2000, seed=seed).save(tmp_path / f"{name}.npz")
    rule, new = tmp_path / "policy.json", tmp_path / "new.npz"
    code, _, err = calibrant("route", "check", rule, new)
    assert code == 2
    assert "There is no promise to check" in err
    assert calibrant("route", "shortlist", rule, tmp_path / "more.npz")[0] == 0
    code, out, err = calibrant("route", "check", rule, new)
    assert (code, err) == (0, "")
    assert out.startswith("Shortlists of ")
    result = json.loads(calibrant("route", "check", rule, new, "--json")[1])
    assert (result["cases"], result["passed"], result["shortlist"]["held"]) == (2000, True, True)


def test_a_new_rule_takes_the_shortlist_of_the_old_one_away(calibrant, val, tmp_path):
    fit(calibrant, val)
    draw(2000, seed=1).save(tmp_path / "more.npz")
    assert calibrant("route", "shortlist", tmp_path / "policy.json", tmp_path / "more.npz")[0] == 0
    assert Policy.load(tmp_path / "policy.json").shortlist is not None
    fit(calibrant, val)
    assert Policy.load(tmp_path / "policy.json").shortlist is None


def test_a_shortlist_on_the_cases_of_the_rule_is_warned_of_and_inputs_are_kept(calibrant, val, tmp_path):
    fit(calibrant, val)
    code, _, err = calibrant("route", "shortlist", tmp_path / "policy.json", val)
    assert code == 0
    assert "the rule of this policy saw cases of" in err
    code, _, err = calibrant("route", "shortlist", tmp_path / "policy.json", val, "-o", val)
    assert code == 2
    assert "which is read here" in err
