"""`calibrant evaluate`: table, JSON, gates, and one line for bad input."""

import json

import numpy as np
import pytest

from calibrant import Evaluation, Predictions, evaluate
from calibrant.predictions.rows import OnDisk


@pytest.fixture
def saved(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 4)) * 3
    predictions = Predictions.from_logits(logits, np.where(rng.random(300) < 0.7, logits.argmax(axis=1), 0))
    path = tmp_path / "p.npz"
    predictions.save(path)
    return path, predictions


def test_json_is_the_evaluation(calibrant, saved):
    path, predictions = saved
    code, out, err = calibrant("evaluate", path, "--json")
    assert (code, err) == (0, "")
    assert Evaluation.from_dict(json.loads(out)) == evaluate(predictions, n_resamples=200)
    code, out, _ = calibrant(
        *("evaluate", path, "--json", "--n-bins", 15, "--thresholds", 0.8, 0.9, 0.95, "--n-resamples", 20),
        *("--seed", 3, "--level", 0.9),
    )
    assert code == 0
    expected = evaluate(predictions, n_bins=15, thresholds=(0.8, 0.9, 0.95), n_resamples=20, seed=3, level=0.9)
    assert Evaluation.from_dict(json.loads(out)) == expected


def test_a_run_folder_is_its_test_predictions(calibrant, saved, tmp_path):
    _, predictions = saved
    (tmp_path / "recipe.toml").touch()
    code, _, err = calibrant("evaluate", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "has no test predictions yet" in err
    (tmp_path / "predictions").mkdir()
    predictions.save(tmp_path / "predictions" / "test.npz")
    code, out, _ = calibrant("evaluate", tmp_path, "--json")
    assert code == 0
    assert Evaluation.from_dict(json.loads(out)) == evaluate(predictions, n_resamples=200)


def test_table_for_people(calibrant, saved):
    path, predictions = saved
    code, out, _ = calibrant("evaluate", path)
    assert code == 0
    assert out == evaluate(predictions, n_resamples=200).table() + "\n"
    assert "test error" in out


def test_several_files_side_by_side(calibrant, saved, tmp_path):
    path, predictions = saved
    other = tmp_path / "[bold]q.csv"
    predictions.subset(np.arange(100)).save(other)
    code, out, _ = calibrant("evaluate", path, other)
    assert code == 0
    row = next(line for line in out.splitlines() if line.strip().startswith("rows"))
    assert row.split() == ["rows", "300", "100"]
    code, out, _ = calibrant("evaluate", path, other, "--json")
    content = json.loads(out)
    assert [content[str(each)]["n"] for each in (path, other)] == [300, 100]


def test_gates_that_hold(calibrant, saved):
    path, predictions = saved
    result = evaluate(predictions)
    code, _, err = calibrant("evaluate", path, "--max-ece", result.ece, "--min-accuracy", 1 - result.test_error)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("gate", "limit", "part"),
    [
        ("--max-ece", 0.01, "is above the limit 0.01"),
        ("--max-test-error", 0.01, "test_error 0."),
        ("--min-accuracy", 0.99, "is below the limit 0.99"),
        ("--max-nll", 0.01, "nll "),
        ("--max-brier", 0.01, "brier "),
        ("--max-mce", 0.001, "mce "),
        ("--max-classwise-ece", 0.001, "classwise_ece "),
        ("--max-smooth-ece", 0.001, "smooth_ece "),
        ("--max-debiased-ece", 0.001, "debiased_ece "),
        ("--max-ks", 0.001, "ks "),
        ("--max-aurc", 0.001, "aurc "),
        ("--min-auroc", 0.999, "auroc "),
        ("--min-share", 0.999, "share "),
        ("--min-share-accuracy", 0.999, "share_accuracy "),
        ("--max-share-ece", 0.0001, "share_ece "),
    ],
)
def test_gates_that_fail_exit_with_one_after_the_result(calibrant, saved, gate, limit, part):
    path, _ = saved
    code, out, err = calibrant("evaluate", path, gate, limit, "--json")
    assert code == 1
    assert json.loads(out)["n"] == 300
    assert part in err
    assert err.count("\n") == 1


