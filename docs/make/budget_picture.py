"""Make docs/budget-DATA-NETWORK.{png,svg} from results/: what a budget of updates buys, beside the control.

python docs/make/budget_picture.py
"""

import sys
from pathlib import Path

from calibrant.report import budget_curves, save_figure
from calibrant.study import read_records

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `paper` is not part of the installed package

from paper.curve import budget_curves_of
from paper.groups import group_records


def main() -> None:
    """One picture for each data set, network and schedule that has a curve."""
    for (data, model), by_label in group_records(read_records(ROOT / "results")).items():
        for number, (label, lines) in enumerate(budget_curves_of(by_label).items()):
            name = f"budget-{data}-{model}" + (f"-{number + 1}" if number else "")
            figure = budget_curves(lines, title=f"{data}, {model}: {label}")
            for path in save_figure(figure, ROOT / "docs" / name):
                print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
