"""Everything that was recorded: `docs/all-results.csv`, one line per run, and one page to sort and search."""

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from calibrant.studies import Record, read_records, summarise
from calibrant.studies.result_tables import paper_tables
from calibrant.tables import Table
from paper.findings import controls_table
from paper.numbers import BASELINE
from paper.runs import Groups, group_records, short_names

Value = str | float | None
_FIGURES = ("test_error", "nll", "brier", "ece", "auroc", "aurc", "share@0.95", "ece@0.95", "share@0.99")
_SCALED = ("nll", "ece", "auroc", "aurc", "share@0.95", "ece@0.95")
# Title to value and digits; in percent where the title says so.
_COLUMNS: dict[str, tuple[Callable[[Record], float | None], int]] = {
    "epochs": (lambda record: float(record.recipe["epochs"]), 0),
    "samples seen, millions": (lambda record: record.samples_seen / 1e6, 2),
    "compute, %": (lambda record: 100 * record.compute_share, 1),
    "error, %": (lambda record: _percent(record.value("test_error")), 2),
    "NLL": (lambda record: record.value("nll"), 3),
    "NLL +TS": (lambda record: record.value("scaled_nll"), 3),
    "ECE, %": (lambda record: _percent(record.value("ece")), 2),
    "ECE +TS, %": (lambda record: _percent(record.value("scaled_ece")), 2),
    "AUROC, %": (lambda record: _percent(record.value("auroc")), 2),
    "AURC, x 1000": (lambda record: 10 * (_percent(record.value("aurc")) or 0.0), 2),
    "|S95|, %": (lambda record: _percent(record.value("share@0.95")), 1),
    "ECE(S95), %": (lambda record: _percent(record.value("ece@0.95")), 2),
    "decided alone at 99 %, %": (lambda record: _percent(_automated(record, "share")), 1),
    "the same +TS, %": (lambda record: _percent(_automated(record, "scaled_share")), 1),
    "decided alone at 99 %, best score, %": (lambda record: _percent(_automated(record, "best_share")), 1),
    "T": (lambda record: record.temperature, 2),
    "training, minutes": (lambda record: record.train_seconds / 60, 1),
}


def all_results_csv(folder: str | Path) -> str:
    """One line per run, fractions and not percent, six digits."""
    records = read_records(folder)
    names = short_names(records)
    lines = [_line(record, names[record.label]) for record in records]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([list(lines[0]), *(list(map(_word, line.values())) for line in lines)] if lines else [])
    return text.getvalue()


def _line(record: Record, name: str) -> dict[str, Value]:
    line: dict[str, Value] = {"data": record.data, "network": record.model, "method": record.method, "name": name}
    line |= {"settings": record.variant, "seed": str(record.seed), "epochs": str(record.recipe["epochs"])}
    line |= {"samples_seen": str(record.samples_seen), "samples_full": str(record.samples_full)}
    line |= {"samples_scored": str(record.samples_scored), "temperature": record.temperature}
    line |= {"compute_share": record.compute_share, "flops": record.flops, "resolution": str(record.resolution or "")}
    line |= {f"test_{figure.removeprefix('test_')}": record.value(figure) for figure in _FIGURES}
    line |= {f"test_scaled_{figure}": record.value(f"scaled_{figure}") for figure in _SCALED}
    line |= {"validation_error": record.validation.test_error, "validation_nll": record.validation.nll}
    line |= {"validation_ece": record.value("validation_ece"), "validation_scaled_nll": record.validation_nll_scaled}
    for target in ("0.98", "0.99"):
        for part in ("share", "accuracy", "scaled_share", "scaled_accuracy", "best_share", "best_accuracy"):
            line[f"automated_{part}@{target}"] = _automated(record, part, target)
    line |= {"train_seconds": record.train_seconds, "seconds": record.seconds, "steps_mode": record.steps_mode}
    line |= {"concurrent_runs": None if record.concurrent_runs is None else str(record.concurrent_runs)}
    line |= {key: str(record.environment.get(key) or "") for key in ("device", "torch", "commit")}
    return line


