"""Writes docs/paper.md from results/; a test compares what `page` gives with what is committed."""

import sys
from pathlib import Path

from calibrant.files import write_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `paper` is not part of the installed package

from paper.claims_page import claims_page

TARGET = ROOT / "docs" / "paper.md"


def page() -> str:
    return claims_page(ROOT / "results")


if __name__ == "__main__":
    write_text(TARGET, page())
    print(f"wrote {TARGET.relative_to(ROOT)}")
