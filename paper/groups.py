"""Records by data set, network and method."""

from collections.abc import Mapping, Sequence

from calibrant.studies import Record

Place = tuple[str, str]
Groups = Mapping[Place, Mapping[str, list[Record]]]


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
