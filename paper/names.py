"""Short names for the rows of tables: what was changed is said in a word or a letter, and in full in a legend."""

from collections.abc import Iterable
from string import ascii_lowercase

from calibrant.studies import Record


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
    return words


def _letter(number: int) -> str:
    rounds, place = divmod(number, len(ascii_lowercase))
    return ascii_lowercase[place] + (str(rounds) if rounds else "")
