import re

from calibrant.training import Run, default_recipe


def test_the_demo_ends_with_a_table_and_a_report_and_does_not_run_twice(calibrant, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("demo", "--out", tmp_path / "demo", "--epochs", "4", "--n-resamples", "50")
    code, out, err = calibrant(*arguments)
    assert code == 0, err
    for method in ("nll", "flsd", "flsd+h", "flsd+h+p-ema", "flsd+h+unbiased"):
        assert (tmp_path / "demo" / method / "summary.json").is_file()
        assert re.search(rf"^{re.escape(method)} +[\d.]+ ", out, re.MULTILINE)
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "flsd+h+unbiased" in page
    written = (tmp_path / "demo" / "nll" / "summary.json").stat().st_mtime_ns
    assert calibrant(*arguments)[0] == 0
    assert (tmp_path / "demo" / "nll" / "summary.json").stat().st_mtime_ns == written


def test_a_folder_with_other_settings_is_not_touched(calibrant, tmp_path):
    Run.create(tmp_path / "nll", default_recipe("digits", epochs=3))
    code, _, err = calibrant("demo", "--out", tmp_path, "--epochs", "4")
    assert code == 2
    assert "was made with" in err
    assert not list((tmp_path / "nll" / "checkpoints").iterdir())
