"""Tables at the prompt, in a notebook, in a terminal, as Markdown and as LaTeX; every text from data is escaped."""

import re
from dataclasses import dataclass
from html import unescape

import numpy as np
import pytest

from calibrant.tables import Displayed, ShownFields, Table

HOSTILE = "<script>alert(\"x\")</script> & 'y'\x1b[31m\u202e"


def cells(html):
    """Rows of an overview's HTML as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)] for row in rows]


def test_every_text_of_an_overview_is_escaped():
    html = Table(HOSTILE, [(HOSTILE, HOSTILE)], (HOSTILE, HOSTILE)).html()
    # What is left without the tags of the table itself holds no sign that begins a tag, an entity or an attribute.
    text = re.sub(r"</?(table|caption|thead|tbody|tr|th|td)>", "", html)
    assert not re.search(r"[<>\"']", text)
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt; &amp; &#x27;y&#x27;" in html
    assert html.count("&lt;script&gt;") == 5
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_text_is_aligned_on_one_line_a_row_and_steers_no_terminal():
    text = Table("title\nof two lines", [("a", 1.5, "x"), ("long name", 22, HOSTILE)], ("", "n", "what")).text()
    title, *lines = text.split("\n")
    assert title == "title of two lines"
    assert len(lines) == 3
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[1].startswith("  a          1.5  ")
    assert "\x1b" not in text


def test_rows_without_headings_are_names_and_values():
    overview = Table("two", [("n", 1), ("longer", "much longer")])
    assert overview.text() == "two\n  n       1\n  longer  much longer"
    assert cells(overview.html()) == [["n", "1"], ["longer", "much longer"]]
    assert "<thead>" not in overview.html()
    assert Table("nothing").text() == "nothing"


def test_a_class_shows_its_overview_and_its_summary():
    class Shown(Displayed):
        def _overview(self):
            return Table("all", [("a", 1), ("b", 2)])

    class Short(Shown):
        def _summary(self):
            return Table("some", [("a", 1)])

    assert repr(Shown()) == "Shown: all\n  a  1\n  b  2"
    assert repr(Short()) == "Short: some\n  a  1"
    assert Short()._repr_html_() == Table("Short: all", [("a", 1), ("b", 2)]).html()
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


def test_one_blank_line_stands_between_title_table_and_caption():
    lines = Table("T", [("a", "1")], ("method", "x"), "C").terminal().splitlines()
    assert [lines[0], lines[1], lines[2].split(), lines[4].split(), *lines[5:]] == [
        "T",
        "",
        ["method", "x"],
        ["a", "1"],
        "",
        "C",
    ]


def test_markdown_escapes_what_would_break_a_table():
    table = Table("T", [("a|b <script>\nx", "1.00")], ("method", "|S95|"), "C", ((), (0,)))
    assert table.markdown().splitlines() == [
        "### T",
        "",
        "| method | \\|S95\\| |",
        "|---|---:|",
        "| a\\|b &lt;script> x | **1.00** |",
        "",
        "C",
    ]


def test_latex_escapes_its_special_characters_and_sets_the_best_in_bold():
    row = ("x_{y}#$^~\\", "1 ± 2", "3")
    table = Table("a_b & 50 %", [row], ("method", "|S95|", "ECE(S95)"), "±", best=((), (), (0,)))
    text = table.latex()
    assert r"a\_b \& 50 \%" in text
    assert r"method & $|S_{95}|$ & ECE($S_{95}$) \\" in text
    assert r"x\_\{y\}\#\$\textasciicircum{}\textasciitilde{}\textbackslash{} & 1 $\pm$ 2 & \textbf{3} \\" in text


def test_latex_takes_greek_names_and_repeats_the_heading_on_every_page():
    rows = tuple((f"λ={number}", "1.00") for number in range(100))
    text = Table("T", rows, ("method", "x"), "C", best=((), (99,))).latex()
    assert text.index(r"method & x \\") < text.index(r"\endhead") < text.index("=0")
    assert [f"$\\lambda$={number} & " in text for number in range(100)] == [True] * 100
    assert r"$\lambda$=99 & \textbf{1.00} \\" in text
    assert "λ" not in text


def test_the_terminal_form_shows_markup_as_it_is():
    table = Table("[bold]t", [("[red]name[/red]", "1")], ("method", "x"))
    assert "[red]name[/red]" in table.terminal()
    assert table.terminal().startswith("[bold]t\n")
