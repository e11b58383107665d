import csv
import io
import shutil
from html import unescape

import numpy as np
import pytest

from calibrant.errors import InvalidInput
from calibrant.files import read_json, write_json
from calibrant.studies import Study, StudySpec
from calibrant.studies.result_tables import paper_tables
from calibrant.studies.study_outputs import report_study, runs_csv, write_tables
from calibrant.training import Recipe, train_or_resume


def test_a_finished_study_has_nothing_pending_and_reopens_from_its_folder(finished_study):
    assert finished_study.pending() == []
    again = Study(finished_study.path)
    assert again.runs == finished_study.runs


def test_a_larger_study_keeps_the_runs_that_are_there(finished_study):
    larger = StudySpec(methods=("nll", "flsd+h+p-ema", "brier"), seeds=(0, 1, 2), recipe={"epochs": 2})
    pending = [planned.name for planned in Study(finished_study.path, larger).pending()]
    assert len(pending) == 5
    assert "digits-tiny-nll-seed2" in pending


def test_other_settings_in_the_same_folder_are_refused(finished_study):
    other = StudySpec(methods=("nll",), recipe={"epochs": 3})
    with pytest.raises(InvalidInput, match="was made with epochs = 2, now it is 3"):
        Study(finished_study.path, other).pending()


def test_records_are_measured_once_and_again_when_damaged(finished_study):
    planned = finished_study.runs[0]
    first = finished_study.record(planned)
    path = finished_study.path / "records" / f"{planned.name}.json"
    written = path.stat().st_mtime_ns
    assert finished_study.record(planned) == first
    assert path.stat().st_mtime_ns == written
    path.write_text("{}")
    assert finished_study.record(planned) == first


def test_comparisons_hold_every_row_with_its_seeds(finished_study):
    (results,) = finished_study.results()
    assert (results.data, results.model, results.baseline) == ("digits", "tiny", "nll")
    assert [(row.label, row.seeds) for row in results.rows] == [("nll", (0, 1)), ("flsd+h+p-ema", (0, 1))]
    assert results.rows[1]["seen_share"].mean < 1.0
    assert {item.over for item in results.differences if item.interval is not None} == {"seeds"}


def test_runs_that_did_not_finish_are_told_in_every_table_and_in_json(finished_study):
    larger = StudySpec(methods=("nll", "flsd+h+p-ema", "brier"), seeds=(0, 1, 2), recipe={"epochs": 2})
    (results,) = Study(finished_study.path, larger).results()
    assert results.unfinished == {"nll": (2,), "flsd+h+p-ema": (2,), "brier": (0, 1, 2)}
    assert results.to_dict()["unfinished"]["brier"] == (0, 1, 2)
    for grid in paper_tables(results)[:2]:
        assert "in none of these figures: nll, seed 2; flsd+h+p-ema, seed 2; brier, seeds 0, 1, 2." in grid.caption
    (complete,) = finished_study.results()
    assert complete.unfinished == {}
    assert "Not finished" not in paper_tables(complete)[0].caption


def test_runs_on_a_file_that_has_changed_in_between_are_not_compared(tmp_path):
    spec = StudySpec(
        methods=("nll",), seeds=(0, 1), data=(f"arrays:{tmp_path}/x.npz",), models=("tiny",), recipe=_RECIPE
    )
    study = Study(tmp_path / "study", spec)
    generator = np.random.default_rng(0)
    labels = {"y_train": np.arange(40) % 2, "y_test": np.arange(20) % 2}
    for planned in study.runs:
        # The labels stay as they are, so that only a look at the images tells.
        images = {f"x_{part}": generator.integers(0, 256, (n, 8, 8, 3), "uint8") for part, n in _PARTS}
        np.savez(tmp_path / "x.npz", **images, **labels)
        train_or_resume(planned.recipe, study.folder(planned))
    with pytest.raises(InvalidInput, match=r"seed0 and .*seed1 were trained on different data: .* has changed"):
        study.results()
    shutil.rmtree(study.folder(study.runs[0]))
    train_or_resume(study.runs[0].recipe, study.folder(study.runs[0]))
    assert study.results()[0].rows[0].seeds == (0, 1)


_PARTS = (("train", 40), ("test", 20))
_RECIPE = {"epochs": 1, "optimiser": {"batch_size": 16}}


