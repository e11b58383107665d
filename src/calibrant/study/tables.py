"""The paper's tables from a comparison: for a terminal, as Markdown, as LaTeX."""

import io
import math
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from calibrant.metrics import higher_is_better
from calibrant.study.summary import Comparison, Estimate, PairedDifference, Row
from calibrant.study.takeover import CONFIDENCE

_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_LATEX |= {
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "|": r"$|$",
    "<": "$<$",
    ">": "$>$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
}
# pdfLaTeX knows Greek letters, such as a setting's name in a row's, only in formulas. Unicode spells this one `lamda`.
_LATEX |= {
    unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"$\{name.lower().replace('lamda', 'lambda')}$"
    for name in ("ALPHA", "BETA", "GAMMA", "DELTA", "EPSILON", "KAPPA", "LAMDA", "MU", "SIGMA", "TAU")
}

_NUMBER = tuple("0123456789+-")


@dataclass(frozen=True)
class Grid:
    """A table of text: the first column names the row; `best` are the rows to set in bold, by column."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[frozenset[int], ...] = ()

    def is_text(self, column: int) -> bool:
        """Whether a column holds words, which are set to the left; numbers, and gaps among them, to the right."""
        return not all(row[column].startswith(_NUMBER) for row in self.rows)

    def is_best(self, row: int, column: int) -> bool:
        """Whether the cell holds the best value of its column."""
        return bool(self.best) and row in self.best[column]


def paper_tables(comparison: Comparison, *, brief: bool = False) -> list[Grid]:
    """Calibration and error, the high-confidence set, costs, and differences against the baseline.

    Args:
        comparison: The rows.
        brief: One line a method for the differences, without their intervals: for a terminal.
    """
    where = f"{comparison.data}, {comparison.model}"
    caption = _SPREAD + left_out(comparison)
    grids = [
        _grid(comparison, f"{where}: calibration and test error", caption, _FIRST),
        _grid(comparison, f"{where}: the high-confidence set", caption, _SECOND),
        _costs(comparison, where),
    ]
    if any(row.takeover for row in comparison.rows):
        title = f"{where}: what may be left to the model"
        grids.append(_grid(comparison, title, _PROMISED + left_out(comparison), _TAKEOVER))
    if comparison.differences:
        grids.append(_verdicts(comparison, where) if brief else _differences(comparison, where))
    return grids


_SPREAD = (
    "In percent, test set, last epoch, 10 bins unless stated; +TS: after temperature scaling on the validation set. "
    "± is the standard deviation over seeds; with one seed, the bootstrap standard error over test images. "
    "Marked (bold, or * on a terminal): the best mean, which may be so by chance."
)


def left_out(comparison: Comparison) -> str:
    """A sentence on runs that failed or were stopped; empty where all have finished.

    A method whose training fails for some seeds must not look as if it had never been tried with them.
    """
    if not comparison.unfinished:
        return ""
    told = "; ".join(
        f"{label}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
        for label, seeds in comparison.unfinished.items()
    )
    return f" Not finished (failed or stopped), so in none of these figures: {told}."


_Column = tuple[str, Callable[[Row], Estimate], str | None]
"""Heading, what it shows, and the metric that says which end is better (None: neither)."""


def _test(metric: str) -> Callable[[Row], Estimate]:
    return lambda row: row.test[metric]


def _scaled(metric: str) -> Callable[[Row], Estimate]:
    return lambda row: row.scaled[metric]


_FIRST: tuple[_Column, ...] = (
    ("ECE", _test("ece"), "ece"),
    ("ECE +TS", _scaled("ece"), "ece"),
    ("ECE, 15 bins", lambda row: row.ece_15_bins, "ece"),
    ("TE", _test("test_error"), "test_error"),
    ("AUROC", _test("auroc"), "auroc"),
)
_SECOND: tuple[_Column, ...] = (
    ("ECE(S95)", _test("ece@0.95"), "ece"),
    ("ECE(S95) +TS", _scaled("ece@0.95"), "ece"),
    ("|S95|", _test("share@0.95"), "share"),
    ("|S95| +TS", _scaled("share@0.95"), "share"),
)


_PROMISED = (
    "In percent of the test images: those above the lowest threshold at which the validation set promises an accuracy "
    f"of 98 or 99 % with confidence {CONFIDENCE:g} (calibrant route fit). 0: nothing can be promised. +TS: a "
    "temperature from a random half of the validation set first, the threshold from the other half (route fit "
    "--calibrate). Right: accuracy of those at 99 %; -: a seed has none. ± as above; with one seed, the binomial "
    "standard error."
)


def _taken(key: str) -> Callable[[Row], Estimate]:
    return lambda row: row.takeover.get(key, Estimate(None, None, None, ()))


_TAKEOVER: tuple[_Column, ...] = (
    ("at 98 %", _taken("share@0.98"), "share"),
    ("at 98 % +TS", _taken("scaled_share@0.98"), "share"),
    ("at 99 %", _taken("share@0.99"), "share"),
    ("at 99 % +TS", _taken("scaled_share@0.99"), "share"),
    ("right", _taken("accuracy@0.99"), None),
)


def _grid(comparison: Comparison, title: str, caption: str, columns: Sequence[_Column]) -> Grid:
    rows = tuple(
        (row.label, str(len(row.seeds)), *(percent(read(row)) for _, read, _ in columns)) for row in comparison.rows
    )
    best = tuple(_best([read(row).mean for row in comparison.rows], metric) for _, read, metric in columns)
    heads = ("method", "seeds", *(head for head, _, _ in columns))
    return Grid(title, caption, heads, rows, (frozenset(), frozenset(), *best))


def _best(values: Sequence[float | None], metric: str | None) -> frozenset[int]:
    known = [value for value in values if value is not None]
    if metric is None or len(set(known)) < 2:  # where all are equal nobody is best
        return frozenset()
    top = max(known) if higher_is_better(metric) else min(known)
    return frozenset(index for index, value in enumerate(values) if value == top)


def _costs(comparison: Comparison, where: str) -> Grid:
    base = next((row for row in comparison.rows if row.label == comparison.baseline), None)
    rows = tuple(
        (
            row.label,
            f"{row.samples_seen.mean or 0:,.0f}",
            f"{100 * (row.seen_share.mean or 0):.1f}",
            _plain(row.train_seconds, "{:.1f}"),
            _relative_time(row, base),
            _plain(row.temperature, "{:.3f}"),
        )
        for row in comparison.rows
    )
    heads = ("method", "samples seen", "of full, %", "train time, s", f"vs {comparison.baseline}, %", "temperature")
    caption = (
        "Mean over seeds. Times of runs that shared a machine say little; they are compared only where all of them "
        "shared it with equally many."
    )
    return Grid(f"{where}: what it cost", caption, heads, rows)


def _relative_time(row: Row, base: Row | None) -> str:
    """Time in percent of the baseline's, where both were measured on an equally busy machine."""
    if base is None or row.train_seconds.mean is None or not base.train_seconds.mean:
        return "-"
    # A run whose company is not known, None, is taken to have had the same as the others of its study.
    if len({*row.concurrent_runs, *base.concurrent_runs}) > 1:
        return "-"
    return f"{100 * row.train_seconds.mean / base.train_seconds.mean:.0f}"


