"""Readings of the paper's pruning: the updates that each saves, and its figures beside the paper's own row."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.pruning import ConfidencePruner
from calibrant.studies import Record
from calibrant.studies.result_tables import metric_label, percent
from calibrant.studies.study_results import Estimate, estimate
from calibrant.tables import Table
from calibrant.training import methods, paper_recipe
from paper.claims import OURS, WITHOUT
from paper.numbers import PaperRow, paper_rows
from paper.runs import Groups, in_words, runs_of

INTRO = (
    "The table shows which share of the updates each reading of the pruning saves, counted exactly from the class "
    "sizes of the 90 % of the data that is trained on. [Below](#time-follows-samples) is how far time follows "
    "updates.\n\n"
    "The paper prints the time saved, compared with FLSD, for three data sets. It does not print the fraction for "
    "CIFAR-10 nor the first epoch of pruning. We chose both so that one rule, pruning from the first drop of the "
    "learning rate, gives all three figures. So the figures fit, but they are no evidence for the claim. With the "
    "intervals that the appendix gives for ResNet-32 less is saved."
)
BESIDE = (
    "The paper prints one row per network on CIFAR-10 for its method. The table compares that row with every reading "
    "of the pruning that we ran, nearest first.\n\n"
    "- **Distance**: the mean absolute difference of TE, ECE and |S95|, in percentage points.\n"
    "- **Best epoch**: the one with the lowest validation error. Only runs that evaluated every epoch have one. Its "
    "updates are those of the whole run.\n"
    "- **Figures** are in percent, with 10 bins, without temperature scaling. ± is the spread over seeds.\n"
    "- **FLSD+H without pruning** is not a reading of the method. It shows what pruning changes."
)
# Training images of each class, of which 90 % are trained on.
TRAINING_IMAGES: dict[str, tuple[int, ...]] = {
    "cifar10": (5000,) * 10,
    "cifar100": (500,) * 100,
    "tiny-imagenet": (500,) * 200,
    "svhn": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    "mendeley-v2": (1341, 3875),
}
_TIME_SAVED = {"cifar10": 40, "cifar100": 20, "tiny-imagenet": 40}
"""In percent, as the paper prints it."""
_EARLY: dict[str, Any] = {"fraction": 0.1, "start": 40}
# Name, data, network, settings that differ from the recommended ones.
READINGS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("from the first drop", "cifar10", "resnet50", {}),
    ("from the first drop", "cifar10", "resnet32", {}),
    ("from epoch 40 (our first guess)", "cifar10", "resnet50", {**_EARLY, "interval": 10}),
    ("from epoch 40 (our first guess)", "cifar10", "resnet32", _EARLY),
    ("chosen anew from all samples at each cut", "cifar10", "resnet50", {"readmit": True, "scoring": "resting"}),
    ("after every epoch (Procedure 2)", "cifar10", "resnet50", {"start": 1, "interval": 1}),
    ("from the first drop", "cifar100", "resnet50", {}),
    ("from the first drop", "cifar100", "resnet32", {}),
    ("from the first drop", "tiny-imagenet", "resnet50", {}),
    ("from the first drop", "svhn", "resnet50", {}),
    ("from half of the training", "mendeley-v2", "resnet50", {}),
)
# Label of a group of records, and the reading in words.
_IN_WORDS = {
    WITHOUT: "no pruning (FLSD+H)",
    OURS: "from the first drop (recommended)",
    f"{OURS} (fraction 0.1, start 40)": "from epoch 40 (our first guess)",
    f"{OURS} (fraction 0.1, interval 10, start 40)": "from epoch 40 (our first guess)",
    f"{OURS} (readmit True, scoring resting)": "removed samples may return",
    f"{OURS} (within batch)": "the least confident in each minibatch",
    f"{WITHOUT}+highest": "the most confident instead",
}
READINGS_IN_WORDS = {
    label.removeprefix(OURS).strip(" ()"): words for label, words in _IN_WORDS.items() if label.startswith(OURS)
}
"""Settings of a reading of the paper's pruning, as records name them, and the reading in words."""
COMPARED = ("test_error", "ece", "share@0.95")
"""The figures that make up the distance of a reading from the printed row."""


