"""Overviews: aligned text, and HTML in which every text from data is escaped."""

import re
from dataclasses import dataclass
from html import unescape

import numpy as np
import pytest

from calibrant.display import Displayed, Overview, ShownFields, preformatted

HOSTILE = "<script>alert(\"x\")</script> & 'y'\x1b[31m\u202e"


def cells(html):
    """Rows of an overview's HTML as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)] for row in rows]


def test_every_text_of_an_overview_is_escaped():
    html = Overview(HOSTILE, [(HOSTILE, HOSTILE)], (HOSTILE, HOSTILE)).html()
    # What is left without the tags of the table itself holds no sign that begins a tag, an entity or an attribute.
    text = re.sub(r"</?(table|caption|thead|tbody|tr|th|td)>", "", html)
    assert not re.search(r"[<>\"']", text)
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; &#x27;y&#x27;" in html
    assert html.count("&lt;script&gt;") == 5
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_text_is_aligned_on_one_line_a_row_and_steers_no_terminal():
    text = Overview("title\nof two lines", [("a", 1.5, "x"), ("long name", 22, HOSTILE)], ("", "n", "what")).text()
    title, *lines = text.split("\n")
    assert title == "title of two lines"
    assert len(lines) == 3
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[1].startswith("  a          1.5  ")
    assert "\x1b" not in text


def test_rows_without_headings_are_names_and_values():
    overview = Overview("two", [("n", 1), ("longer", "much longer")])
    assert overview.text() == "two\n  n       1\n  longer  much longer"
    assert cells(overview.html()) == [["n", "1"], ["longer", "much longer"]]
    assert "<thead>" not in overview.html()
    assert Overview("nothing").text() == "nothing"


def test_a_class_shows_its_overview_and_its_summary():
    class Shown(Displayed):
        def _overview(self):
            return Overview("all", [("a", 1), ("b", 2)])

    class Short(Shown):
        def _summary(self):
            return Overview("some", [("a", 1)])

    assert repr(Shown()) == "Shown: all\n  a  1\n  b  2"
    assert repr(Short()) == "Short: some\n  a  1"
    assert Short()._repr_html_() == Overview("Short: all", [("a", 1), ("b", 2)]).html()
    with pytest.raises(NotImplementedError):
        repr(Displayed())


def test_a_small_dataclass_shows_its_fields_and_only_the_size_of_large_ones():
    @dataclass
    class Small(ShownFields):
        mean_length: float
        name: str
        low: float | None
        array: np.ndarray
        many: list
        pair: tuple
        part: object = None

    shown = Small(1 / 3, HOSTILE, None, np.zeros((2, 3)), list(range(21)), (0.5, "x"), Small)
    rows = dict(cells(shown._repr_html_()))
    assert rows["mean length"] == "0.333333"
    assert rows["low"] == "-"
    assert (rows["array"], rows["many"], rows["pair"]) == ("array of shape (2, 3)", "21 values", "0.5, x")
    assert "<script>" not in shown._repr_html_()
    assert repr(shown).startswith(f"{Small.__qualname__}(mean_length=0.333")


def test_text_that_is_aligned_stays_so_and_is_escaped():
    assert preformatted("a  <b>\n1    2\x1b") == "<pre>a  &lt;b&gt;\n1    2\\x1b</pre>"
