"""Writes results/search/README.md, the candidates for a plan; a test compares it with what is committed."""

from math import nan
from pathlib import Path
from statistics import fmean

from calibrant.files import write_text
from calibrant.studies import Record, read_records
from calibrant.tables import Table

FOLDER = Path(__file__).resolve().parents[2] / "results" / "search"
_HEAD = """<!-- Written by docs/make/search.py from the records beside it. Change those, not this. -->
# The search for a plan

We searched with short runs: 40 epochs of cross-entropy with ResNet-32, a cosine schedule (floor 0.2 on CIFAR-10, 0.5 on
CIFAR-100), the last quarter of the epochs averaged, and a budget of 60 % of the updates.

- **Control**: the same on all data for 24 epochs. **All updates**: the same for 40 epochs.
- **NLL** is on the validation set, after a temperature; the plan was chosen by it. Test figures are in the records and
  played no part.
- **Recovered**: (control - plan) / (control - all updates). Means over the seeds.
"""
_TAIL = """
## How the plan was chosen

1. In a first round of eight plans, InfoBatch without its compensating weights was best on both sets. With its weights
   it was worse than fewer epochs. That suggested plans that prefer large losses and weigh all samples equally.
2. A second round tried those. When `selective` with power 3, by error with powers 1 and 0.5, and `orderdp` were done
   with one seed each, `selective` by error with power 0.5 had recovered most over the two sets together (0.91 and 0.32
   of what the control of that seed lost). We then started its six runs at full length.
3. `selective` with power 1, by error with power 2, InfoBatch without weights and anneal, and the second seeds were
   finished later. Among the plans that prefer large losses, the differences are no larger than those between two seeds.
   So we do not know which of them is best.

A plan that made more updates than its budget is no candidate; its row says how many it made.

## What came of it

At full length (160 epochs, three seeds) the plan recovered 13 % on CIFAR-10 and 21 % on CIFAR-100 in NLL on the test
set. Neither difference is more than chance, and the error is that of the control (docs/results.md). We missed the goal,
half of what fewer epochs lose. A gain that is large after 40 epochs nearly vanishes after 160: **short runs do not show
which plan helps long ones.**
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
    by_data: dict[str, dict[str, list[Record]]] = {}
    for record in read_records(folder):
        by_data.setdefault(record.data, {}).setdefault(_name(record), []).append(record)
    parts = [_HEAD]
    for data, plans in by_data.items():
        nlls = {name: fmean(record.validation_nll_scaled or nan for record in runs) for name, runs in plans.items()}
        control, full = nlls["control"], nlls["all updates"]
        lines = []
        for name, runs in sorted(plans.items(), key=lambda item: nlls[item[0]]):
            shown = f"{(control - nlls[name]) / (control - full):.2f}"
            error = 100 * fmean(record.validation.test_error for record in runs)
            updates = f"{100 * runs[0].seen_share:.1f}"
            lines.append((name, str(len(runs)), updates, f"{nlls[name]:.4f}", shown, f"{error:.2f}"))
        heads = ("plan", "seeds", "updates, %", "NLL", "recovered", "error, %")
        parts.append(Table(data, lines, heads).markdown())
    return "\n".join(parts).rstrip("\n") + "\n" + _TAIL


if __name__ == "__main__":
    write_text(FOLDER / "README.md", page())
    print("wrote results/search/README.md")
