import numpy as np
import pytest

from calibrant.deployment import Stream, watch
from calibrant.errors import InvalidInput
from calibrant.report import write_monitor_page
from tests.deployment.conftest import draw, joined


@pytest.fixture(scope="module")
def watched():
    from calibrant.decisions import Policy, choose_threshold

    reference = draw(1500, seed=1)
    rule = choose_threshold(reference, 0.95)
    sites = {"site": np.where(np.arange(500) % 2, "<b>north</b>", "south")}
    cases = joined(draw(500, seed=2, extras=sites), draw(500, seed=3, flipped=0.3, extras=sites))
    return watch(Stream.of_predictions(Policy(cases.n_classes, rule=rule), cases), reference=reference, groups="site")


def test_the_page_says_what_was_promised_seen_and_what_to_do(watched, tmp_path):
    html = write_monitor_page(watched, tmp_path / "monitor.html").read_text(encoding="utf-8")
    assert "ALARM" in html
    assert "What to do" in html
    assert "Send every case to a person" in html
    assert f"drifting since about case {watched.since}" in html
    assert "Groups that nothing was promised for" in html
    assert '<td class="text">site south</td>' in html
    assert "<b>north</b>" not in html.split('id="data"')[0]
    assert write_monitor_page(watched, tmp_path / "again.html").read_text(encoding="utf-8") == html


def test_only_html_is_written(watched, tmp_path):
    with pytest.raises(InvalidInput, match=r"path must"):
        write_monitor_page(watched, tmp_path / "page.txt")


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_the_page_in_a_browser(watched, tmp_path, open_page, width, scheme):
    """Every test has its curve, nothing is fetched or complained about, and no name becomes markup."""
    page = open_page(write_monitor_page(watched, tmp_path / "monitor.html"), width=width, scheme=scheme)
    charts = page.query_selector_all(".chart")
    assert len(charts) == 1 + len(watched.signals)
    assert all(chart.query_selector("svg.main-svg") for chart in charts)
    assert page.text_content("#headline").startswith("ALARM")
    assert page.text_content("#out-since") == f"{watched.since:,}"
    lines = page.evaluate("document.getElementById('chart-0').data.map((line) => line.name)")
    assert lines == ["low", "band", "last cases", "mean so far", "promised"]
    seen = page.evaluate("document.getElementById('chart-0').data[3].y.at(-1)")
    assert seen == pytest.approx(watched.signals[0].seen)
    marks = page.evaluate("document.getElementById('chart-0').layout.shapes.map((shape) => shape.x0)")
    assert marks == [watched.signals[0].since, watched.signals[0].alarm]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if scheme == "light" else "light")