def _differences(comparison: Comparison, where: str) -> Grid:
    rows = []
    for item in comparison.differences:
        ends = "-" if item.interval is None else f"{100 * item.interval[0]:+.2f} to {100 * item.interval[1]:+.2f}"
        name = metric_label(item.metric) + (" +TS" if item.scaled else "")
        basis = "-" if item.over is None else f"{item.pairs} seeds" if item.over == "seeds" else "images"
        mean = "-" if item.difference is None else f"{100 * item.difference:+.2f}"
        rows.append((item.label, name, mean, ends, basis, item.verdict))
    heads = ("method", "metric", f"minus {comparison.baseline}", "95 % interval", "paired over", "verdict")
    return Grid(f"{where}: against {comparison.baseline}", _PAIRED, heads, tuple(rows))


_PAIRED = (
    "In points. Over seeds: Student's t of paired differences, where test predictions are at hand never narrower than "
    "the paired bootstrap over test images; with one seed: that bootstrap. Not corrected for the number of comparisons."
)


def _verdicts(comparison: Comparison, where: str) -> Grid:
    columns = [("ece", False), ("ece", True), ("test_error", False), ("auroc", False)]
    columns += [("ece@0.95", False), ("share@0.95", False)]
    cells = {(item.label, item.metric, item.scaled): item for item in comparison.differences}
    rows = []
    for label in dict.fromkeys(item.label for item in comparison.differences):
        found = [cells[label, metric, scaled] for metric, scaled in columns]
        over = "1 seed" if found[0].pairs == 1 else f"{found[0].pairs} seeds"
        rows.append((label, over, *(_signed(item) for item in found)))
    heads = ("method", "paired", *(metric_label(name) + (" +TS" if scaled else "") for name, scaled in columns))
    caption = f"{_PAIRED} ? means: cannot tell. Intervals are in tables.md."
    return Grid(f"{where}: minus {comparison.baseline}", caption, heads, tuple(rows))


def _signed(item: PairedDifference) -> str:
    verdict = "?" if item.verdict == "cannot tell" else item.verdict
    return "-" if item.difference is None else f"{100 * item.difference:+.2f} {verdict}"


def metric_label(metric: str) -> str:
    """A metric's name as the paper writes it.

    >>> metric_label("share@0.95"), metric_label("test_error")
    ('|S95|', 'TE')
    """
    if metric == "test_error":
        return "TE"
    from calibrant.metrics.tables import label

    return label(metric)


def percent(estimate: Estimate) -> str:
    """Mean and spread in percent.

    >>> percent(Estimate(0.0123, 0.001, "seeds", (0.0113, 0.0133)))
    '1.23 ± 0.10'
    """
    if estimate.mean is None:
        return "-"
    spread = "" if estimate.spread is None else f" ± {100 * estimate.spread:.2f}"
    return f"{100 * estimate.mean:.2f}{spread}"


