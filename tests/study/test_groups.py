"""Methods of a study by group."""

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.study import group_tables, read_groups


def test_a_row_for_each_group_and_the_worst_named(finished_study):
    from calibrant.training import Run

    runs = {}
    for planned in finished_study.finished():
        runs.setdefault(planned.label, []).append(Run.open(finished_study.folder(planned)).predictions("test"))
    first = runs["nll"][0]
    groups = np.where(first.targets < 5, "low", "high").tolist()
    (grid,) = group_tables(finished_study, groups)
    assert [row[0] for row in grid.rows] == ["all", "high", "low"]
    assert grid.rows[1][1] == f"{(first.targets >= 5).sum():,}"
    assert grid.columns[2] == "nll: TE"
    own = first.targets >= 5
    expected = np.mean([100 * (~each.correct[own]).mean() for each in runs["nll"]])
    assert float(grid.rows[1][2]) == pytest.approx(expected, abs=0.006)
    errors = {
        name: np.mean([(~e.correct[(e.targets < 5) == (name == "low")]).mean() for e in runs["flsd+h+p-ema"]])
        for name in ("low", "high")
    }
    worst = max(errors, key=errors.get)
    assert f"flsd+h+p-ema: {worst} ({100 * errors[worst]:.2f} %)" in grid.caption


def test_groups_of_another_length_are_refused(finished_study):
    with pytest.raises(InvalidInput, match="one per row"):
        group_tables(finished_study, ["a", "b"])


def test_groups_are_read_from_a_table(tmp_path):
    (tmp_path / "groups.csv").write_text("id,group\n1,north\n2,south\n")
    assert read_groups(tmp_path / "groups.csv") == ["north", "south"]
    (tmp_path / "other.csv").write_text("id,site\n1,north\n")
    with pytest.raises(InvalidInput, match="have one column group"):
        read_groups(tmp_path / "other.csv")
