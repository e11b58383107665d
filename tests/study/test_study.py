import pytest

from calibrant.errors import InvalidInput
from calibrant.files import read_json
from calibrant.study import Study, StudySpec
from calibrant.study.output import write_pages, write_tables


def test_a_finished_study_has_nothing_pending_and_reopens_from_its_folder(finished_study):
    assert finished_study.pending() == []
    again = Study(finished_study.path)
    assert again.cells == finished_study.cells


def test_a_larger_study_keeps_the_runs_that_are_there(finished_study):
    larger = StudySpec(methods=("nll", "flsd+h+p-ema", "brier"), seeds=(0, 1, 2), recipe={"epochs": 2})
    pending = [cell.name for cell in Study(finished_study.path, larger).pending()]
    assert len(pending) == 5
    assert "digits-tiny-nll-seed2" in pending


def test_other_settings_in_the_same_folder_are_refused(finished_study):
    other = StudySpec(methods=("nll",), recipe={"epochs": 3})
    with pytest.raises(InvalidInput, match="was made with epochs = 2, now it is 3"):
        Study(finished_study.path, other).pending()


def test_records_are_measured_once_and_again_when_damaged(finished_study):
    cell = finished_study.cells[0]
    first = finished_study.record(cell)
    path = finished_study.path / "records" / f"{cell.name}.json"
    written = path.stat().st_mtime_ns
    assert finished_study.record(cell) == first
    assert path.stat().st_mtime_ns == written
    path.write_text("{}")
    assert finished_study.record(cell) == first


def test_comparisons_hold_every_row_with_its_seeds(finished_study):
    (comparison,) = finished_study.comparisons()
    assert (comparison.data, comparison.model, comparison.baseline) == ("digits", "tiny", "nll")
    assert [(row.label, row.seeds) for row in comparison.rows] == [("nll", (0, 1)), ("flsd+h+p-ema", (0, 1))]
    assert comparison.rows[1].seen_share.mean < 1.0
    assert {item.over for item in comparison.differences if item.interval is not None} == {"seeds"}


def test_tables_and_page_are_written(finished_study):
    markdown, latex, numbers = write_tables(finished_study, finished_study.comparisons())
    assert "flsd+h+p-ema" in markdown.read_text()
    assert latex.read_text().count(r"\begin{tabular}") == 4
    content = read_json(numbers)
    assert [run["finished"] for run in content["runs"]] == [True] * 4
    assert content["comparisons"][0]["rows"][0]["test"]["ece"]["values"][0] == pytest.approx(
        finished_study.record(finished_study.cells[0]).value("ece")
    )
    (page,) = write_pages(finished_study)
    assert "flsd+h+p-ema" in page.read_text()


def test_a_folder_without_a_study_says_what_to_do(tmp_path):
    with pytest.raises(InvalidInput, match=r"has no study\.toml yet"):
        Study(tmp_path)


def test_two_processes_cannot_run_one_study(finished_study):
    with finished_study._locked(), pytest.raises(InvalidInput, match="is being run by another process"):
        finished_study.run()


@pytest.mark.parametrize(("arguments", "message"), [((5,), "path must be a path"), (("x", {}), "spec must be a Study")])
def test_bad_arguments(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Study(*arguments)
