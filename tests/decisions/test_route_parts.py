"""The decisions of parts are those of the whole file."""

import numpy as np
import pytest
from pyarrow import parquet

from calibrant import Predictions
from calibrant.decisions import Policy, choose_threshold, route_file, route_parts
from calibrant.errors import InvalidInput


def write_parts(folder, rows, ids=None):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(rows, 3))
    targets = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    whole = Predictions.from_logits(logits, targets)
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), [rows // 5, rows // 2])):
        names = None if ids is None else np.asarray(ids)[part]
        extras = {"site": np.where(part % 3, "a", "b"), "patient": part // 4}
        own = Predictions.from_logits(logits[part], targets[part], ids=names, extras=extras)
        own.save(folder / f"{number}.parquet")
    return whole


@pytest.mark.parametrize("ids", [None, [f"case {n}" for n in range(3000)]], ids=["numbered", "named"])
def test_parts_are_decided_as_the_whole(tmp_path, ids):
    rule = Policy(3, rule=choose_threshold(write_parts(tmp_path / "parts", 3000, ids), 0.8))
    kept = {"keep": ["patient", "site"]} if ids is None else {}
    counts = route_parts(rule, tmp_path / "parts", tmp_path / "decisions", **kept)
    assert counts == route_file(rule, tmp_path / "parts", tmp_path / "whole.parquet", **kept)
    assert parquet.read_table(tmp_path / "decisions").equals(parquet.read_table(tmp_path / "whole.parquet"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions", "parts", "whole.parquet"]


@pytest.mark.parametrize("ids", [["x", "y", "z", "y"], [1, 2, 3, 2]])
def test_an_id_that_two_parts_share_is_refused_and_nothing_is_left(tmp_path, ids):
    rule = Policy(3, rule=choose_threshold(write_parts(tmp_path / "all", 3000), 0.8))
    (tmp_path / "parts").mkdir()
    for number, part in enumerate(([0, 1], [2, 3])):
        named = Predictions.from_logits(np.eye(3)[:2], [0, 1], ids=[ids[place] for place in part])
        named.save(tmp_path / "parts" / f"{number}.parquet")
    with pytest.raises(InvalidInput, match=r"ids must be distinct.* again in row 3"):
        route_parts(rule, tmp_path / "parts", tmp_path / "decisions")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "parts"]


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    rule = Policy(3, rule=choose_threshold(write_parts(tmp_path / "parts", 3000), 0.8))
    with pytest.raises(InvalidInput, match="target must"):
        route_parts(rule, tmp_path / "parts", tmp_path / "parts")
