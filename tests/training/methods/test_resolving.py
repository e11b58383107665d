"""The table of methods."""

import json

import pytest
import torch

from calibrant import losses
from calibrant.errors import InvalidInput
from calibrant.pruning import (
    ConfidencePruner,
    Every,
    HighestConfidence,
    LowestConfidence,
    RandomSubset,
    Unbiased,
)
from calibrant.training import methods

PAPER = (
    *("nll", "brier", "dca", "ls", "mmce", "fl", "flsd", "fl+mdca", "entropy"),
    *("flsd+h", "flsd+h+p", "flsd+h+p-ema"),
)
BEYOND = (
    *("flsd+h+random", "flsd+h+unbiased", "nll+unbiased", "fl+h", "fl+h+unbiased", "fl+unbiased"),
    *("flsd+p", "flsd+p-ema", "flsd+h+highest", "dual-focal", "mbls", "bsce-gra", "adafocal"),
)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 10, (64,), generator=generator)
    logits = 4 * torch.randn(64, 10, generator=generator)
    return logits, targets


def test_names():
    assert methods.names()[: len(PAPER)] == PAPER
    assert set(methods.names()) == {*PAPER, *BEYOND}


# What each name must minimise, written out with the losses themselves.
HUBER = losses.HuberCalibration()
EXPECTED = {
    "nll": losses.CrossEntropy(),
    "brier": losses.Brier(),
    "dca": losses.CrossEntropy() + 1.0 * losses.DCA(),
    "ls": losses.CrossEntropy(0.05),
    "mmce": losses.CrossEntropy() + 0.016 * losses.MMCE(0.4),
    "fl": losses.Focal(3.0),
    "flsd": losses.SampleDependentFocal(),
    "fl+mdca": losses.Focal(1.0) + 1.0 * losses.MDCA(),
    "entropy": losses.CrossEntropy() + 0.1 * losses.EntropyPenalty(),
    "flsd+h": losses.SampleDependentFocal() + 10 * HUBER,
    "flsd+h+p": losses.SampleDependentFocal() + 10 * HUBER,
    "flsd+h+p-ema": losses.SampleDependentFocal() + 10 * HUBER,
    "flsd+p": losses.SampleDependentFocal(),
    "flsd+p-ema": losses.SampleDependentFocal(),
    "flsd+h+highest": losses.SampleDependentFocal() + 10 * HUBER,
    "flsd+h+random": losses.SampleDependentFocal() + 10 * HUBER,
    "flsd+h+unbiased": losses.SampleDependentFocal() + 10 * HUBER,
    "fl+h": losses.Focal(2.0) + 10 * HUBER,
    "fl+h+unbiased": losses.Focal(2.0) + 10 * HUBER,
    "fl+unbiased": losses.Focal(0.25),
    "nll+unbiased": losses.CrossEntropy(),
    "dual-focal": losses.DualFocal(5.0),
    "bsce-gra": losses.BSCEGRA(2.0),
    "adafocal": losses.AdaFocal(15),
    "mbls": losses.CrossEntropy() + 0.1 * losses.LogitMargin(10.0),
}


@pytest.mark.parametrize("name", methods.names())
def test_the_loss_of_each_method(name, batch):
    plan = methods.resolve(name)
    assert plan.name == name
    assert isinstance(plan.loss, losses.Loss)
    assert plan.loss.terms(*batch).keys() == EXPECTED[name].terms(*batch).keys()
    torch.testing.assert_close(plan.loss(*batch), EXPECTED[name](*batch), rtol=0, atol=0)


PRUNES = {
    "flsd+h+p": (LowestConfidence(0.2), Every(5, start=80), 1.0, 0.0),
    "flsd+h+p-ema": (LowestConfidence(0.2), Every(5, start=80), 0.3, 0.0),
    "flsd+p": (LowestConfidence(0.2), Every(5, start=80), 1.0, 0.0),
    "flsd+p-ema": (LowestConfidence(0.2), Every(5, start=80), 0.3, 0.0),
    "flsd+h+highest": (HighestConfidence(0.2), Every(5, start=80), 0.3, 0.0),
    "flsd+h+random": (RandomSubset(0.4), Every(1, start=1), 0.3, 0.125),
    "flsd+h+unbiased": (Unbiased(0.6, 0.5), Every(1, start=1), 0.3, 0.125),
    "fl+h+unbiased": (Unbiased(0.8, 0.58), Every(1, start=1), 0.3, 0.125),
    "fl+unbiased": (Unbiased(0.8, 0.58), Every(1, start=1), 0.3, 0.125),
    "nll+unbiased": (Unbiased(0.6, 0.5), Every(1, start=1), 0.3, 0.125),
}


@pytest.mark.parametrize("name", methods.names())
def test_the_pruning_of_each_method(name):
    plan = methods.resolve(name, data="cifar10", model="resnet50").pruning
    if name not in PRUNES:
        assert plan is None
        return
    policy, schedule, ema, anneal = PRUNES[name]
    options = {"policy": policy, "schedule": schedule, "ema": ema, "anneal": anneal, "minimum_per_class": 1}
    assert plan == {**options, "budget": 1.0}
    # The pruner takes them as they are.
    pruner = ConfidencePruner([0, 1] * 50, epochs=160, **plan)
    assert sum(pruner.samples_by_epoch(160)) < 160 * 100


