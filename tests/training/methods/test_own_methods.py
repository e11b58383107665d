"""Methods from the user's own code."""

import pytest
import torch

from calibrant.errors import InvalidInput
from calibrant.losses import CrossEntropy, HuberCalibration
from calibrant.pruning import ConfidencePruner, Every, LowestConfidence, Unbiased
from calibrant.training import methods

MINE = '''
import numpy as np
from calibrant.losses import CrossEntropy, PerSampleLoss
from calibrant.pruning import Choice, PruningPolicy


class Margin(PerSampleLoss):
    def __init__(self, width: float = 2.0):
        super().__init__()
        self.width = width

    def per_sample(self, batch):
        rest = batch.logits.scatter(1, batch.targets[:, None], float("-inf")).amax(1)
        true = batch.logits.gather(1, batch.targets[:, None]).squeeze(1)
        return (self.width - true + rest).clamp(min=0)


def mixed(*, weight: float = 0.5, smoothing: float = 0.0, **_):
    return CrossEntropy(smoothing) + weight * Margin()


def needs(width):
    return Margin(width)

def none(*, width=None):
    return Margin()

def plain():
    return lambda logits, targets: 0

def fails(*, width: float = 1.0):
    raise KeyError("width")

def lazy():
    import my_helper
    return my_helper.loss()

def whole(*, weight: float = 1):
    return CrossEntropy() + weight * Margin()

def named(*, epochs: int = 3):
    return CrossEntropy()

length = int

def leaves():
    raise SystemExit(2)

def clash(*, huber_weight: float = 1.0):
    return CrossEntropy()


class Half(PruningPolicy):
    """The first `part` of each class rests."""
    redraws = True
    columns = ()

    def __init__(self, part: float = 0.5):
        self.part = part

    def quota(self, sizes):
        return [int(self.part * size) for size in sizes]

    def choose(self, pool, leave):
        seen, stay = [0] * len(leave), []
        for k in pool.targets:
            seen[k] += 1
            stay.append(seen[k] > leave[k])
        return Choice(np.array(stay))


class Lasting(Half):
    redraws = False

class Starting(Half):
    def __init__(self, start: int = 1):
        super().__init__()

class Unfinished(PruningPolicy):
    pass
'''


@pytest.fixture
def mine(own_module):
    """A module in the working directory."""
    return own_module("my_methods", MINE).stem


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(32, 5, generator=generator), torch.randint(0, 5, (32,), generator=generator)


def hinge(logits, targets, width):
    """Sample by sample, in plain Python."""
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        rest = max(value for k, value in enumerate(row) if k != target)
        total += max(0.0, width - row[target] + rest)
    return total / len(targets)


def test_a_class_is_a_method_and_its_parameters_are_settings(mine, batch):
    plan = methods.resolve(f"{mine}:Margin", width=3)
    assert plan.settings == {"width": 3.0}
    assert plan.sources == {"width": "given"}
    assert plan.pruning is None
    assert float(plan.loss(*batch)) == pytest.approx(hinge(*batch, 3.0), rel=1e-5)
    usual = methods.resolve(f"{mine}:Margin")
    assert usual.settings == {"width": 2.0}
    assert usual.sources == {"width": "default in my_methods:Margin"}


def test_a_function_is_a_method(mine, batch):
    plan = methods.resolve(f"{mine}:mixed", weight=2.0)
    assert plan.settings == {"weight": 2.0, "smoothing": 0.0}
    expected = float(CrossEntropy()(*batch)) + 2 * hinge(*batch, 2.0)
    assert float(plan.loss(*batch)) == pytest.approx(expected, rel=1e-5)


def test_the_papers_parts_can_be_added(mine, batch):
    plan = methods.resolve(f"{mine}:Margin+h+unbiased", data="cifar10", model="resnet32", drop=0.25)
    expected = hinge(*batch, 2.0) + 25 * float(HuberCalibration()(*batch))
    assert float(plan.loss(*batch)) == pytest.approx(expected, rel=1e-5)
    assert plan.pruning["policy"] == Unbiased(0.6, 0.25)
    assert plan.pruning["anneal"] == 0.125
    assert (
        plan.sources["huber_weight"]
        == methods.resolve("flsd+h", data="cifar10", model="resnet32").sources["huber_weight"]
    )
    ema, last = (methods.resolve(f"{mine}:Margin+{end}", data="cifar10", epochs=16) for end in ("p-ema", "p"))
    assert (ema.pruning["ema"], last.pruning["ema"]) == (0.3, 1.0)
    assert ema.pruning["policy"] == LowestConfidence(0.2)
    assert ema.pruning["schedule"] == Every(1, start=8)


