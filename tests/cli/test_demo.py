import re

from calibrant.training import Run, paper_recipe


def test_the_demo_ends_with_two_tables_and_a_report_and_does_not_train_twice(calibrant, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # on a narrow terminal a table has its last columns below
    arguments = ("demo", "--out", tmp_path / "demo", "--epochs", "4", "--n-resamples", "50")
    code, out, err = calibrant(*arguments)
    assert code == 0, err
    assert len(re.findall(r"^ *recommended +[\d.]+", out, re.MULTILINE)) == 2
    assert len(re.findall(r"^ *plain training +[\d.]+", out, re.MULTILINE)) == 2
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "recommended (calibrated)" in page
    assert "plain training (raw)" in page
    summaries = [tmp_path / "demo" / name / "summary.json" for name in ("recommended", "plain-training")]
    written = [path.stat().st_mtime_ns for path in summaries]
    assert calibrant(*arguments)[0] == 0
    assert [path.stat().st_mtime_ns for path in summaries] == written
    assert len({Run(path.parent).summary["samples_seen"] for path in summaries}) == 1, "the trainings cost the same"


def test_a_folder_with_other_settings_is_not_touched(calibrant, tmp_path):
    Run.create(tmp_path / "recommended", paper_recipe("digits", epochs=3))
    code, _, err = calibrant("demo", "--out", tmp_path, "--epochs", "4")
    assert code == 2
    assert "was made with" in err
    assert not list((tmp_path / "recommended" / "checkpoints").iterdir())


def test_without_torch_only_the_recorded_predictions_are_judged(calibrant, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.demonstration.find_spec", lambda _: None)
    code, out, err = calibrant("demo", "--out", tmp_path / "demo", "--n-resamples", "50")
    assert code == 0, err
    assert "pip install 'calibrant[train]'" in out
    assert len(re.findall(r"^ *recommended +[\d.]+", out, re.MULTILINE)) == 1
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["report.html"]
