"""How many updates each reading of the paper's pruning saves, beside the training time that the paper says it saves."""

from collections.abc import Mapping
from typing import Any

from calibrant.pruning import ConfidencePruner
from calibrant.studies import Record
from calibrant.tables import Table
from calibrant.training import methods, paper_recipe
from paper.claims import OURS, Groups, runs_of

INTRO = (
    "Updates that each reading saves, counted exactly from the class sizes of the 90 % that is trained on; "
    "[Below](#time-follows-samples) is how far time follows them. The paper prints the time saved "
    "against FLSD for three data sets. Its fraction for CIFAR-10 and its first epoch are not in print: they were "
    "chosen here so that one rule, pruning from the first drop of the learning rate, gives all three figures. So the "
    "figures fit, and are no evidence for the claim. With the intervals that the appendix gives for ResNet-32 less "
    "is saved."
)
# Training images of each class, of which 90 % are trained on, and the time saved in percent that the paper prints.
_SVHN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)
_SETS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "cifar10": ((5000,) * 10, 40),
    "cifar100": ((500,) * 100, 20),
    "tiny-imagenet": ((500,) * 200, 40),
    "svhn": (_SVHN, None),
    "mendeley-v2": ((1341, 3875), None),
}
_EARLY: dict[str, Any] = {"fraction": 0.1, "start": 40}
# Name, data, network, settings that differ from the recommended ones.
READINGS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("from the first drop", "cifar10", "resnet50", {}),
    ("from the first drop", "cifar10", "resnet32", {}),
    ("our first guess, from epoch 40", "cifar10", "resnet50", {**_EARLY, "interval": 10}),
    ("our first guess, from epoch 40", "cifar10", "resnet32", _EARLY),
    ("chosen anew from all samples at each cut", "cifar10", "resnet50", {"readmit": True, "scoring": "resting"}),
    ("after every epoch (Procedure 2)", "cifar10", "resnet50", {"start": 1, "interval": 1}),
    ("batches never rebuilt (Procedure 3 at its word)", "cifar10", "resnet50", {"fixed_batches": True}),
    ("from the first drop", "cifar100", "resnet50", {}),
    ("from the first drop", "cifar100", "resnet32", {}),
    ("from the first drop", "tiny-imagenet", "resnet50", {}),
    ("from the first drop", "svhn", "resnet50", {}),
    ("from half of the training", "mendeley-v2", "resnet50", {}),
)


def saved(data: str, model: str, options: Mapping[str, Any]) -> tuple[float, float, dict[str, Any]]:
    """Share of the updates that a reading saves, share of the samples in the last epoch, and its settings.

    >>> round(saved("cifar10", "resnet50", {})[0], 3)
    0.378
    """
    epochs = paper_recipe(data).epochs
    plan = methods.resolve(OURS, data=data, model=model, epochs=epochs, **options)
    assert plan.pruning is not None
    labels = [label for label, size in enumerate(_SETS[data][0]) for _ in range(9 * size // 10)]
    pruner = ConfidencePruner(labels, epochs=epochs, **plan.pruning.options())
    counts = pruner.samples_by_epoch(epochs)
    return 1 - sum(counts) / (epochs * len(labels)), counts[-1] / len(labels), plan.settings


def updates_table(groups: Groups) -> str:
    """One line for each reading, with what our runs counted where there are any."""
    rows = []
    for name, data, model, options in READINGS:
        share, left, settings = saved(data, model, options)
        printed = _SETS[data][1]
        runs = [
            record
            for records in runs_of(groups, data, model).values()
            for record in records
            if record.method == OURS and _same(record, settings)
        ]
        rows.append(
            (
                *(f"{data}, {model}", name),
                f"{settings['fraction']:g} every {settings['interval']} from {settings['start']}",
                *(f"{100 * share:.1f}", f"{100 * left:.0f}"),
                f"{100 * (1 - runs[0].seen_share):.1f}" if runs else "not run",
                "not printed" if printed is None else str(printed),
            )
        )
    heads = (
        *("data, network", "reading", "fraction, interval, start", "updates saved, %", "samples in the last epoch, %"),
        *("our runs saved, %", "time saved in print, %"),
    )
    return Table("", rows, heads).markdown()


def _same(record: Record, settings: Mapping[str, Any]) -> bool:
    """Whether a run had this plan; records of older versions name fewer settings."""
    keys = ("fraction", "interval", "start", "within", "readmit")
    later = {"scoring": "batches", "fixed_batches": False}
    return all(record.settings.get(key) == settings[key] for key in keys) and all(
        record.settings.get(key, usual) == settings[key] for key, usual in later.items()
    )
