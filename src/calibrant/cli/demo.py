"""`calibrant demo`: the main job on a problem that a CPU finishes in a minute."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from calibrant.errors import InvalidInput

if TYPE_CHECKING:
    from calibrant.metrics import Evaluation
    from calibrant.training import Recipe, Run

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


def demo(*, out: Path = Path("demo"), epochs: int = 40, seed: int = 0, bootstrap: int = 1000) -> None:
    """Train five methods on handwritten digits, compare them in a table and write a report page.

    Parameters
    ----------
    out:
        Folder of the runs and the report; what is finished there is not run again.
    epochs:
        Epochs of each run.
    seed:
        Seed of every run.
    bootstrap:
        Resamples behind the intervals.
    """
    import torch

    from calibrant.metrics import evaluate
    from calibrant.report import read_entries, write_report
    from calibrant.training import default_recipe

    # The network is so small that threads wait for each other longer than they work, most of all on a busy machine.
    torch.set_num_threads(1)
    console = Console()
    recipes = {name: default_recipe("digits", epochs=epochs, seed=seed, method__name=name) for name in _METHODS}
    runs = {}
    for name, meaning in _METHODS.items():
        console.print(f"[bold]{name}[/bold]: {meaning}", highlight=False)
        runs[name] = _finished_run(recipes[name], out / name)
    evaluations = {name: evaluate(run.predictions("test"), n_resamples=bootstrap) for name, run in runs.items()}
    console.print(_table(runs, evaluations))
    with console.status("Writing the report ..."):
        entries = read_entries([run.path for run in runs.values()], names=list(runs))
        page = write_report(entries, out / "report.html", n_resamples=bootstrap)
    console.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)


def _finished_run(recipe: "Recipe", folder: Path) -> "Run":
    """Train, go on, or take what is there."""
    from calibrant.cli.train import make_reporter
    from calibrant.training import Run, resume, train

    if not (folder / "recipe.toml").is_file():
        return train(recipe, folder, reporter=make_reporter())
    if Run.open(folder).recipe != recipe:
        raise InvalidInput(f"{folder} holds a run with other settings. Remove it, or choose another folder with --out.")
    return resume(folder, reporter=make_reporter())


def _table(runs: dict[str, "Run"], evaluations: dict[str, "Evaluation"]) -> Table:
    n = next(iter(evaluations.values())).n
    # Narrow enough for 80 columns: a method name that is cut off says nothing.
    table = Table(
        title=f"Digits, {n} test images, in percent with 95 % bootstrap intervals",
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


def _cell(evaluation: "Evaluation", metric: str) -> str:
    value = evaluation.values()[metric]
    if value is None:
        return "-"
    interval = (evaluation.intervals or {}).get(metric)
    if interval is None:
        return _percent(value)
    low, high = interval
    return f"{_percent(value)}\n[dim]{_percent(low)}-{_percent(high)}[/dim]"


def _percent(share: float) -> str:
    """Three digits that matter.

    >>> _percent(0.0082), _percent(0.9399), _percent(1.0)
    ('0.82', '94.0', '100')
    """
    percent = 100 * share
    return f"{percent:.2f}" if percent < 10 else f"{percent:.1f}" if percent < 99.95 else f"{percent:.0f}"
