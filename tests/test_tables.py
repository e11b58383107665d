"""Tables in a terminal, as Markdown and as LaTeX; test_display.py has the prompt and the notebook."""

from calibrant.tables import Table


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


def test_latex_takes_greek_names_and_breaks_a_table_that_no_page_holds():
    rows = tuple((f"λ={number}", "1.00") for number in range(100))
    text = Table("T", rows, ("method", "x"), "C", best=((), (99,))).latex()
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == text.count(r"method & x \\") == 3
    assert text.count(r"\caption{T, cont.}") == 2
    assert [f"$\\lambda$={number} & " in text for number in range(100)] == [True] * 100
    assert r"$\lambda$=99 & \textbf{1.00} \\" in text
    assert "λ" not in text


def test_the_terminal_form_shows_markup_as_it_is():
    table = Table("[bold]t", [("[red]name[/red]", "1")], ("method", "x"))
    assert "[red]name[/red]" in table.terminal()
    assert table.terminal().startswith("[bold]t\n")
