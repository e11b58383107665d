"""The page in a real browser, opened from disk. `open_page` fails a test on any console message or network request."""

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.decisions import Policy, RoutingRule
from calibrant.report import ReportEntry, read_entries, write_report
from calibrant.report.summaries import automated
from calibrant.report.wording import fixed, headline, interval, per_thousand, percent
from calibrant.training import Run

pytestmark = pytest.mark.browser
THRESHOLDS = (0.0, 0.334, 0.5, 0.85, 0.9, 0.95, 0.99, 0.999, 1.0)
NASTY = ["<script>document.title='taken'</script>", "<b>bold</b>", "a & b", "<img src=x onerror=alert(1)>"]


def set_slider(page, threshold):
    page.eval_on_selector(
        "#threshold", "(box, value) => { box.value = value; box.dispatchEvent(new Event('input')); }", str(threshold)
    )


def wait_until(page, expression):
    """Playwright's own waiting evaluates text inside the page, which the page's policy rightly forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {expression}")


def shown(page):
    names = ("headline", "share", "accuracy", "accuracy-note", "ece", "review", "errors", "cost")
    return {name: page.text_content("#headline" if name == "headline" else f"#out-{name}") for name in names}


@pytest.fixture(scope="module")
def methods(make):
    return {"nll": make(seed=1), "flsd+h": make(seed=2, sharpness=0.7), "<i>p</i>": make(seed=3, sharpness=2.0)}


@pytest.fixture(scope="module")
def path(methods, tmp_path_factory):
    return write_report(methods, tmp_path_factory.mktemp("page") / "report.html", n_resamples=20)


@pytest.fixture(scope="module")
def opened(path, open_once):
    return open_once(path)


@pytest.fixture
def page(opened):
    """The page as it is after opening: first method, threshold 0.95, first costs."""
    opened.select_option("#method", "0")
    opened.fill("#threshold-number", "0.95")
    opened.fill("#cost-error", "10")
    opened.fill("#cost-review", "1")
    return opened


def test_slider_gives_the_numbers_of_evaluate(page, methods):
    for index, (name, predictions) in enumerate(methods.items()):
        page.select_option("#method", str(index))
        for threshold in THRESHOLDS:
            set_slider(page, threshold)
            (expected,) = evaluate(predictions, thresholds=(threshold,)).thresholds
            result = automated(predictions, threshold)
            text = shown(page)
            assert text["share"] == percent(expected.share)
            assert text["accuracy"] == percent(expected.accuracy)
            assert text["ece"] == percent(expected.ece, 2)
            assert text["review"] == per_thousand(result.reviewed, result.cases)
            assert text["errors"] == fixed(1000 * (result.automated - result.right) / result.cases, 1)
            assert float(text["cost"].replace(",", "")) == pytest.approx(result.cost(error=10, review=1), abs=0.5)
            assert interval(result.interval) in text["accuracy-note"]
            assert text["headline"] == headline(name, result)


def test_unrounded_numbers_agree_to_twelve_digits(page, methods):
    for index, predictions in enumerate(methods.values()):
        for threshold in THRESHOLDS:
            found = page.evaluate(f"numbers.atThreshold(page.model({index}), {threshold})")
            result = automated(predictions, threshold)
            assert (found["automated"], found["right"], found["reviewed"]) == (
                result.automated,
                result.right,
                result.reviewed,
            )
            assert found["ece"] == (None if result.ece is None else pytest.approx(result.ece, abs=1e-12))
            assert found["interval"] == (None if result.interval is None else pytest.approx(result.interval, abs=1e-12))


def test_thresholds_meet_low_precision_probabilities_as_evaluate_does(open_page, tmp_path):
    import torch

    made = {}
    for dtype in ("float16", "bfloat16", "float32"):
        top = torch.tensor([0.3, 0.7, 0.9, 0.95, 0.99, 0.999, 0.875]).to(getattr(torch, dtype))
        top = torch.maximum(top, 1 - top)
        made[dtype] = Predictions.from_probabilities(torch.stack([top, 1 - top], 1), [0, 0, 1, 0, 0, 1, 0])
    page = open_page(write_report(made, tmp_path / "report.html", n_resamples=0))
    for index, predictions in enumerate(made.values()):
        for threshold in (0.7, 0.875, 0.9, 0.95, 0.99, 0.999):
            result = automated(predictions, threshold)
            found = page.evaluate(f"numbers.atThreshold(page.model({index}), {threshold})")
            assert (found["automated"], found["right"]) == (result.automated, result.right)
            assert found["ece"] == pytest.approx(result.ece, abs=1e-12)


def test_numbers_are_written_as_python_writes_them(page):
    values = [0.0, 1.0, 0.9999, 0.99995, 0.00004, 0.1225, 0.5, 0.98765, 1 / 3, 0.12345, 0.99949999]
    for digits in (0, 1, 2):
        written = page.evaluate(f"{values}.map(value => numbers.percent(value, {digits}))")
        assert written == [percent(value, digits) for value in values]


def test_cheapest_threshold_is_the_best_of_all(page, methods):
    predictions = methods["nll"]
    page.fill("#cost-error", "7")
    costs = {
        threshold: automated(predictions, threshold).cost(error=7, review=1)
        for threshold in predictions.confidence.tolist()
    }
    best = min(costs, key=costs.__getitem__)
    assert costs[best] < 1000
    page.click("#use-cheapest")
    assert page.evaluate("page.state.threshold") == best
    assert float(page.input_value("#threshold-number")) == pytest.approx(best, abs=5e-5)
    assert float(page.text_content("#out-cost").replace(",", "")) == pytest.approx(costs[best], abs=0.5)
    page.fill("#cost-error", "1e9")
    page.fill("#cost-review", "0")
    assert "a person should see every case" in page.text_content("#cheapest")
    assert page.is_hidden("#use-cheapest")


def test_sorting_by_number_and_by_name(page):
    column = "#comparison th:nth-child(3)"

    def values():
        cells = page.eval_on_selector_all("#comparison tbody tr", "rows => rows.map(r => r.children[2].dataset.value)")
        return [float(cell) for cell in cells]

    before = values()
    page.click(f"{column} button")
    assert values() == sorted(before)
    assert page.get_attribute(column, "aria-sort") == "ascending"
    page.focus(f"{column} button")
    page.keyboard.press("Enter")
    assert values() == sorted(before, reverse=True)
    assert page.get_attribute(column, "aria-sort") == "descending"
    assert page.text_content("#status") == "Sorted by ECE, descending."
    page.click("#comparison th:nth-child(1) button")
    assert page.get_attribute(column, "aria-sort") == "none"
    names = page.eval_on_selector_all("#comparison tbody th", "cells => cells.map(c => c.textContent)")
    assert names == ["<i>p</i>", "flsd+h", "nll"]


def test_choosing_a_method_in_the_table_shows_it(page, methods):
    page.click("#comparison tr[data-row='1'] button")
    assert page.text_content("#headline") == headline("flsd+h", automated(methods["flsd+h"], 0.95))
    visible = page.eval_on_selector_all("[data-method]", "b => b.filter(x => !x.hidden).map(x => x.dataset.method)")
    assert set(visible) == {"1"}


def test_the_threshold_has_a_sentence_of_its_own_away_from_the_rule(make, open_page, tmp_path):
    made = {"with a rule": make(seed=1), "without": make(seed=2)}
    rule = RoutingRule(threshold=0.8, n_classes=4, note="A promise.")
    page = open_page(
        write_report(made, tmp_path / "report.html", policy={"with a rule": Policy(4, rule=rule)}, n_resamples=0)
    )
    assert page.is_hidden("#headline")
    set_slider(page, 0.7)
    assert page.text_content("#headline") == headline("with a rule", automated(made["with a rule"], 0.7))
    page.click("button[data-method][data-threshold]")
    assert page.is_hidden("#headline")
    page.select_option("#method", "1")
    assert page.is_visible("#headline")
    assert page.is_hidden("button[data-method][data-threshold]")


def test_keyboard_moves_the_slider_and_screen_readers_hear_it(page, methods):
    page.focus("#threshold")
    page.keyboard.press("ArrowLeft")
    assert page.input_value("#threshold-number") == "0.949"
    result = automated(methods["nll"], 0.949)
    assert page.text_content("#headline") == headline("nll", result)
    assert page.get_attribute("#threshold", "aria-valuetext").startswith(f"0.949: {percent(result.share)} automated")


def test_every_control_has_a_name(page):
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, [role=region], [role=img], table, img")]
        .filter(e => !(e.labels?.length || e.ariaLabel || e.textContent.trim() || e.alt))
        .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


def test_names_with_markup_are_text(make, open_page, tmp_path):
    predictions = make(n=60, class_names=NASTY, ids=[f"<u>{i}</u>" for i in range(60)], strength=1.0)
    page = open_page(write_report(dict.fromkeys(NASTY, predictions), tmp_path / "report.html", n_resamples=0))
    assert page.title() == "What may the model decide alone?"
    for tag in ("script:not([type]) ~ b", "main b > i", "main u", "img[src=x]"):
        assert page.locator(tag).count() == 0
    body = page.inner_text("body")
    for name in NASTY:
        assert name in body
    assert "<u>" in body
    page.locator("#chart-coverage").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-coverage[data-drawn]")
    legend = page.eval_on_selector_all("#chart-coverage .legendtext", "texts => texts.map(t => t.textContent)")
    assert legend == NASTY


def test_charts_draw_the_numbers_of_the_page(page, path, page_data):
    bins = page_data(path.read_text("utf-8"))["methods"][0]["bins"]
    page.wait_for_selector("#chart-reliability[data-drawn]")
    traces = page.evaluate(
        """() => document.getElementById("chart-reliability").data.map(
        t => ({name: t.name, x: [...t.x], y: [...t.y], base: t.base ? [...t.base] : null}))"""
    )
    by_name = {trace["name"]: trace for trace in traces if trace["name"]}
    assert by_name["accuracy"]["y"] == [b["accuracy"] for b in bins]
    assert by_name["noise floor"]["base"] == [b["floor_low"] for b in bins]
    assert by_name["right"]["y"] == [b["right"] for b in bins]
    assert by_name["wrong"]["y"] == [b["cases"] - b["right"] for b in bins]
    page.wait_for_selector("#chart-threshold[data-drawn]")
    set_slider(page, 0.42)
    wait_until(page, "document.getElementById('chart-threshold').layout.shapes[0].x0 === 0.42")
    assert page.evaluate("document.getElementById('chart-threshold').layout.xaxis.range") == [0, 1]


def test_dark_and_light(path, open_page):
    ground = "getComputedStyle(document.body).backgroundColor"
    page = open_page(path, scheme="dark")
    assert page.evaluate(ground) == "rgb(17, 21, 27)"
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(246, 247, 249)"
    assert page.get_attribute("#theme", "aria-pressed") == "false"


def test_page_never_scrolls_sideways(run_folder, make, open_page, tmp_path):
    entries = [
        *read_entries([run_folder]),
        ReportEntry("a-very-long-name" * 8, make(n=300, class_names=["x" * 70, "b", "c", "d"])),
    ]
    page = open_page(write_report(entries, tmp_path / "report.html", n_resamples=20))
    for width in (1200, 360):
        page.set_viewport_size({"width": width, "height": 900})
        for box in page.locator(".chart:visible").all():
            box.scroll_into_view_if_needed()
        page.wait_for_timeout(300)  # the charts follow the new width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_pruning_chart_is_that_of_the_run(run_folder, open_page, tmp_path):
    page = open_page(write_report(read_entries([Run(run_folder)]), tmp_path / "report.html", n_resamples=0))
    page.locator("#chart-pruning-0").scroll_into_view_if_needed()
    page.wait_for_selector("#chart-pruning-0[data-drawn]")
    lines = page.evaluate("document.getElementById('chart-pruning-0').data.map(t => [t.name, [...t.y]])")
    assert lines == [["0", [1, 0.8, 0.8]], ["1", [1, 0.8, 0.8]], ["all classes", [1, 0.8, 0.8]]]
    assert page.locator(".mistakes img").count() == 12
    wait_until(page, "[...document.images].every(i => i.complete && i.naturalWidth === 8)")


def test_paper_shows_every_table_and_chart(path, open_page):
    page = open_page(path)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.is_hidden("#controls")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator("#chart-coverage[data-drawn]").count() == 1
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert len(page.pdf()) > 10_000
    assert page.locator("details[open]").count() == 0


def test_odd_sets_open_without_a_complaint(make, open_page, tmp_path):
    small = Predictions.from_probabilities([[0.6, 0.4], [0.7, 0.3]], [0, 1])
    perfect = Predictions.from_probabilities(np.eye(3), [0, 1, 2])
    sets = {
        "nothing automated": {"m": small},
        "one perfect model": {"m": perfect},
        "a thousand classes": {"m": make(n=1500, classes=1000, strength=9.0)},
        "thirty methods": {f"method {i}": make(n=100, seed=i) for i in range(30)},
    }
    for words, entries in sets.items():
        page = open_page(write_report(entries, tmp_path / f"{words}.html", n_resamples=0))
        first, predictions = next(iter(entries.items()))
        name = "this model" if len(entries) == 1 else first
        assert page.text_content("#headline") == headline(name, automated(predictions, 0.95))
        for box in page.locator(".chart:visible").all():  # nobody has scrolled to them
            page.wait_for_selector(f"#{box.get_attribute('id')}[data-drawn]")