def _word(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return f"{value:.6g}"


def _percent(value: float | None) -> float | None:
    if value is None:
        return None
    return 100 * value


def _automated(record: Record, part: str, target: str = "0.99") -> float | None:
    return (record.automation or {}).get(target, {}).get(part)


def all_results_page(folder: str | Path) -> str:
    """One self-contained HTML file: click a heading to sort, type to filter."""
    records = read_records(folder)
    groups = group_records(records)
    names = short_names(records)
    plans = controls_table(groups)
    parts = [
        _section("runs", "All methods", _RUNS, _runs(groups, names)),
        _section("equal-updates", "Plans beside their control", _EQUAL, _grid(_shortened(plans, names))),
        _section("against-nll", "Differences from nll", _AGAINST, _against(groups, names)),
        _section("legend", "Short names", _LEGEND, _legend(records, names)),
    ]
    style, script = ((Path(__file__).parent / f"all_results.{kind}").read_text() for kind in ("css", "js"))
    page = (Path(__file__).parent / "all_results.html").read_text()
    for key, text in (("STYLE", style), ("SCRIPT", script), ("RUNS", str(len(records))), ("BODY", "\n".join(parts))):
        page = page.replace(f"<!--{key}-->", text)
    return page


_RUNS = (
    "Test set, last epoch, 10 bins; means over seeds, with the standard deviation behind ±. +TS: after a temperature "
    "from the validation set. Decided alone: share above a threshold that promises 99 %, chosen on the validation set. "
    "Best score: the ranking score is chosen, too (route fit --calibrate --score auto); - if the predictions of a run "
    "were not kept. "
    "A row says what a method gave, not what it is worth: methods here differ in cost and schedule."
)
_EQUAL = (
    "A plan lets samples rest, or trains on smaller images first. Fewer epochs save as much: its control has the same "
    "loss and schedule on all data at full size, and as much compute. Recovered: (control - plan) / (control - whole "
    "run), with Fieller's interval; 1 means that nothing was lost, 0 that the plan is worth no more than fewer epochs. "
    "Differences are over seeds, with 95 % intervals."
)
_AGAINST = (
    "Method minus nll on the paper's recipe, with the 95 % interval. Schedules and costs may differ: see the legend."
)
_LEGEND = "What a name stands for: the settings in which it differs from those recommended for its data set."


def _runs(groups: Groups, names: Mapping[str, str]) -> str:
    heads = ("data", "network", "method", "seeds", *_COLUMNS)
    rows = []
    for (data, model), by_label in groups.items():
        for label, records in by_label.items():
            name = names.get(label, label)
            cells = [_text(data), _text(model), _text(name, label), _number(float(len(records)), "", 0)]
            cells += [_estimate([of(record) for record in records], digits) for of, digits in _COLUMNS.values()]
            rows.append("".join(cells))
    return _table(heads, rows)


def _estimate(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return _text("-")
    spread = f" ± {statistics.stdev(known):.{digits}f}" if digits and len(known) > 1 and len(set(known)) > 1 else ""
    return _number(statistics.fmean(known), spread, digits)


def _against(groups: Groups, names: Mapping[str, str]) -> str:
    parts = []
    for by_label in groups.values():
        if BASELINE in by_label and len(by_label) > 1:
            ordered = dict(sorted(by_label.items(), key=lambda item: (item[0] != BASELINE, item[0])))
            results = summarise(ordered, BASELINE)
            known = tuple(item for item in results.differences if item.interval is not None)
            if known:
                grid = paper_tables(replace(results, differences=known))[-1]
                parts.append(f"<h3>{escape(grid.title)}</h3>{_grid(_shortened(grid, names))}")
    return "\n".join(parts) or "<p>None yet.</p>"


def _legend(records: Sequence[Record], names: Mapping[str, str]) -> str:
    settings = {record.label: record.variant or "recommended" for record in records}
    rows = [_text(names[label]) + _text(words) for label, words in sorted(settings.items(), key=lambda i: names[i[0]])]
    return _table(("name", "settings"), rows)


def _shortened(grid: Table, names: Mapping[str, str]) -> Table:
    return replace(grid, rows=tuple(tuple(names.get(str(cell), str(cell)) for cell in row) for row in grid.rows))


def _grid(grid: Table) -> str:
    if not grid.rows:
        return "<p>None yet.</p>"
    return _table(grid.columns, ["".join(_text(str(cell)) for cell in row) for row in grid.rows])


def _section(name: str, title: str, words: str, body: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2><p>{escape(words)}</p>{body}</section>'


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col"><button type="button">{escape(each)}</button></th>' for each in heads)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _text(text: str, hint: str = "") -> str:
    title = f' title="{escape(hint)}"' if hint and hint != text else ""
    return f"<td{title}>{escape(text)}</td>"


def _number(value: float, spread: str, digits: int) -> str:
    shown = f"{value:.{digits}f}"
    return f'<td data-value="{value:.6g}">{shown}<small>{escape(spread)}</small></td>'
