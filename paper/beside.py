"""Our numbers beside the paper's: do they agree, why not, what was not run, and one setting at a time."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from calibrant.errors import did_you_mean, invalid
from calibrant.files import read_toml
from calibrant.studies import Record, summarise
from calibrant.studies.ablation import ABLATIONS, COMPONENTS, METHOD, ablation_table
from calibrant.studies.result_tables import metric_label, percent
from calibrant.studies.study_results import Estimate, Results, estimate
from calibrant.tables import Table, counted
from calibrant.training import paper_recipe
from paper.claims import BASELINES, OURS
from paper.numbers import METRICS, VARIANTS, PaperRow, paper_rows
from paper.readings import READINGS_IN_WORDS, TRAINING_IMAGES, unrun_readings
from paper.runs import Groups, Place, in_words, runs_of

Verdict = Literal["agrees", "ours is lower", "ours is higher", "not defined"]
_ROUNDING = 0.00005


@dataclass(frozen=True)
class Agreement:
    """One number of the paper beside ours, as fractions.

    Attributes:
        metric: Flat name.
        paper: As printed.
        ours: Mean and spread of our runs.
        tolerance: What two honest experiments may differ by; None if ours is not defined.
        verdict: The outcome.
    """

    metric: str
    paper: float
    ours: Estimate
    tolerance: float | None
    verdict: Verdict


RULE = (
    "The paper's number is one run, ours the mean of n runs. They agree if they differ by no more than "
    "1.96 s √(1 + 1/n) plus half a printed digit. Here s is the standard deviation of one run: the spread over our "
    "seeds, or the standard error over test images (the width of the 95 % interval divided by 3.92) if that is larger. "
    "Two ECEs also agree if both lie below the 95 % quantile of what perfect calibration shows by chance."
)


def agreement(row: PaperRow, records: Sequence[Record], metric: str) -> Agreement:
    """Compare one number; `RULE` says how."""
    paper = row.value(metric)
    deviations = [record.deviation(metric) for record in records]
    ours = estimate([record.value(metric) for record in records], deviations)
    if ours.mean is None:
        return Agreement(metric, paper, ours, None, "not defined")
    known = [each for each in deviations if each is not None]
    deviation = statistics.fmean(known or [0.0])
    if ours.over == "seeds":
        deviation = max(deviation, ours.spread or 0.0)
    tolerance = 1.96 * deviation * math.sqrt(1.0 + 1.0 / len(records)) + _ROUNDING
    difference = ours.mean - paper
    floor = min(record.evaluation().noise_floor_95 for record in records)
    both_chance = metric == "ece" and max(paper, ours.mean) <= floor
    if both_chance or abs(difference) <= tolerance:
        return Agreement(metric, paper, ours, tolerance, "agrees")
    return Agreement(metric, paper, ours, tolerance, "ours is lower" if difference < 0 else "ours is higher")


Reasons = Mapping[str, Mapping[str, str]]


def reason(reasons: Reasons, row: PaperRow, metric: str) -> str:
    """Why a number differs, for that metric or for the whole row; empty if nobody has said so yet."""
    found = reasons.get(key_of(row), {})
    return found.get(metric, found.get("all", ""))


def of_table(reasons: Reasons, data: str, model: str) -> str:
    """What explains numbers of every row on a data set; empty if nothing does."""
    return reasons.get(f"{data}/{model}", {}).get("all", "")


def key_of(row: PaperRow) -> str:
    """How `reasons.toml` names a row of the paper."""
    return f"{row.data}/{row.model}/{row.method}"


def load_reasons(path: str | Path) -> Reasons:
    """Read `reasons.toml`: for each row of the paper, or for a data set and a network, sentences by metric or `all`."""
    if not Path(path).exists():
        return {}
    content = read_toml(path, "reasons")
    tables = {f"{row.data}/{row.model}" for row in paper_rows()}
    rows, metrics = [*(key_of(row) for row in paper_rows()), *sorted(tables)], (*METRICS, "all")
    for key, sentences in content.items():
        if key not in rows:
            raise invalid(str(path), "name rows of the paper", repr(key), did_you_mean(key, rows))
        if not isinstance(sentences, dict):
            raise invalid(f"{path}, {key}", "be a table of sentences", repr(sentences))
        for metric, sentence in sentences.items():
            if metric not in metrics or not isinstance(sentence, str):
                raise invalid(f"{path}, {key}", f"map {', '.join(metrics)} to sentences", f"{metric!r} = {sentence!r}")
    return content


# Row by row.

DATA, MODEL, SEEDS = "cifar10", "resnet32", 3

_SEEDED = ("nll", "flsd", "flsd+h", "flsd+h+p-ema", "flsd+h+unbiased")
_ONCE = ("brier", "dca", "ls", "mmce", "fl", "fl+mdca", "entropy", "flsd+h+p")
_PARTS = ("flsd+p", "flsd+p-ema", "flsd+h+highest")
_FEW = ("nll", "flsd", "fl+mdca", "flsd+h", "flsd+h+p-ema", "flsd+h+unbiased")
# What was planned: data set, network, methods, seeds. Whatever is missing from results/ is named on the page.
PLANNED: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("cifar10", "resnet32", _SEEDED, SEEDS),
    ("cifar10", "resnet32", _ONCE, 1),
    ("cifar10", "resnet50", (*_FEW, *BASELINES), 1),
    ("cifar10", "resnet32", _PARTS, 1),
    ("cifar100", "resnet32", (*_FEW, *BASELINES), 1),
    ("cifar100", "resnet32", ("flsd+h", "flsd+h+p-ema"), SEEDS),
    ("cifar100", "resnet50", _FEW, 1),
    ("mendeley-v2", "torchvision:resnet50", _FEW, 1),
    ("svhn", "resnet50", ("nll", "flsd", "flsd+h", "flsd+h+p-ema"), 1),
    ("tiny-imagenet", "resnet50", ("flsd", "flsd+h+p-ema"), 1),
)
PLANNED_CURVES = ("lambda", "alpha", "interval", "kappa")


def beside_paper(groups: Groups, reasons: Reasons) -> str:
    """Return every row of the paper that was run, number by number, with a verdict and a reason if they differ."""
    parts = [
        "## Beside the paper",
        "",
        "![Each method on CIFAR-10: ours, and what the paper prints](paper.svg)",
        "",
        "In percent, 10 bins, without temperature scaling. Settings are the recommended ones unless others are named. "
        + RULE,
    ]
    tables = _tables(groups)
    for place, compared in tables.items():
        heads = ("method", "seeds", *(metric_label(metric) for metric in METRICS))
        lines = tuple((row.name, str(row.seeds), *(_beside(item) for item in row.numbers)) for row in compared)
        agreed, numbers = _count(compared)
        caption = f"Paper → ours; bold: they do not agree. {agreed} of {numbers} numbers agree."
        parts += ["", Table(in_words(place), lines, heads, caption).markdown().rstrip("\n"), ""]
        common = of_table(reasons, *place)
        if common:
            parts.append(f"{common}\n")
        parts += _why_not(compared, reasons)
    if not tables:
        parts += ["", "None of the paper's rows was run yet."]
    return "\n".join(parts)


def agreement_counts(groups: Groups) -> str:
    """Return how many of the paper's numbers agree with ours, table by table."""
    rows = []
    places = dict.fromkeys((row.data, row.model) for row in paper_rows())
    tables = _tables(groups)
    for place in places:
        methods = [row.printed for row in paper_rows() if (row.data, row.model) == place]
        compared = tables.get(place, [])
        agreed, numbers = _count(compared)
        run = {row.row.printed for row in compared}
        missing = [name for name in methods if name not in run]
        verdict = f"{agreed} of {numbers}" if numbers else "not run"
        rows.append((in_words(place), verdict, ", ".join(missing) or "-"))
    return Table("", rows, ("table of the paper", "numbers that agree", "rows not run")).markdown()


