import hashlib
import re
from base64 import b64encode
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.calibration import PlattScaling, TemperatureScaling
from calibrant.decisions import Policy, RoutingRule, choose_threshold
from calibrant.errors import InvalidInput
from calibrant.report import ReportEntry, Section, read_entries, write_report
from calibrant.report.wording import confidence, interval, percent
from calibrant.tables import Table
from calibrant.training import Run
from tests.report.conftest import build_page

NASTY = ["<script>alert('x')</script>", "</script><b>", "\"quoted\" & 'more'", "<img src=x onerror=alert(1)>"]


def rows_of(html):
    """The comparison table as (name, cells), each cell as (data-value, text)."""
    table = re.search(r'<table id="comparison".*?</table>', html, re.DOTALL).group(0)
    found = []
    for row in re.findall(r'<tr data-row="\d+">.*?</tr>', table, re.DOTALL):
        name = unescape(re.search(r'<th [^>]*data-value="([^"]*)"', row).group(1))
        found.append((name, re.findall(r'<td data-value="([^"]*)"[^>]*>([^<]*)', row)))
    return found


def test_table_shows_the_numbers_of_evaluate(make):
    methods = {"nll": make(seed=1), "flsd": make(seed=2, sharpness=0.6)}
    html = build_page(methods, n_resamples=20)
    keys = ["test_error", "ece", "smooth_ece", "nll", "auroc", "aurc", "share@0.95", "accuracy@0.95", "ece@0.95"]
    for (name, cells), (expected_name, predictions) in zip(rows_of(html), methods.items(), strict=True):
        assert name == expected_name
        expected = evaluate(predictions, thresholds=(0.95,), n_resamples=20)
        assert [float(value) for value, _ in cells] == [expected.values()[key] for key in keys]
        assert cells[1][1] == percent(expected.ece, 2)
        assert interval(expected.intervals["ece"], 2).replace("\N{NO-BREAK SPACE}", " ") in html
        assert interval(expected.intervals["accuracy@0.95"], 2).replace("\N{NO-BREAK SPACE}", " ") in html


def test_the_same_entries_give_the_same_page(make):
    entries = {"nll": make(seed=1), "flsd": make(seed=2)}
    assert build_page(entries, n_resamples=20) == build_page(entries, n_resamples=20)


def test_no_name_id_or_title_becomes_markup(make, visible_text):
    predictions = make(n=40, class_names=NASTY, ids=[f"<i>{i}</i>" for i in range(40)], strength=1.0)
    html = build_page(dict.fromkeys(NASTY, predictions), title="<u>title</u>", n_resamples=0)
    outside = re.sub(r"<script\b[^>]*>.*?</script>", "", html, flags=re.DOTALL)
    for tag in ("<script", "<img src=x", "<b>&", "<i>", "<u>"):
        assert tag not in outside
    text = visible_text(html)
    for name in (*NASTY, "<u>title</u>"):
        assert name in text
    # Four scripts of ours and no more, whatever the names hold: data, Plotly, charts, controls.
    assert len(re.findall(r"<script\b", html)) == len(re.findall(r"</script>", html)) == 4