def test_tables_and_page_are_written(finished_study):
    markdown, latex, numbers, table = write_tables(finished_study, finished_study.results())
    assert "flsd+h+p-ema" in markdown.read_text()
    assert latex.read_text().count(r"\begin{longtable}") == 7
    assert table.read_text() == runs_csv(finished_study)
    content = read_json(numbers)
    assert [run["finished"] for run in content["runs"]] == [True] * 4
    assert content["comparisons"][0]["rows"][0]["figures"]["ece"]["values"][0] == pytest.approx(
        finished_study.record(finished_study.runs[0]).value("ece")
    )
    (page,) = report_study(finished_study, finished_study.results(), n_resamples=20)
    assert "flsd+h+p-ema" in page.read_text()


def test_the_page_of_a_study_shows_its_tables_over_seeds(finished_study):
    (page,) = report_study(finished_study, finished_study.results(), n_resamples=0, pictures=False)
    html = unescape(page.read_text(encoding="utf-8"))
    (results,) = finished_study.results()
    for grid in paper_tables(results):
        assert grid.caption in html
        for row in grid.rows:
            for cell in row:
                assert f">{cell}</t" in html
    assert "nll (seed 0)" in html


def test_a_second_network_gets_a_page_and_no_stale_page_of_the_first_is_left(finished_study, tmp_path):
    shutil.copytree(finished_study.path, tmp_path / "s")
    (tmp_path / "s" / "report.html").write_text("of the smaller study")
    spec = StudySpec(methods=("nll",), models=("tiny", "resnet32"), recipe={"epochs": 2})
    study = Study(tmp_path / "s", spec)
    own, other = study.runs
    shutil.copytree(study.folder(own), study.folder(other))
    other.recipe.save(study.folder(other) / "recipe.toml")
    assert [page.name for page in report_study(study, study.results(), n_resamples=20)] == [
        "report-digits-tiny.html",
        "report-digits-resnet32.html",
    ]
    assert not (tmp_path / "s" / "report.html").exists()


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


def test_a_setting_of_a_plan_that_cannot_be_is_refused_before_anything_is_written(tmp_path):
    variants = ({"label": "average", "method": "flsd+p-ema", "options": {"ema": 2.0}},)
    study = Study(tmp_path / "study", StudySpec(methods=("nll",), variants=variants, data=("digits",)))
    with pytest.raises(InvalidInput, match=r"average.*ema must lie in"):
        study.run()
    assert not (tmp_path / "study").exists()


def test_own_code_that_is_edited_while_a_study_runs_stops_its_later_runs(tmp_path, own_module):
    """What the processes are given names the code that the study began with."""
    own_module("my_loss", "from calibrant.losses import CrossEntropy as f\n")
    study = Study(tmp_path / "s", StudySpec(methods=("my_loss:f",), recipe={"epochs": 1}))
    (planned,) = study.runs
    task = study._task(planned, None, {})
    own_module("my_loss", "from calibrant.losses import Brier as f\n")
    with pytest.raises(InvalidInput, match="your own my_loss must be the file with SHA-256"):
        train_or_resume(Recipe.load(task.arguments[1]), study.folder(planned))
    assert not study.folder(planned).exists()


def test_what_an_older_version_did_not_measure_is_measured(finished_study):
    planned = finished_study.runs[0]
    path = finished_study.path / "records" / f"{planned.name}.json"
    made = finished_study.record(planned)
    assert made.automation
    content = read_json(path)
    del content["takeover"]
    write_json(path, content)
    assert finished_study.record(planned) == made
    assert read_json(path)["takeover"] == made.automation


def test_drafts_of_a_killed_process_are_removed(finished_study):
    drafts = [finished_study.path / part / ".x.toml.1.tmp" for part in ("", "recipes", "records")]
    for draft in drafts:
        draft.parent.mkdir(exist_ok=True)
        draft.touch()
    finished_study.run()
    assert not any(draft.exists() for draft in drafts)


def test_the_runs_as_a_table_for_other_programs(finished_study):
    lines = list(csv.DictReader(io.StringIO(runs_csv(finished_study))))
    assert [(line["label"], int(line["seed"])) for line in lines] == [
        (planned.label, planned.recipe.seed) for planned in finished_study.runs
    ]
    for line, planned in zip(lines, finished_study.runs, strict=True):
        record = finished_study.record(planned)
        assert float(line["samples_seen"]) == record.samples_seen
        for metric in ("nll", "aurc", "classwise_ece", "share@0.95"):
            assert float(line[metric]) == record.value(metric)
            assert float(line[f"scaled_{metric}"]) == record.value(f"scaled_{metric}")
        assert float(line["ece_15_bins"]) == record.value("ece_15_bins")
