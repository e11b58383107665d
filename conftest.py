"""Runs the Python blocks of the README and of docs/ as tests: what we print there works."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    excludes=["docs/tutorial/*.md"],  # tests/docs/test_tutorial.py runs its commands, too
).pytest()
