import math
from dataclasses import replace

import pytest

from calibrant.errors import InvalidInput
from calibrant.studies import ablation_spec, summarise
from calibrant.studies.ablation import ABLATIONS, COMPONENTS, ablation_figure, ablation_table, choose_by_validation
from calibrant.studies.study_results import Estimate
from calibrant.training import methods


def test_grids_are_the_papers():
    assert ABLATIONS["lambda"].values == (0.1, 0.5, 1, 5, 10, 25, 50)
    assert ABLATIONS["interval"].values == (5, 10, 25, 50, 100)
    assert ABLATIONS["alpha"].values == (0.001, 0.005, 0.01, 0.05, 0.1)


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_value_reaches_the_method(name):
    spec = ablation_spec(name, data=["cifar10"], models=["resnet32"])
    setting = ABLATIONS[name].setting
    found = [
        methods.resolve("flsd+h+p-ema", **planned.recipe.method.options).settings[setting] for planned in spec.runs()
    ]
    assert found == list(ABLATIONS[name].values)


def test_components_are_methods_and_flsd_is_the_baseline():
    spec = ablation_spec("components", seeds=[0, 1])
    assert spec.baseline_label() == "FLSD"
    assert [row.method for row in spec.rows()] == list(COMPONENTS.values())
    assert set(COMPONENTS.values()) <= set(methods.names())
    assert len(spec.runs()) == 2 * 9


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("lamda", {}, "Did you mean 'lambda'"),
        ("lambda", {"method": "nll"}, "have the setting 'huber_weight'"),
        ("interval", {"values": [2.5]}, "be whole numbers"),
        ("components", {"values": [1.0]}, "leave out --method, --values"),
        ("lambda", {"values": [1.0, 1.0]}, "twice"),
        ("lambda", {"options": {"nonsense": 1}}, "override must be a setting"),
    ],
)
def test_bad_input(name, arguments, message):
    with pytest.raises(InvalidInput) as caught:
        ablation_spec(name, **arguments)
    assert message in str(caught.value)


@pytest.fixture
def results(make_record):
    """Validation prefers 5, the test set 0.5."""
    groups = {
        f"lambda={value:g}": [make_record("flsd+h", options={"huber_weight": value})] for value in (0.5, 5.0, 50.0)
    }
    made = summarise(groups, "lambda=0.5")
    validation, test = (0.03, 0.01, 0.02), (0.001, 0.02, 0.03)
    rows = [
        replace(row, figures={**row.figures, "validation_ece": fixed(v), "ece": fixed(t)})
        for row, v, t in zip(made.rows, validation, test, strict=True)
    ]
    return replace(made, rows=tuple(rows))


def fixed(value):
    return Estimate(value, None, None, (value,))


def test_the_choice_is_made_on_validation_never_on_test(results):
    assert choose_by_validation(results).label == "lambda=5"
    table = ablation_table("lambda", results)
    marked = [(row, column) for row in range(3) for column in range(len(table.columns)) if table.is_best(row, column)]
    assert marked == [(1, table.columns.index("validation ECE"))]
    assert [row[0] for row in table.rows] == ["0.5", "5", "50"]


def test_values_that_did_not_finish_are_told(results):
    table = ablation_table("lambda", replace(results, unfinished={"lambda=100": (0, 3)}))
    assert "in none of these figures: lambda=100, seeds 0, 3." in table.caption


def test_the_picture_has_the_papers_two_panels(results):
    left, right = ablation_figure("lambda", results).axes
    mark = "chosen on validation"
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["ECE", "ECE(S95)", "TE", mark]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["|S95|", "|S99|", mark]
    assert list(left.get_lines()[0].get_ydata()) == [0.001, 0.02, 0.03]


def test_the_picture_shows_the_spread_over_seeds(make_record):
    groups = {
        f"lambda={value:g}": [make_record("flsd+h", seed=seed, options={"huber_weight": value}) for seed in (0, 1)]
        for value in (1.0, 5.0)
    }
    compared = summarise(groups, "lambda=1")
    figure = ablation_figure("lambda", compared)
    left, _ = figure.axes
    first = left.collections[0].get_segments()[0]
    ece = compared.rows[0]["ece"]
    assert [point[1] for point in first] == pytest.approx([ece.mean - ece.spread, ece.mean + ece.spread])
    assert "(bars: standard deviation over seeds)" in figure.get_suptitle()


def test_components_are_points_and_none_is_chosen(make_record):
    groups = {label: [make_record(method)] for label, method in list(COMPONENTS.items())[:3]}
    left, right = ablation_figure("components", summarise(groups, "FLSD")).axes
    assert [tick.get_text() for tick in left.get_xticklabels()] == list(groups)
    assert (len(left.lines), len(right.lines)) == (3, 2)


def test_the_picture_marks_the_value_that_validation_chose(results):
    for axes in ablation_figure("lambda", results).axes:
        *curves, mark = axes.get_lines()
        assert list(mark.get_xdata()) == [1, 1]
        assert not any(line.get_label().startswith("_") for line in curves), "a ring on the best test value"


def test_an_undefined_value_is_a_gap(results):
    first, *others = results.rows
    empty = replace(first, figures={**first.figures, "ece": fixed(None)})
    left, _ = ablation_figure("lambda", replace(results, rows=(empty, *others))).axes
    assert [math.isnan(value) for value in left.get_lines()[0].get_ydata()] == [True, False, False]
