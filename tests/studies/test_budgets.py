"""The rows of a study at equal costs."""

import pytest

from calibrant.errors import CalibrantWarning, InvalidInput
from calibrant.studies import Study, StudySpec, Variant, plan_study
from calibrant.studies.controls import check_plans, with_controls
from calibrant.training import train_or_resume


def rows(spec):
    return {row.label: (row.method, row.options, row.recipe) for row in spec.rows()}


def trained(spec):
    """Epochs and share of each row, as they are trained."""
    return {planned.label: (planned.recipe.within_budget().epochs, planned.recipe.budget) for planned in spec.runs()}


def at_budget(*methods, budget=0.6, **settings):
    return StudySpec(methods=methods, recipe={"budget": budget}, **settings)


def test_without_budget_and_plan_nothing_changes():
    spec = StudySpec(methods=("nll", "brier"), recipe={"epochs": 10})
    assert with_controls(spec) is spec


def test_one_budget():
    spec = with_controls(at_budget("nll", "nll+unbiased", "nll+random"))
    assert trained(spec) == {"nll@18": (18, 0.6), "nll+unbiased": (30, 0.6), "nll+random": (30, 0.6)}
    # The control is there once, also where it was not named.
    assert trained(with_controls(at_budget("nll+unbiased", "nll+random"))).keys() == {
        *("nll@18", "nll+unbiased", "nll+random")
    }
    # Others are compared with the control, not with the plan that happens to be named first.
    assert with_controls(at_budget("nll+unbiased", "nll+random")).baseline_label() == "nll@18"


def test_a_study_with_its_controls_stays_as_it_is():
    spec = with_controls(at_budget("nll", "nll+random"))
    assert with_controls(spec) == spec


def test_the_control_of_a_plan_with_a_rate_of_its_own():
    spec = with_controls(StudySpec(methods=("nll", "flsd+h+p-ema"), recipe={"epochs": 20}, data=("cifar10",)))
    made = trained(spec)
    # A fifth of what is left goes after epochs 10, 13, 16 and 19: the updates are those of 16.6 epochs.
    plan = next(p.recipe for p in spec.runs() if p.label == "flsd+h+p-ema").plan().pruning
    kept, total = 1.0, 0.0
    for epoch in range(1, 21):
        total += kept
        kept *= 1 - plan["policy"].fraction if plan["schedule"].due(epoch) else 1
    assert made == {
        "nll": (20, 1.0),
        "flsd+h+p-ema": (20, 1.0),
        f"flsd+h@{round(total)}": (round(total), round(total) / 20),
    }


def test_the_control_has_the_loss_of_the_plan():
    """The row fl+unbiased has a gamma of its own, which the loss alone has not."""
    spec = with_controls(at_budget("fl+unbiased"))
    assert rows(spec)["fl@18 (gamma 0.25)"] == ("fl", {"gamma": 0.25}, {"budget": 0.6})


def test_plans_with_recipes_of_their_own_have_controls_of_their_own():
    """A control that trains otherwise than its plan is none, and the plan would be in no table."""
    lr = {"slow": {"optimiser.lr": 0.01}, "slower": {"optimiser": {"lr": 0.001}}, "slow too": {"optimiser.lr": 0.01}}
    variants = [{"label": label, "method": "nll+random", "recipe": recipe} for label, recipe in lr.items()]
    spec = with_controls(StudySpec.parse({"methods": ["nll+random"], "recipe": {"budget": 0.6}, "variants": variants}))
    made = {planned.label: planned.recipe for planned in spec.runs()}
    found = {label: (recipe.within_budget().epochs, recipe.optimiser.lr) for label, recipe in made.items()}
    usual = made["nll+random"].optimiser.lr
    controls = {label: trained for label, trained in found.items() if made[label].method.name == "nll"}
    assert controls == {
        "nll@18": (18, usual),
        "nll@18 (optimiser.lr 0.01)": (18, 0.01),
        "nll@18 (optimiser.lr 0.001)": (18, 0.001),
    }


def test_a_control_that_is_a_row_already_is_not_trained_twice():
    short = {"label": "short", "method": "nll", "recipe": {"epochs": 18}}
    plan = {"label": "plan", "method": "nll+random", "recipe": {"budget": 0.6}}
    assert trained(with_controls(StudySpec.parse({"variants": [short, plan]}))).keys() == {"short", "plan"}


def test_data_sets_of_different_lengths_share_a_label():
    spec = with_controls(at_budget("nll+random", data=("digits", "cifar10")))
    assert trained(spec).keys() == {"nll+random", "nll@60%"}
    assert {p.recipe.data.name: p.recipe.within_budget().epochs for p in spec.runs() if p.label == "nll@60%"} == {
        "digits": 18,
        "cifar10": 96,
    }


def test_a_plan_whose_updates_are_not_known_ahead_gets_no_control_and_says_so():
    with pytest.warns(CalibrantWarning, match=r"nll\+infobatch gets no control: policy must not depend on scores"):
        spec = with_controls(StudySpec(methods=("nll+infobatch",)))
    assert trained(spec).keys() == {"nll+infobatch"}
    assert trained(with_controls(at_budget("nll+infobatch"))).keys() == {"nll+infobatch", "nll@18"}
    in_batches = Variant(label="in batches", method="nll+p-ema", options={"within": "batch"})
    with pytest.warns(CalibrantWarning, match="in batches gets no control: policy must not depend") as caught:
        with_controls(StudySpec(variants=(in_batches,)))
    assert "budget" not in str(caught[0].message)  # it has none to offer


