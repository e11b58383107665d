"""Rules and shortlists as files: what was changed since is refused, what 0.1.0 wrote is read and says so."""

import json

import pytest

from calibrant.decisions import (
    RoutingRule,
    Shortlist,
    choose_shortlist,
    choose_threshold,
    describe_rule,
    risk_coverage,
)
from calibrant.errors import InvalidInput
from calibrant.files import parse_json


@pytest.fixture(params=["rule", "shortlist"])
def saved(request, draw):
    predictions = draw(1500, class_names=["a", "b", "c"])
    rule = choose_threshold(predictions, 0.95, temperature=1.5)
    return rule if request.param == "rule" else choose_shortlist(predictions, rule=rule)


def test_a_flipped_bit_is_refused_or_changes_nothing(saved, tmp_path):
    """The same number has several spellings (1e-07 and 1E-07): those alone are read."""
    saved.save(tmp_path / "saved.json")
    content = (tmp_path / "saved.json").read_bytes()
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        try:
            found = type(saved).from_dict(parse_json(bytes(damaged), "here"))
        except InvalidInput:
            continue
        assert (found, found.verified) == (saved, True)


def test_a_file_of_0_1_0_has_no_digest_and_says_so(saved, tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(saved.to_dict(), indent=2))
    found = type(saved).load(path)
    assert found == saved
    assert not found.verified
    found.save(path)
    assert type(saved).load(path).verified


def test_what_is_saved_is_loaded(saved, tmp_path):
    saved.save(tmp_path / "saved.json")
    assert type(saved).load(tmp_path / "saved.json") == saved
    assert type(saved).from_dict(saved.to_dict()) == saved


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 9},
        {"threshold": 7},
        {"threshold": "0.9"},
        {"threshold": True},
        {"n_classes": 1.0},
        {"n_classes": 10**9},
        {"n_classes": None},
        {"class_names": 5},
        {"class_names": "abc"},
        {"class_names": [0, 1, 2]},
        {"class_names": ["a", "b", "a"]},
        {"class_names": ["a"]},
        {"class_thresholds": [0.5]},
        {"temperature": -1},
        {"note": ["x"]},
        {"fitted_on": 3},
        {"confidence": {}},
        {"confidence": 1.0},
        {"extra": 1},
        {"verified": 1, "note": None},
    ],
)
def test_values_of_another_type_are_refused_by_name(saved, change):
    *_, name = change
    with pytest.raises(InvalidInput, match=rf"here must .*{name}|must be a .* written|must have version"):
        type(saved).from_dict(saved.to_dict() | change, where="here")


STRANGE = [None, True, -1, 0, 0.5, 1e308, 10**30, "x", "", [], {}, [[]], ["a"] * 3, {"a": 1}]


def use(found, predictions):
    if isinstance(found, RoutingRule):
        found.route(predictions)
        describe_rule(found, risk_coverage(predictions))
    else:
        found.names(found.listed(predictions).astype(float))


@pytest.mark.filterwarnings("ignore:the rule was chosen behind a calibrator")
def test_any_value_in_any_place_is_refused_or_can_be_used(saved, draw):
    """Content without a digest, as 0.1.0 wrote it: nothing but one line comes out of reading and using it."""
    predictions, content = draw(50, class_names=["a", "b", "c"]), saved.to_dict()
    used, refusals = 0, []
    places = [(content, name) for name in content]
    places += [(inner, name) for inner in content.values() if isinstance(inner, dict) for name in inner]
    for owner, name in places:
        kept = owner[name]
        for value in STRANGE:
            owner[name] = value
            try:
                found = type(saved).from_dict(content)
                use(found, predictions)
                used += 1
            except InvalidInput as error:
                refusals.append(str(error))
        owner[name] = kept
    assert used > 10
    assert max(map(len, refusals)) < 400


@pytest.mark.parametrize("name", ["threshold", "n_classes", "temperature", "class_names"])
def test_a_member_that_is_missing_is_named(saved, name):
    content = saved.to_dict()
    del content[name]
    with pytest.raises(InvalidInput, match=f"without {name}"):
        type(saved).from_dict(content)


def test_evidence_that_no_cases_can_give_is_refused(draw):
    content = choose_threshold(draw(), 0.95).to_dict()
    for counts in ({"cases": 0, "automated": 0, "errors": 0}, {"automated": 10**6}, {"errors": -1}):
        with pytest.raises(InvalidInput, match="evidence"):
            RoutingRule.from_dict(content | {"evidence": content["evidence"] | counts})


@pytest.mark.parametrize("damage", [{"cases": "many"}, {"extra": 1}, {"errors": None}])
def test_evidence_is_read_by_its_types_too(draw, damage):
    content = choose_threshold(draw(), 0.95).to_dict()
    content["evidence"] |= damage
    with pytest.raises(InvalidInput, match=f"evidence.{next(iter(damage))}"):
        RoutingRule.from_dict(content)


@pytest.mark.parametrize("content", [None, [], "rule", 3, {}])
def test_something_else_is_refused(content):
    for kind in (RoutingRule, Shortlist):
        with pytest.raises(InvalidInput, match="written by calibrant"):
            kind.from_dict(content)


def test_what_is_no_path():
    with pytest.raises(InvalidInput, match="path"):
        RoutingRule.load(None)
