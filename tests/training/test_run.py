import json

import pytest

from calibrant.errors import InvalidInput, OutputError
from calibrant.files import write_json
from calibrant.metrics import evaluate
from calibrant.training import Recipe, Run, train
from calibrant.training.checkpoint import append_line


def test_a_new_run_can_be_opened(tmp_path):
    run = Run.create(tmp_path / "deep" / "run", Recipe(seed=5))
    assert Run(run.path).recipe == Recipe(seed=5)
    assert Run(str(run.path)).recipe == Recipe(seed=5)
    assert Run(str(run.path)).path == run.path
    assert not run.finished
    with pytest.raises(InvalidInput, match=r"is not finished\. Continue it"):
        run.summary  # noqa: B018
    with pytest.raises(InvalidInput, match="has no test predictions yet"):
        run.predictions("test")
    with pytest.raises(InvalidInput, match="has no checkpoint yet"):
        run.load_model()


@pytest.mark.parametrize("content", ["file", "folder with a file", "run"])
def test_what_holds_something_is_refused_and_left_alone(tmp_path, content):
    target = tmp_path / "target"
    if content == "file":
        target.write_text("mine")
    elif content == "run":
        Run.create(target, Recipe())
    else:
        (target / "deep").mkdir(parents=True)
        (target / "deep" / "thesis.tex").write_text("mine")
    before = sorted(path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file())
    with pytest.raises(InvalidInput, match="out must be a new or empty folder"):
        Run.create(target, Recipe(seed=1))
    assert sorted(path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()) == before


def test_what_a_kill_before_the_recipe_left_can_be_begun_anew(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".lock").touch()
    (tmp_path / ".recipe.toml.7.tmp").write_text("seed = ")
    assert Run.create(tmp_path, Recipe(seed=2)).recipe.seed == 2


def test_a_path_through_a_file_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="A part of the path is a file"):
        Run.create(tmp_path / "file" / "run", Recipe())


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"run must be a run folder with a recipe\.toml"):
        Run(tmp_path)
    with pytest.raises(InvalidInput, match=r"run must be a run folder with a recipe\.toml"):
        Run(str(tmp_path / "nothing"))


def test_a_run_is_found_from_its_folder_and_from_its_predictions_alone(tmp_path):
    run = Run.create(tmp_path / "run", Recipe(seed=5))
    for path in (run.path, run.predictions_path("val"), run.path / "predictions" / "test.calibrated.npz"):
        assert Run.of(path).recipe == Recipe(seed=5)
    for path in (tmp_path, run.policy_path, tmp_path / "predictions" / "val.npz", tmp_path / "nothing"):
        assert Run.of(path) is None


def test_a_run_has_as_many_epochs_as_were_logged_and_a_finished_one_all(tmp_path, epoch_line, summary):
    run = Run.create(tmp_path / "run", Recipe(epochs=3))
    assert run.epochs() == []
    for epoch in (1, 2):
        append_line(run.log_path, epoch_line(epoch))
    assert [line["epoch"] for line in run.epochs()] == [1, 2]
    write_json(run.summary_path, summary)
    with pytest.raises(InvalidInput, match="2 whole lines for 3 epochs"):
        run.epochs()


def test_drafts_of_killed_processes_go_and_nothing_else(tmp_path):
    run = Run.create(tmp_path / "run", Recipe())
    (run.path / "notes.tmp").touch()
    keep = sorted(run.path.rglob("*"))
    for folder in (run.path, run.checkpoints, run.predictions_path("val").parent):
        (folder / ".something.json.77.tmp").touch()
    run.remove_drafts()
    assert sorted(run.path.rglob("*")) == keep


def test_only_the_summary_says_that_a_run_is_finished(tmp_path, summary):
    run = Run.create(tmp_path / "run", Recipe())
    run.predictions_path("test").write_bytes(b"")
    assert not run.finished
    write_json(run.summary_path, summary)
    assert run.finished
    assert run.summary == summary


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timing", [1.0]),
        ("timing", {"train_seconds": "long", "seconds": 1.0}),
        ("test", {"ece": 0.1}),
        ("samples_seen", -1),
        ("samples_full", 0),
        ("seen_share", None),
        ("environment", {"torch": ["2"]}),
        ("method", "nll"),
        ("method", {"name": "nll", "settings": {"gamma": [[]]}}),
        ("best", {"epoch": "1"}),
    ],
)
def test_a_summary_with_wrong_types_is_one_line(tmp_path, summary, key, value):
    run = Run.create(tmp_path / "run", Recipe())
    write_json(run.summary_path, {**summary, key: value})
    with pytest.raises(InvalidInput, match=rf"summary\.json is damaged at '{key}"):
        run.summary  # noqa: B018
    run.summary_path.write_text("[]")
    with pytest.raises(InvalidInput, match=r"summary\.json is damaged"):
        run.summary  # noqa: B018


def test_a_finished_run_shows_its_settings_and_results(toy, toy_recipe, tmp_path, notebook_rows):
    run = train(toy_recipe(epochs=2), tmp_path / "a<b> & c", data=toy)
    found = dict(notebook_rows(run))
    assert {name: found[name] for name in ("data", "model", "method", "seed", "state")} == {
        "data": "digits",
        "model": "tiny",
        "method": "flsd+h+p-ema",
        "seed": "3",
        "state": "finished, 2 epochs",
    }
    test = run.summary["test"]
    assert found["test error"] == f"{100 * test['test_error']:.2f} %"
    assert found["NLL"] == f"{test['nll']:.4f}"
    assert found["ECE"] == f"{100 * run.summary['test_ece_15_bins']:.2f} %"
    assert found["sample updates"] == f"{run.summary['seen_share']:.1%}"
    assert "a&lt;b&gt; &amp; c" in run._repr_html_()
    assert repr(run).splitlines()[0] == f"Run: {run.path}"

    content = json.loads(run.summary_path.read_text())
    run.summary_path.write_text(json.dumps({**content, "test": {"nll": "<b>"}}))
    assert [name for name, _ in notebook_rows(run)][-1] == "damaged"
    assert "damaged" in repr(run)


def test_a_run_that_has_just_begun(tmp_path, notebook_rows):
    run = Run.create(tmp_path / "run", Recipe(epochs=7))
    assert notebook_rows(run)[-1] == ["state", "0 of 7 epochs done"]


def test_the_end_of_a_training_shows_the_numbers_that_evaluate_shows(make_toy, toy_recipe, tmp_path):
    run = train(toy_recipe(), tmp_path / "run", data=make_toy(samples=1100))  # enough cases for a temperature
    text = run.describe()
    for shown in (run.predictions("test"), run.policy().calibrate(run.predictions("test"))):
        found = evaluate(shown)
        assert found.n_bins == 15
        assert f"{100 * found.ece:.2f} %" in text
