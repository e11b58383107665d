"""Sections of `docs/paper.md`: our numbers beside the paper's, what was not run, and one setting at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibrant.studies import Record, summarise
from calibrant.studies.ablation import ABLATIONS, METHOD, ablation_table
from calibrant.studies.result_tables import metric_label, percent
from calibrant.tables import Table
from paper.agreement import RULE, Agreement, Reasons, agreement, of_table, reason
from paper.claims import BASELINES, runs_of
from paper.groups import Groups, Place
from paper.numbers import METRICS, VARIANTS, PaperRow, paper_rows
from paper.readings import unrun_readings

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
PLANNED_CURVES = ("lambda", "kappa", "interval")


def beside_paper(groups: Groups, reasons: Reasons) -> str:
    """Every row of the paper that was run, number by number, with a verdict and a reason where they differ."""
    parts = [
        "## Beside the paper",
        "",
        "![Each method on CIFAR-10: ours, and what the paper prints](paper.svg)",
        "",
        "In percent, 10 bins, without temperature scaling, recommended settings unless others are named. " + RULE,
    ]
    tables: dict[Place, list[_Beside]] = {}
    for row in paper_rows():
        for label in (row.method, *(f"{row.method} ({variant})" for variant in VARIANTS.get(row.method, ()))):
            records = runs_of(groups, row.data, row.model).get(label)
            if records:
                tables.setdefault((row.data, row.model), []).extend(_both_epochs(row, label, records))
    for (data, model), compared in tables.items():
        heads = ("method", "seeds", *(metric_label(metric) for metric in METRICS))
        lines = tuple((each.name, str(each.seeds), *(_beside(item) for item in each.numbers)) for each in compared)
        # Each of the paper's numbers counts once: by the recommended settings where they were run.
        once = {each.row.method: each for each in reversed(compared)}.values()
        verdicts = [item.verdict == "agrees" for each in once for item in each.numbers]
        caption = f"Paper → ours. {sum(verdicts)} of {len(verdicts)} numbers agree."
        parts += ["", Table(f"{data}, {model}", lines, heads, caption).markdown().rstrip("\n"), ""]
        parts += [
            *([f"{common}\n"] if (common := of_table(reasons, data, model)) else []),
            *_why_not(compared, reasons),
        ]
    if not tables:
        parts += ["", "None of the paper's rows was run yet."]
    return "\n".join(parts)


@dataclass(frozen=True)
class _Beside:
    """A row of the paper and what our runs of one label say about it."""

    row: PaperRow
    label: str
    seeds: int
    numbers: Sequence[Agreement]

    @property
    def name(self) -> str:
        ours = self.label.replace(" (", ", ").replace(")", "")
        return f"{self.row.printed} ({ours})"


def _both_epochs(row: PaperRow, label: str, records: Sequence[Record]) -> list[_Beside]:
    """The last epoch, then the best one where every seed kept it: the paper does not say which one it reports."""
    chosen = [best for record in records if (best := record.at_best()) is not None]
    conventions = [(label, list(records))] + ([(f"{label}, best epoch", chosen)] if len(chosen) == len(records) else [])
    return [
        _Beside(row, name, len(group), [agreement(row, group, metric) for metric in METRICS])
        for name, group in conventions
    ]


def _beside(item: Agreement) -> str:
    printed = f"{100 * item.paper:.4f}".rstrip("0").rstrip(".")
    return f"{printed} → {percent(item.ours)}: {item.verdict.removeprefix('ours is ')}"


def _why_not(compared: Sequence[_Beside], reasons: Reasons) -> list[str]:
    """A line for each reason, with the rows and the metrics that it explains."""
    explained: dict[str, dict[str, list[str]]] = {}
    for each in compared:
        for item in each.numbers:
            if item.verdict != "agrees":
                why = reason(reasons, each.row, item.metric) or "not explained yet."
                explained.setdefault(why, {}).setdefault(each.name, []).append(metric_label(item.metric))
    return [
        f"- {'; '.join(', '.join((name, *metrics)) for name, metrics in rows.items())}: {why}"
        for why, rows in explained.items()
    ]


def not_run(groups: Groups) -> str:
    """What was planned and is missing from the records."""
    lines = []
    for data, model, methods, seeds in PLANNED:
        there = groups.get((data, model), {})
        missing = [
            name if not there.get(name) else f"{name} ({seeds - len(there[name])} more of {seeds} seeds)"
            for name in dict.fromkeys(methods)
            if len(there.get(name, ())) < seeds
        ]
        if missing:
            plural = "s" if seeds > 1 else ""
            lines.append(f"- {data}, {model}, {seeds} seed{plural} each: {', '.join(missing)}")
    lines += [line for name in PLANNED_CURVES if (line := _missing_values(name, groups.get((DATA, MODEL), {})))]
    if unrun := unrun_readings(groups):
        lines.append(f"- cifar10, resnet50, readings of the paper's pruning: {'; '.join(unrun)}")
    in_paper = {(row.data, row.model) for row in paper_rows()}
    never = sorted(f"{data}, {model}" for data, model in in_paper if not runs_of(groups, data, model))
    if never:
        lines.append(f"- Tables of the paper without any run of ours: {'; '.join(never)}")
    return "## What was not run\n\n" + ("\n".join(lines) if lines else "Nothing that was planned is missing.")


def _missing_values(name: str, by_label: Mapping[str, list[Record]]) -> str:
    there = curve(name, METHOD, by_label)
    missing = [f"{value:g}" for value in ABLATIONS[name].values if value not in there]
    return f"- {DATA}, {MODEL}, {METHOD}, {name}: {', '.join(missing)}" if missing else ""


def curves(groups: Groups) -> str:
    """Tables of runs in which one setting alone was changed."""
    parts = ["## One setting at a time", "", "A value is chosen by validation ECE; test figures have no say."]
    for by_label in groups.values():
        for method in sorted({record.method for records in by_label.values() for record in records}):
            for name in ABLATIONS:
                values = curve(name, method, by_label)
                if len(values) > 2:
                    rows = {f"{name}={value:g}": records for value, records in values.items()}
                    grid = ablation_table(name, summarise(rows, next(iter(rows))))
                    parts += ["", replace(grid, title=f"{grid.title} of {method}").markdown().rstrip("\n")]
    return "\n".join(parts if len(parts) > 3 else [*parts, "", "No curve with three or more values yet."])


def curve(name: str, method: str, by_label: Mapping[str, list[Record]]) -> dict[float, list[Record]]:
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
