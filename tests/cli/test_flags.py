"""Flags are alike everywhere: one name, one kind of value; every result goes to --out, and machines get --json."""

from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

import pytest

from calibrant.cli import _COMMANDS, app

# Words of the field that two commands need: a column of weights, and a file with those of a network.
_TWO_MEANINGS = {"--weights"}


def _commands():
    for name in _COMMANDS:
        found = {name: app[name], **{f"{name} {sub}": app[name][sub] for sub in app[name] if sub[0] != "-"}}
        yield from ((full, each) for full, each in found.items() if each.default_command is not None)


def _value(hint):
    """What one value of the flag is: whether it may be left out or repeated does not matter."""
    if get_origin(hint) is Literal:
        return str
    inner = [each for each in get_args(hint) if each not in (NoneType, Ellipsis)]
    return _value(inner[0]) if inner else hint


ARGUMENTS = [
    (name, each)
    for name, command in _commands()
    for each in command.assemble_argument_collection()
    if any(flag.startswith("--") for flag in each.names)
]


def test_a_flag_takes_the_same_kind_of_value_in_every_command():
    kinds = {}
    for command, argument in ARGUMENTS:
        for flag in argument.names:
            kinds.setdefault(flag, {}).setdefault(_value(argument.hint), []).append(command)
    unlike = {flag: found for flag, found in kinds.items() if len(found) > 1 and flag not in _TWO_MEANINGS}
    # `compare --page` is a switch; `monitor --page` is an old name of its --out.
    assert unlike.pop("--page") == {bool: ["compare"], Path: ["monitor"]}
    assert unlike == {}


def test_flags_that_shared_declarations_explain_are_explained_alike():
    told = {}
    for command, argument in ARGUMENTS:
        if argument.parameter.help:
            told.setdefault(argument.names[0], {}).setdefault(argument.parameter.help, []).append(command)
    assert {flag: found for flag, found in told.items() if len(found) > 1} == {}


def test_no_list_has_a_flag_that_empties_it():
    assert [flag for _, argument in ARGUMENTS for flag in argument.names if flag.startswith("--empty")] == []


@pytest.mark.parametrize("name", [name for name, _ in _commands()])
def test_results_go_to_out_and_machines_get_json(name):
    flags = {flag for command, argument in ARGUMENTS if command == name for flag in argument.names}
    assert ("--out" in flags) == ("-o" in flags)
    # demo and serve talk to a person or over HTTP; fetch prints one path per line.
    assert "--json" in flags or name in {"demo", "serve", "data fetch"}