@pytest.mark.parametrize(
    ("data", "model", "expected"),
    [
        ("cifar10", "resnet50", {"huber_weight": 10.0, "fraction": 0.2, "interval": 5, "start": 80}),
        ("cifar10", "resnet32", {"huber_weight": 25.0, "fraction": 0.2, "interval": 25, "start": 80}),
        ("cifar10", "tiny", {"huber_weight": 10.0, "fraction": 0.2, "interval": 5, "start": 80}),
        ("cifar100", "resnet50", {"huber_weight": 10.0, "fraction": 0.1, "interval": 10, "start": 100}),
        ("cifar100", "resnet32", {"huber_weight": 5.0, "fraction": 0.1, "interval": 50, "start": 100}),
        ("tiny-imagenet", "resnet50", {"huber_weight": 10.0, "fraction": 0.2, "interval": 5, "start": 40}),
        ("svhn", "resnet50", {"huber_weight": 10.0, "fraction": 0.2, "interval": 5, "start": 50}),
        ("mendeley-v2", "resnet50", {"huber_weight": 10.0, "fraction": 0.2, "interval": 5, "start": 50}),
        ("arrays:mine.npz", "tiny", {"huber_weight": 10.0, "fraction": 0.1, "interval": 10, "start": 40}),
        (None, None, {"huber_weight": 10.0, "fraction": 0.1, "interval": 10, "start": 40}),
    ],
)
def test_the_papers_numbers(data, model, expected):
    plan = methods.resolve("flsd+h+p-ema", data=data, model=model)
    fixed = {"huber_alpha": 0.005, "huber_kind": "huber", "ema": 0.3, "gamma_low": 5.0, "gamma_high": 3.0}
    assert plan.settings.items() >= (expected | fixed).items()
    assert "scaled_from_epochs" not in plan.settings


def test_dual_focal_on_tiny_imagenet():
    assert methods.resolve("dual-focal", data="tiny-imagenet").settings == {"gamma": 2.3}


@pytest.mark.parametrize("name", methods.names())
def test_settings_are_json_and_each_has_a_source(name):
    plan = methods.resolve(name, data="cifar100", model="resnet32", epochs=10)
    assert json.loads(json.dumps(plan.settings)) == plan.settings
    assert plan.sources.keys() == plan.settings.keys()
    assert all(plan.sources.values())


@pytest.mark.parametrize(
    ("data", "epochs", "interval", "start"),
    [
        ("cifar10", 160, 5, 80),
        ("cifar10", 320, 10, 160),
        ("cifar10", 80, 3, 40),
        ("cifar10", 12, 1, 6),
        ("cifar10", 1, 1, 1),
        ("cifar100", 200, 10, 100),
        ("cifar100", 20, 1, 10),
        ("svhn", 50, 3, 25),
        ("tiny-imagenet", 50, 3, 20),
        ("digits", 16, 1, 4),
    ],
)
def test_short_trainings_scale_the_pruning_epochs_and_say_so(data, epochs, interval, start):
    usual = {"cifar100": 200, "svhn": 100, "tiny-imagenet": 100}.get(data, 160)
    plan = methods.resolve("flsd+h+p-ema", data=data, epochs=epochs)
    assert plan.pruning["schedule"] == Every(interval, start=start)
    assert plan.settings.get("scaled_from_epochs") == (None if epochs == usual else usual)
    assert ("scaled to" in plan.sources["start"]) == (epochs != usual)


def test_given_epochs_are_not_scaled():
    plan = methods.resolve("flsd+h+p-ema", data="cifar10", model="resnet32", epochs=80, start=7)
    assert plan.pruning["schedule"] == Every(13, start=7)
    plan = methods.resolve("flsd+h+p-ema", data="cifar10", epochs=80, start=7, interval=3)
    assert plan.pruning["schedule"] == Every(3, start=7)
    assert "scaled_from_epochs" not in plan.settings


@pytest.mark.parametrize(
    ("given", "first_drop", "start"),
    [
        ({}, "usual", 40),  # 80 of 160 epochs in the paper, scaled
        ({}, 30, 30),  # the recipe's own schedule
        ({}, None, 40),  # a schedule without a drop: as in the paper
        ({"start": "first-drop"}, 30, 30),
        ({"start": "first-drop"}, "usual", 40),
        ({"start": 7}, 30, 7),
    ],
)
def test_pruning_starts_at_the_first_drop_of_the_learning_rate(given, first_drop, start):
    plan = methods.resolve("flsd+h+p-ema", data="cifar10", epochs=80, first_drop=first_drop, **given)
    assert plan.pruning["schedule"] == Every(3, start=start)
    assert plan.settings["start"] == start
    assert ("first drop of the learning rate" in plan.sources["start"]) == (given.get("start") != 7)


