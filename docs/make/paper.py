"""Writes docs/paper.md and docs/paper-tables.md from results/; a test compares them with what is committed."""

import sys
from pathlib import Path

from calibrant.files import write_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `paper` is not part of the installed package

from paper.paper_page import paper_page
from paper.tables_page import tables_page


def written():
    """Path to text for both pages."""
    return {
        ROOT / "docs" / "paper.md": paper_page(ROOT / "results"),
        ROOT / "docs" / "paper-tables.md": tables_page(ROOT / "results"),
    }


if __name__ == "__main__":
    for path, text in written().items():
        write_text(path, text)
        print(f"wrote {path.relative_to(ROOT)}")
