"""Records by data set, network and method, and short names for them."""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase

from calibrant.studies import Record

Place = tuple[str, str]
"""Data set and network."""
Groups = Mapping[Place, Mapping[str, Sequence[Record]]]
"""The records of each place, by the label of their method; one per seed."""
_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "fashion-mnist": "Fashion-MNIST"}
_TITLES |= {"mendeley-v2": "Mendeley V2", "tiny-imagenet": "Tiny-ImageNet", "resnet32": "ResNet-32"}
_TITLES |= {"resnet50": "ResNet-50", "torchvision:resnet50": "ResNet-50"}


def in_words(names: Iterable[str]) -> str:
    """Write data sets and networks as people do.

    >>> in_words(("cifar10", "resnet32"))
    'CIFAR-10, ResNet-32'
    """
    return ", ".join(_TITLES.get(name, name) for name in names)


def group_records(records: Sequence[Record]) -> dict[Place, dict[str, list[Record]]]:
    """Records by data set and network, then by method; changed settings stand behind the method's name.

    Runs of a method of your own that was edited in between are not seeds of one method: its versions stand apart.
    """
    groups: dict[Place, dict[str, list[Record]]] = {}
    versions: dict[tuple[str, str, str], set[str]] = {}
    for record in records:
        versions.setdefault((record.data, record.model, record.label), set()).add(record.code)
    for record in records:
        label = record.label
        if len(versions[record.data, record.model, label]) > 1:
            label = f"{label} [{record.code}]"
        groups.setdefault((record.data, record.model), {}).setdefault(label, []).append(record)
    return groups


def runs_of(groups: Groups, data: str, model: str) -> Mapping[str, Sequence[Record]]:
    """Return our runs that correspond to the paper's on a data set, by method.

    The paper's X-rays went through torchvision's network; ours of that name is made for small images.
    """
    return groups.get((data, model)) or groups.get((data, f"torchvision:{model}"), {})


def short_names(records: Iterable[Record]) -> dict[str, str]:
    """Label of each record to its short name, one for one.

    `nll (epochs 96, average 0.25, floor 0.2, kind cosine)` becomes `nll, averaged, 96 epochs`. A method at recommended
    settings keeps its bare name. Labels that would share a name carry a letter.
    """
    alike: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for record in sorted(records, key=lambda each: each.label):
        words = _words(record)
        if not record.changes:
            names[record.label] = record.label
        elif record.label not in names:
            names[record.label] = ", ".join([record.method, *words])
            alike.setdefault(names[record.label], []).append(record.label)
    for name, labels in alike.items():
        # Without a word for what was changed the name would be that of the recommended settings.
        if len(labels) > 1 or "," not in name:
            names |= {label: f"{name} {_letter(number)}" for number, label in enumerate(labels)}
    return names


def _words(record: Record) -> list[str]:
    changed = {key.rsplit(".", 1)[-1]: value for key, value in record.changes.items()}
    words = []
    if changed.get("average"):
        words.append("averaged")
    elif "kind" in changed:
        words.append(str(changed["kind"]))
    if "epochs" in changed:
        words.append(f"{changed['epochs']} epochs")
    budget = changed.get("budget")
    if isinstance(budget, float):
        words.append(f"{100 * budget:g} %")
    if record.resolution:
        words.append("smaller images first")
    if changed.get("nesterov"):
        words.append("Nesterov")
    if changed.get("mirror") == "alternate":
        words.append("alternating flips")
    return words


def _letter(number: int) -> str:
    rounds, place = divmod(number, len(ascii_lowercase))
    return f"{ascii_lowercase[place]}{rounds or ''}"