def test_only_our_scripts_may_run_and_nothing_may_be_fetched(predictions):
    html = build_page({"nll": predictions}, n_resamples=0)
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', html).group(1))
    assert "default-src 'none'" in policy
    script_source = re.search(r"script-src ([^;]*);", policy).group(1)
    scripts = re.findall(r"<script(?: type=\"text/plain\" class=\"later\")?>(.*?)</script>", html, re.DOTALL)
    digests = {f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts}
    assert set(script_source.split()) == digests
    assert not re.search(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?!data:|#)', html)


def test_ten_methods_of_ten_thousand_stay_below_eight_megabytes(make, tmp_path):
    entries = {f"method {i}": make(n=10_000, classes=10, seed=i) for i in range(10)}
    path = write_report(entries, tmp_path / "report.html", n_resamples=0)
    assert path.stat().st_size < 8_000_000


def test_run_shows_pruning_recipe_environment_and_pictures(run_folder, visible_text):
    html = build_page(read_entries([Run(run_folder)]), n_resamples=0)
    text = visible_text(html)
    assert "52 sample updates instead of 60: 13.3 % saved. The last epoch trained on 16 of 20 samples." in text
    assert "device <cpu>" in text
    assert "[optimiser]" in text
    assert html.count("<img src=") == 12
    assert "Samples seen" in text
    assert "id=&#34;" not in text


def test_images_of_other_data_are_not_shown(run_folder, make):
    make(n=599, classes=10).save(run_folder / "predictions" / "test.npz")
    assert build_page(read_entries([Run(run_folder)]), n_resamples=0).count("<img src=") == 0


def test_pictures_can_be_left_out(tmp_path):
    from calibrant.training import paper_recipe, train
    from calibrant.training.data import load_dataset

    run = train(paper_recipe("digits", method__name="flsd+h+p-ema", epochs=4), tmp_path / "run")
    entries = read_entries([run])
    assert "data:image" in build_page(entries, n_resamples=0).split('id="data"')[0]
    without = build_page(entries, n_resamples=0, pictures=False)
    assert "data:image" not in without.split('<script type="text/plain"')[0]
    table = without.partition("Suspect labels of")[2].partition("</table>")[0]
    suspects = re.findall(r'<th scope="row">([^<]*)</th>', table)
    assert suspects
    assert set(suspects) <= set(load_dataset("digits").train.ids)


def test_predictions_without_a_run(predictions, visible_text):
    text = visible_text(build_page({"mine": predictions}, n_resamples=0))
    assert not re.search(r"[a-z]\.[A-Z]", text)  # sentences of the template do not run into each other
    assert "Shown without images." in text
    assert "Pruning" not in text
    assert "One method: nothing to compare with." in text
    assert "At confidence 0.95 this model decides" in text


def test_a_class_never_predicted_and_one_never_seen_are_named(visible_text):
    scores = np.tile([0.7, 0.2, 0.1], (6, 1))
    predictions = Predictions.from_probabilities(scores, [0, 0, 1, 1, 0, 0], class_names=["ant", "bee", "cow"])
    text = visible_text(build_page({"mine": predictions}, n_resamples=0))
    assert "All 2 classes that occur, worst first. Never predicted: bee. Without a single test case" in text
    assert "so nothing can be said: cow." in text


def test_an_empty_confident_set_is_said_in_words(visible_text):
    predictions = Predictions.from_probabilities([[0.6, 0.4], [0.7, 0.3]], [0, 1])
    html = build_page({"mine": predictions, "other": predictions}, n_resamples=20)
    text = visible_text(html)
    assert "At confidence 0.95 mine decides no case alone" in text
    assert "nothing is automated" in text
    assert "nan" not in text.lower()


def test_a_perfect_model_has_no_mistakes_to_show(visible_text):
    predictions = Predictions.from_probabilities([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    text = visible_text(build_page({"mine": predictions}, n_resamples=20))
    assert "Not one of the 2 cases is wrong." in text
    assert not re.search(r"[a-z]\.[A-Z]", text)
    assert "Mean confidence 100.00 %, accuracy 100.00 %: level on average. The expected calibration error" in text
    assert "With 2 cases it cannot be distinguished from a perfectly calibrated one." in text
    assert "this model decides 100.0 % of cases alone and is right in 100.0 % of them" in text


def test_a_thousand_classes_show_the_worst_twelve(make, visible_text):
    text = visible_text(build_page({"mine": make(n=1500, classes=1000, strength=7.0)}, n_resamples=0))
    assert "The 12 worst of 1,000 classes." in text
    assert "more" in re.search(r"Never predicted: (.*?)\.", text).group(1)


def test_methods_on_different_cases_are_called_that(make, visible_text):
    text = visible_text(build_page({"a": make(n=300), "b": make(n=200, classes=3)}, n_resamples=0))
    assert "measured on different cases" in text
    assert "2 models · 200 to 300 test cases · 3 to 4 classes" in text


def test_wrong_images_and_paths_are_refused(predictions, tmp_path):
    with pytest.raises(InvalidInput, match=r"path must end in \.html"):
        write_report({"a": predictions}, tmp_path / "report.pdf")
    with pytest.raises(InvalidInput, match="images of 'a' must hold one image for each of the 600 predictions"):
        build_page([ReportEntry("a", predictions, None, np.zeros((3, 4, 4), np.uint8))], n_resamples=0)
    with pytest.raises(InvalidInput, match="thresholds must"):
        build_page({"a": predictions}, threshold=95)


def test_a_failed_page_leaves_the_old_one(predictions, tmp_path):
    path = write_report({"a": predictions}, tmp_path / "new" / "report.html", n_resamples=0)
    before = path.read_bytes()
    with pytest.raises(InvalidInput):
        write_report({"a": predictions}, path, n_bins=0)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]


def test_what_is_no_path_is_one_line(predictions):
    with pytest.raises(InvalidInput, match="path must"):
        write_report({"nll": predictions}, 3)


def test_the_page_of_a_run_lies_in_it_and_that_of_others_here(run_folder, predictions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_report(run_folder, n_resamples=0) == run_folder / "report.html"
    assert write_report(predictions, n_resamples=0) == Path("report.html")
    assert (tmp_path / "report.html").is_file()


def test_the_promise_is_the_headline_and_calibration_is_told(make, visible_text):
    some, rest = make(n=2000, sharpness=3.0).split(0.5, seed=0)
    calibrator = TemperatureScaling().fit(some)
    rule = choose_threshold(calibrator(some), 0.9)
    text = visible_text(build_page({"nll": rest}, policy=Policy(4, calibrator, rule), n_resamples=0))
    assert text.index(rule.note) < text.index(f"the rule (threshold {confidence(rule.threshold)}) decides")
    assert "The promise holds here. At most 5 % of rules chosen in this way break their promise." in text
    before, after = evaluate(rest).ece, evaluate(calibrator(rest)).ece
    assert f"ECE {percent(before, 2)} before and {percent(after, 2)} after".replace("\N{NO-BREAK SPACE}", " ") in text
    assert "1 model, calibrated and raw" in text
    assert f"At confidence {confidence(rule.threshold)} nll (calibrated)" in text


def test_images_are_looked_for_where_the_data_lie(run_folder, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("calibrant.training.run._dataset", lambda name, data_dir: asked.append((name, data_dir)))
    build_page(Run(run_folder), n_resamples=0, data_dir=tmp_path)
    assert set(asked) == {("digits", tmp_path)}


def test_predictions_are_read_once(run_folder, monkeypatch):
    read = []
    load = Predictions.load
    monkeypatch.setattr(Predictions, "load", lambda path, **more: read.append(path) or load(path, **more))
    build_page(Run(run_folder), n_resamples=0)
    assert len(read) == 1


ODD_NAMES = ["[/red]", "\x1b[31mred", "a\x00b", "\ud800", "\u202eleft", "a\u2028b", "<b>", "$\\frac{", "x" * 5000]


def test_odd_names_are_written_out_and_the_page_can_be_saved(make, page_data, tmp_path):
    predictions = make(n=60, classes=len(ODD_NAMES), class_names=ODD_NAMES)
    rule = RoutingRule(threshold=0.5, n_classes=len(ODD_NAMES), class_names=tuple(ODD_NAMES), note="\x1b<b>note")
    path = write_report(dict.fromkeys(ODD_NAMES, predictions), tmp_path / "page.html", n_resamples=0, title="\ud800")
    html = path.read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", html.split('<script type="text/plain"')[0])
    assert page_data(html)["methods"][3]["name"] == "\\ud800"
    html = build_page(predictions, policy=Policy(rule.n_classes, rule=rule), n_resamples=0)
    assert "\\x1b&lt;b&gt;note" in html


def test_ten_thousand_classes_and_one_case(make, visible_text):
    text = visible_text(build_page(make(n=500, classes=10_000, strength=9.0), n_resamples=0))
    assert "10,000 classes" in text
    assert len(text) < 20_000
    assert "1 model · 1 test cases" in visible_text(build_page(make(n=1), n_resamples=20))


def test_a_page_of_very_many_cases_has_no_resampled_intervals_unless_asked(make, visible_text, monkeypatch):
    monkeypatch.setattr("calibrant.metrics.evaluation.MOST_ROWS_BY_DEFAULT", 100)
    few, many = make(n=100, seed=1), make(n=101, seed=2)
    assert "1,000 simulations or resamples" in visible_text(build_page({"few": few}))
    assert "none for the rest (--n-resamples 1000 makes them)" in visible_text(build_page({"few": few, "many": many}))
    assert "20 simulations or resamples" in visible_text(build_page({"many": many}, n_resamples=20))


def test_tiles_of_a_rule_that_promises_nothing_say_so(predictions, visible_text):
    rule = choose_threshold(predictions, 0.9999)
    assert not rule.automates
    text = visible_text(build_page(predictions, policy=Policy(rule.n_classes, rule=rule), n_resamples=0))
    assert "Not promised: decided alone" in text
    assert "Not promised: of these right" in text
    assert "Not promised. At confidence 0.95" in text
    assert "Not promised" not in visible_text(build_page(predictions, n_resamples=0))


def test_a_card_without_content_is_left_out(predictions, run_folder):
    assert 'id="recipe"' not in build_page(predictions, n_resamples=0)
    assert 'href="#recipe"' not in build_page(predictions, n_resamples=0)
    html = build_page([Run(run_folder), predictions], n_resamples=0)
    assert 'id="recipe"' in html
    assert "These predictions were made elsewhere" in html


def test_a_leading_section_comes_first(predictions):
    table = Table("seeds", (("nll", "1.20"),), ("method", "ECE"), "Means over seeds.")
    sections = [Section("Below", table), Section("Over all seeds", table, leads=True)]
    html = build_page(predictions, n_resamples=0, sections=sections)
    headings = re.findall(r'<h2 id="([^"]+)"[^>]*>([^<]*)', html)
    titles = [title for _, title in headings]
    assert titles[:2] == ["Over all seeds", "What the model may decide alone"]
    assert titles.index("Below") == titles.index("Worst classes") - 1
    links = dict(re.findall(r'<a href="#(section-\d)">([^<]*)', html))
    assert links == {"section-1": "Over all seeds", "section-2": "Below"}
    assert {name for name, _ in headings} >= set(links)


def test_a_notebook_shows_the_path_as_a_link(predictions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = write_report(predictions, "a <b>.html", n_resamples=0)
    assert page._repr_html_() == '<a href="a%20%3Cb%3E.html" target="_blank">a &lt;b&gt;.html</a>'
    assert page == Path("a <b>.html")
    monkeypatch.chdir("/")
    elsewhere = write_report(predictions, tmp_path / "page.html", n_resamples=0)
    assert elsewhere._repr_html_().startswith('<a href="')
    assert elsewhere.parent == tmp_path


def test_a_class_and_its_confidence_make_a_page(visible_text):
    confidence = np.round(1 - 0.5 * np.random.default_rng(0).random(600) ** 2, 1)
    predicted = np.tile(["cat", "dog"], 300)
    targets = np.where(np.random.default_rng(1).random(600) < confidence, predicted, "cat")
    answers = Predictions.from_confidence(predicted, confidence, targets)
    text = visible_text(build_page(answers, n_resamples=20))
    most = int((confidence == 1.0).sum())
    assert f"{most} of 600 cases have the same confidence, 1." in text
    assert "NLL" not in text
    assert "in the label" not in text
    scores = Predictions.from_confidence(predicted, 10 * confidence, targets, kind="score")
    with pytest.raises(InvalidInput, match="scores of 'the model' must"):
        build_page(scores, n_resamples=0)
    text = visible_text(build_page(answers, policy=Policy(2, PlattScaling().fit(answers)), n_resamples=0))
    assert "Calibrated by the platt map: ECE" in text
    assert "NLL" not in text
