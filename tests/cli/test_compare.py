import json

import pytest

from calibrant.studies import Study, StudySpec
from calibrant.training import train_or_resume
from calibrant.training.settings import names_in

FLAGS = ("--methods", "nll", "flsd+h", "--seeds", 0, 1, "--epochs", 2)
SPEC = StudySpec(methods=("nll", "flsd+h"), seeds=(0, 1), recipe={"epochs": 2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The runs of `FLAGS`, trained in this process: the command finds them finished and starts no other."""
    path = tmp_path_factory.mktemp("compare") / "study"
    study = Study(path, SPEC)
    for planned in study.runs:
        train_or_resume(planned.recipe, study.folder(planned))
    return path


def test_finished_runs_are_not_run_again_and_the_tables_are_shown(calibrant, folder):
    code, out, said = calibrant("compare", *FLAGS, "--out", folder)
    assert code == 0
    assert "4 runs, 4 of them finished before, 0 to run" in said
    for word in ("ECE +TS", "AUROC", "|S95|", "samples seen", "minus nll", "2 and 2", "report.html"):
        assert word in out
    assert (folder / "report.html").is_file()
    assert "flsd+h" in (folder / "tables.tex").read_text()


def test_the_folder_alone_goes_on_and_json_is_only_json(calibrant, folder):
    code, out, _ = calibrant("compare", "--out", folder, "--json", "--no-page")
    assert code == 0
    (results,) = json.loads(out)["comparisons"]
    assert [row["label"] for row in results["rows"]] == ["nll", "flsd+h"]
    assert results["baseline"] == "nll"
    assert len(results["differences"]) == 13


def test_a_toml_file_and_flags_that_override_it(calibrant, folder, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text('methods = ["nll", "flsd+h"]\nseeds = [0, 1, 2]\nbaseline = "flsd+h"\n[recipe]\nepochs = 2\n')
    code, out, said = calibrant("compare", file, "--seeds", 0, 1, "--out", folder, "--no-page")
    assert (code, "minus flsd+h" in out) == (0, True)
    assert "4 of them finished before, 0 to run" in said


def test_a_recipe_file_is_the_shared_part(calibrant, folder, tmp_path):
    recipe = Study(folder, SPEC).runs[-1].recipe
    recipe.save(tmp_path / "recipe.toml")
    code, _, said = calibrant(
        "compare", "--methods", "nll", "--recipe", tmp_path / "recipe.toml", "--out", folder, "--no-page"
    )
    assert code == 0, said
    assert "1 run, 1 of them finished before, 0 to run" in said


def test_a_recipe_file_beside_a_study_file_names_the_data(calibrant, tmp_path):
    recipe, file = tmp_path / "recipe.toml", tmp_path / "file.toml"
    recipe.write_text('[data]\nname = "arrays:nowhere.npz"\n')
    file.write_text('methods = ["nll"]\n')
    code, _, said = calibrant("compare", file, "--recipe", recipe, "--out", tmp_path / "new")
    assert (code, "got 'arrays:nowhere.npz'" in said) == (2, True)
    file.write_text('methods = ["nll"]\ndata = ["arrays:elsewhere.npz"]\n')
    code, _, said = calibrant("compare", file, "--recipe", recipe, "--out", tmp_path / "new")
    assert (code, "got 'arrays:elsewhere.npz'" in said) == (2, True)


def test_a_network_that_a_recipe_file_does_not_name_is_the_recommended_one(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[data]\nname = "cifar10"\n')
    assert names_in(recipe) == {"data": "cifar10"}
    recipe.write_text('[model]\nname = "resnet50"\n')
    assert names_in(recipe) == {"model": "resnet50"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "nll", "--set", "epohcs=3"), "Did you mean 'epochs'"),
        (("--methods", "nll", "--set", "epochs"), "key=value"),
        (("--methods", "nll", "--set", "=3"), "key=value"),
        (("--methods", "nll", "--set", "zzz=3"), "Known: seed, epochs, budget, "),
        (("--methods", "nll", "--jobs", "0"), "jobs must be"),
        (("--methods", "nll", "--data", "digits", "digitz"), "Did you mean 'digits'"),
        (("--methods", "nll", "--data", "digits", "arrays:missing.npz"), "data must name an existing file"),
        (("--methods", "nll", "--model", "tiny", "resnet5000"), "Did you mean 'resnet50'"),
        (("missing.toml",), "does not exist"),
        ((), "has no study.toml yet"),
    ],
)
def test_bad_input_is_one_line_and_code_2(calibrant, tmp_path, monkeypatch, arguments, message):
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, said = calibrant("compare", *arguments, "--out", tmp_path / "new")
    assert (code, out) == (2, "")
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_nothing_is_said_to_be_left_out_of_a_study_that_is_refused(calibrant, folder):
    code, _, said = calibrant("compare", "--methods", "nll", "--seeds", 0, "--epochs", 3, "--out", folder)
    assert (code, "epochs = 2" in said) == (2, True)
    assert "left out" not in said
