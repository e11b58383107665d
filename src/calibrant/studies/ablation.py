"""The paper's ablations: one setting over a grid, or one component after the other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.errors import InvalidInput, did_you_mean, invalid
from calibrant.report import ablation_curves
from calibrant.studies.result_tables import left_out, percent
from calibrant.studies.study_results import Results, Row
from calibrant.studies.study_spec import StudySpec, Variant
from calibrant.tables import Table, counted
from calibrant.training import methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = "flsd+h+p-ema"


class Ablation(NamedTuple):
    """A setting of a method, and its grid."""

    setting: str
    values: tuple[float, ...]


ABLATIONS = {
    "lambda": Ablation("huber_weight", (0.1, 0.5, 1.0, 5.0, 10.0, 25.0, 50.0)),  # the paper's grid
    "kappa": Ablation("ema", (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)),  # ours, as the paper prints none; 1 is no average
    "interval": Ablation("interval", (5, 10, 25, 50, 100)),  # the paper's
    "alpha": Ablation("huber_alpha", (0.001, 0.005, 0.01, 0.05, 0.1)),  # the paper's
    "fraction": Ablation("fraction", (0.05, 0.1, 0.2, 0.3)),  # ours, around the paper's 0.1 and 0.2
}
COMPONENTS: dict[str, str] = {
    "FLSD": "flsd",
    "+H": "flsd+h",
    "+P": "flsd+p",
    "+P-EMA": "flsd+p-ema",
    "+H+P": "flsd+h+p",
    "+H+P-EMA": "flsd+h+p-ema",
    "random": "flsd+h+random",
    "highest first": "flsd+h+highest",
    "unbiased": "flsd+h+unbiased",
}


def ablation_spec(
    name: str,
    *,
    method: str = METHOD,
    values: Sequence[float] = (),
    options: dict[str, Any] | None = None,
    **lists: Any,
) -> StudySpec:
    """Return the study of an ablation.

    Args:
        name: A key of `ABLATIONS`, or "components".
        method: The method whose setting is varied.
        values: The grid. Empty: the one of `ABLATIONS`.
        options: Other settings of the method, the same in every run.
        **lists: `seeds`, `data`, `models` and `recipe` of the study.
    """
    if name == "components":
        if values or options or method != METHOD:
            raise InvalidInput("components compares fixed methods: leave out --method, --values and --option.")
        rows = [Variant(label=label, method=component) for label, component in COMPONENTS.items()]
        return StudySpec.parse({**lists, "variants": rows, "baseline": "FLSD"})
    if name not in ABLATIONS:
        known = [*ABLATIONS, "components"]
        raise invalid("ablation", f"be one of {', '.join(known)}", repr(name), did_you_mean(name, known))
    ablation = ABLATIONS[name]
    known_settings = methods.describe(method).settings
    if ablation.setting not in known_settings:
        raise invalid("method", f"have the setting {ablation.setting!r}", repr(method), "See: calibrant methods NAME")
    grid = [_like(value, known_settings[ablation.setting].value) for value in values or ablation.values]
    rows = [
        Variant(label=f"{name}={value:g}", method=method, options={**(options or {}), ablation.setting: value})
        for value in grid
    ]
    return StudySpec.parse({**lists, "variants": rows, "baseline": rows[0].label})


def _like(value: float, example: object) -> float:
    """Return the value as an integer if the setting is one."""
    if isinstance(example, int) and not isinstance(example, bool):
        if value != int(value):
            raise invalid("values", "be whole numbers here", value)
        return int(value)
    return float(value)


def choose_by_validation(results: Results) -> Row:
    """Return the row with the lowest ECE on the validation set, mean over seeds. The test set is not used."""
    return min(results.rows, key=lambda row: row.mean("validation_ece"))


_COLUMNS = ("validation ECE", "ECE", "ECE(S95)", "TE", "|S95|", "|S99|", "samples seen, %")


def ablation_table(name: str, results: Results) -> Table:
    """Return the validation ECE, by which a value is chosen, and the test figures of the paper's two panels."""
    rows = []
    for row in results.rows:
        test = [percent(row[metric]) for metric in ("ece", "ece@0.95", "test_error", "share@0.95", "share@0.99")]
        seen = f"{100 * row.mean('seen_share'):.1f}"
        rows.append((_short(name, row.label), percent(row["validation_ece"]), *test, seen))
    chosen = results.rows.index(choose_by_validation(results))
    best = (frozenset(), frozenset({chosen}), *(frozenset[int]() for _ in _COLUMNS[1:]))
    counts = [len(row.seeds) for row in results.rows]
    seeds = counted(max(counts), "seed")
    if min(counts) < max(counts):
        seeds = f"{min(counts)} to {seeds} per row"
    caption = (
        "In percent. Marked: the lowest validation ECE, which is how a value is chosen; the other columns are about "
        f"the test set and have no say. {seeds}; ± as in the other tables."
        f"{left_out(results)}"
    )
    title = f"{results.data}, {results.model}: {name}"
    return Table(title, tuple(rows), (name, *_COLUMNS), caption, best)


def ablation_figure(name: str, results: Results) -> "Figure":
    """Return the paper's two panels over the setting or the components."""
    errors = {"ECE": "ece", "ECE(S95)": "ece@0.95", "TE": "test_error"}
    shares = {"|S95|": "share@0.95", "|S99|": "share@0.99"}
    means = {}
    spreads = {}
    for label, metric in (errors | shares).items():
        # ECE(S95) of an empty set is not defined and leaves a gap in the curve.
        means[label] = np.array([row[metric].mean for row in results.rows], dtype=float).tolist()
        spreads[label] = np.array([row[metric].spread for row in results.rows], dtype=float).tolist()
    bars = "standard error or deviation"
    if all(len(row.seeds) > 1 for row in results.rows):
        bars = "standard deviation over seeds"
    chosen = None
    if name != "components":  # these are compared, not chosen
        chosen = _short(name, choose_by_validation(results).label)
    return ablation_curves(
        [_short(name, row.label) for row in results.rows],
        {label: means[label] for label in errors},
        {label: means[label] for label in shares},
        parameter=name,
        chosen=chosen,
        spreads=spreads,
        connected=name != "components",
        title=f"{results.data}, {results.model}: test set (bars: {bars})",
    )


def _short(name: str, label: str) -> str:
    return label.removeprefix(f"{name}=")
