import json

from calibrant.training import Recipe, Run, train


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
    assert found["ECE"] == f"{100 * test['ece']:.2f} %"
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