def test_a_gate_on_what_is_not_defined_fails(calibrant, tmp_path):
    Predictions.from_probabilities([[0.9, 0.1]], [0]).save(tmp_path / "p.npz")
    for gate in ("--min-auroc", "--min-share-accuracy"):
        code, _, err = calibrant("evaluate", tmp_path / "p.npz", gate, 0.5)
        assert code == 1
        assert "is not defined here" in err


def test_files_that_do_not_say_need_from(calibrant, tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("target,score_a,score_b\na,2.0,1.0\nb,0.5,0.5\n")
    code, out, err = calibrant("evaluate", path)
    assert (code, out) == (2, "")
    assert "--kind logits or --kind probabilities" in err
    code, out, _ = calibrant("evaluate", path, "--kind", "logits", "--json")
    assert (code, json.loads(out)["test_error"]) == (0, 0.5)


def test_bad_input_is_one_line_and_code_two(calibrant, saved, tmp_path):
    path, _ = saved
    (tmp_path / "odd.csv").write_text("logit_0,colour\n1,red\n")
    for arguments, match in (
        ([tmp_path / "missing.npz"], "does not exist"),
        ([tmp_path / "odd.csv"], "must have targets"),
        ([path, "--max-ece", 2], "fraction in 0..1"),
        ([path, "--max-ece", "2%"], "such as 0.02 for 2 %, got '2%'"),
        ([path, "--max-ece.x", 0.5], "no option has a dot in its name"),
        ([path, "--kin", "logits"], "Unknown option: --kin. Did you mean --kind?"),
        ([path, "--kind", "odds"], "odds"),
        ([], "files"),
    ):
        code, out, err = calibrant("evaluate", *arguments)
        assert (code, out) == (2, ""), arguments
        assert match.lower() in err.lower()
        assert err.count("\n") == 1
        assert "Traceback" not in err


def test_large_files_stay_on_disk(calibrant, saved, monkeypatch):
    path, predictions = saved
    seen = []
    monkeypatch.setattr("calibrant.predictions.reader._LARGE", 10)
    read = OnDisk.__getitem__
    monkeypatch.setattr(OnDisk, "__getitem__", lambda self, rows: seen.append(rows) or read(self, rows))
    code, out, _ = calibrant("evaluate", path, "--json")
    assert code == 0
    assert seen
    assert Evaluation.from_dict(json.loads(out)) == evaluate(predictions, n_resamples=200)


def test_columns_have_other_names_and_parts_lie_in_a_folder(calibrant, saved, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    _, predictions = saved
    folder = tmp_path / "parts"
    folder.mkdir()
    scores = {f"logit_{k}": predictions.logits[:, k] for k in range(4)}
    table = pa.table({"label": predictions.targets, "case": range(300), "site": ["x"] * 300, **scores})
    parquet.write_table(table.slice(0, 100), folder / "a.parquet")
    parquet.write_table(table.slice(100), folder / "b.parquet")
    for source in (folder, folder / "*.parquet"):
        code, out, err = calibrant("evaluate", source, "--columns", "target=label,id=case", "--json")
        assert (code, err) == (0, "")
        assert Evaluation.from_dict(json.loads(out)) == evaluate(predictions, n_resamples=200)
    for columns in ("target", "target=label,target=case", "=label"):
        code, _, err = calibrant("evaluate", folder, "--columns", columns)
        assert (code, "columns must" in err) == (2, True)


def test_groups_are_shown_one_by_one(calibrant, tmp_path):
    import json

    import numpy as np

    from calibrant import Predictions

    targets = np.array([0, 1, 0, 1, 1, 1])
    scores = np.tile([[0.9, 0.1]], (6, 1))
    Predictions.from_probabilities(scores, targets, extras={"site": list("aaabbb")}).save(tmp_path / "p.parquet")
    code, out, _ = calibrant("evaluate", tmp_path / "p.parquet", "--groups", "site")
    assert code == 0
    assert "Worst by test error: b." in out
    code, out, _ = calibrant("evaluate", tmp_path / "p.parquet", "--groups", "site", "--json")
    assert json.loads(out)["groups"]["b"]["test_error"] == 1.0
    code, _, err = calibrant("evaluate", tmp_path / "p.parquet", "--groups", "ward")
    assert (code, "Did you mean" in err or "Known" in err) == (2, True)
    code, _, err = calibrant("evaluate", tmp_path / "p.parquet", "--groups", "site", "--max-test-error", "0.1")
    assert code == 1


def test_intervals_come_by_default_where_they_are_quick(calibrant, saved, tmp_path, monkeypatch):
    path, predictions = saved
    other = tmp_path / "other.npz"
    predictions.save(other)
    _, out, _ = calibrant("evaluate", path, other)
    low, high = evaluate(predictions, n_resamples=200).intervals["test_error"]
    assert f"{100 * low:.2f} % to {100 * high:.2f} %" in out, "side by side, too"
    _, out, _ = calibrant("evaluate", path, "--n-resamples", 0)
    assert "interval" not in out
    monkeypatch.setattr("calibrant.metrics.evaluation.MOST_ROWS_BY_DEFAULT", 299)
    code, out, _ = calibrant("evaluate", path)
    assert code == 0
    assert out.endswith("unless you ask for them (--n-resamples 200).\n")
    _, out, _ = calibrant("evaluate", path, "--n-resamples", 20)
    assert "No intervals" not in out


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("target,cat,dog\ncat,0.5,0.5\n", "or predicted=COLUMN,confidence=COLUMN."),
        ("target,score\n1,0.5\n", "'score' is the score of '1': --positive 1."),
        ("id,score\n1,0.5\n", "name the column of that class: --columns predicted=COLUMN."),
        ("target,prob_cat,prob_dog\ncat,50,50\n", "These look like percentages: divide them by 100."),
        ("target,prob_cat,prob_dog\ncat,nan,0.5\n", "Leave such rows out or find their cause."),
        ("target,prob_cat,prob_dog\n2,0.5,0.5\n", "Class numbers are counted from 0."),
        ("target,prob_k\xe4tzchen,prob_dog\n0,0.5,0.5\n", "Save the table again as UTF-8; Excel calls that CSV UTF-8."),
    ],
)
def test_what_beginners_hand_in_is_answered_with_the_file_and_a_hint(calibrant, tmp_path, text, hint):
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="latin-1")
    code, out, err = calibrant("evaluate", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"calibrant: {path}")
    assert err.endswith(f"{hint}\n")


@pytest.mark.parametrize(
    ("arrays", "hint"),
    [
        ({"x": np.zeros((2, 3))}, "numpy.savez(file, logits=..., targets=...)."),
        ({"logits": np.zeros((2, 3)), "targets": np.eye(3)[:2]}, "Of one-hot rows take the argmax."),
        ({"logits": np.zeros((2, 3)), "targets": np.array([0.0, 1.0])}, "targets.astype(int)."),
    ],
)
def test_arrays_that_are_not_what_is_read_are_answered_so_too(calibrant, tmp_path, arrays, hint):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    code, _, err = calibrant("evaluate", path)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"calibrant: {path}")
    assert err.endswith(f"{hint}\n")


def test_what_is_missing_is_said_to_be_missing(calibrant, tmp_path):
    assert calibrant("evaluate", tmp_path / "run")[2] == f"calibrant: {tmp_path / 'run'} does not exist.\n"
    assert calibrant("evaluate")[2].endswith("See: calibrant evaluate --help\n")
