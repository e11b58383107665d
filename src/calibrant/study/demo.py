"""The demonstration: five methods on handwritten digits, which a CPU finishes in a minute."""

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from calibrant.metrics import Evaluation, evaluate
from calibrant.report import read_entries, write_report
from calibrant.training import Run, default_recipe, make_reporter, train_or_resume

# Method, and what it is to a reader who has not seen the paper.
_METHODS = {
    "nll": "plain training",
    "flsd": "focal loss",
    "flsd+h": "focal loss + Huber calibration term",
    "flsd+h+p-ema": "the paper's method: the same, least confident samples pruned",
    "flsd+h+unbiased": "ours: the same, well-learned samples rest in turn",
}
# Column, and the metric's name in an evaluation.
_COLUMNS = {
    "error": "test_error",
    "ECE": "ece",
    "ECE(S95)": "ece@0.95",
    "|S95|": "share@0.95",
    "AUROC": "auroc",
}


def run_demo(
    folder: str | Path,
    *,
    epochs: int = 40,
    seed: int = 0,
    n_resamples: int = 1000,
    say: Callable[[str], None] = print,
) -> Path:
    """Train five methods on handwritten digits, compare them in a table and write a report page.

    Args:
        folder: Of the runs and the report; what is finished there is not run again.
        epochs: Epochs of each run.
        seed: Seed of every run.
        n_resamples: Resamples behind the intervals.
        say: Called with each line or block for a person.

    Returns:
        The report.
    """
    import torch

    # The network is so small that threads wait for each other longer than they work, most of all on a busy machine.
    torch.set_num_threads(1)
    out, runs = Path(folder), {}
    for name, meaning in _METHODS.items():
        say(f"{name}: {meaning}")
        recipe = default_recipe("digits", epochs=epochs, seed=seed, method__name=name)
        runs[name] = train_or_resume(recipe, out / name, reporter=make_reporter())
    evaluations = {name: evaluate(run.predictions("test"), n_resamples=n_resamples) for name, run in runs.items()}
    say(_render(_table(runs, evaluations)))
    entries = read_entries([run.path for run in runs.values()], names=list(runs))
    page = write_report(entries, out / "report.html", n_resamples=n_resamples)
    say(f"report: {page}")
    return page


def _render(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=80, color_system=None).print(table)
    return text.getvalue().rstrip()


def _table(runs: dict[str, Run], evaluations: dict[str, Evaluation]) -> Table:
    n = next(iter(evaluations.values())).n
    # Narrow enough for 80 columns: a method name that is cut off says nothing.
    table = Table(
        title=f"Digits, {n} test images, in percent with 95 % intervals",
        caption="S95: confidence of at least 0.95; s: seconds of training.\n"
        "The digits are few and easy: docs/results.md has CIFAR-10.",
        box=None,
        padding=(0, 1, 1, 0),
    )
    table.add_column("method", no_wrap=True)
    for heading in (*_COLUMNS, "samples", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, run in runs.items():
        summary = run.summary
        cells = [_cell(evaluations[name], metric) for metric in _COLUMNS.values()]
        seen = f"{summary['samples_seen']:,}\n{summary['seen_share']:.0%}"
        table.add_row(name, *cells, seen, f"{summary['timing']['train_seconds']:.1f}")
    return table


def _cell(evaluation: Evaluation, metric: str) -> str:
    value = evaluation.values()[metric]
    if value is None:
        return "-"
    interval = (evaluation.intervals or {}).get(metric)
    if interval is None:
        return _percent(value)
    low, high = interval
    return f"{_percent(value)}\n{_percent(low)}-{_percent(high)}"


def _percent(share: float) -> str:
    """Three digits that matter.

    >>> _percent(0.0082), _percent(0.9399), _percent(1.0)
    ('0.82', '94.0', '100')
    """
    percent = 100 * share
    return f"{percent:.2f}" if percent < 10 else f"{percent:.1f}" if percent < 99.95 else f"{percent:.0f}"
