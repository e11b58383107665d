"""Writes docs/results.md, docs/all-results.{csv,html} and the findings of the README from results/.

A test compares what these functions give with what is committed.
"""

import re
import sys
from pathlib import Path

from calibrant.files import write_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `paper` is not part of the installed package

from paper.all_results import all_results_csv, all_results_page
from paper.results_page import readme_findings, results_page

DOCS, RESULTS = ROOT / "docs", ROOT / "results"
_FINDINGS = re.compile(r"(?s)(<!-- findings: .*? -->\n).*?(<!-- end of findings -->)")


def written():
    """Path to text for every file that follows from results/."""
    readme = (ROOT / "README.md").read_text()
    assert _FINDINGS.search(readme), "README.md has lost the marks between which its findings stand"
    return {
        DOCS / "results.md": results_page(RESULTS),
        DOCS / "all-results.csv": all_results_csv(RESULTS),
        DOCS / "all-results.html": all_results_page(RESULTS),
        ROOT / "README.md": _FINDINGS.sub(lambda found: found[1] + readme_findings(RESULTS) + found[2], readme),
    }


if __name__ == "__main__":
    for path, text in written().items():
        write_text(path, text)
        print(f"wrote {path.relative_to(ROOT)}")
