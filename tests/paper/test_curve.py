"""The curves of quality against compute, from records."""

import pytest

from paper.findings import FEWER, FORMER, PRUNED, SMALLER, compute_curves

_AVERAGED = {"schedule": {"kind": "cosine", "average": 0.25}}
_FREE_GAINS = {"data.mirror": "alternate", "optimiser.nesterov": True}


@pytest.fixture
def groups(make_record):
    """Two seeds per point: the former default and a plan at two budgets, and both ways with the free gains."""

    def runs(method, share, changes, resolution=None):
        made = []
        for seed in (0, 1):
            cost = {"samples_full": 1000, "samples_seen": 1000, "flops": 1000 * share, "flops_full": 1000.0 * share}
            record = make_record(method, seed=seed, sharpness=1 + share, **cost)
            recipe = {**record.recipe, **_AVERAGED}
            if resolution:
                recipe["schedule"] = {**recipe["schedule"], "resolution": resolution}
            changes = {**changes, "epochs": int(160 * share)}
            costs = {"samples_seen": int(1000 * share), "samples_full": int(1000 * share)}
            made.append(record.model_copy(update={"recipe": recipe, "changes": changes, **costs}))
        return made

    made = {}
    for share in (0.3, 0.6, 1.0):
        made[f"former {share}"] = runs("nll", share, {})
        made[f"fewer {share}"] = runs("nll", share, _FREE_GAINS)
    for share in (0.3, 0.6):
        made[f"plan {share}"] = runs("nll+selective", share, {"budget": share})
        made[f"smaller {share}"] = runs("nll", share, _FREE_GAINS, [[24, 0.6]])
    made["mixup"] = runs("nll", 0.6, {"data.mixup": 0.2})
    return made


def test_each_way_of_saving_is_a_curve_over_shares_of_the_longest_default(groups):
    curves = {curve.name: curve for curve in compute_curves(groups)}
    assert list(curves) == [SMALLER, FEWER, FORMER, PRUNED]
    assert curves[FEWER].shares == curves[FORMER].shares == curves[PRUNED].shares == (0.3, 0.6, 1.0)
    assert curves[SMALLER].shares == (0.3, 0.6)
    assert all(len(runs) == 2 for curve in curves.values() for runs in curve.runs)


def test_a_plan_ends_in_the_runs_without_it(groups):
    pruned = next(curve for curve in compute_curves(groups) if curve.name == PRUNED)
    assert list(pruned.runs[-1]) == groups["former 1.0"]


def test_one_point_is_no_curve_and_without_the_default_there_is_none(groups):
    few = {label: runs for label, runs in groups.items() if label in ("former 1.0", "smaller 0.6")}
    assert compute_curves(few) == []
    assert compute_curves({"plan 0.6": groups["plan 0.6"]}) == []