def test_a_policy_is_a_plan_and_its_parameters_are_settings(mine):
    plan = methods.resolve(f"nll+h+{mine}:Half", data="cifar10", epochs=16, part=0.25, ema=0.5)
    assert isinstance(plan.loss.terms(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)), dict)
    assert (plan.pruning["policy"].part, plan.pruning["ema"]) == (0.25, 0.5)
    assert (plan.pruning["schedule"], plan.pruning["anneal"]) == (Every(1, start=1), 0.125)
    pruner = ConfidencePruner([0] * 8 + [1] * 4, epochs=16, **plan.pruning)
    assert pruner.samples_by_epoch(16) == [12, *[9] * 13, 12, 12]
    pruner.step()
    assert pruner.kept.tolist() == [2, 3, 4, 5, 6, 7, 9, 10, 11]


def test_a_policy_that_does_not_redraw_acts_at_intervals(mine):
    plan = methods.resolve(f"{mine}:Margin+{mine}:Lasting", data="cifar10", epochs=80)
    assert plan.pruning["schedule"] == Every(3, start=40)
    assert plan.settings["scaled_from_epochs"] == 160
    assert methods.describe(f"{mine}:Margin+{mine}:Lasting").pruning == f"{mine}:Lasting"


def test_a_whole_number_as_default_of_a_float_is_a_float(mine):
    assert repr(methods.resolve(f"{mine}:whole").settings) == "{'weight': 1.0}"
    assert methods.resolve(f"{mine}:whole", weight=0.5).settings == {"weight": 0.5}


def test_a_function_may_import_what_lies_beside_it_when_it_is_called(mine, own_module):
    own_module("my_helper", "from calibrant.losses import CrossEntropy as loss\n")
    assert isinstance(methods.resolve(f"{mine}:lazy").loss, CrossEntropy)


def test_own_settings_named_like_pruning_epochs_are_not_scaled(own_module):
    parameters = "interval: int = 10, start: int = 40"
    own_module("my_intervals", f"from calibrant.losses import Focal\ndef f(*, {parameters}):\n    return Focal()\n")
    assert methods.resolve("my_intervals:f", data="cifar10", epochs=16).settings == {"interval": 10, "start": 40}


def test_it_is_described(mine):
    method = methods.describe(f"{mine}:Margin+h+random")
    assert method.formula == "my_methods:Margin + huber_weight * Huber(mean confidence - accuracy)"
    assert method.pruning == methods.describe("flsd+h+random").pruning
    assert method.source == "your own my_methods"


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("no_such_module:f", {}, "module must be importable, got 'no_such_module'"),
        ("my_methods:Margine", {}, "Did you mean 'Margin'"),
        ("my_methods:needs", {}, "parameter width of method my_methods:needs must be given by name and have a number"),
        ("my_methods:none", {}, "parameter width of method my_methods:none must"),
        ("my_methods:plain", {}, "method my_methods:plain must return a calibrant.losses.Loss or a calibrant.pruning."),
        ("my_methods:fails", {}, "method my_methods:fails with {'width': 1.0} raised KeyError: 'width'."),
        ("my_methods:leaves", {}, "method my_methods:leaves with {} raised SystemExit: 2."),
        ("my_methods:length", {}, "method my_methods:length must be a function or class with a signature"),
        ("my_methods:named", {}, "must have another name than what a run has itself, got 'epochs'. Rename it."),
        ("my_methods:clash+h", {}, "setting 'huber_weight' must belong to one part of the method, got one of"),
        ("my_methods:Margin+my_methods:Half+my_methods:Half", {}, "method must end with its one plan, got"),
        ("my_methods:Half", {}, "method must begin with a loss, got 'my_methods:Half'. A name is LOSS"),
        ("nll+my_methods:plain", {}, "my_methods:plain must return a calibrant.losses.Loss or a calibrant.pruning."),
        ("nll+my_methods:Starting", {}, "must differ from those that every plan has, got 'start'. Rename yours."),
        ("nll+my_methods:Unfinished", {}, "method my_methods:Unfinished with {} raised TypeError: "),
        (
            "my_methods:Margin",
            {"widht": 1.0},
            "override must be a setting of the method 'my_methods:Margin', got 'widht'",
        ),
        ("my_methods:Margin", {"width": "wide"}, "width must be of type float, got 'wide'"),
    ],
)
def test_what_is_wrong_is_one_line(mine, name, overrides, message):
    with pytest.raises(InvalidInput) as caught:
        methods.resolve(name, **overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
