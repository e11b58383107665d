"""Each page of the tutorial is run as a whole, because its blocks build on each other and on the files before."""

import re

import pytest
from tutorial_pages import PAGES, run_page

from calibrant.decisions import Policy


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_every_block_runs_and_commands_print_what_is_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    # Blocks without a language show a layout and are not code.
    blocks = re.findall(r"^```(\w+)$", (PAGES / page).read_text(), re.MULTILINE)
    assert set(blocks) == {"python", "console"} or page.startswith("3")
    ran, found = run_page(PAGES / page)
    assert ran == len(blocks)
    if page.startswith("1"):
        assert Policy.load(tmp_path / "policy.json").automates
        assert "What may the photo sorter decide alone?" in (tmp_path / "boss.html").read_text()
    if page.startswith("2"):
        assert found["run"].summary["test"]["test_error"] < 0.1


def test_a_block_that_prints_something_else_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ calibrant methods\nnothing of the kind\n```\n")
    with pytest.raises(AssertionError, match="and not\nnothing of the kind"):
        run_page(page)
    page.write_text("```console\n$ calibrant evaluate missing.csv\n```\n")
    with pytest.raises(AssertionError, match=r"ends with 2: calibrant: missing\.csv does not exist"):
        run_page(page)
