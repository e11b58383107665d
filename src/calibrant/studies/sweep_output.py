"""The Pareto front of a sweep as a table, a picture and JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.files import write_json, write_text
from calibrant.report import Grid, pareto_picture, save_figure, to_markdown
from calibrant.studies.stopping import TrialStopped
from calibrant.studies.sweep import SAME_SETTINGS, Sweep

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """All trials and the numbers of those on the front."""
    return {
        "objectives": list(sweep.spec.objectives),
        "front": [trial.number for trial in sweep.front()],
        "finished": [_plain(sweep, trial) for trial in sweep.finished()],
        "stopped": [_plain(sweep, trial) for trial in sweep.stopped()],
    }


def _plain(sweep: Sweep, trial: "FrozenTrial") -> dict[str, Any]:
    values = dict(zip(sweep.spec.objectives, trial.values, strict=True)) if trial.values else None
    found = {"number": trial.number, "settings": trial.params, "values": values, "run": trial.user_attrs.get("run")}
    return found | {key: trial.user_attrs[key] for key in ("test", "stopped") if key in trial.user_attrs}


def front_table(sweep: Sweep) -> Grid:
    """The Pareto front with test figures, which the search did not use."""
    rows = []
    for trial in sweep.front():
        error, calibration, seen = trial.values
        test = trial.user_attrs["test"]
        settings = ", ".join(f"{name} {_word(value)}" for name, value in trial.params.items())
        figures = [f"{100 * value:.2f}" for value in (error, calibration, seen, test["test_error"], test["ece"])]
        if sweep.spec.objective == "scaled-nll":
            figures[1] = f"{calibration:.4f}"
        rows.append((str(trial.number), *figures, settings))
    title = f"{sweep.recipe.data.name}, {sweep.recipe.model.name}, {sweep.spec.method}: Pareto front"
    what = "In percent" if sweep.spec.objective == "ece" else "In percent but for the NLL"
    caption = f"{what}; {_how_trials_ended(sweep)} The search saw the validation columns only."
    heads = ("trial", "validation TE", sweep.spec.objectives[1], "samples seen", "test TE", "test ECE", "settings")
    return Grid(title, caption, heads, tuple(rows))


def failures(sweep: Sweep) -> list[str]:
    """Why trials failed: they diverged or were not possible.

    Trials that were stopped early are not counted, nor those whose settings another worker trained at that moment.
    """
    reasons = (" ".join(trial.user_attrs.get("stopped", "").split()) for trial in sweep.stopped())
    return [reason for reason in reasons if not TrialStopped.said(reason) and reason != SAME_SETTINGS]


def _how_trials_ended(sweep: Sweep) -> str:
    failed, finished = failures(sweep), len(sweep.finished())
    told = f"{finished} {'trial' if finished == 1 else 'trials'} finished, "
    told += f"{len(sweep.stopped()) - len(failed)} stopped early"
    return f"{told}, {len(failed)} failed (the first: {failed[0].rstrip('.')})." if failed else f"{told}."


def write_sweep(sweep: Sweep) -> list[Path]:
    """Write `sweep.json`, `pareto.md` and, where a trial has finished, `pareto.svg` and `.png`."""
    paths = [sweep.path / "sweep.json", sweep.path / "pareto.md"]
    write_json(paths[0], sweep_json(sweep))
    write_text(paths[1], to_markdown(front_table(sweep)))
    finished = sweep.finished()
    if finished:
        error, calibration, seen = zip(*(trial.values for trial in finished), strict=True)
        front = {trial.number for trial in sweep.front()}
        title = f"{sweep.recipe.data.name}, {sweep.recipe.model.name}, {sweep.spec.method}"
        ringed = [trial.number in front for trial in finished]
        figure = pareto_picture(error, calibration, seen, ringed, title=title, objective=sweep.spec.objective)
        paths += save_figure(figure, sweep.path / "pareto")
    return paths


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
