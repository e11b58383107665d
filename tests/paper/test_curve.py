"""The budget curve from records."""

import pytest

from paper.findings import budget_curves_of


@pytest.fixture
def groups(make_record):
    """Two seeds on all updates, and at two budgets a plan and its control; one plan more with a rate of its own."""
    made = {"nll": [make_record("nll", seed=seed, sharpness=1.0) for seed in (0, 1)]}
    for share in (0.5, 0.8):
        cost = {"samples_full": 1000, "samples_seen": int(1000 * share), "seen_share": share}
        for method, sharpness in (("nll", 1 + share), ("nll+random", 2 + share), ("nll+unbiased", 3 + share)):
            records = [make_record(method, seed=seed, sharpness=sharpness, **cost) for seed in (0, 1)]
            budget = 1.0 if method == "nll+unbiased" else share
            made[f"{method} ({share})"] = [
                r.model_copy(update={"recipe": {**r.recipe, "budget": budget}}) for r in records
            ]
    return made


def test_lines_of_control_and_plan_through_all_updates(groups):
    ((label, lines),) = budget_curves_of(groups).items()
    assert label == "nll"
    assert {line.name: line.control for line in lines} == {"nll, fewer epochs (to beat)": True, "nll+random": False}
    for line, method in zip(lines, ("nll", "nll+random"), strict=True):
        assert line.updates == [0.5, 0.8, 1.0]
        for share, value in zip(line.updates, line.values["nll"], strict=True):
            records = groups["nll" if share == 1 else f"{method} ({share})"]
            assert value == pytest.approx(sum(r.value("nll", scaled=True) for r in records) / 2)


def test_one_budget_is_no_curve(groups):
    assert budget_curves_of({label: each for label, each in groups.items() if "0.8" not in label}) == {}


def test_every_line_ends_in_the_same_runs_though_one_plan_has_fewer_seeds(groups):
    for label in [label for label in groups if label.startswith("nll+random")]:
        groups[label.replace("random", "selective")] = [
            record.model_copy(update={"method": "nll+selective"}) for record in groups[label][:1]
        ]
    ((_, lines),) = budget_curves_of(groups).items()
    mean = sum(r.value("nll", scaled=True) for r in groups["nll"]) / 2
    assert {line.name for line in lines} >= {"nll+random", "nll+selective"}
    assert [line.values["nll"][-1] for line in lines] == [pytest.approx(mean)] * 3
