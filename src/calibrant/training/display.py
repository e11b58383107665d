"""What a notebook and the prompt show of a run."""

from typing import TYPE_CHECKING

from calibrant.display import Overview
from calibrant.errors import CalibrantError
from calibrant.metrics import Evaluation, label

if TYPE_CHECKING:
    from calibrant.training.run import Run


def run_overview(run: "Run") -> Overview:
    """Its settings and, where it is finished, what came out. A damaged folder is shown with its damage."""
    recipe = run.recipe
    rows: list[tuple[str, object]] = [
        ("data", recipe.data.name),
        ("model", recipe.model.name),
        ("method", recipe.method.name),
        ("seed", recipe.seed),
    ]
    try:
        if not run.finished:
            rows.append(("state", f"{len(run.epochs())} of {recipe.epochs} epochs done"))
            return Overview(str(run.path), rows)
        rows.append(("state", f"finished, {run.trained_epochs} epochs"))
        summary = run.summary
        test = Evaluation.from_dict(summary["test"])
    except (CalibrantError, OSError) as error:
        return Overview(str(run.path), [*rows, ("damaged", error)])
    rows += [
        ("sample updates", f"{summary['seen_share']:.1%}"),
        (label("test_error"), f"{100 * test.test_error:.2f} %"),
        (label("nll"), f"{test.nll:.4f}"),
        (label("ece"), f"{100 * test.ece:.2f} %"),
        *(("warning", text) for text in summary.get("warnings", ())),
    ]
    return Overview(str(run.path), rows)