def saved(data: str, model: str, options: Mapping[str, Any]) -> tuple[float, float, dict[str, Any]]:
    """Share of the updates that a reading saves, share of the samples in the last epoch, and its settings.

    >>> round(saved("cifar10", "resnet50", {})[0], 3)
    0.378
    """
    epochs = paper_recipe(data).epochs
    plan = methods.resolve(OURS, data=data, model=model, epochs=epochs, **options)
    assert plan.pruning is not None
    labels = [label for label, size in enumerate(TRAINING_IMAGES[data]) for _ in range(9 * size // 10)]
    pruner = ConfidencePruner(labels, epochs=epochs, **plan.pruning)
    counts = pruner.samples_by_epoch(epochs)
    return 1 - sum(counts) / (epochs * len(labels)), counts[-1] / len(labels), plan.settings


def updates_table(groups: Groups) -> str:
    """One line for each reading, with what our runs counted, if there are any."""
    rows = []
    for name, data, model, options in READINGS:
        share, left, settings = saved(data, model, options)
        runs = _runs_with(groups, data, model, settings)
        counted = "not run"
        if runs:
            counted = f"{100 * (1 - runs[0].seen_share):.1f}"
        rows.append(
            (
                *(in_words((data, model)), name),
                f"{settings['fraction']:g} every {settings['interval']} from {settings['start']}",
                *(f"{100 * share:.1f}", f"{100 * left:.0f}"),
                *(counted, str(_TIME_SAVED.get(data, "not printed"))),
            )
        )
    heads = (
        *("data, network", "reading", "fraction, interval, start", "updates saved, %", "samples in the last epoch, %"),
        *("our runs saved, %", "time saved in print, %"),
    )
    return Table("", rows, heads).markdown()


def unrun_readings(groups: Groups) -> list[str]:
    """Names of the readings for CIFAR-10 with ResNet-50, the paper's main row, that no run has."""
    names = []
    for name, data, model, options in READINGS:
        if (data, model) == ("cifar10", "resnet50"):
            settings = methods.resolve(
                OURS, data=data, model=model, epochs=paper_recipe(data).epochs, **options
            ).settings
            if not _runs_with(groups, data, model, settings):
                names.append(name)
    return names


def _runs_with(groups: Groups, data: str, model: str, settings: Mapping[str, Any]) -> list[Record]:
    """Runs of the paper's method with the plan of these settings."""
    return [
        record
        for records in runs_of(groups, data, model).values()
        for record in records
        if record.method == OURS and _same(record, settings)
    ]


@dataclass(frozen=True)
class Measured:
    """Runs of one reading on one network, and the row that the paper prints for it.

    Attributes:
        row: The paper's row.
        reading: In words.
        pruned: Whether samples were removed.
        epoch: "last", or "best" by validation error.
        records: The runs, one per seed.
    """

    row: PaperRow
    reading: str
    pruned: bool
    epoch: str
    records: Sequence[Record]

    @property
    def updates(self) -> str:
        """Share of the updates of a run without pruning, in percent."""
        return f"{100 * self.records[0].seen_share:.1f}"

    @property
    def figures(self) -> dict[str, Estimate]:
        """Mean and spread over the seeds of each figure that is compared."""
        return {name: estimate([record.value(name) for record in self.records]) for name in COMPARED}

    @property
    def distance(self) -> float:
        """Mean absolute difference from the printed figures, in percentage points."""
        differences = [abs((figure.mean or 0.0) - self.row.value(name)) for name, figure in self.figures.items()]
        return 100 * statistics.fmean(differences)


def printed_rows() -> list[PaperRow]:
    """Return the paper's own rows for its method on CIFAR-10, one per network."""
    return [row for row in paper_rows() if row.data == "cifar10" and row.method == OURS]


def measured_readings(groups: Groups) -> list[Measured]:
    """Return every reading that was run on CIFAR-10: by network, nearest to the printed row first."""
    found = []
    for row in printed_rows():
        of_network = []
        for label, records in runs_of(groups, row.data, row.model).items():
            if label in _IN_WORDS:
                words = _IN_WORDS[label]
                of_network.append(Measured(row, words, label != WITHOUT, "last", records))
                best = [chosen for record in records if (chosen := record.at_best()) is not None]
                if best:
                    of_network.append(Measured(row, words, label != WITHOUT, "best", best))
        found += sorted(of_network, key=lambda each: each.distance)
    return found


def mean_distances(groups: Groups) -> dict[str, float]:
    """Return the mean distance over the networks of each reading that was run on all of them, nearest first."""
    distances: dict[str, list[float]] = {}
    for each in measured_readings(groups):
        if each.epoch == "last":
            distances.setdefault(each.reading, []).append(each.distance)
    everywhere = {name: found for name, found in distances.items() if len(found) == len(printed_rows())}
    means = {name: statistics.fmean(found) for name, found in everywhere.items()}
    return dict(sorted(means.items(), key=lambda item: item[1]))


def readings_table(groups: Groups) -> str:
    """Return, for each network on CIFAR-10, every reading that was run below the paper's row, nearest first."""
    found = measured_readings(groups)
    if not found:
        return "No reading was run yet.\n"
    rows: list[tuple[str, ...]] = []
    for row in printed_rows():
        printed = (f"{100 * row.value(name):.2f}" for name in COMPARED)
        rows.append((in_words([row.model]), "**the paper, as printed**", "", "", "", *printed, ""))
        for each in found:
            if each.row == row:
                figures = (percent(figure) for figure in each.figures.values())
                seeds = str(len(each.records))
                cells = (each.reading, each.epoch, seeds, each.updates, *figures, f"{each.distance:.2f}")
                rows.append((in_words([row.model]), *cells))
    heads = ("network", "reading", "epoch", "seeds", "updates, %", *map(metric_label, COMPARED), "distance")
    return Table("", rows, heads).markdown()


def _same(record: Record, settings: Mapping[str, Any]) -> bool:
    """Whether a run had this plan; records of older versions name fewer settings."""
    keys = ("fraction", "interval", "start", "within", "readmit")
    same = all(record.settings.get(key) == settings[key] for key in keys)
    return same and record.settings.get("scoring", "batches") == settings["scoring"]