def agreement_total(groups: Groups) -> str:
    """Say in two sentences how many of the paper's numbers agree with ours, in all and in each table that was run."""
    tables = _tables(groups)
    if not tables:
        return "None of the paper's rows was run yet."
    counts = {place: _count(compared) for place, compared in tables.items()}
    agreed = sum(count for count, _ in counts.values())
    compared = sum(numbers for _, numbers in counts.values())
    by_table = [f"{in_words(place)} {count} of {numbers}" for place, (count, numbers) in counts.items()]
    not_run = len({(row.data, row.model) for row in paper_rows()}) - len(tables)
    return f"{agreed} of {compared} numbers agree: {'; '.join(by_table)}. {counted(not_run, 'table')} not run."


def _tables(groups: Groups) -> "dict[Place, list[_Beside]]":
    tables: dict[Place, list[_Beside]] = {}
    for row in paper_rows():
        for label in (row.method, *(f"{row.method} ({variant})" for variant in VARIANTS.get(row.method, ()))):
            records = runs_of(groups, row.data, row.model).get(label)
            if records:
                tables.setdefault((row.data, row.model), []).extend(_both_epochs(row, label, records))
    return tables


def _count(compared: "Sequence[_Beside]") -> tuple[int, int]:
    """Return how many numbers agree, and of how many. A number counts once, by recommended settings if run."""
    once = {row.row.method: row for row in reversed(compared)}.values()
    verdicts = [item.verdict == "agrees" for row in once for item in row.numbers]
    return sum(verdicts), len(verdicts)


