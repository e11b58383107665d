"""Methods of a study by group."""

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.report import read_groups
from calibrant.studies.result_tables import group_tables
from calibrant.training import Run


def test_a_row_for_each_group_and_the_worst_named(finished_study):
    runs = {}
    for planned in finished_study.finished():
        runs.setdefault(planned.label, []).append(Run.open(finished_study.folder(planned)).predictions("test"))
    first = runs["nll"][0]
    groups = np.where(first.targets < 5, "low", "high").tolist()
    (grid,) = group_tables(finished_study, groups)
    rows = {row[0]: row for row in grid.rows}
    assert set(rows) == {"all", "high", "low"}
    assert rows["high"][1] == f"{(first.targets >= 5).sum():,}"
    assert grid.columns[2] == "nll: TE"
    own = first.targets >= 5
    expected = np.mean([100 * (~each.correct[own]).mean() for each in runs["nll"]])
    value, low, to, high = rows["high"][2].replace("(", "").replace(")", "").split()
    assert (float(value), to) == (pytest.approx(expected, abs=0.006), "to")
    assert float(low) < expected < float(high)
    means = [float(row[2].split()[0]) for row in grid.rows[1:]]
    assert means == sorted(means, reverse=True)
    errors = {
        name: np.mean([(~e.correct[(e.targets < 5) == (name == "low")]).mean() for e in runs["flsd+h+p-ema"]])
        for name in ("low", "high")
    }
    worst = max(errors, key=errors.get)
    assert f"flsd+h+p-ema: {worst} ({100 * errors[worst]:.2f} %)" in grid.caption
    assert "those of the 2 groups hold together with 95 %" in grid.caption


def test_a_group_that_all_seeds_get_wrong_stands_out_and_seeds_are_no_new_cases(finished_study, monkeypatch):
    """Ten seeds that agree tell as much about the cases as one does."""
    from calibrant import Predictions, metrics
    from calibrant.studies import result_tables as module

    right = np.random.default_rng(0).random(300) < np.where(np.arange(300) < 60, 0.5, 0.95)
    test = Predictions.from_probabilities(np.where(right[:, None], [[0.9, 0.1]], [[0.1, 0.9]]), np.zeros(300, int))
    sites = np.where(np.arange(300) < 60, "hard", "easy")
    monkeypatch.setattr(module.Run, "open", lambda _: type("R", (), {"predictions": lambda *_: test}))
    once, often = (module._grouped(["run"] * seeds, sites).together for seeds in (1, 10))
    assert often.stand_out() == ["hard"]
    for name, each in often.groups.items():
        assert each.intervals["test_error"] == pytest.approx(once.groups[name].intervals["test_error"], abs=1e-9)
    alone = metrics.evaluate_groups(test, sites, n_resamples=20).groups["hard"].intervals["test_error"]
    assert once.groups["hard"].intervals["test_error"] == pytest.approx(alone, abs=0.02)


def test_groups_of_another_length_are_refused(finished_study):
    with pytest.raises(InvalidInput, match="one per row"):
        group_tables(finished_study, ["a", "b"])
    with pytest.raises(InvalidInput, match="be a column"):
        group_tables(finished_study, "site")


def test_groups_are_read_from_a_table(tmp_path):
    (tmp_path / "groups.csv").write_text("id,group\n1,north\n2,south\n")
    assert read_groups(tmp_path / "groups.csv") == ["north", "south"]
    (tmp_path / "other.csv").write_text("id,site\n1,north\n")
    with pytest.raises(InvalidInput, match="have one column group"):
        read_groups(tmp_path / "other.csv")


@pytest.mark.browser
def test_the_page_of_a_study_shows_its_groups_over_seeds(finished_study, calibrant, tmp_path, open_page):
    targets = Run.open(finished_study.folder(finished_study.runs[0])).predictions("test").targets
    groups = np.where(targets < 5, "low", "high & <b>odd</b>").tolist()
    (tmp_path / "groups.csv").write_text("group\n" + "\n".join(groups) + "\n")
    target = tmp_path / "page.html"
    flags = ("--group-file", tmp_path / "groups.csv", "-o", target, "--n-resamples", 0, "--no-pictures")
    code, out, err = calibrant("report", finished_study.path, *flags)
    assert (code, out.split(), err) == (0, ["report:", str(target)], "")
    (grid,) = group_tables(finished_study, groups)
    page = open_page(target)
    section = page.locator("section", has=page.get_by_role("heading", name="by group"))
    assert section.locator("p.note").inner_text() == grid.caption
    rows = [row.locator("th, td").all_inner_texts() for row in section.locator("tbody tr").all()]
    assert [[" ".join(cell.split()) for cell in row] for row in rows] == [list(row) for row in grid.rows]
    code, _, err = calibrant("report", finished_study.path, "--groups", "site")
    assert (code, err.count("\n")) == (2, 1)
    assert "groups must" in err
