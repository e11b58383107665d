from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from paper.beside import agreement, load_reasons, reason
from paper.numbers import paper_rows

ROW = next(row for row in paper_rows() if (row.data, row.model, row.method) == ("cifar10", "resnet32", "flsd"))


@pytest.fixture
def records(make_record):
    return [make_record("flsd", seed=seed, sharpness=2.0) for seed in range(3)]


def tolerance(records, metric):
    """The rule, written out once more."""
    values = [record.value(metric) for record in records]
    boot = np.mean([record.deviation(metric) for record in records])
    spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return 1.96 * max(spread, boot) * np.sqrt(1 + 1 / len(values)) + 0.00005


@pytest.mark.parametrize("count", [1, 3])
def test_the_tolerance_separates_agreement_from_difference(records, count):
    records = records[:count]
    mean, allowed = np.mean([record.value("test_error") for record in records]), tolerance(records, "test_error")
    for difference, verdict in (
        (0.99 * allowed, "agrees"),
        (-0.99 * allowed, "agrees"),
        (1.01 * allowed, "ours is lower"),
        (-1.01 * allowed, "ours is higher"),
    ):
        row = replace(ROW, test_error=100 * (mean + difference))
        found = agreement(row, records, "test_error")
        assert found.verdict == verdict
        assert found.tolerance == pytest.approx(allowed)


def test_two_eces_that_chance_alone_explains_agree(make_record):
    calibrated = make_record("flsd", sharpness=1.0)
    floor = calibrated.evaluation().noise_floor_95
    assert calibrated.value("ece") < floor
    low = replace(ROW, ece=0.0)
    assert agreement(low, [calibrated], "ece").verdict == "agrees"
    sharp = make_record("flsd", sharpness=3.0)
    assert sharp.value("ece") > sharp.evaluation().noise_floor_95
    assert agreement(low, [sharp], "ece").verdict == "ours is higher"


def measured(value, deviation, floor=0.0):
    """What agreement asks a record for."""
    return SimpleNamespace(
        value=lambda metric: value,
        deviation=lambda metric: deviation,
        evaluation=lambda: SimpleNamespace(noise_floor_95=floor),
    )


@pytest.mark.parametrize(("paper", "verdict"), [(0.89, "agrees"), (0.91, "ours is lower"), (1.3, "ours is lower")])
def test_chance_explains_an_ece_below_the_floor_of_every_run(paper, verdict):
    records = [measured(0.005, 0.0001, floor) for floor in (0.012, 0.009)]
    assert agreement(replace(ROW, ece=paper), records, "ece").verdict == verdict
    # Ours is above the floor: then it explains nothing.
    assert agreement(replace(ROW, ece=0.5), [measured(0.02, 0.0001, 0.012)], "ece").verdict == "ours is higher"


@pytest.mark.parametrize(
    ("values", "deviations", "allowed"),
    [
        ([0.1], [None], 0.0),
        ([0.1], [0.002], 1.96 * 0.002 * 2**0.5),
        ([0.1, 0.1], [0.002, 0.004], 1.96 * 0.003 * 1.5**0.5),
        ([0.1, 0.1], [0.002, None], 1.96 * 0.002 * 1.5**0.5),
        ([0.1, 0.12], [0.002, None], 1.96 * 0.02 / 2**0.5 * 1.5**0.5),
    ],
)
def test_the_tolerance_by_hand(values, deviations, allowed):
    records = [measured(value, deviation) for value, deviation in zip(values, deviations, strict=True)]
    assert agreement(ROW, records, "test_error").tolerance == pytest.approx(allowed + 0.00005, rel=1e-12)


def test_chance_excuses_no_other_number_than_ece(make_record):
    record = make_record("flsd", sharpness=0.6)
    assert record.value("share@0.95") < 0.06 < record.evaluation().noise_floor_95
    assert agreement(replace(ROW, share_confident=6.0), [record], "share@0.95").verdict == "ours is lower"


def test_an_empty_confident_set_has_no_verdict(make_record):
    assert agreement(ROW, [make_record("flsd", sharpness=0.01)], "ece@0.95").verdict == "not defined"


def test_reasons_for_a_metric_or_a_row(tmp_path):
    path = tmp_path / "reasons.toml"
    assert load_reasons(path) == {}
    path.write_text('["cifar10/resnet32/flsd"]\nece = "untuned"\nall = "one run"\n')
    reasons = load_reasons(path)
    assert (reason(reasons, ROW, "ece"), reason(reasons, ROW, "auroc")) == ("untuned", "one run")
    assert reason(reasons, replace(ROW, method="dca"), "ece") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["cifar10/resnet32/fsld"]\nece = "x"', "Did you mean 'cifar10/resnet32/flsd'"),
        ('["cifar10/resnet32/flsd"]\nec = "x"', "to sentences"),
        ('["cifar10/resnet32/flsd"]\nece = 1', "to sentences"),
        ('"cifar10/resnet32/flsd" = "x"', "a table of sentences"),
        ("[", "must be TOML"),
    ],
)
def test_a_reason_that_would_never_be_shown_is_refused(text, message, tmp_path):
    (tmp_path / "reasons.toml").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_reasons(tmp_path / "reasons.toml")
    assert message in str(caught.value)