@dataclass(frozen=True)
class _Beside:
    """A row of the paper and what our runs of one label say about it."""

    row: PaperRow
    name: str
    seeds: int
    numbers: Sequence[Agreement]


def _name(row: PaperRow, label: str) -> str:
    """The method as the paper prints it, and ours; a reading of the pruning in words."""
    settings = label.partition(" (")[2].removesuffix(")")
    if row.method == OURS:
        reading = READINGS_IN_WORDS.get(settings, settings)
        if not settings:  # the first drop of the learning rate, if the schedule has one
            reading = "recommended reading"
        return f"The paper's method: {reading}"
    ours = label.replace(" (", ", ").removesuffix(")")
    return f"{row.printed} ({ours})"


def _both_epochs(row: PaperRow, label: str, records: Sequence[Record]) -> list[_Beside]:
    """The last epoch, then the best one if every seed kept it: the paper does not say which one it reports."""
    chosen = [best for record in records if (best := record.at_best()) is not None]
    conventions = [(_name(row, label), list(records))]
    if len(chosen) == len(records):
        conventions.append((f"{_name(row, label)}, best epoch", chosen))
    return [
        _Beside(row, name, len(group), [agreement(row, group, metric) for metric in METRICS])
        for name, group in conventions
    ]


def _beside(item: Agreement) -> str:
    printed = f"{100 * item.paper:.4f}".rstrip("0").rstrip(".")
    text = f"{printed} → {percent(item.ours)}"
    return text if item.verdict == "agrees" else f"**{text}**"


def _why_not(compared: Sequence[_Beside], reasons: Reasons) -> list[str]:
    """A line for each reason, with the rows and the metrics that it explains."""
    explained: dict[str, dict[str, list[str]]] = {}
    for each in compared:
        for item in each.numbers:
            if item.verdict != "agrees":
                why = reason(reasons, each.row, item.metric) or "Not explained yet."
                explained.setdefault(why, {}).setdefault(each.name, []).append(metric_label(item.metric))
    lines = []
    for why, rows in explained.items():
        names = [f"**{name}** ({', '.join(metrics)})" for name, metrics in rows.items()]
        if len(names) > 2:  # the table marks the numbers
            names = [f"**{name}**" for name in dict.fromkeys(name.partition(":")[0] for name in rows)]
        lines.append(f"- {'; '.join(names)}. {why}")
    return lines


@dataclass(frozen=True)
class Missing:
    """Runs that were planned and are not recorded: in words, how many, and on which data set and network."""

    text: str
    runs: int
    place: Place


def missing_runs(groups: Groups) -> Iterator[Missing]:
    """Yield what was planned and is missing from the records."""
    for data, model, methods, seeds in PLANNED:
        there = groups.get((data, model), {})
        names = []
        runs = 0
        for name in dict.fromkeys(methods):
            left = seeds - len(there.get(name, ()))
            if left > 0:
                runs += left
                names.append(name if left == seeds else f"{name} ({left} more of {seeds} seeds)")
        if runs:
            yield Missing(", ".join(names), runs, (data, model))
    for name in PLANNED_CURVES:
        there_values = curve(name, METHOD, groups.get((DATA, MODEL), {}))
        values = [f"{value:g}" for value in ABLATIONS[name].values if value not in there_values]
        if values:
            yield Missing(f"{METHOD}, {name}: {', '.join(values)}", len(values), (DATA, MODEL))
    if unrun := unrun_readings(groups):
        yield Missing(f"readings of the paper's pruning: {'; '.join(unrun)}", len(unrun), ("cifar10", "resnet50"))


