"""Writes results/search/README.md, the candidates for a plan; a test compares it with what is committed."""

from pathlib import Path

from calibrant.files import write_text
from calibrant.report import Grid, to_markdown
from calibrant.study import Record, read_records

FOLDER = Path(__file__).resolve().parents[2] / "results" / "search"
_HEAD = """<!-- Written by docs/make/search.py from the records beside it. Change those, not this. -->
# The search for a plan, first round

Short runs, one seed: 40 epochs of cross-entropy with ResNet-32, cosine schedule (floor 0.2 on CIFAR-10, 0.5 on
CIFAR-100), the last quarter of the epochs averaged, a budget of 60 % of the updates. "Control" is the same on all data
for 24 epochs, "all updates" for 40. Chosen by NLL on the validation set after a temperature; the recovered share is
(control - plan) / (control - all updates). Test figures are in the records and played no part.
"""
_TAIL = """
**What follows.** InfoBatch without its compensating weights comes first on both sets and is the one to be run at full
length with three seeds; that has not been done, so nothing is claimed for it and `--budget` still means fewer epochs.
With its weights InfoBatch is worse than fewer epochs on both. Resting much early and nothing while weights are averaged
is worst. One seed each: how much of a difference is chance was not measured. A plan that made more updates than its
budget is no candidate; its row says how many it made.
"""


def _name(record: Record) -> str:
    """The plan and the settings that were changed, in words."""
    prefix = "method.options."
    plan = record.method.partition("+")[2]
    options = [f"{key.removeprefix(prefix)} {value}" for key, value in record.changes.items() if key.startswith(prefix)]
    if not plan:
        return "all updates" if record.seen_share > 0.99 else "control"
    return ", ".join([plan, *options])


def page(folder: Path = FOLDER) -> str:
    """The page as Markdown."""
    by_data: dict[str, dict[str, Record]] = {}
    for record in read_records(folder):
        by_data.setdefault(record.data, {})[_name(record)] = record
    parts = [_HEAD]
    for data, runs in by_data.items():
        nlls = {name: record.validation_nll_scaled or float("nan") for name, record in runs.items()}
        control, full = nlls["control"], nlls["all updates"]
        lines = []
        for name, record in sorted(runs.items(), key=lambda item: nlls[item[0]]):
            nll = nlls[name]
            shown = f"{(control - nll) / (control - full):.2f}"
            error = 100 * record.validation["test_error"]
            lines.append((name, f"{100 * record.seen_share:.1f}", f"{nll:.4f}", shown, f"{error:.2f}"))
        heads = ("plan", "updates, %", "NLL", "recovered", "error, %")
        parts.append(to_markdown(Grid(data, "", heads, tuple(lines))))
    return "\n".join(parts).rstrip("\n") + "\n" + _TAIL


if __name__ == "__main__":
    write_text(FOLDER / "README.md", page())
    print("wrote results/search/README.md")
