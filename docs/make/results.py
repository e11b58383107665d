"""Writes docs/results.md, docs/all-results.{csv,html} and the findings of the README from results/.

A test checks that the committed files are up to date.
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
    """Return the text of every file that is written from results/, by path."""
    readme = (ROOT / "README.md").read_text()
    assert _FINDINGS.search(readme), "README.md must have the comments that mark its findings"
    return {
        DOCS / "results.md": results_page(RESULTS),
        DOCS / "all-results.csv": all_results_csv(RESULTS),
        DOCS / "all-results.html": all_results_page(RESULTS),
        ROOT / "README.md": _FINDINGS.sub(lambda match: match[1] + readme_findings(RESULTS) + match[2], readme),
    }


if __name__ == "__main__":
    for path, text in written().items():
        write_text(path, text)
        print(f"wrote {path.relative_to(ROOT)}")
