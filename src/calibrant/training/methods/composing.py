"""Names compose: `LOSS[+TERM...][+PLAN]`, each part from the table or `module:name`, your own.

    calibrant compare --methods nll brier+unbiased ls+h+random mine:Hinge+mine:MyPlan ...

A row of the table keeps its own settings, also at the beginning of a longer name: `fl+mdca+unbiased` has the gamma of
`fl+mdca`.
"""

from collections.abc import Sequence

from calibrant.errors import did_you_mean, invalid
from calibrant.losses import Loss
from calibrant.own_code import own_parts
from calibrant.pruning import PruningPolicy
from calibrant.training.methods.own import own_addition, own_loss
from calibrant.training.methods.plan import Blueprint, Part
from calibrant.training.methods.table import ADDED, PRUNING, TERMS, from_row, is_plain, names

_FORM = "A name is LOSS[+TERM...][+PLAN], for example brier+h+unbiased."


def find(name: str) -> Blueprint:
    """The row of that name, or what its parts compose."""
    if name in names():
        return from_row(name)
    begin, additions = _beginning(name, name.split("+"))
    terms: list[Part[Loss]] = list(begin.terms)
    plans: list[Part[PruningPolicy]] = []
    for addition in additions:
        term, plan = _addition(name, addition)
        if plan is not None:
            plans.append(plan)
        elif plans:
            raise invalid("method", "end with its plan", repr(name), _FORM)
        elif term is not None:
            if term.text in [known.text for known in terms]:
                raise invalid("method", f"add {addition} once", repr(name), _FORM)
            terms.append(term)
    if len(plans) > 1:
        raise invalid("method", "have one plan at most", repr(name), _FORM)
    modules = dict.fromkeys(part.partition(":")[0] for part in own_parts(name))
    source = f"your own {', '.join(modules)}" if modules else f"composed; loss: {begin.source}"
    blueprint = Blueprint(tuple(terms), plans[0] if plans else None, source, begin.differs)
    _refuse_shared_settings(blueprint)
    return blueprint


def without_plan(name: str) -> str | None:
    """The same method on all samples; None where it has no plan.

    >>> without_plan("brier+h+unbiased"), without_plan("brier+h")
    ('brier+h', None)
    """
    # A plan is always the last part.
    return None if find(name).pruning is None else name.rpartition("+")[0]


def _beginning(name: str, parts: Sequence[str]) -> tuple[Blueprint, Sequence[str]]:
    """The loss that a name begins with, your own or the longest row without a plan; and the parts after it."""
    if ":" in parts[0]:
        return Blueprint((own_loss(parts[0]),), None, ""), parts[1:]
    for count in range(len(parts), 0, -1):
        row = "+".join(parts[:count])
        if is_plain(row):
            return from_row(row), parts[count:]
    if parts[0] in (*ADDED, *PRUNING):
        raise invalid("method", "begin with a loss", repr(name), _FORM)
    raise invalid("method", "be one of the known methods", repr(name), did_you_mean(name, [*names(), "module:name"]))


def _addition(name: str, addition: str) -> tuple[Part[Loss] | None, Part[PruningPolicy] | None]:
    """A term, or a plan: one of the two is None."""
    if ":" in addition:
        return own_addition(addition)
    if addition in ADDED:
        return TERMS[ADDED[addition]], None
    if addition in PRUNING:
        return None, PRUNING[addition]
    if is_plain(addition):
        raise invalid("method", "have one loss, at the beginning", repr(name), _FORM)
    known = [*ADDED, *PRUNING, "module:name"]
    raise invalid(f"what is added in {name}", "be known", repr(addition), did_you_mean(addition, known))


def _refuse_shared_settings(blueprint: Blueprint) -> None:
    """Refuse two parts that have a setting of the same name: one value cannot be meant for both."""
    owner: dict[str, str] = {}
    for part in blueprint.parts:
        for key in part.settings:
            if key in owner:
                found = f"one of {owner[key]} and one of {part.text}"
                raise invalid(f"setting {key!r}", "belong to one part of the method", found, "Rename yours.")
            owner[key] = part.text
