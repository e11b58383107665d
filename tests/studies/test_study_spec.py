import tomllib
from pathlib import Path

import pytest

from calibrant.errors import InvalidInput
from calibrant.studies import StudySpec
from calibrant.studies.study_spec import file_word


def test_every_combination_is_one_cell_with_its_own_recipe():
    spec = StudySpec(
        methods=("nll", "flsd"),
        seeds=(0, 7),
        data=("digits", "cifar10"),
        models=("tiny", "resnet32"),
        recipe={"epochs": 5},
    )
    cells = spec.runs()
    assert len(cells) == len({planned.name for planned in cells}) == 2 * 2 * 2 * 2
    planned = next(planned for planned in cells if planned.name == "cifar10-resnet32-flsd-seed7")
    recipe = planned.recipe
    assert (recipe.data.name, recipe.model.name, recipe.method.name, recipe.seed) == ("cifar10", "resnet32", "flsd", 7)
    # Shared settings reach every planned, the rest is what each data set recommends.
    assert {each.recipe.epochs for each in cells} == {5}
    assert {each.recipe.optimiser.batch_size for each in cells if each.recipe.data.name == "digits"} == {64}


def test_a_variant_has_options_and_recipe_of_its_own():
    spec = StudySpec.parse(
        {
            "methods": ["nll"],
            "recipe": {"epochs": 4, "optimiser": {"lr": 0.05}},
            "variants": [
                {
                    "label": "late",
                    "method": "flsd+h+p-ema",
                    "options": {"start": 3},
                    "recipe": {"optimiser": {"lr": 0.01}},
                }
            ],
        }
    )
    plain, late = spec.runs()
    assert plain.recipe.optimiser.lr == 0.05
    assert (late.label, late.recipe.optimiser.lr, late.recipe.method.options) == ("late", 0.01, {"start": 3})


def test_toml_round_trip(tmp_path):
    spec = StudySpec.parse(
        {"methods": ["nll", "flsd+h"], "seeds": [0, 1], "baseline": "flsd+h", "recipe": {"optimiser": {"lr": 0.05}}}
    )
    spec.save(tmp_path / "study.toml")
    assert StudySpec.load(tmp_path / "study.toml").runs() == spec.runs()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "methods must name at least one method, got none. See: calibrant methods."),
        ({"methods": ["fsld"]}, "Did you mean 'flsd'"),
        ({"methods": ["nll"], "sedes": [1]}, "'sedes' is unknown. Did you mean 'seeds'"),
        ({"methods": ["nll", "nll"]}, "'nll' twice"),
        ({"methods": ["nll"], "seeds": []}, "seeds must not be empty"),
        ({"methods": ["nll"], "seeds": [-1]}, "seeds.0"),
        ({"methods": ["nll"], "seeds": [1, 1]}, "1 twice"),
        ({"methods": ["nll"], "baseline": "flsd"}, "baseline must be one of the rows"),
        ({"methods": ["nll"], "recipe": {"seed": 3}}, "'seed' is set by the study's lists"),
        ({"methods": ["nll"], "recipe": {"epoch": 3}}, "'epoch' is unknown"),
        ({"variants": [{"label": "x", "method": "nll", "options": {"drop": 0.5}}]}, "override must be a setting"),
        ({"variants": [{"label": "x", "method": "nll", "extra": 1}]}, "'variants.0.extra' is unknown"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(content, message):
    with pytest.raises(InvalidInput) as caught:
        StudySpec.parse(content)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"methods": "nll"}, "study key 'methods' must be a valid tuple, got 'nll'."),
        ({"methods": ("nll",), "seeds": ("a",)}, "study key 'seeds.0' must be a valid integer, got 'a'."),
        ({"methods": ("nll",), "sedes": (1,)}, "study key 'sedes' is unknown. Did you mean 'seeds'?"),
    ],
)
def test_a_spec_made_in_python_is_checked_as_one_from_a_file(content, message):
    with pytest.raises(InvalidInput) as caught:
        StudySpec(**content)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_study_are_refused(tmp_path):
    (tmp_path / "bad.toml").write_text("methods = [")
    with pytest.raises(InvalidInput, match="be TOML"):
        StudySpec.load(tmp_path / "bad.toml")
    with pytest.raises(InvalidInput, match="does not exist"):
        StudySpec.load(tmp_path / "none.toml")


@pytest.mark.parametrize("text", ["../../etc/passwd", "a/b", "folder:/home/me/x-rays", "..", "a b|c", "", "é"])
def test_names_of_files_never_leave_their_folder(text, tmp_path):
    word = file_word(text)
    assert word
    assert (tmp_path / word).resolve().parent == tmp_path.resolve()
    assert "home" not in word


def test_the_example_of_the_guide_is_a_study():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text()
    spec = StudySpec.parse(tomllib.loads(guide.split("```toml\n")[1].split("```")[0]))
    assert len(spec.runs()) == 2 * 4 * 3
    late = spec.runs()[-1]
    assert (late.label, late.recipe.data.name, late.recipe.epochs) == ("late pruning", "cifar100", 160)


def test_a_question_at_the_end_of_a_message_stays_one():
    with pytest.raises(InvalidInput, match=r"Did you mean 'flsd'\?$"):
        StudySpec.parse({"methods": ["fsld"]})


@pytest.mark.parametrize("content", [None, 5, [], "x", True])
def test_a_study_must_be_a_table(content):
    with pytest.raises(InvalidInput):
        StudySpec.parse(content)


def test_a_label_has_no_control_characters():
    with pytest.raises(InvalidInput, match="label"):
        StudySpec(variants=({"label": "a\x1b[31m", "method": "nll"},))


FILES = sorted((Path(__file__).parents[2] / "recipes" / "studies").glob("*.toml"))


def test_there_are_studies():
    assert len(FILES) >= 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_study_file_describes_runs_that_could_start(path):
    spec = StudySpec.load(path)
    cells = spec.runs()
    assert len(cells) == (len(spec.methods) + len(spec.variants)) * len(spec.seeds) * len(spec.data) * len(spec.models)
    data, model = path.stem.split("-")[:2]
    assert {(planned.recipe.data.name, planned.recipe.model.name) for planned in cells} == {(data, model)}
    assert len({planned.name for planned in cells}) == len(cells)
