"""The budget curve of a study."""

from dataclasses import replace

import pytest

from calibrant.studies import summarise
from calibrant.studies.controls import against_controls, budget_figure, budget_lines
from calibrant.studies.result_tables import paper_tables
from calibrant.studies.study_outputs import study_sections


@pytest.fixture
def results(make_record):
    def make(shares=(0.5, 0.75), full=True, seeds=(0, 1)):
        groups = {}
        for share in shares:
            cost = {"samples_full": 1000, "samples_seen": int(1000 * share), "seen_share": share}
            groups[f"nll@{int(160 * share)}"] = [
                make_record("nll", seed=seed, sharpness=1 + share, **cost) for seed in seeds
            ]
            groups[f"nll+random at {share}"] = [
                make_record("nll+random", seed=seed, sharpness=2 + share, **cost) for seed in seeds
            ]
        if full:
            groups["nll"] = [make_record("nll", seed=seed, sharpness=1.0) for seed in seeds]
        return replace(summarise(groups, "nll"), controls=against_controls(groups))

    return make


def test_a_line_per_method_and_the_control_marked(results):
    found = results()
    lines = {line.name: line for line in budget_lines(found)}
    assert list(lines) == ["nll, fewer epochs (to beat)", "nll+random"]
    control, plan = lines.values()
    assert (control.control, plan.control) == (True, False)
    # A plan that may make all updates is its loss on all data: both lines end in that run.
    assert control.updates == plan.updates == [0.5, 0.75, 1.0]
    assert control.values["nll"][-1] == plan.values["nll"][-1]
    rows = {row.label: row for row in found.rows}
    assert plan.values["error"][0] == rows["nll+random at 0.5"].test["test_error"].mean
    assert plan.values["nll"][1] == rows["nll+random at 0.75"].scaled["nll"].mean
    assert plan.spreads["nll"][1] == rows["nll+random at 0.75"].scaled["nll"].spread


def test_variants_of_a_method_are_lines_of_their_own(make_record):
    """Rows of one method and cost would hide each other on one line."""
    groups = {}
    for share in (0.5, 0.75):
        cost = {"samples_full": 1000, "samples_seen": int(1000 * share), "seen_share": share}
        groups[f"weak at {share}"] = [make_record("nll+random", seed=0, sharpness=2 + share, **cost)]
        groups[f"strong at {share}"] = [make_record("nll+random", seed=0, sharpness=4 + share, **cost)]
        groups[f"nll@{int(160 * share)}"] = [make_record("nll", seed=0, sharpness=1 + share, **cost)]
    groups["nll"] = [make_record("nll", seed=0, sharpness=1.0)]
    found = replace(summarise(groups, "nll"), controls=against_controls(groups))
    lines = {line.name: line for line in budget_lines(found)}
    assert list(lines) == ["weak", "strong", "nll, fewer epochs (to beat)"]
    rows = {row.label: row for row in found.rows}
    for name in ("weak", "strong"):
        labels = [f"{name} at 0.5", f"{name} at 0.75", "nll"]
        assert lines[name].values["nll"] == [rows[label].scaled["nll"].mean for label in labels]
    assert lines["weak"].values["nll"] != lines["strong"].values["nll"]


def test_one_budget_alone_is_no_curve(results):
    assert budget_figure(results(shares=(0.5,), full=False)) is None
    assert len(budget_figure(results()).axes) == 3


def test_the_page_gets_the_tables_of_the_study_and_the_picture(results):
    found = study_sections(results())
    assert [section.grid for section in found] == paper_tables(results())
    (plans,) = [section for section in found if section.title == "Is the plan worth it?"]
    assert plans.grid.columns[0] == "plan"
    assert plans.picture.startswith("data:image/png;base64,")
    assert not any(section.picture for section in study_sections(results(shares=(0.5,), full=False)))
    titles = [section.title for section in study_sections(replace(results(), controls=()))]
    assert "Over all seeds: calibration and test error" in titles
    assert "Is the plan worth it?" not in titles