def not_run(groups: Groups) -> str:
    """Return a table of what was not run, with the cost of each line on the GPU of our records."""
    rows = []
    for missing in missing_runs(groups):
        seconds = _seconds_of_a_run(groups, missing.place)
        cost = "not known"
        if seconds is not None:
            cost = f"{missing.runs * seconds / 60:.0f}"
        rows.append((in_words(missing.place), missing.text, str(missing.runs), cost))
    if not rows:
        return "Nothing that was planned is missing."
    table = Table("", rows, ("data, network", "what", "runs", "GPU minutes")).markdown().rstrip("\n")
    note = (
        "Minutes of one H200, by the pace of our recorded runs of that network; not known if no run tells the pace. A "
        "run at 64x64 pixels is counted as four at 32x32."
    )
    return f"{note}\n\n{table}"


def cost_of_missing_runs(groups: Groups) -> str:
    """Return one or two sentences: how many planned runs are missing, and what they would cost."""
    runs = 0
    unknown = 0
    total = 0.0
    for missing in missing_runs(groups):
        runs += missing.runs
        seconds = _seconds_of_a_run(groups, missing.place)
        if seconds is None:
            unknown += missing.runs
        else:
            total += missing.runs * seconds
    if not runs:
        return "Nothing that was planned is missing."
    text = f"{counted(runs, 'planned run')} {'is' if runs == 1 else 'are'} missing."
    if total:
        text += f" They would take about {total / 3600:.1f} hours of one H200"
        text += f", without {counted(unknown, 'run')} whose pace is not known." if unknown else "."
    return text


def _seconds_of_a_run(groups: Groups, place: Place) -> float | None:
    """Return about how long one run at recommended settings takes alone on the GPU."""
    data, model = place
    updates = 0.9 * sum(TRAINING_IMAGES[data]) * paper_recipe(data).epochs
    rates = []
    for (other_data, other_model), by_label in groups.items():
        for records in by_label.values():
            for record in records:
                if other_model == model and record.concurrent_runs == 1:
                    area = _AREA.get(data, 1) / _AREA.get(other_data, 1)
                    rates.append(area * record.train_seconds / record.samples_seen)
    if not rates:
        return None
    return statistics.median(rates) * updates


_AREA = {"tiny-imagenet": 4, "mendeley-v2": 4}
"""Pixels of an image, in units of 32x32."""


def curves(groups: Groups) -> str:
    """Tables and pictures of runs in which one setting alone was changed, and of the components of the method."""
    parts = ["## One setting at a time", "", "A value is chosen by validation ECE; test figures have no say."]
    found = recorded_ablations(groups)
    for name, results in found.items():
        grid = ablation_table(name, results)
        picture = f"![{name}: errors and shares of confident samples]({picture_name(name)}.svg)"
        title = f"{in_words((DATA, MODEL))}: {name}"
        if name in ABLATIONS:
            title = f"{title} of {METHOD}"
        parts += ["", replace(grid, title=title).markdown().rstrip("\n"), "", picture]
    if not found:
        parts += ["", "No curve with three or more values yet."]
    return "\n".join(parts)


def recorded_ablations(groups: Groups) -> dict[str, Results]:
    """Return the paper's ablations on CIFAR-10 with ResNet-32, by name, if three or more of their runs are recorded."""
    by_label = groups.get((DATA, MODEL), {})
    found = {}
    for name in PLANNED_CURVES:
        values = curve(name, METHOD, by_label)
        if len(values) > 2:
            rows = {f"{name}={value:g}": records for value, records in values.items()}
            found[name] = summarise(rows, next(iter(rows)))
    components = {label: by_label[method] for label, method in COMPONENTS.items() if method in by_label}
    if len(components) > 2:
        found["components"] = summarise(components, next(iter(components)))
    return found


def picture_name(ablation: str) -> str:
    """Return the name of an ablation's picture, without its ending."""
    return f"ablation-{ablation}"


def curve(name: str, method: str, by_label: Mapping[str, Sequence[Record]]) -> dict[float, list[Record]]:
    """Records of a method in which nothing but one setting was changed, by the value of that setting."""
    setting = ABLATIONS[name].setting
    found: dict[float, list[Record]] = {}
    for records in by_label.values():
        for record in records:
            value = record.settings.get(setting)
            if record.method == method and set(record.changes) <= {_option(setting)} and isinstance(value, int | float):
                found.setdefault(value, []).append(record)
    return dict(sorted(found.items()))


def _option(setting: str) -> str:
    return f"method.options.{setting}"
