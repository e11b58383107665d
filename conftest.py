"""Runs the Python blocks of README.md, CONTRIBUTING.md and docs/ as tests: what we print there works."""

import os
from importlib.util import find_spec
from unittest import SkipTest

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

_PAGES = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/**/*.md"],
    excludes=["docs/tutorial/*.md"],  # tests/docs/test_tutorial.py runs its commands, too
)
_PEERS = ("mapie", "netcal", "relplot", "betacal", "probmetrics", "calibration")
# A program for the environment of a generated client, not for this one.
collect_ignore = ["tests/deployment/generated_client.py"]
# Its modules import what only the extra docs brings.
if not find_spec("mkdocs"):
    collect_ignore.append("docs/theme")


def pytest_collect_file(file_path, parent):  # noqa: ANN001, ANN201 (pytest's)
    """One test per page."""
    return _PageFile.from_parent(parent, path=file_path) if _PAGES.should_parse(file_path) else None


class _PageFile(pytest.File):
    def collect(self):  # noqa: ANN202 (pytest's)
        blocks = list(_PAGES.parse(self.path).examples())
        if blocks:
            yield _Page.from_parent(self, name="blocks", blocks=blocks)


class _Page(pytest.Item):
    """All blocks of a page in order: they build on each other, and pytest -n gives single tests to any process."""

    def __init__(self, *, blocks, **options) -> None:  # noqa: ANN001, ANN003 (pytest's)
        super().__init__(**options)
        self.blocks = blocks

    def runtest(self) -> None:
        for block in self.blocks:
            try:
                block.evaluate()
            except SkipTest:
                continue
            except ModuleNotFoundError as error:
                if error.name not in _PEERS or os.environ.get("CALIBRANT_REQUIRE_ALL"):
                    raise
                pytest.skip(f"{error.name} is not installed; it comes with the extra peers")
            except Exception as error:
                error.add_note(f"in the block at line {block.line} of {self.path}")
                raise
