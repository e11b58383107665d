"""The numbers of the package are those that were frozen; `scripts/frozen_numbers.py compare` checks all of them."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "results" / "benchmarks" / "frozen-01e6c30.json.gz"
CASES = ("bounds", "cifar10-resnet32-nll", "table-02", "table-04")
# Left out here because they take long.
SLOW = tuple(f"cifar10-resnet32-nll/{part}/*" for part in ("groups", "partitioned"))
# Patterns of keys that were changed on purpose since; say why beside each.
CHANGED: tuple[str, ...] = (
    # Only promised groups are tested; others are described.
    "*/monitor/*/described*",
    "*/monitor/groups/*",
    "*/monitor/drift/*",
    # It counts the labels after which a drop is noticed in 9 of 10 streams, not on average.
    "*/monitor/*/labels_to_notice*",
    "*/monitor/*/labelling*",
    # The share of the last bet on ranks no longer depends on the number of cases.
    "*/monitor/*/signals/share automated, all/*",
    "*/monitor/*/signals/confidence, all/*",
    "*/monitor/*/signals/predicted classes, all/*",
    # The debiased ECE has no interval and no verdict: its coverage was far below the level.
    "*/intervals/debiased_ece*",
    "*/debiased_ece/*",
    # A promised specificity orders probabilities, not their complements.
    "*/binary/specificity/*",
    "*/binary/both/*",
    "*/monitor/binary/*",
    # Rules for clusters are checked by cluster.
    "*/rules/*clusters/check/groups/*",
    # The cases that a promise for clusters needs follow from the test by clusters.
    "*/rules/*clusters/rule/evidence/cases_needed",
    # One engine for weighted and plain data draws the weighted noise floor as the plain one.
    "*/weights*/noise_floor*",
    "*/groups/weights/*/noise_floor*",
    # Standard errors below 1e-12 count as 0.
    "*/compare/*/aurc/*",
    # These three and `best` changed with their minimiser and the strengths that they choose.
    "*/calibrators/vector/*",
    "*/calibrators/matrix/*",
    "*/calibrators/dirichlet/*",
    "*/best/*",
    # Intervals of calibration errors hold the truth if the error is local, too; they were too short then.
    "*/intervals/ece*",
    "*/intervals/smooth_ece*",
    "*/intervals/ks*",
    # A temperature is no longer fitted part by part.
    "*/partitioned/minimised/*",
    # Sums in another order: at most 7e-12 relative.
    "*/evaluate/weights*/aurc",
    "*/intervals/aurc",
    "*/functions/weights/aurc",
    "*/compare/*/auroc/*",
    # Shares have exact intervals: Wilson's and Jeffreys' held shares near 0 and 1 too rarely.
    "bounds/wilson*",
    "*/intervals/test_error",
    "*/intervals/share@*",
    "*/intervals/accuracy@*",
    "*/compare*/share@*/difference*",
    "*/compare*/accuracy@*/difference*",
    # The difference of errors has an interval from the rows on which only one of two models is wrong.
    "*/compare/*/test_error/difference*",
    # These options were removed.
    "*/calibrators/beta-a*",
    "*/calibrators/temperature-bounds/*",
    "*/calibrators/histogram-width/*",
    "*/prior/bbse/*",
    "*/coverage/cost matrix/*",
    "*/coverage/*/shares*",
    "*/check/strict",
    "*/monitor/*/clock_went_back",
    "*/monitor/*/labels_to_refit",
    "*/rules/cheapest*",
    "*/compare groups/*",
    # NLL and Brier score have no interval with fewer than three wrong rows, as here.
    "table-04/*/nll*",
    "table-04/*/brier*",
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("frozen_numbers", ROOT / "scripts" / "frozen_numbers.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def frozen(script):
    return script.select(script.read(FROZEN), CASES)


def test_the_numbers_are_the_frozen_ones(script, frozen):
    ignored = (*SLOW, *CHANGED)
    assert script.differences(frozen, script.collect(CASES, ignored), ignored) == {}


@pytest.mark.parametrize(
    ("kind", "key", "factor", "reported"),
    [
        ("exact", "cifar10-resnet32-nll/evaluate/plain/ece", 1 + 1e-11, True),
        ("exact", "cifar10-resnet32-nll/evaluate/plain/ece", 1 + 1e-13, False),
        ("minimised", "cifar10-resnet32-nll/calibrators/temperature/fitted/parameters/temperature", 1 + 1e-5, True),
        ("minimised", "cifar10-resnet32-nll/calibrators/temperature/fitted/parameters/temperature", 1 + 1e-7, False),
    ],
)
def test_a_changed_number_is_reported(script, frozen, kind, key, factor, reported):
    changed = copy.deepcopy(frozen)
    changed[kind][key] *= factor
    assert list(script.differences(frozen, changed)) == [key] * reported


def test_a_missing_number_is_reported(script, frozen):
    changed = copy.deepcopy(frozen)
    del changed["exact"]["table-02/certify/kept/checksum"]
    assert list(script.differences(frozen, changed)) == ["table-02/certify/kept/checksum"]
    assert list(script.differences(changed, frozen)) == ["table-02/certify/kept/checksum"]
    assert script.differences(frozen, changed, ["table-02/certify/*"]) == {}
