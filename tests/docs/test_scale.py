"""The tables of docs/scale.md are those that its script makes of what was measured."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tables_are_up_to_date():
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert runpy.run_path(ROOT / "docs" / "make" / "scale.py")["filled"](page) == page