def test_plans_of_your_own_have_controls_too(own_module):
    own_module(
        "my_plan",
        "from calibrant.losses import CrossEntropy\nfrom calibrant.pruning import RandomSubset\n"
        "def loss():\n    return CrossEntropy()\ndef half(*, part: float = 0.5):\n    return RandomSubset(part)\n",
    )
    spec = with_controls(StudySpec(methods=("my_plan:loss+my_plan:half",)))
    # Half rests in 25 of 30 epochs: 17.5 epochs' worth of updates, and the control is not short of any.
    assert trained(spec) == {"my_plan:loss+my_plan:half": (30, 1.0), "my_plan:loss@18": (18, 0.6)}


def test_code_that_is_not_trusted_is_not_imported_for_a_control(own_module):
    own_module("my_bomb", "raise SystemExit('imported')\n", trusted=False)
    spec = StudySpec(methods=("nll+my_bomb:plan",))
    assert with_controls(spec) is spec


def test_the_study_file_holds_the_controls(tmp_path):
    study = plan_study(tmp_path, lists={"methods": ["nll+random"]}, recipe={"budget": 0.6}, control=True)
    study.spec.save(tmp_path / "study.toml")
    assert Study(tmp_path).spec == study.spec
    assert {planned.label for planned in Study(tmp_path).runs} == {"nll+random", "nll@18"}


@pytest.mark.parametrize(
    ("methods", "budget", "message"),
    [
        (("nll",), 0.0, "budget' must be greater than 0"),
        (("nll",), 1.2, "budget' must"),
        (("nll", "flsd+h+p-ema"), 0.6, "rate of its own"),
        (("nll", "nll+unbiased"), 0.3, r"nll\+unbiased: budget must be at least 0.55"),
        (("nll",), 0.01, "budget must pay"),
    ],
)
def test_a_bad_budget_is_one_line(methods, budget, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        check_plans(at_budget(*methods, budget=budget))
    assert "\n" not in str(caught.value)


SMALLER = {"schedule.resolution": [[6, 0.5]]}


def test_smaller_images_are_a_plan_with_a_control_of_equal_computing():
    smaller = Variant(label="smaller", method="nll", recipe=SMALLER)
    spec = with_controls(at_budget(variants=(smaller,)))
    rows = {planned.label: planned.recipe for planned in spec.runs()}
    assert rows.keys() == {"smaller", "nll@18"}
    assert rows["smaller"].budget == 0.6
    assert rows["smaller"].schedule.resolution == ((6, 0.5),)
    assert rows["nll@18"].schedule.resolution == ()
    assert rows["nll@18"].within_budget().epochs == 18


def test_with_pruning_the_schedule_alone_is_a_second_control():
    both = Variant(label="both", method="nll+random", recipe=SMALLER)
    rows = {planned.label: planned.recipe for planned in with_controls(at_budget(variants=(both,))).runs()}
    assert rows.keys() == {"both", "nll@18", "nll, smaller images"}
    assert rows["nll, smaller images"].schedule.resolution == ((6, 0.5),)
    assert rows["nll, smaller images"].method.name == "nll"


def test_without_a_budget_smaller_images_have_controls_as_well():
    """Of 40 epochs, half are at 6 of 8 pixels and cost 9/16: 31.25 epochs at full size."""
    smaller = Variant(label="smaller", method="nll", recipe=SMALLER)
    spec = with_controls(StudySpec(variants=(smaller,), recipe={"epochs": 40}))
    assert trained(spec) == {"smaller": (40, 1.0), "nll@31": (31, 31 / 40)}
    # A half leaves after 30 epochs, all at full size then: 5 epochs less.
    options = {"fraction": 0.5, "start": 30, "interval": 30}
    both = Variant(label="both", method="nll+p-ema", options=options, recipe=SMALLER)
    spec = with_controls(StudySpec(variants=(both,), recipe={"epochs": 40}))
    made = {planned.label: planned.recipe for planned in spec.runs()}
    assert made.keys() == {"both", "nll@26", "nll, smaller images"}
    assert made["nll, smaller images"].schedule.resolution == ((6, 0.5),)
    assert made["nll, smaller images"].budget == 26 / 40


def test_equal_budgets_are_equal_computing(tmp_path):
    """Trained on the digits: operations of the plan and of its control, as torch counts them."""
    smaller = Variant(label="smaller", method="nll", recipe=SMALLER)
    both = Variant(label="both", method="nll+random", recipe=SMALLER)
    spec = with_controls(StudySpec(variants=(smaller, both), recipe={"epochs": 20, "budget": 0.6}))
    study = Study(tmp_path / "study", spec)
    for planned in study.runs:
        train_or_resume(planned.recipe, study.folder(planned))
    study.run()
    records = {planned.label: study.record(planned) for planned in study.runs}
    assert records["nll@12"].compute_share == pytest.approx(0.6)
    assert records["smaller"].compute_share == pytest.approx(0.6, abs=0.04)  # whole epochs
    assert records["smaller"].compute_share <= 0.6
    assert records["both"].compute_share == pytest.approx(0.6, abs=0.02)
    assert records["smaller"].seen_share > 0.65
    (results,) = study.results()
    controls = {(item.plan, item.control) for item in results.controls}
    assert {("smaller", "nll@12"), ("both", "nll@12")} <= controls