def _plain(estimate: Estimate, form: str) -> str:
    if estimate.mean is None or not math.isfinite(estimate.mean):
        return "-"
    spread = "" if estimate.over != "seeds" else " ± " + form.format(estimate.spread)
    return form.format(estimate.mean) + spread


def to_terminal(grid: Grid, *, width: int | None = None) -> str:
    """Text with aligned columns; the best of a column carries a star.

    A number is never cut: words are broken instead, and columns that do not fit follow below, under the same names.

    Args:
        grid: The table.
        width: Columns of the terminal; by default its own, 160 for a pipe or a file.
    """
    room = max(width or shutil.get_terminal_size((160, 24)).columns, _NARROWEST)
    out = io.StringIO()
    console = Console(file=out, width=room, color_system=None, highlight=False, markup=False)
    for part in _fitting(grid, room):
        console.print(_rich_table(grid, part, room))
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    if not lines[0]:  # the box begins with a blank line
        del lines[0]
    caption = textwrap.fill(grid.caption, max(_NARROWEST, *(cell_len(line) for line in lines)))
    return "\n".join([*([grid.title, ""] if grid.title else []), *lines, *(["", caption] if caption else [])])


_NARROWEST = 60


def _fitting(grid: Grid, room: int) -> list[list[int]]:
    """The columns after the first in groups, each of which fits beside the first."""
    parts: list[list[int]] = [[]]
    used = first = min(_width(grid, 0), room // 3) + 4
    for index in range(1, len(grid.columns)):
        # Two blanks around a cell and one between cells. Words can be broken, so they need not have all they ask for.
        needs = min(_width(grid, index), room // 3 if grid.is_text(index) else room) + 3
        if parts[-1] and used + needs > room:
            parts.append([])
            used = first
        parts[-1].append(index)
        used += needs
    return parts


def _width(grid: Grid, column: int) -> int:
    cells = [row[column] + ("*" if grid.is_best(number, column) else "") for number, row in enumerate(grid.rows)]
    return max(cell_len(text) for text in (grid.columns[column], *cells))


def _rich_table(grid: Grid, columns: Sequence[int], room: int) -> Table:
    table = Table(box=box.SIMPLE)
    for index in (0, *columns):
        if index and not grid.is_text(index):
            table.add_column(grid.columns[index], justify="right", no_wrap=True, min_width=_width(grid, index))
        else:
            table.add_column(grid.columns[index], overflow="fold", max_width=None if index else max(room // 3, 1))
    for number, row in enumerate(grid.rows):
        table.add_row(*(row[index] + ("*" if grid.is_best(number, index) else "") for index in (0, *columns)))
    return table


def to_markdown(grid: Grid, *, level: int = 3) -> str:
    """A Markdown table under its title, the best of a column in bold."""
    lines = [f"{'#' * level} {grid.title}", ""] if grid.title else []
    lines.append("| " + " | ".join(_markdown(column) for column in grid.columns) + " |")
    lines.append("|" + "|".join("---" if grid.is_text(index) else "---:" for index in range(len(grid.columns))) + "|")
    for number, row in enumerate(grid.rows):
        cells = [_markdown(cell) for cell in row]
        cells = [f"**{cell}**" if grid.is_best(number, column) else cell for column, cell in enumerate(cells)]
        lines.append("| " + " | ".join(cells) + " |")
    if grid.caption:
        lines += ["", grid.caption]
    return "\n".join(lines) + "\n"


def to_latex(grid: Grid) -> str:
    """Tables for a paper, one or, where the rows do not fit on a page, several; needs the package booktabs."""
    starts = range(0, max(len(grid.rows), 1), _ROWS_ON_A_PAGE)
    return "\n".join(_latex_table(grid, range(start, min(start + _ROWS_ON_A_PAGE, len(grid.rows)))) for start in starts)


_ROWS_ON_A_PAGE = 45  # five methods in the table of differences


def _latex_table(grid: Grid, numbers: range) -> str:
    caption = f"{_latex(grid.title)}. {_latex(grid.caption)}" if numbers.start == 0 else rf"{_latex(grid.title)}, cont."
    lines = [
        r"\begin{table}[t]",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{caption}}}",
        rf"\begin{{tabular}}{{{''.join('l' if grid.is_text(index) else 'r' for index in range(len(grid.columns)))}}}",
        r"\toprule",
        " & ".join(_latex(column) for column in grid.columns) + r" \\",
        r"\midrule",
    ]
    for number in numbers:
        cells = [_latex(cell) for cell in grid.rows[number]]
        cells = [rf"\textbf{{{cell}}}" if grid.is_best(number, column) else cell for column, cell in enumerate(cells)]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _markdown(text: str) -> str:
    # Names come from the user's file: nothing in them may end a cell or begin a tag.
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    for size in ("95", "99"):
        escaped = escaped.replace(f"$|$S{size}$|$", f"$|S_{{{size}}}|$").replace(f"(S{size})", f"($S_{{{size}}}$)")
    return escaped.replace("±", r"$\pm$")