def test_scoring_reaches_the_pruner():
    plan = methods.resolve("flsd+h+p-ema", data="cifar10", readmit=True, scoring="resting")
    assert plan.pruning["policy"] == LowestConfidence(0.2, readmit=True)
    assert ConfidencePruner([0, 1] * 50, epochs=160, **plan.pruning).timetable.policy.from_all
    assert "forward pass" in methods.describe("flsd+h+p-ema").settings["scoring"].source


def test_policies_that_draw_every_epoch_start_at_once():
    assert methods.resolve("flsd+h+unbiased", data="cifar10", epochs=10).pruning["schedule"] == Every(1, start=1)


def test_every_setting_can_be_overridden(batch):
    plan = methods.resolve(
        "flsd+h+p-ema", huber_weight=3, huber_alpha=0.1, huber_kind="smooth-l1", fraction=0.25, ema=1
    )
    expected = losses.SampleDependentFocal() + 3.0 * losses.HuberCalibration(0.1, kind="smooth-l1")
    torch.testing.assert_close(plan.loss(*batch), expected(*batch), rtol=0, atol=0)
    assert plan.pruning["policy"] == LowestConfidence(0.25)
    assert plan.settings["ema"] == 1.0
    assert isinstance(plan.settings["ema"], float)
    assert plan.sources["ema"] == "given"


def test_overrides_reach_every_part():
    """No setting is only decoration: changing it changes the loss or the pruning."""
    logits = torch.tensor([[3.0, 0.0, -12.0], [0.0, 4.0, 0.5], [0.2, 0.0, 4.0], [1.0, 3.0, 0.0]])
    targets = torch.tensor([0, 2, 2, 1])
    others = {
        "huber_kind": "smooth-l1",
        "within": "batch",
        "readmit": True,
        "scoring": "resting",
        "minimum_per_class": 3,
        "interval": 7,
        "start": 9,
        "weights": "none",
        "adafocal_bins": 2,
    }

    def course(loss):
        """The loss, and what it has learned after many validations where it follows them."""
        value = loss(logits, targets)
        for _ in range(60 if loss.follows_validation else 0):
            loss.after_validation(logits, targets)
        return torch.cat([value.reshape(1), *loss.state_dict().values()])

    for name in methods.names():
        plain = methods.resolve(name)
        for key, setting in methods.describe(name).settings.items():
            value = others[key] if key in others else setting.value * 0.5 + 0.01
            with_it = {"readmit": {"scoring": "resting"}, "scoring": {"readmit": True}}.get(key, {})
            changed = methods.resolve(name, **{key: value}, **with_it)
            same_loss = torch.equal(course(methods.resolve(name).loss), course(changed.loss))
            assert not (same_loss and plain.pruning == changed.pruning), (name, key)


def test_each_call_makes_its_own_loss():
    assert methods.resolve("flsd+h").loss is not methods.resolve("flsd+h").loss


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("fsld+h", {}, r"method must be one of the known methods, got 'fsld\+h'. Did you mean 'flsd\+h'\?"),
        (
            "flsd+h",
            {"huber_wieght": 1},
            r"override must be a setting of the method 'flsd\+h', got 'huber_wieght'. Did you",
        ),
        ("flsd+h", {"fraction": 0.1}, "override must be a setting of the method"),
        ("nll", {"gamma": 1.0}, "override must be a setting of the method 'nll', got 'gamma'. It has none."),
        ("flsd+h", {"huber_weight": -1.0}, "factor of a loss must"),
        ("flsd+h", {"huber_alpha": 0.0}, "alpha must be finite and positive, got 0.0"),
        ("flsd+h", {"huber_weight": "10"}, "huber_weight must be of type float, got '10'. The default is 10.0."),
        ("flsd+h", {"huber_weight": True}, "huber_weight must be of type float, got True"),
        ("flsd+h+p", {"interval": 2.5}, "interval must be of type int, got 2.5"),
        ("flsd+h+p", {"interval": 0}, "interval must"),
        ("flsd+h+p", {"fraction": 1.5}, "fraction must"),
        (
            "flsd+h+p",
            {"start": "first-drop"},
            "start must be an epoch if the learning rate has no drop, got 'first-drop'. Give an epoch, or",
        ),
        ("flsd+h+p", {"start": "first-drop", "data": "cifar10", "first_drop": None}, "learning rate has no drop"),
        ("flsd+h+p", {"start": "first"}, "start must be an epoch or 'first-drop', got 'first'"),
        ("flsd+h+p", {"start": 0}, "start must"),
        ("flsd+h+p", {"readmit": True}, "readmit must be false with scoring 'batches', or true with"),
        (
            "flsd+h+highest",
            {"readmit": True},
            "override must be a setting of the method 'flsd.h.highest', got 'readmit'",
        ),
        ("flsd+h+p", {"scoring": "resting"}, "readmit must be .* got False with 'resting'"),
        ("flsd+h+p", {"scoring": "some"}, "readmit must"),
        ("flsd+h", {"epochs": 0}, "epochs must"),
    ],
)
def test_bad_input(name, overrides, message):
    with pytest.raises(InvalidInput, match=message):
        methods.resolve(name, **overrides)
