import json

import pytest

from calibrant.studies import Study, ablation_spec
from calibrant.training import train_or_resume


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("ablate") / "study"
    spec = ablation_spec("lambda", values=[0.5, 10.0], seeds=[0], data=["digits"], recipe={"epochs": 2})
    study = Study(path, spec)
    for planned in study.runs:
        train_or_resume(planned.recipe, study.folder(planned))
    return path


FLAGS = ("--values", 0.5, 10, "--epochs", 2)


def test_the_choice_is_by_validation_and_its_test_figures_are_told(calibrant, folder):
    code, out, said = calibrant("ablate", "lambda", *FLAGS, "--out", folder)
    assert code == 0, said
    study = Study(folder)
    by_validation = min(study.runs, key=lambda planned: study.record(planned).value("validation_ece"))
    assert f"chosen on validation: {by_validation.label} (validation ECE " in out
    assert f"on test: ECE {100 * study.record(by_validation).value('ece'):.2f}" in out
    assert {path.name for path in folder.glob("lambda.*")} == {"lambda.md", "lambda.svg", "lambda.png"}
    assert "validation ECE" in (folder / "lambda.md").read_text()


def test_json(calibrant, folder):
    code, out, _ = calibrant("ablate", "lambda", *FLAGS, "--out", folder, "--json")
    assert code == 0
    content = json.loads(out)
    assert content["ablation"] == "lambda"
    assert content["chosen_on_validation"] in {"lambda=0.5", "lambda=10"}
    assert [row["label"] for row in content["comparisons"][0]["rows"]] == ["lambda=0.5", "lambda=10"]


def test_a_recipe_file_names_data_and_network(calibrant, folder, tmp_path):
    Study(folder).runs[0].recipe.save(tmp_path / "recipe.toml")
    code, _, said = calibrant("ablate", "lambda", *FLAGS, "--recipe", tmp_path / "recipe.toml", "--out", folder)
    assert code == 0, said
    assert "2 of them finished before" in said
    other = tmp_path / "other.toml"
    other.write_text('[data]\nname = "arrays:nowhere.npz"\n')
    code, _, said = calibrant("ablate", "lambda", *FLAGS, "--recipe", other, "--out", tmp_path / "new")
    assert (code, "got 'arrays:nowhere.npz'" in said) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lamda",), "lambda"),
        (("components", "--values", 1), "components compares fixed methods"),
        (("lambda", "--option", "nonsense"), "key=value"),
    ],
)
def test_bad_input_is_one_line_and_code_2(calibrant, tmp_path, arguments, message):
    code, out, said = calibrant("ablate", *arguments, "--out", tmp_path / "new")
    assert (code, out) == (2, "")
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "new").exists()
