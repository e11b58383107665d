"""Names that are composed of a loss, terms and a plan."""

import pytest
import torch

from calibrant import losses
from calibrant.errors import InvalidInput
from calibrant.pruning import LowestConfidence, RandomSubset, Unbiased
from calibrant.training import methods
from calibrant.training.methods.method_table import ADDED, PRUNING, TERMS


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return 4 * torch.randn(64, 10, generator=generator), torch.randint(0, 10, (64,), generator=generator)


@pytest.mark.parametrize(
    ("name", "loss", "policy"),
    [
        ("nll+random", losses.CrossEntropy(), RandomSubset(0.4)),
        ("brier+unbiased", losses.Brier(), Unbiased(0.6, 0.5)),
        (
            "ls+h+p-ema",
            losses.CrossEntropy(0.05) + 10 * losses.HuberCalibration(),
            LowestConfidence(0.1),
        ),
        ("dca+mdca", losses.CrossEntropy() + 1.0 * losses.DCA() + 1.0 * losses.MDCA(), None),
        (
            "nll+entropy+margin",
            losses.CrossEntropy() + 0.1 * losses.EntropyPenalty() + 0.1 * losses.LogitMargin(),
            None,
        ),
        # A row keeps its own settings at the beginning of a longer name.
        ("fl+mdca+unbiased", losses.Focal(1.0) + 1.0 * losses.MDCA(), Unbiased(0.6, 0.5)),
        ("dual-focal+mmce+random", losses.DualFocal(5.0) + 0.016 * losses.MMCE(0.4), RandomSubset(0.4)),
    ],
)
def test_a_name_means_its_parts(name, loss, policy, batch):
    plan = methods.resolve(name)
    torch.testing.assert_close(plan.loss(*batch), loss(*batch), rtol=0, atol=0)
    assert plan.loss.terms(*batch).keys() == loss.terms(*batch).keys()
    assert (plan.pruning and plan.pruning["policy"]) == policy


def test_a_composed_name_equals_the_row_where_the_row_has_no_settings_of_its_own(batch):
    for row, composed in (("dca", "nll+dca"), ("mmce", "nll+mmce"), ("mbls", "nll+margin"), ("entropy", "nll+entropy")):
        one, other = methods.resolve(row), methods.resolve(composed)
        assert one.settings == other.settings
        assert torch.equal(one.loss(*batch), other.loss(*batch))


def test_every_loss_takes_every_plan():
    plain = [name for name in methods.names() if methods.describe(name).pruning == "none"]
    for loss in plain:
        for plan in PRUNING:
            made = methods.resolve(f"{loss}+{plan}", data="cifar10", epochs=40)
            assert made.pruning is not None
            assert made.sources.keys() == made.settings.keys()


def test_what_may_be_added_is_in_the_table():
    assert set(ADDED.values()) <= set(TERMS)


def test_it_is_described():
    method = methods.describe("brier+h+random")
    assert method.formula == "Brier + huber_weight * Huber(mean confidence - accuracy)"
    assert method.pruning == methods.describe("flsd+h+random").pruning
    assert method.source == "composed; loss: Brier 1950"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nll+random+unbiased", "method must end with its one plan, got 'nll+random+unbiased'. A name is LOSS"),
        ("nll+random+h", "method must end with its one plan"),
        ("h+nll", "method must begin with a loss, got 'h+nll'. A name is LOSS[+TERM...][+PLAN]"),
        ("unbiased", "method must begin with a loss"),
        ("nll+brier", "method must have one loss, at the beginning, got 'nll+brier'"),
        ("dca+nll", "method must have one loss, at the beginning"),
        ("nll+h+h", "method must add h once"),
        ("mbls+margin", "method must add margin once"),
        ("nll+unbiasd", "what is added in nll+unbiasd must be known, got 'unbiasd'. Did you mean 'unbiased'?"),
        ("nll+", "what is added in nll+ must be known, got ''. Known: h,"),
        ("", "method must be one of the known methods, got ''"),
        ("+h", "method must be one of the known methods, got '+h'"),
        ("huber", "method must be one of the known methods, got 'huber'"),
    ],
)
def test_nonsense_is_one_line(name, message):
    with pytest.raises(InvalidInput) as caught:
        methods.resolve(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plan", PRUNING)
def test_the_free_setting_is_the_free_field_of_the_policy(plan):
    """Under a budget it is no setting."""
    free, policy = PRUNING[plan].free, methods.resolve(f"nll+{plan}").pruning["policy"]
    assert bool(free) == bool(policy.free)
    if free:
        value = methods.describe(f"nll+{plan}").settings[free].value * 0.5
        changed = methods.resolve(f"nll+{plan}", **{free: value}).pruning["policy"]
        assert getattr(changed, policy.free) == value
        under = methods.resolve(f"nll+{plan}", budget=0.7)
        assert free not in under.settings
        assert under.pruning["budget"] == 0.7


def test_the_plans_of_the_field_by_name():
    from calibrant.pruning import EasyHard, Every, InfoBatch, OrderDP, Selective

    plans = {
        "infobatch": (InfoBatch(0.5), Every(1, start=1), 0.125),
        "easy-hard": (EasyHard(0.5, easy=0.9, hard=0.0), Every(1, start=1), 0.125),
        "orderdp": (OrderDP(0.8, 0.75), Every(1, start=1), 0.0),
        "selective": (Selective(0.4, 1.0), Every(1, start=1), 0.0),
    }
    for name, (policy, schedule, anneal) in plans.items():
        for loss in ("nll", "ls+h"):
            found = methods.resolve(f"{loss}+{name}", epochs=80).pruning
            assert (found["policy"], found["schedule"], found["anneal"]) == (policy, schedule, anneal), name
