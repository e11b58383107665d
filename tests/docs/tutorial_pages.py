"""Runs a page of the tutorial as its reader would: every block in order, in an empty folder."""

import contextlib
import doctest
import io
import shlex
from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

PAGES = Path(__file__).parents[2] / "docs" / "tutorial"
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_command(line):
    """What `calibrant ...` prints; it has to end well."""
    from calibrant.cli import run

    name, *arguments = shlex.split(line)
    assert name == "calibrant", line
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    assert code == 0, f"{line} ends with {code}: {err.getvalue()}"
    return out.getvalue()


def _console(example):
    """A command after a dollar sign, and below it what it prints; three dots stand for anything."""
    first, *expected = example.parsed.rstrip().split("\n")
    assert first.startswith("$ "), first
    printed = run_command(first[2:])
    if not doctest.OutputChecker().check_output("\n".join(expected), printed, _SAME):
        raise AssertionError(f"{first}\nprints\n{printed}\nand not\n" + "\n".join(expected))


def run_page(path):
    """Run the blocks; gives how many there were and what the Python ones left."""
    parsers = [PythonCodeBlockParser(), CodeBlockParser(language="console", evaluator=_console)]
    document = Sybil(parsers=parsers, path=str(PAGES)).parse(path)
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples), document.namespace
