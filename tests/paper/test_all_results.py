import csv
import io

import pytest

from calibrant.studies import write_record
from paper.all_results import all_results_csv, all_results_page

NASTY = "mine:<img src=x onerror=alert(1)>"


@pytest.fixture
def folder(make_record, tmp_path):
    records = [make_record(seed=seed) for seed in (0, 1)] + [make_record("flsd", sharpness=3.0)]
    records.append(make_record("flsd+h+p-ema", options={"fraction": 0.1}))
    for record in records:
        write_record(record, tmp_path)
    return tmp_path


def test_the_csv_has_a_line_for_each_run(folder, make_record):
    rows = list(csv.DictReader(io.StringIO(all_results_csv(folder))))
    assert len(rows) == 4
    (flsd,) = [row for row in rows if row["method"] == "flsd"]
    assert float(flsd["test_ece"]) == pytest.approx(make_record("flsd", sharpness=3.0).value("ece"), rel=1e-5)
    (changed,) = [row for row in rows if row["method"] == "flsd+h+p-ema"]
    assert (changed["name"], changed["settings"]) == ("flsd+h+p-ema a", "fraction 0.1")
    assert all_results_csv(folder / "nothing") == ""


def test_the_page_shows_means_and_escapes_names(folder, make_record):
    record = make_record()
    recipe = {**record.recipe, "method": {"name": NASTY, "options": {}}}
    write_record(record.model_copy(update={"method": NASTY, "recipe": recipe}), folder)
    text = all_results_page(folder)
    assert "<img" not in text
    assert "&lt;img src=x" in text
    losses = [make_record(seed=seed).value("nll") for seed in (0, 1)]
    assert f"{sum(losses) / 2:.3f}<small>" in text
    assert "None yet." in all_results_page(folder / "nothing")


@pytest.mark.browser
def test_headings_sort_and_words_filter(folder, open_page):
    path = folder / "all-results.html"
    path.write_text(all_results_page(folder), encoding="utf-8")
    page = open_page(path)
    column = "Array.from(document.querySelectorAll('#runs tbody tr:not([hidden]) td:nth-child({})'), c => c.innerText)"
    (heading,) = [h for h in page.query_selector_all("#runs th button") if h.inner_text() == "ECE, %"]
    place = 1 + page.evaluate("h => h.parentNode.cellIndex", heading)
    heading.click()
    values = [float(text.split()[0]) for text in page.evaluate(column.format(place))]
    assert values == sorted(values)
    assert len(set(values)) > 1
    heading.click()
    assert [float(text.split()[0]) for text in page.evaluate(column.format(place))] == values[::-1]
    page.fill("#filter", "FRACTION p-ema")
    assert page.evaluate(column.format(3)) == ["flsd+h+p-ema a"]
