"""A small slice of `make promises`: its worlds, its counts and its verdict."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("promises", ROOT / "scripts" / "promises.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def counted(script, names, draws):
    worlds = [world.name for world in script.all_worlds()]
    return {name: script.count((worlds.index(name), 0, draws)) for name in names}


def test_at_least_forty_worlds_cover_every_promise(script):
    worlds = script.all_worlds()
    assert len(worlds) >= 40
    assert {name.strip("()") for world in worlds for name in world.promises} == set(script.PROMISES)
    rules = [world for world in worlds if world.section == "rules"]
    assert {min(world.cases for world in rules) <= 50, max(world.cases for world in rules)} == {True, 20_000}
    assert {world.scores.shape[1] for world in rules} >= {2, 1000}


def test_a_slice_of_the_worlds_keeps_its_promises(script):
    names = ("just below the target", "saturated logits", "two classes, saturated scores", "at the promise, 99 %")
    text, failed = script.table(counted(script, names, 30))
    assert failed == []
    assert "in 4 worlds" in text


def test_a_promise_that_nobody_made_is_shown_and_not_counted(script):
    name = "patients with 1 to 20 pictures, just below"
    counts = counted(script, [name], 12)
    assert counts[name]["(rule)"][1] > counts[name]["rule by cluster"][1]
    assert script.table(counts)[1] == []
    counts[name]["rule"] = [400, 90, 0.0]  # 10 % may be broken
    assert script.table(counts)[1] == [f"rule: {name}"]


def test_holm(script):
    assert script.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
