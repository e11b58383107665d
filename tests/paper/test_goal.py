from dataclasses import replace

import pytest

from calibrant.study.summary import Estimate, summarise_row
from paper.goal import criteria, goal


def fixed(value):
    return Estimate(value, None, None, (value,))


@pytest.fixture
def baseline(make_record):
    return row(
        make_record, "nll", seen=1.0, error=0.0726, ece=0.0433, ece_ts=0.0054, share=0.885, share_ts=0.75, s95=0.0263
    )


@pytest.fixture
def perfect(make_record):
    """Exactly on every limit."""
    return row(
        make_record, "plan", seen=0.60, error=0.0746, ece=0.009, ece_ts=0.0054, share=0.74, share_ts=0.5, s95=0.003
    )


def row(make_record, label, *, seen, error, ece, ece_ts, share, share_ts, s95):
    made = summarise_row(label, [make_record(seed=seed) for seed in (0, 1, 2)])
    test = {
        **made.test,
        "test_error": fixed(error),
        "ece": fixed(ece),
        "share@0.95": fixed(share),
        "ece@0.95": fixed(s95),
    }
    scaled = {**made.scaled, "ece": fixed(ece_ts), "share@0.95": fixed(share_ts)}
    return replace(made, test=test, scaled=scaled, seen_share=fixed(seen))


def failed(plan, baseline):
    return [check.text.split(" at ")[0] for check in criteria(plan, baseline) if not check.passed]


def test_a_plan_on_every_limit_passes(perfect, baseline):
    assert failed(perfect, baseline) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"seen_share": 0.601}, "sample updates"),
        ({"test_error": 0.0747}, "TE"),
        ({"ece": 0.0091}, "ECE"),
        ({"share@0.95": 0.7399}, "|S95| within 1 point of NLL +TS"),
        ({"share@0.95": 0.7601}, "|S95| within 1 point of NLL +TS"),
        ({"ece@0.95": 0.0031}, "ECE(S95)"),
        ({"ece@0.95": None}, "ECE(S95)"),
        ({"test_error": None}, "TE"),
        ({"share@0.95": None}, "|S95| within 1 point of NLL +TS"),
    ],
)
def test_each_criterion_alone_can_fail(perfect, baseline, changes, what):
    ((name, value),) = changes.items()
    worse = (
        replace(perfect, seen_share=fixed(value))
        if name == "seen_share"
        else replace(perfect, test={**perfect.test, name: fixed(value)})
    )
    assert failed(worse, baseline) == [what]


def test_the_scaled_ece_and_the_seeds_count_too(perfect, baseline):
    assert failed(replace(perfect, scaled={**perfect.scaled, "ece": fixed(0.0055)}), baseline) == ["ECE +TS"]
    assert failed(replace(perfect, seeds=(0, 1)), baseline) == ["at least 3 seeds of both"]
    assert failed(perfect, replace(baseline, seeds=(0, 1))) == ["at least 3 seeds of both"]
    unknown = replace(baseline, test={**baseline.test, "test_error": fixed(None)})
    assert failed(perfect, unknown) == ["TE"]


def test_only_plans_that_save_samples_are_candidates(make_record):
    groups = {
        "nll": [make_record()],
        "flsd+h": [make_record("flsd+h")],
        "flsd+h+unbiased": [make_record("flsd+h+unbiased", seen_share=0.6, samples_seen=600)],
    }
    assert list(goal(groups)) == ["flsd+h+unbiased"]
    assert list(goal(groups | {"brier": []})) == ["flsd+h+unbiased"]
    del groups["nll"]
    assert goal(groups) == {}
